use std::net::UdpSocket;
use std::num::NonZeroU8;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use quinn::{ClientConfig, Connection, ConnectionError, ConnectionIdGenerator, Incoming};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::*;
use crate::tls::Trust;

pub(super) const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub(super) const IDLE: Duration = Duration::from_secs(20);
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that a client gets before and after its address changes.
const HALF: usize = 48 << 10;

pub(super) fn config(sockets: u8) -> Config {
    Config {
        listen: vec![HERE],
        sockets: Sockets::Count(NonZeroU8::new(sockets).unwrap()),
        ..Config::default()
    }
}

pub(super) fn identity(directory: &Path) -> ServerIdentity {
    ServerIdentity::open(&tls::Config {
        directory: Some(directory.to_owned()),
        ..tls::Config::default()
    })
    .unwrap()
}

pub(super) fn client_config(identity: &ServerIdentity) -> ClientConfig {
    let tls = tls::client_config(&Trust::Fingerprint(identity.fingerprint()), None).unwrap();
    ClientConfig::new(Arc::new(tls))
}

pub(super) fn client() -> Endpoint {
    Endpoint::client(HERE).unwrap()
}

async fn connect(client: &Endpoint, config: &ClientConfig, server: SocketAddr) -> Connection {
    let connecting = client.connect_with(config.clone(), server, "localhost");
    timeout(PATIENCE, connecting.unwrap())
        .await
        .unwrap()
        .unwrap()
}

/// Accepts clients, and sends [`HALF`] bytes for each octet that one of them sends.
fn serve(endpoint: Endpoint, accepted: Arc<AtomicUsize>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            accepted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let connection = incoming.await.unwrap();
                let (mut send, mut receive) = connection.accept_bi().await.unwrap();
                let mut question = [0];
                while receive.read_exact(&mut question).await.is_ok() {
                    send.write_all(&[question[0]; HALF]).await.unwrap();
                }
                connection.closed().await;
            });
        }
    })
}

