//! A process takes the place of the one that serves, under viewers who play: real programs, real
//! sockets.

#[path = "program/mod.rs"]
mod program;

use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::endpoint::{self, Port, Ports, Sockets};
use ncserverd::peer::{self, Client};
use ncserverd::tls::Trust;
use nctest::fleet::free_address;
use nctest::live;
use nctest::origin::Origin;
use nctest::program::{PATIENCE, Program, metric, serve};
use program::program;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tempfile::TempDir;
use tokio::sync::watch;

const SEGMENTS: u32 = 30;
const SEGMENT_BYTES: usize = 60_000;
/// What a player holds ready, and how long it plays a segment.
const HOLDS: Duration = Duration::from_secs(4);
const LASTS: Duration = Duration::from_secs(1);

fn segment(number: u32) -> Vec<u8> {
    live::segment(number.into(), SEGMENT_BYTES)
}

async fn origin() -> Origin {
    let origin = Origin::start().await;
    for number in 0..SEGMENTS {
        origin.put(&format!("/{number}.ts"), segment(number));
    }
    origin
}

/// A server that is upgraded: the process that serves, and the command that starts the next one.
struct Server {
    program: Program,
    metrics: SocketAddr,
    server: peer::Server,
    command: Command,
    state: TempDir,
}

impl Server {
    fn start(origin: &Origin, further: &[String]) -> Self {
        let (state, address) = (TempDir::new().unwrap(), free_address());
        let mut command = serve(&program("ncserverd"), &address.to_string(), state.path());
        command.args(["--origin", &format!("live={}", origin.url("/"))]);
        let settings = [
            format!(
                "server.handover={}",
                state.path().join("handover").display()
            ),
            "server.drain_timeout=30s".to_owned(),
            // All viewers have one address.
            "admission.address_connections_max=10000".to_owned(),
        ];
        let settings = settings.iter().chain(further);
        command.args(settings.flat_map(|setting| ["--set", setting]));
        let program = Program::start(&mut command);
        let (metrics, fingerprint) = said(&program);
        let server = format!("ncs://{address}#{fingerprint}").parse().unwrap();
        Self {
            program,
            metrics,
            server,
            command,
            state,
        }
    }

    /// Starts a process that takes over, and waits until the one before has ended.
    fn upgrade(&mut self) {
        let next = Program::start(&mut self.command);
        let (metrics, fingerprint) = said(&next);
        // The same certificate, and the same socket of HTTP.
        assert_eq!(metrics, self.metrics);
        assert!(self.server.to_string().ends_with(&fingerprint));
        let before = std::mem::replace(&mut self.program, next);
        await_end(before);
        self.program.says(["the process before has ended"]);
    }

    fn number(&self, name: &str) -> f64 {
        metric(self.metrics, name).unwrap_or(0.0)
    }
}

/// Where the metrics are, and the fingerprint of the certificate.
fn said(program: &Program) -> (SocketAddr, String) {
    let [metrics] = program.says(["metrics on http://"]);
    let [fingerprint] = program.says(["--fingerprint "]);
    let metrics = metrics.trim_end_matches("/metrics").parse().unwrap();
    (metrics, fingerprint)
}

/// The process ends by itself, and well.
fn await_end(mut program: Program) {
    let status = end_of(&mut program);
    assert!(status.success(), "{status}: {}", program.said());
}

fn end_of(program: &mut Program) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = program.has_ended() {
            return status;
        }
        assert!(Instant::now() < end, "{}", program.said());
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn client(server: &Server) -> Client {
    // What comes again has to be fetched again.
    let config = peer::Config {
        cache: ByteSize(0),
        ..peer::Config::new(server.server.clone(), Trust::System)
    };
    Client::connect(config).await.unwrap()
}

