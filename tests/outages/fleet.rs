//! A fleet on hosts of its own: nodes of NATS with TLS and rights, servers with tokens and a signed
//! stream, nginx, and viewers.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ncserverd::machine::OpenFiles;
use ncserverd::peer;
use nctest::exposition::Exposition;
use nctest::fleet::nats_server;
use nctest::http;
use nctest::mint::{self, Authority};
use nctest::nginx;
use nctest::process::Process;
use nctest::program::PATIENCE;
use tempfile::TempDir;

use crate::net::{Half, Host, Network, await_listener};
use crate::program::program;
use crate::scale::Scale;
use crate::viewers::{Crowd, Stream};

/// Of every server, in its namespace.
const METRICS: &str = "127.0.0.1:9000";
const PEERS: u16 = 4443;
const CLIENTS: u16 = 4222;
const ROUTES: u16 = 6222;
const HTTP: u16 = 80;
/// How often a server is looked at.
const LOOKS: Duration = Duration::from_millis(250);

/// Starts a program on a host, and waits until its log, which goes on in this file, has this text.
/// Returns what follows the text there, up to a blank.
fn start(host: &Host, command: &mut Command, log: &Path, until: &str) -> (Process, String) {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .unwrap();
    let from = file.metadata().unwrap().len();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    let process = host.namespace.run(|| Process::start(command));
    let end = Instant::now() + PATIENCE;
    loop {
        let said = read_from(log, from);
        // The line may not be complete yet.
        let rest = said.split_once(until).map(|(_, rest)| rest);
        if let Some((line, _)) = rest.and_then(|rest| rest.split_once('\n')) {
            let word = line.split([' ', '"']).next().unwrap_or_default();
            return (process, word.to_owned());
        }
        assert!(
            Instant::now() < end,
            "no `{until}` in {}:\n{said}",
            log.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read_from(file: &Path, from: u64) -> String {
    let mut bytes = Vec::new();
    let mut file = File::open(file).unwrap();
    file.seek(SeekFrom::Start(from)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A node of NATS.
pub(crate) struct Node {
    pub(crate) host: Host,
    command: Command,
    log: PathBuf,
    run: Option<Process>,
}

impl Node {
    pub(crate) fn start(&mut self) {
        let (run, _) = start(&self.host, &mut self.command, &self.log, "Server is ready");
        self.run = Some(run);
    }

    pub(crate) fn kill(&mut self) {
        drop(self.run.take());
    }

    pub(crate) fn signal(&self, name: &str) {
        self.run.as_ref().expect("it runs").signal(name);
    }
}

/// What one server says of itself, each time that it says something else.
#[derive(Default)]
pub(crate) struct Looks {
    pub(crate) readiness: Vec<(Instant, String)>,
    pub(crate) members: Vec<(Instant, f64)>,
}

/// A server of the fleet.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) host: Host,
    pub(crate) server: peer::Server,
    command: Command,
    pub(crate) log: PathBuf,
    run: Option<Process>,
    looks: Arc<Mutex<Looks>>,
    is_over: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn kill(&mut self) {
        drop(self.run.take());
    }

    /// Starts it again, with the same state.
    pub(crate) fn start_again(&mut self) {
        let run = start(&self.host, &mut self.command, &self.log, "--fingerprint ");
        self.run = Some(run.0);
    }

    pub(crate) fn looks<T>(&self, look: impl FnOnce(&Looks) -> T) -> T {
        look(&self.looks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The servers that it knows now; 0 if it does not run.
    pub(crate) fn members(&self) -> f64 {
        self.looks(|looks| looks.members.last().map_or(0.0, |(_, count)| *count))
    }

    /// What its log says from there on at `WARN` and above, and how often, without times and
    /// numbers.
    pub(crate) fn complaints(&self, from: u64) -> BTreeMap<String, usize> {
        let mut complaints = BTreeMap::new();
        for complaint in read_from(&self.log, from).lines().filter_map(complaint) {
            *complaints.entry(complaint).or_default() += 1;
        }
        complaints
    }

    pub(crate) fn log_length(&self) -> u64 {
        fs::metadata(&self.log).unwrap().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.watch.take().map(JoinHandle::join));
    }
}

/// What a line of a log complains of; numbers are `#`, so that the same complaint has one text.
fn complaint(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| line[key].as_str().unwrap_or_default();
    if !["WARN", "ERROR"].contains(&text("level")) {
        return None;
    }
    let mut said = String::new();
    let whole = [
        text("level"),
        text("message"),
        text("reason"),
        text("error"),
    ]
    .join(" ");
    for letter in whole.trim().chars() {
        match letter {
            '0'..='9' if said.ends_with('#') => {}
            '0'..='9' => said.push('#'),
            _ => said.push(letter),
        }
    }
    Some(said.chars().take(200).collect())
}

/// Looks at a server until the end.
fn watch(looks: &Mutex<Looks>, is_over: &AtomicBool) {
    let address: SocketAddr = METRICS.parse().unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let said = http::answer(address, "/readyz");
        let at = Instant::now();
        let readiness = match said {
            Ok((code, body)) => readiness(code, &body),
            Err(_) => "no answer".to_owned(),
        };
        let page = http::get(address, "/metrics").unwrap_or_default();
        let page = Exposition::parse(&String::from_utf8_lossy(&page)).unwrap_or_default();
        let members = page.sum("ncserverd_cluster_members").unwrap_or(0.0);
        let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.readiness.last().map(|(_, last)| last) != Some(&readiness) {
            looks.readiness.push((at, readiness));
        }
        if looks.members.last().map(|(_, last)| *last) != Some(members) {
            looks.members.push((at, members));
        }
        drop(looks);
        std::thread::sleep(LOOKS);
    }
}

/// The code of an answer of `/readyz`, and what it complains of.
fn readiness(code: u16, body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => {
            let part = |key: &str| other[key].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", part("part"), part("reason"))
        }
    };
    let status = text(&body["status"]);
    let reasons = body["reasons"].as_array();
    let reasons: Vec<String> = reasons.into_iter().flatten().map(text).collect();
    let reasons = reasons.join("; ");
    format!("{code} {status} {reasons}").trim_end().to_owned()
}

/// The whole.
pub(crate) struct Fleet {
    // In this order they end: viewers first, the network last.
    pub(crate) crowd: Crowd,
    pub(crate) servers: Vec<Server>,
    pub(crate) nodes: Vec<Node>,
    origin: Process,
    origin_host: Host,
    pub(crate) network: Network,
    pub(crate) stream: Arc<Stream>,
    folder: TempDir,
}

impl Fleet {
    /// `preloaded`: an object that the first server loads, and a variable for it. An error says
    /// what this machine lacks.
    pub(crate) fn start(
        scale: &Scale,
        preloaded: Option<(&Path, (&str, &Path))>,
    ) -> Result<Self, String> {
        let nats = nats_server().ok_or("there is no nats-server")?;
        if Command::new("nginx").arg("-v").output().is_err() {
            return Err("there is no nginx".to_owned());
        }
        // Each viewer has several sockets.
        OpenFiles::raise().map_err(|error| format!("open files: {error}"))?;
        let mut network = Network::new()?;
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);

        let (stream, _) = Stream::start(folder.path(), scale.bitrate);
        let origin_host = network.host(Half::Neither, 0)?;
        let at = SocketAddr::from((origin_host.address, HTTP));
        let file = nginx::configure(folder.path(), at);
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(file);
        command.arg("-e").arg(path("error.log"));
        let origin = origin_host.namespace.run(|| {
            let origin = Process::start(&mut command);
            await_listener(at);
            origin
        });

        fs::write(path("keys.json"), mint::keys().to_string()).unwrap();
        fs::write(path("token"), mint::token(&["/*"], 4 * 3600)).unwrap();
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        fs::write(path("live.pem"), key.serialize_pem()).unwrap();
        let mut nodes = nodes(&mut network, &nats, folder.path(), scale)?;
        nodes.iter_mut().for_each(Node::start);
        let urls = nodes
            .iter()
            .map(|node| format!("tls://{}:{CLIENTS}", node.host.address));
        let urls = urls.collect::<Vec<_>>().join(",");

        let mut servers = Vec::new();
        for number in 0..scale.servers {
            let preloaded = preloaded.filter(|_| number == 0);
            let half = Half::of(number);
            let host = network.host(half, u8::try_from(number / 2).unwrap())?;
            servers.push(server(number, host, &urls, folder.path(), at, preloaded));
        }
        let mut hosts = Vec::new();
        for number in 0..scale.networks {
            let own = u8::try_from(VIEWERS_FROM + number / 2).unwrap();
            hosts.push(network.host(Half::of(number), own)?);
        }
        let names = servers.iter().map(|server| server.server.host.clone());
        let crowd = Crowd::new(hosts, Arc::clone(&stream), names.collect());
        let mut fleet = Self {
            crowd,
            servers,
            nodes,
            origin,
            origin_host,
            network,
            stream,
            folder,
        };
        fleet.await_all();
        let first: Vec<peer::Server> = fleet.addresses();
        let count = first.len();
        fleet
            .crowd
            .join(scale.viewers, |_, number| first[number % count].clone());
        Ok(fleet)
    }

    pub(crate) fn addresses(&self) -> Vec<peer::Server> {
        self.servers
            .iter()
            .map(|server| server.server.clone())
            .collect()
    }

    /// The numbers of the servers of a half.
    pub(crate) fn servers_of(&self, half: Half) -> Vec<usize> {
        let numbers = 0..self.servers.len();
        numbers
            .filter(|number| self.servers[*number].host.half == half)
            .collect()
    }

    /// All hosts but the switch.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Host> {
        let servers = self.servers.iter().map(|server| &server.host);
        let nodes = self.nodes.iter().map(|node| &node.host);
        servers
            .chain(nodes)
            .chain(self.crowd.hosts())
            .chain([&self.origin_host])
    }

    /// Waits until all servers know all, and no `/readyz` complains. Returns how long each took.
    pub(crate) fn await_all(&self) -> Vec<Duration> {
        self.await_members(|_| self.servers.len())
    }

    /// Waits until each server knows so many.
    pub(crate) fn await_members(&self, wanted: impl Fn(&Server) -> usize) -> Vec<Duration> {
        let begun = Instant::now();
        let mut took = vec![None; self.servers.len()];
        while took.iter().any(Option::is_none) {
            for (server, took) in self.servers.iter().zip(&mut took) {
                let is_there = server.members() == wanted(server) as f64;
                if is_there && took.is_none() {
                    *took = Some(begun.elapsed());
                }
            }
            let known: Vec<f64> = self.servers.iter().map(Server::members).collect();
            assert!(begun.elapsed() < PATIENCE, "servers know {known:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        took.into_iter().flatten().collect()
    }

    /// How often each segment of this time was requested from nginx.
    pub(crate) fn requests(&self, time: &std::ops::Range<Instant>) -> BTreeMap<u64, usize> {
        let log = fs::read_to_string(self.folder.path().join("access.log")).unwrap();
        let mut requests: BTreeMap<u64, usize> = self
            .stream
            .segments(time)
            .map(|number| (number, 0))
            .collect();
        let number = |line: &str| {
            let (_, rest) = line.split_once("GET /")?;
            rest.split_once(".ts ")?.0.parse().ok()
        };
        for number in log.lines().filter_map(number) {
            if let Some(count) = requests.get_mut(&number) {
                *count += 1;
            }
        }
        requests
    }

    /// Copies the logs of all programs into a folder.
    pub(crate) fn keep_logs(&self, folder: &Path, name: &str) {
        let servers = self.servers.iter().map(|server| &server.log);
        for log in servers.chain(self.nodes.iter().map(|node| &node.log)) {
            let file = log.file_name().expect("it is a file").to_string_lossy();
            fs::copy(log, folder.join(format!("{name}-{file}"))).unwrap();
        }
        let file = folder.join(format!("{name}-access.log"));
        fs::copy(self.folder.path().join("access.log"), file).unwrap();
    }

    /// Whether nginx runs still.
    pub(crate) fn has_origin(&mut self) -> bool {
        self.origin.ended().is_none()
    }
}

/// Numbers of hosts in a half: servers, then nodes, then viewers.
const NODES_FROM: usize = 10;
const VIEWERS_FROM: usize = 20;

/// Three nodes with TLS on all ways, and for each server a password and a right to its own subject.
fn nodes(
    network: &mut Network,
    nats: &Path,
    folder: &Path,
    scale: &Scale,
) -> Result<Vec<Node>, String> {
    let mut hosts = Vec::new();
    for number in 0..NODES {
        let own = u8::try_from(NODES_FROM + number / 2).unwrap();
        hosts.push(network.host(Half::of(number), own)?);
    }
    let addresses: Vec<String> = hosts.iter().map(|host| host.address.to_string()).collect();
    let authority = Authority::new("engine");
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    authority.hosts(folder, "node", &addresses);
    let tls = format!(
        "cert_file: \"{0}/node.crt\", key_file: \"{0}/node.key\"",
        folder.display()
    );
    let user = |number| {
        let name = name(number);
        format!(
            "{{ user: \"{name}\", password: \"{PASSWORD}\", permissions: {{\n\
             publish: [ \"ncserverd.beat.{name}\", \"ncserverd.tell.{name}.*\" ],\n\
             subscribe: [ \"ncserverd.beat.*\", \"ncserverd.tell.*.{name}\" ] }} }}\n"
        )
    };
    let users: String = (0..scale.servers).map(user).collect();
    fs::write(folder.join("password"), PASSWORD).unwrap();
    let route = |address: &String| format!("\"nats-route://{address}:{ROUTES}\"");
    let routes = addresses.iter().map(route).collect::<Vec<_>>().join(", ");
    let node = |(number, host): (usize, Host)| {
        let address = host.address;
        let configuration = format!(
            "listen: {address}:{CLIENTS}\nserver_name: node-{number}\nmax_payload: 65536\n\
             tls {{ {tls} }}\nauthorization {{ users = [\n{users}] }}\n\
             cluster {{ name: media, listen: {address}:{ROUTES}, routes: [ {routes} ]\n\
             tls {{ {tls}, ca_file: \"{}/ca.pem\", verify: true }} }}\n",
            folder.display()
        );
        let file = folder.join(format!("node-{number}.conf"));
        fs::write(&file, configuration).unwrap();
        let mut command = Command::new(nats);
        command.arg("-c").arg(file);
        Node {
            host,
            command,
            log: folder.join(format!("node-{number}.log")),
            run: None,
        }
    };
    Ok(hosts.into_iter().enumerate().map(node).collect())
}

const NODES: usize = 3;
const PASSWORD: &str = "a password of this test";

fn name(number: usize) -> String {
    format!("server-{number}")
}

/// Starts a server, and looks at it from then on.
fn server(
    number: usize,
    host: Host,
    urls: &str,
    folder: &Path,
    origin: SocketAddr,
    preloaded: Option<(&Path, (&str, &Path))>,
) -> Server {
    let (name, path) = (name(number), |name: &str| {
        folder.join(name).display().to_string()
    });
    let state = folder.join(&name);
    fs::create_dir(&state).unwrap();
    let address = SocketAddr::from((host.address, PEERS)).to_string();
    let mut command = Command::new(program("ncserverd"));
    command.env_clear().env("STATE_DIRECTORY", &state);
    command.args(["serve", "--listen", &address, "--metrics", METRICS]);
    let settings = [
        format!("admission.keys={}", path("keys.json")),
        format!("stream.live.origin=http://{origin}/"),
        format!("stream.live.signing_key={}", path("live.pem")),
        "device.backend=cpu".to_owned(),
        "cluster.engine=nats".to_owned(),
        format!("cluster.name={name}"),
        format!("cluster.advertise={address}"),
        format!("cluster.token_file={}", path("token")),
        format!("cluster.nats.urls={urls}"),
        format!("cluster.nats.user={name}"),
        format!("cluster.nats.password_file={}", path("password")),
        format!("cluster.nats.ca={}", path("ca.pem")),
    ];
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    if let Some((object, (variable, value))) = preloaded {
        command.env("LD_PRELOAD", object).env(variable, value);
    }
    let log = folder.join(format!("{name}.log"));
    let (run, fingerprint) = start(&host, &mut command, &log, "--fingerprint ");
    let (looks, is_over) = (Arc::<Mutex<Looks>>::default(), Arc::<AtomicBool>::default());
    let watch = {
        let (looks, is_over) = (Arc::clone(&looks), Arc::clone(&is_over));
        let entrance = host.namespace.entrance.clone();
        std::thread::spawn(move || {
            entrance.enter();
            watch(&looks, &is_over);
        })
    };
    Server {
        name,
        host,
        server: format!("ncs://{address}#{fingerprint}").parse().unwrap(),
        command,
        log,
        run: Some(run),
        looks,
        is_over,
        watch: Some(watch),
    }
}