/// What a server answers to this octet.
async fn ask(streams: &mut (quinn::SendStream, quinn::RecvStream), question: u8) {
    let mut answer = vec![0; HALF];
    streams.0.write_all(&[question]).await.unwrap();
    timeout(PATIENCE, streams.1.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.iter().all(|octet| *octet == question));
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_with_their_worker_when_clients_move() {
    const CLIENTS: usize = 200;
    let place = TempDir::new().unwrap();
    let identity = identity(place.path());
    let listener = open(&config(4), IDLE, &identity).unwrap().remove(0);
    let accepted: Vec<Arc<AtomicUsize>> = listener
        .endpoints
        .iter()
        .map(|endpoint| {
            let count = Arc::default();
            serve(endpoint.clone(), Arc::clone(&count));
            count
        })
        .collect();
    assert_eq!(accepted.len(), 4);
    let (config, address) = (client_config(&identity), listener.address);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let config = config.clone();
        clients.spawn(async move {
            let client = client();
            let connection = connect(&client, &config, address).await;
            let mut streams = connection.open_bi().await.unwrap();
            ask(&mut streams, 1).await;
            for question in 2..5 {
                let before = client.local_addr().unwrap();
                client.rebind(UdpSocket::bind(HERE).unwrap()).unwrap();
                assert_ne!(client.local_addr().unwrap(), before);
                ask(&mut streams, question).await;
            }
            connection.close(0u32.into(), b"");
            client.wait_idle().await;
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let counts: Vec<usize> = accepted
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect();
    // No client was taken for a new one. A quarter is 50, with a standard deviation of 6.
    assert_eq!(counts.iter().sum::<usize>(), CLIENTS, "{counts:?}");
    assert!(
        counts.iter().all(|count| (20..=80).contains(count)),
        "{counts:?}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_server_cannot_join_the_sockets_of_an_address() {
    for sockets in [1, 4] {
        let held = sockets::open(&config(sockets), 1, HERE, steering::attach).unwrap();
        assert_eq!(held.len(), usize::from(sockets));
        let address = held[0].local_addr().unwrap();
        assert!(
            held.iter()
                .all(|socket| socket.local_addr().unwrap() == address)
        );
        let error = sockets::open(&config(sockets), 1, address, steering::attach).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn where_the_program_is_refused_one_socket_stays_and_nobody_joins_it() {
    let refuse: sockets::Attach = |_, _| Err(io::ErrorKind::PermissionDenied.into());
    let held = sockets::open(&config(4), 1, HERE, refuse).unwrap();
    assert_eq!(held.len(), 1);
    let address = held[0].local_addr().unwrap();
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    other.set_reuse_port(true).unwrap();
    assert_eq!(
        other.bind(&address.into()).unwrap_err().kind(),
        io::ErrorKind::AddrInUse
    );
    // It still receives.
    let sender = UdpSocket::bind(HERE).unwrap();
    sender.send_to(b"packet", address).unwrap();
    held[0].set_nonblocking(false).unwrap();
    held[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(held[0].recv(&mut [0; 16]).unwrap(), 6);
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_of_ours_is_one_that_the_kernel_takes() {
    for sockets in [2, 3, 16, 64] {
        assert_eq!(
            sockets::open(&config(sockets), 1, HERE, steering::attach)
                .unwrap()
                .len(),
            usize::from(sockets)
        );
    }
}

/// A packet for a connection that nobody knows gets the reset that its client would accept,
/// whichever process and worker the connection belonged to.
#[tokio::test(flavor = "multi_thread")]
async fn every_worker_resets_connections_of_the_others() {
    let place = TempDir::new().unwrap();
    let identity = identity(place.path());
    let listener = open(&config(4), IDLE, &identity).unwrap().remove(0);
    let key = identity.reset_key(listener.address);
    let client = tokio::net::UdpSocket::bind(HERE).await.unwrap();
    for worker in 0..16 {
        let id = Owner { process: 7, worker }.generate_cid();
        let mut packet = vec![0x40];
        packet.extend(&id[..]);
        packet.resize(100, 0x5a);
        client.send_to(&packet, listener.address).await.unwrap();
        let mut reset = [0; 100];
        let length = timeout(PATIENCE, client.recv(&mut reset))
            .await
            .unwrap()
            .unwrap();
        let expected = ring::hmac::sign(&key, &id);
        assert_eq!(reset[length - 16..length], expected.as_ref()[..16]);
        // One worker may have to answer twice in a row.
        tokio::time::sleep(4 * RESET_INTERVAL_MIN).await;
    }
}

/// The server stops without a word, and comes back with fewer workers.
#[test]
fn clients_of_a_server_that_crashed_are_reset() {
    let place = TempDir::new().unwrap();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (clients, second) = (runtime(), runtime());
    let identity = identity(place.path());
    let (tell, told) = std::sync::mpsc::channel();
    let opened = identity.clone();
    let first = Process::start(move || {
        let listener = open_here(&config(4), IDLE, &opened).unwrap().remove(0);
        tell.send(listener.address).unwrap();
        listener.endpoints
    });
    let address = told.recv().unwrap();
    let mut connections = clients.block_on(async {
        let (client, mut connections) = (client(), Vec::new());
        for _ in 0..12 {
            let connection = connect(&client, &client_config(&identity), address).await;
            let mut streams = connection.open_bi().await.unwrap();
            ask(&mut streams, 1).await;
            connections.push((connection, streams));
        }
        connections
    });
    first.kill();
    let _inside = second.enter();
    let again = Config {
        listen: vec![address],
        ..config(1)
    };
    let again = open_here(&again, IDLE, &self::identity(place.path())).unwrap();
    assert_eq!(again[0].address, address);
    clients.block_on(async {
        for (_, streams) in &mut connections {
            let _ = streams.0.write_all(&[2]).await;
        }
        for (connection, _) in &connections {
            let closed = timeout(PATIENCE, connection.closed()).await.unwrap();
            assert_eq!(closed, ConnectionError::Reset);
        }
    });
}

/// A server that ends without a word, as if its process were killed.
///
/// It has one thread: a runtime of several may poll the driver of a connection that another of its
/// threads has dropped, which sends a close.
struct Process {
    accepted: Arc<AtomicUsize>,
    kill: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Process {
    fn start(open: impl FnOnce() -> Vec<Endpoint> + Send + 'static) -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let accepted: Arc<AtomicUsize> = Arc::default();
        let counted = Arc::clone(&accepted);
        let (kill, killed) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                for endpoint in open() {
                    serve(endpoint, Arc::clone(&counted));
                }
                ready.send(()).unwrap();
                killed.await.unwrap();
            });
            // Nothing is polled any more.
            drop(runtime);
        });
        is_ready.recv().unwrap();
        Self {
            accepted,
            kill,
            thread,
        }
    }

    /// On its part of these sockets.
    #[cfg(target_os = "linux")]
    fn on(ports: &Arc<Ports>, config: &Config, identity: &ServerIdentity) -> Self {
        #[derive(Debug)]
        struct Open;
        impl Doorkeeper for Open {
            fn refuses(&self, _: Instant) -> Option<Duration> {
                None
            }
        }
        let (ports, identity) = (Arc::clone(ports), identity.clone());
        let config = Config {
            is_aside: true,
            ..config.clone()
        };
        Self::start(move || {
            let keeper = Arc::new(Open);
            let listeners = open_guarded(&config, &ports, IDLE, &identity, keeper, None);
            listeners.unwrap().remove(0).endpoints
        })
    }

    fn kill(self) {
        self.kill.send(()).unwrap();
        self.thread.join().unwrap();
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// What the next process gets of this one.
#[cfg(target_os = "linux")]
fn handed(ports: &Ports) -> Vec<Port> {
    let port = |port: &Port| {
        let sockets = port
            .sockets
            .iter()
            .map(|socket| socket.try_clone().unwrap());
        Port::handed(port.configured, sockets.collect())
    };
    ports.ports().iter().map(port).collect()
}

/// Several processes follow each other at one address, and each keeps its clients until it ends.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_process_takes_newcomers_while_the_one_before_it_ends() {
    for workers in [1, 3] {
        let place = TempDir::new().unwrap();
        let identity = identity(place.path());
        let config = config(workers);
        let mut ports = Arc::new(Ports::open(&config, true).unwrap());
        assert!(ports.may_be_replaced());
        let address = ports.ports()[0].sockets[0].local_addr().unwrap();
        let mut process = Process::on(&ports, &config, &identity);
        let mut known = 0;
        for round in 0..4 {
            let client = client();
            let mut before = Vec::new();
            for _ in 0..8 {
                let connection = connect(&client, &client_config(&identity), address).await;
                let mut streams = connection.open_bi().await.unwrap();
                ask(&mut streams, 1).await;
                before.push((connection, streams));
            }
            assert_eq!(process.accepted(), known + 8, "round {round}");
            let next = Ports::take(&config, handed(&ports), ports.next_process()).unwrap();
            let next = Arc::new(next);
            let next_process = Process::on(&next, &config, &identity);
            next.take_newcomers().unwrap();
            ports.note_replaced();
            // From one socket to both processes, and from another address.
            let after = connect(&client, &client_config(&identity), address).await;
            let mut after_streams = after.open_bi().await.unwrap();
            client.rebind(UdpSocket::bind(HERE).unwrap()).unwrap();
            for (_, streams) in &mut before {
                ask(streams, 2).await;
                ask(&mut after_streams, 3).await;
            }
            assert_eq!(process.accepted(), known + 8, "round {round}");
            assert_eq!(next_process.accepted(), 1, "round {round}");
            process.kill();
            next.stay_alone().unwrap();
            for (_, streams) in &mut before {
                let _ = streams.0.write_all(&[4]).await;
            }
            for (connection, _) in &before {
                let closed = timeout(PATIENCE, connection.closed()).await.unwrap();
                assert_eq!(closed, ConnectionError::Reset, "round {round}");
            }
            ask(&mut after_streams, 5).await;
            after.close(0u32.into(), b"");
            (ports, process, known) = (next, next_process, 1);
        }
        process.kill();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_takes_no_sockets_of_other_addresses() {
    let config = config(2);
    let ports = Ports::open(&config, true).unwrap();
    let other = Config {
        listen: vec![HERE, SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 0))],
        ..config.clone()
    };
    let refused = Ports::take(&other, handed(&ports), 1).unwrap_err();
    assert!(matches!(refused, NotTaken::Addresses { .. }), "{refused}");
    let mut odd = handed(&ports);
    odd[0].sockets.pop();
    let refused = Ports::take(&config, odd, 1).unwrap_err();
    assert!(matches!(refused, NotTaken::Parts(3)), "{refused}");
    assert!(!Ports::open(&config, false).unwrap().may_be_replaced());
    // The number of workers stays as it was.
    let wider = Config {
        sockets: self::config(5).sockets,
        ..config
    };
    let taken = Ports::take(&wider, handed(&ports), 1).unwrap();
    assert_eq!((taken.ports()[0].workers(), taken.next_process()), (2, 0));
}

/// Forwards a client's packets to one server until that has answered, and then to another.
async fn exchange(front: tokio::net::UdpSocket, first: SocketAddr, then: SocketAddr) {
    let back = tokio::net::UdpSocket::bind(HERE).await.unwrap();
    let (mut server, mut client) = (first, None);
    let (mut question, mut answer) = ([0; 2048], [0; 2048]);
    loop {
        tokio::select! {
            asked = front.recv_from(&mut question) => {
                let (length, from) = asked.unwrap();
                client = Some(from);
                back.send_to(&question[..length], server).await.unwrap();
            }
            answered = back.recv_from(&mut answer) => {
                let (length, _) = answered.unwrap();
                server = then;
                front.send_to(&answer[..length], client.unwrap()).await.unwrap();
            }
        }
    }
}

/// Two servers with one directory; each has a socket of its own, as workers have.
fn two_servers(place: &Path) -> [(Endpoint, SocketAddr); 2] {
    [(); 2].map(|()| {
        let mut listener = open(&config(1), IDLE, &identity(place)).unwrap().remove(0);
        (listener.endpoints.remove(0), listener.address)
    })
}

async fn next(endpoint: &Endpoint) -> Incoming {
    timeout(PATIENCE, endpoint.accept()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_token_of_one_worker_holds_at_another() {
    let place = TempDir::new().unwrap();
    let [(minting, first), (taking, then)] = two_servers(place.path());
    let front = tokio::net::UdpSocket::bind(HERE).await.unwrap();
    let address = front.local_addr().unwrap();
    tokio::spawn(exchange(front, first, then));
    let config = client_config(&identity(place.path()));
    let client = client();
    let connecting = tokio::spawn(async move {
        let connection = connect(&client, &config, address).await;
        (client, connection)
    });
    let incoming = next(&minting).await;
    assert!(!incoming.remote_address_validated());
    incoming.retry().unwrap();
    let incoming = next(&taking).await;
    assert!(incoming.remote_address_validated() && !incoming.may_retry());
    timeout(PATIENCE, incoming).await.unwrap().unwrap();
    connecting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_later_holds_at_another_worker_once() {
    let place = TempDir::new().unwrap();
    let [(minting, first), (taking, then)] = two_servers(place.path());
    let store = Arc::new(Tokens::default());
    let mut config = client_config(&identity(place.path()));
    config.token_store(Arc::clone(&store) as Arc<dyn quinn::TokenStore>);
    let client = client();
    let come = async |server, endpoint: &Endpoint| {
        let connecting = client
            .connect_with(config.clone(), server, "localhost")
            .unwrap();
        let incoming = next(endpoint).await;
        let is_validated = incoming.remote_address_validated();
        let (here, there) = tokio::join!(incoming, connecting);
        (is_validated, here.unwrap(), there.unwrap())
    };
    // A connection that ends at once may take its token along.
    let (is_validated, _here, _there) = come(first, &minting).await;
    assert!(!is_validated);
    let token = timeout(PATIENCE, async {
        loop {
            if let Some(token) = store.0.lock().unwrap().pop() {
                break token;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    for expected in [true, false] {
        *store.0.lock().unwrap() = vec![token.clone()];
        let (is_validated, ..) = come(then, &taking).await;
        assert_eq!(is_validated, expected);
    }
}

#[test]
fn tokens_of_the_process_before_are_taken_once_in_any_order() {
    let log = token_log();
    let begun = SystemTime::now();
    let ages = [3, 5, 1, 13 * 24 * 3600, 2].map(Duration::from_secs);
    for time in 0..3 {
        for (nonce, age) in (1..).zip(ages) {
            let is_new = log.check_and_insert(nonce, begun - age, TOKEN_LIFETIME);
            assert_eq!(is_new.is_ok(), time == 0, "{age:?}");
        }
    }
}

/// The tokens that a client has been given.
#[derive(Default)]
struct Tokens(std::sync::Mutex<Vec<bytes::Bytes>>);

impl quinn::TokenStore for Tokens {
    fn insert(&self, _: &str, token: bytes::Bytes) {
        self.0.lock().unwrap().push(token);
    }

    fn take(&self, _: &str) -> Option<bytes::Bytes> {
        self.0.lock().unwrap().pop()
    }
}

#[test]
fn the_number_of_sockets_has_bounds() {
    assert_eq!("3".parse::<Sockets>().unwrap().count(), 3);
    assert!((1..=16).contains(&"auto".parse::<Sockets>().unwrap().count()));
    for wrong in ["0", "65", "-1", "many", ""] {
        assert!(wrong.parse::<Sockets>().is_err(), "{wrong}");
    }
}

#[test]
fn the_limit_on_connections_is_a_number_or_auto() {
    assert_eq!("auto".parse(), Ok(Connections::Auto));
    assert_eq!("70000".parse(), Ok(Connections::at_most(70_000)));
    assert_eq!(Connections::at_most(70_000).limit(), 70_000);
    for wrong in ["0", "-1", "4294967296", "many", ""] {
        let error = wrong.parse::<Connections>().unwrap_err().to_string();
        assert!(error.contains("\"auto\" or a number"), "{wrong}: {error}");
    }
    for text in ["auto", "7"] {
        let config: Config = toml::from_str(&match text {
            "auto" => "connections_max = \"auto\"".to_owned(),
            _ => format!("connections_max = {text}"),
        })
        .unwrap();
        assert_eq!(config.connections_max.to_string(), text);
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&printed).unwrap(), config);
    }
}