async fn fetch(client: &Client, number: u32) {
    let path = format!("/live/{}.ts", number % SEGMENTS);
    let read = async {
        let mut object = client.open(&path, None).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = object.next().await {
            bytes.extend_from_slice(&piece?);
        }
        Ok::<_, peer::Error>(bytes)
    };
    let bytes = tokio::time::timeout(PATIENCE, read).await;
    let bytes = bytes.unwrap_or_else(|_| panic!("{path} does not come"));
    assert!(bytes.unwrap() == segment(number % SEGMENTS), "{path}");
}

/// Viewers who play until they are told to stop.
struct Audience {
    playing: Vec<tokio::task::JoinHandle<(u32, Duration)>>,
    stop: watch::Sender<bool>,
}

impl Audience {
    async fn of(count: usize, server: &Server) -> Self {
        let stop = watch::Sender::new(false);
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(client(server).await);
        }
        let begun = Instant::now();
        let playing = clients.into_iter().enumerate().map(|(index, client)| {
            let stopped = stop.subscribe();
            // Not all at the same instant.
            let offset = LASTS.mul_f64(index as f64 / count as f64);
            tokio::spawn(async move {
                let (mut played, mut least) = (0, HOLDS);
                while !*stopped.borrow() {
                    let shown_at = begun + offset + HOLDS + LASTS * played;
                    tokio::time::sleep_until((shown_at - HOLDS).into()).await;
                    fetch(&client, played).await;
                    let spare = shown_at.checked_duration_since(Instant::now());
                    least = least.min(spare.unwrap_or_else(|| panic!("segment {played} is late")));
                    played += 1;
                }
                (played, least)
            })
        });
        Self {
            playing: playing.collect(),
            stop: stop.clone(),
        }
    }

    /// The segments played, and the least time that a player had left.
    async fn stop(self) -> (u32, Duration) {
        self.stop.send_replace(true);
        let (mut played, mut least) = (0, HOLDS);
        for viewer in self.playing {
            let (segments, spare) = viewer.await.unwrap();
            (played, least) = (played + segments, least.min(spare));
        }
        (played, least)
    }
}

fn from_environment(name: &str, otherwise: u32) -> u32 {
    std::env::var(name).map_or(otherwise, |count| count.parse().unwrap())
}

/// Twelve viewers and three upgrades, or as many as `NCTEST_VIEWERS` and `NCTEST_UPGRADES` say. The
/// origin is asked once for each segment, whatever the number of processes.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_follow_a_server_from_process_to_process_and_none_is_late() {
    let viewers = from_environment("NCTEST_VIEWERS", 12);
    let upgrades = from_environment("NCTEST_UPGRADES", 3);
    let origin = origin().await;
    let mut server = Server::start(&origin, &[]);
    // All that is played later is held now.
    let first = client(&server).await;
    for number in 0..SEGMENTS {
        fetch(&first, number).await;
    }
    drop(first);
    let asked = origin.asked_in_all();
    let audience = Audience::of(usize::try_from(viewers).unwrap(), &server).await;
    for _ in 0..upgrades {
        tokio::time::sleep(2 * LASTS).await;
        tokio::task::block_in_place(|| server.upgrade());
        let end = Instant::now() + PATIENCE;
        while server.number("ncserverd_session_open_sessions") != f64::from(viewers) {
            assert!(Instant::now() < end, "{}", server.program.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    tokio::time::sleep(2 * LASTS).await;
    let (played, least) = audience.stop().await;
    assert_eq!(origin.asked_in_all(), asked);
    println!(
        "{viewers} viewers, {upgrades} upgrades, {played} segments, none late: {least:?} of \
         {HOLDS:?} to spare"
    );
}

/// What a next process says first, and a message to the process that serves.
const HELLO: &str = r#"{"hello":{"form":1,"version":"0.1.0"}}"#;
fn message(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap();
    [&length.to_le_bytes()[..], text.as_bytes()].concat()
}

/// Whatever happens to the next process before it serves, the one that serves goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_take_over_changes_nothing() {
    let origin = origin().await;
    let mut server = Server::start(&origin, &[]);
    let audience = Audience::of(3, &server).await;
    let fails = |further: &[&str], says: &str| {
        let mut command = Command::new(server.command.get_program());
        command.args(server.command.get_args());
        for (name, value) in server.command.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.args(further.iter().flat_map(|setting| ["--set", setting]));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = said + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(says), "{said}");
    };
    tokio::task::block_in_place(|| {
        let other = free_address();
        fails(
            &[&format!("endpoint.listen={other}")],
            "and `endpoint.listen` says",
        );
        let other = format!("telemetry.listen={}", server.metrics);
        fails(&[&other], "in use");
    });
    // One that dies before it serves, or is none of ours.
    let path = server.state.path().join("handover");
    let hello = message(HELLO);
    let more = message(r#""more""#);
    for said in [
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        u32::MAX.to_le_bytes().to_vec(),
        message(r#"{"hello":{"form":2,"version":"9.0.0"}}"#),
        more.clone(),
        hello.clone(),
        [&hello[..], &more].concat(),
        [&hello[..], &more, &hello].concat(),
        [&hello[..], &more, b"\x05\0\0\0\"seri"].concat(),
    ] {
        let mut next = UnixStream::connect(&path).unwrap();
        next.write_all(&said).unwrap();
        // What it answers is not read to the end.
        next.set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let _ = next.read(&mut [0; 16]);
    }
    assert!(server.program.has_ended().is_none());
    tokio::time::sleep(LASTS).await;
    tokio::task::block_in_place(|| server.upgrade());
    audience.stop().await;
}

/// The second one waits for the first, or takes the place of it.
#[tokio::test(flavor = "multi_thread")]
async fn two_next_processes_at_once_follow_each_other() {
    let origin = origin().await;
    let mut server = Server::start(&origin, &[]);
    let mut nexts = [(); 2].map(|()| Program::start(&mut server.command));
    nexts.iter().for_each(|next| drop(said(next)));
    // The one that was first ends.
    let end = Instant::now() + PATIENCE;
    while nexts.iter_mut().all(|next| next.has_ended().is_none()) {
        assert!(Instant::now() < end, "one of them ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    await_end(server.program);
    let [mut one, other] = nexts;
    server.program = if one.has_ended().is_some() {
        other
    } else {
        one
    };
    fetch(&client(&server).await, 0).await;
}

/// What the process that serves hands over with a message, and the message.
fn receive(from: &mut UnixStream) -> (serde_json::Value, Vec<UdpSocket>) {
    let (mut first, mut space) = ([0], [MaybeUninit::uninit(); 1024]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(&mut first)];
    recvmsg(&*from, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let files = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    let files = files.map(UdpSocket::from).collect();
    let mut length = [first[0], 0, 0, 0];
    from.read_exact(&mut length[1..]).unwrap();
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut message).unwrap();
    (serde_json::from_slice(&message).unwrap(), files)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_can_never_take_over_ends_for_good_and_the_other_goes_on() {
    let origin = origin().await;
    let mut server = Server::start(&origin, &[]);
    server.program.says(["started"]);
    server
        .command
        .args(["--listen", &free_address().to_string()]);
    let mut next = Program::start(&mut server.command);
    next.says(["`endpoint.listen` says"]);
    let code = end_of(&mut next).code();
    assert_eq!(code, Some(3), "a service manager does not try again");
    fetch(&client(&server).await, 0).await;
    // Neither can one of a version that takes over in another way.
    let path = server.state.path().join("handover");
    let mut newer = UnixStream::connect(&path).unwrap();
    let hello = message(r#"{"hello":{"form":2,"version":"9.0.0"}}"#);
    newer.write_all(&hello).unwrap();
    let (answer, _) = receive(&mut newer);
    let reason = answer["unable"].as_str().unwrap().to_owned();
    assert!(reason.contains("stop it first"), "{answer}");
    server.program.signal("TERM");
    await_end(server.program);
    let _ = std::fs::remove_file(&path);
    let serving = UnixListener::bind(&path).unwrap();
    let mut next = Program::start(&mut server.command);
    let (mut older, _) = serving.accept().unwrap();
    assert!(receive(&mut older).0["hello"].is_object());
    let answer = serde_json::json!({ "unable": reason });
    older.write_all(&message(&answer.to_string())).unwrap();
    next.says(["cannot hand over: its version does so in another way"]);
    assert_eq!(end_of(&mut next).code(), Some(3));
}

/// Its program gives newcomers to sockets that nobody reads any more.
#[tokio::test(flavor = "multi_thread")]
async fn newcomers_come_back_when_the_next_process_dies_before_it_serves() {
    let origin = origin().await;
    let server = Server::start(&origin, &[]);
    server.program.says(["started"]);
    let mut next = UnixStream::connect(server.state.path().join("handover")).unwrap();
    next.write_all(&message(HELLO)).unwrap();
    let (mut ports, mut listen) = (Vec::new(), Vec::new());
    let process = loop {
        let (message, sockets) = receive(&mut next);
        if let Some(address) = message["port"].as_str() {
            let address = address.parse().unwrap();
            listen.push(address);
            ports.push(Port::handed(address, sockets));
        }
        if let Some(process) = message["welcome"]["process"].as_u64() {
            break u8::try_from(process).unwrap();
        }
    };
    // Half of them are those of the process that serves.
    let sockets = u8::try_from(ports[0].sockets.len() / 2).unwrap();
    let config = endpoint::Config {
        listen,
        sockets: Sockets::Count(sockets.try_into().unwrap()),
        ..endpoint::Config::default()
    };
    let taken = Ports::take(&config, ports, process).unwrap();
    taken.take_newcomers().unwrap();
    let newcomer = Client::connect(peer::Config::new(server.server.clone(), Trust::System));
    let lost = tokio::time::timeout(Duration::from_secs(1), newcomer).await;
    assert!(lost.is_err(), "nobody reads these sockets");
    drop((next, taken));
    server.program.says(["this one goes on"]);
    fetch(&client(&server).await, 0).await;
}

/// The process before still waits for a viewer who is gone without a word.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_takes_over_when_one_dies_while_the_one_before_drains() {
    let origin = origin().await;
    let mut server = Server::start(&origin, &[]);
    // Nothing runs this client any more once it is connected.
    let stopped = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let viewer = tokio::task::block_in_place(|| stopped.block_on(client(&server)));
    let mut died = Program::start(&mut server.command);
    said(&died);
    died.signal("KILL");
    while died.has_ended().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.program.says(["another one may take its place"]);
    let next = Program::start(&mut server.command);
    said(&next);
    assert!(server.program.has_ended().is_none(), "it still drains");
    let newcomer = client(&server).await;
    fetch(&newcomer, 0).await;
    await_end(std::mem::replace(&mut server.program, next));
    fetch(&newcomer, 1).await;
    fetch(&client(&server).await, 2).await;
    drop(viewer);
    stopped.shutdown_background();
}

/// Newcomers come at any moment.
#[tokio::test(flavor = "multi_thread")]
async fn newcomers_meet_one_process_or_the_other() {
    let origin = origin().await;
    let mut server = Server::start(&origin, &[]);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (stopped, at) = (Arc::clone(&stop), server.server.clone());
    let coming = tokio::spawn(async move {
        let (mut came, mut longest) = (0u32, Duration::ZERO);
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            let begun = Instant::now();
            let client = Client::connect(peer::Config::new(at.clone(), Trust::System));
            fetch(&client.await.unwrap(), came).await;
            (came, longest) = (came + 1, longest.max(begun.elapsed()));
        }
        (came, longest)
    });
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::task::block_in_place(|| server.upgrade());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (came, longest) = coming.await.unwrap();
    println!("{came} newcomers: {longest:?} at most");
    assert!(longest < HOLDS, "{longest:?}");
}
