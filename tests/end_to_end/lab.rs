//! Two namespaces or this host's loopback, the programs in them, and the queries of tests about
//! them.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::media::Frames;
use crate::program::program;
use nctest::nginx;
use nctest::skip::skip;

/// Prints what a test with namespaces lacks, and fails it if every test must run.
pub(crate) fn missing(tools: &[&str]) -> bool {
    let mut lacking = missing_programs(tools);
    if lacking.is_empty() && !namespaces_work() {
        lacking.push("the right to make network namespaces (root)".into());
    }
    is_skipped(&lacking)
}

/// The same for a test on this host's loopback.
pub(crate) fn missing_on_loopback(tools: &[&str]) -> bool {
    is_skipped(&missing_programs(tools))
}

fn missing_programs(tools: &[&str]) -> Vec<String> {
    let found = |tool: &&&str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    tools
        .iter()
        .chain(&["curl"])
        .filter(|tool| !found(tool))
        .map(|tool| (*tool).to_owned())
        .collect()
}

fn is_skipped(lacking: &[String]) -> bool {
    if lacking.is_empty() {
        return false;
    }
    skip(&format!("there is no {}", lacking.join(", ")));
    true
}

fn namespaces_work() -> bool {
    static WORK: OnceLock<bool> = OnceLock::new();
    *WORK.get_or_init(|| {
        let name = format!("nct{}", std::process::id());
        let made = run("ip", &["netns", "add", &name]).is_ok();
        made && run("ip", &["netns", "del", &name]).is_ok()
    })
}

/// How the stream's blocks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Streams,
    Datagrams,
}

impl Route {
    fn shape(self) -> &'static str {
        match self {
            Self::Streams => "block_bytes = 4096\nn_max = 128\n",
            Self::Datagrams => "block_bytes = 1088\nn_max = 64\n",
        }
    }
}

/// A server's and a viewer's side with a lossy path between them, or both on this host's loopback.
/// Dropping it ends everything in it.
pub(crate) struct Lab {
    directory: tempfile::TempDir,
    server_side: Side,
    viewer_side: Side,
    at: Addresses,
    nginx: Option<Process>,
    server: Option<Process>,
    gateway: Option<Process>,
    fingerprint: String,
}

/// Where the programs listen.
struct Addresses {
    server: SocketAddr,
    metrics: SocketAddr,
    gateway: SocketAddr,
}

const SERVER: &str = "10.77.0.1";
const VIEWER: &str = "10.77.0.2";
const ORIGIN: u16 = 8080;

/// The time for a program to become ready.
const START: Duration = Duration::from_secs(60);

impl Lab {
    /// A path that loses this share of UDP packets in each direction.
    pub(crate) fn new(loss_percent: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "{}x{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let (server_side, viewer_side) = (
            Side::namespace(format!("ncs{name}")),
            Side::namespace(format!("ncv{name}")),
        );
        let [server_name, viewer_name] =
            [&server_side, &viewer_side].map(|side| side.namespace.as_deref().expect("as made"));
        let veth = [
            "link",
            "add",
            "veth0",
            "netns",
            server_name,
            "type",
            "veth",
            "peer",
            "name",
            "veth0",
            "netns",
            viewer_name,
        ];
        run("ip", &veth).expect("a veth pair");
        server_side.up(SERVER, loss_percent);
        viewer_side.up(VIEWER, loss_percent);
        let at = Addresses {
            server: SocketAddr::new(SERVER.parse().expect("an address"), 4443),
            metrics: SocketAddr::from(([127, 0, 0, 1], 9443)),
            gateway: SocketAddr::from(([127, 0, 0, 1], 8081)),
        };
        Self::between(server_side, viewer_side, at)
    }

    /// Without namespaces, losses or an origin program: runs on any host, on ports that the system
    /// chooses.
    pub(crate) fn on_loopback() -> Self {
        let free = |bound: std::io::Result<SocketAddr>| bound.expect("a free port");
        let stream =
            || free(TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()));
        let at = Addresses {
            server: free(UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr())),
            metrics: stream(),
            gateway: stream(),
        };
        Self::between(Side { namespace: None }, Side { namespace: None }, at)
    }

    fn between(server_side: Side, viewer_side: Side, at: Addresses) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("media")).expect("a directory for media");
        // nginx drops root privileges and must still be able to read it.
        run(
            "chmod",
            &["-R", "a+rX", &directory.path().to_string_lossy()],
        )
        .expect("chmod");
        Self {
            directory,
            server_side,
            viewer_side,
            at,
            nginx: None,
            server: None,
            gateway: None,
            fingerprint: String::new(),
        }
    }

    pub(crate) fn media(&self) -> &Path {
        // Leaked, for a path that lives as long as the lab.
        Box::leak(self.path("media").into_boxed_path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn origin_stream(&self) -> String {
        format!("origin = \"http://127.0.0.1:{ORIGIN}/\"\n")
    }

    pub(crate) fn directory_stream(&self) -> String {
        format!("directory = \"{}\"\n", self.media().display())
    }

    pub(crate) fn start_nginx(&mut self) {
        let folder = self.directory.path();
        let file = nginx::configure(folder, ([127, 0, 0, 1], ORIGIN).into());
        self.nginx = Some(Process::start(
            self.server_side
                .command("nginx")
                .arg("-p")
                .arg(folder)
                .arg("-c")
                .arg(file),
        ));
        self.server_side
            .await_page(&format!("http://127.0.0.1:{ORIGIN}/"), START, |_| true);
    }

    pub(crate) fn start_server(&mut self, route: Route, source: &str) {
        self.start_server_with(&format!("{}{source}", route.shape()));
    }

    /// With these keys of the stream; all others except addresses keep their defaults.
    pub(crate) fn start_server_with(&mut self, stream: &str) {
        self.start_server_admitting("", stream);
    }

    /// The same, also with these keys of the section `admission`.
    pub(crate) fn start_server_admitting(&mut self, admission: &str, stream: &str) {
        let Addresses {
            server, metrics, ..
        } = self.at;
        let configuration = format!(
            "[endpoint]\nlisten = [\"{server}\"]\n[admission]\ninsecure = true\n\
             {admission}[telemetry]\nlisten = \"{metrics}\"\nlog_format = \"pretty\"\n\
             [tls]\ndirectory = \"{}\"\n[stream.live]\n{stream}",
            self.path("tls").display(),
        );
        std::fs::write(self.path("ncserverd.toml"), configuration)
            .expect("the configuration is written");
        let mut command = self.server_side.command(program("ncserverd"));
        let server = Process::start(command.arg("--config").arg(self.path("ncserverd.toml")));
        let line = server.await_line("--fingerprint ", START);
        let (_, after) = line.split_once("--fingerprint ").expect("as found");
        self.fingerprint = after
            .split_whitespace()
            .next()
            .expect("a fingerprint follows")
            .to_owned();
        self.server = Some(server);
        self.server_side
            .await_page(&format!("http://{}/readyz", self.at.metrics), START, |_| {
                true
            });
    }

    pub(crate) fn start_gateway(&mut self) {
        let mut command = self.viewer_side.command(program("ncpeer"));
        command.args([
            "gateway",
            &self.url(),
            "--fingerprint",
            &self.fingerprint,
            "--listen",
            &self.at.gateway.to_string(),
        ]);
        self.gateway = Some(Process::start(&mut command));
        self.viewer_side
            .await_page(&self.playlist(), START, |page| page.contains("#EXTM3U"));
    }

    fn url(&self) -> String {
        format!("ncs://{}", self.at.server)
    }

    fn playlist(&self) -> String {
        format!("http://{}/live/index.m3u8", self.at.gateway)
    }

    /// Decodes the stream as nginx serves it.
    pub(crate) fn frames_at_origin(&self, seconds: Option<u64>) -> Frames {
        self.server_side
            .frames(&format!("http://127.0.0.1:{ORIGIN}/index.m3u8"), seconds)
    }

    /// Decodes the stream as a player gets it from the gateway.
    pub(crate) fn frames_at_gateway(&self, seconds: Option<u64>) -> Frames {
        self.viewer_side.frames(&self.playlist(), seconds)
    }

    /// Decodes the stream in the directory.
    pub(crate) fn frames_in_directory(&self) -> Frames {
        self.server_side
            .frames(&self.media().join("index.m3u8").to_string_lossy(), None)
    }

    /// Decodes the live encoder's archive of all its output.
    pub(crate) fn frames_of_archive(&self) -> Frames {
        self.viewer_side
            .frames(&self.path("archive.mkv").to_string_lossy(), None)
    }

    /// Fetches a file with `ncpeer fetch`, and compares it with the original.
    pub(crate) fn fetch_and_compare(&self, name: &str) {
        let mut command = self.viewer_side.command(program("ncpeer"));
        command.args([
            "fetch",
            &self.url(),
            &format!("/live/{name}"),
            "--fingerprint",
            &self.fingerprint,
            "-o",
            "-",
        ]);
        let output = command.output().expect("ncpeer runs");
        assert!(
            output.status.success(),
            "{name} is fetched: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let expected = std::fs::read(self.media().join(name)).expect("the file is there");
        assert!(output.stdout == expected, "{name} arrives byte for byte");
    }

    /// Starts `ncpeer fetch` of a file, and returns once blocks are on their way: the program, and
    /// the path of the copy.
    pub(crate) fn start_fetch(&self, name: &str) -> (Process, PathBuf) {
        let (copy, before) = (self.path(&format!("copy of {name}")), self.sent_blocks());
        let mut command = self.viewer_side.command(program("ncpeer"));
        command
            .args([
                "fetch",
                &self.url(),
                &format!("/live/{name}"),
                "--fingerprint",
                &self.fingerprint,
                "-v",
                "-o",
            ])
            .arg(&copy);
        let fetch = Process::start(&mut command);
        fetch.await_line("connected", START);
        let deadline = Instant::now() + START;
        while self.sent_blocks() <= before {
            assert!(
                Instant::now() < deadline,
                "{name} is on its way within {START:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        (fetch, copy)
    }

    /// How often a file was requested from nginx.
    pub(crate) fn origin_fetches(&self, name: &str) -> usize {
        let log = std::fs::read_to_string(self.path("access.log")).expect("nginx keeps a log");
        log.lines()
            .filter(|line| line.contains(&format!("GET /{name} ")) && line.contains(" 200 "))
            .count()
    }

    /// The server's metrics page.
    fn metrics(&self) -> String {
        self.server_side
            .page(&format!("http://{}/metrics", self.at.metrics))
            .expect("metrics are shown")
    }

    /// Blocks that the server has sent, to any peer by any route.
    fn sent_blocks(&self) -> f64 {
        let metrics = self.metrics();
        let name = "ncserverd_session_sent_blocks_total{";
        let series = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.split_once("} "));
        series
            .map(|(_, value)| value.parse::<f64>().expect("a number"))
            .sum()
    }

    /// Bytes coded by each back end and kernel that coded any.
    pub(crate) fn coded_bytes(&self) -> Vec<(String, f64)> {
        let metrics = self.metrics();
        let series = metrics.lines().filter_map(|line| {
            line.strip_prefix("ncserverd_device_coded_bytes_total{")?
                .split_once("} ")
        });
        let series =
            series.map(|(labels, value)| (labels.to_owned(), value.parse().expect("a number")));
        series.filter(|(_, bytes)| *bytes > 0.0).collect()
    }

    /// Blocks used the expected route; if datagrams are lost, QUIC does not resend them, so coding
    /// must have repaired the loss.
    pub(crate) fn assert_repaired(&self, route: Route, loss_percent: u32) {
        let metrics = self.metrics();
        let sent = |route: &str| {
            value(
                &metrics,
                &format!("ncserverd_session_sent_blocks_total{{kind=\"coded\",route=\"{route}\"}}"),
            )
        };
        let (datagrams, records) = (sent("datagram"), sent("stream"));
        match route {
            Route::Datagrams => assert!(
                datagrams > 0.0 && records == 0.0,
                "{datagrams} datagrams, {records} records"
            ),
            Route::Streams => assert!(
                records > 0.0 && datagrams == 0.0,
                "{datagrams} datagrams, {records} records"
            ),
        }
        if route == Route::Datagrams && loss_percent > 0 {
            let lost = value(&metrics, "ncserverd_session_lost_datagrams_total");
            assert!(lost > 0.0, "the path loses datagrams, and the peer says so");
        }
    }

    /// Plays in real time and records the player's clock.
    pub(crate) fn play(&self, seconds: u64) -> Clock {
        let mut command = self.viewer_side.command("ffmpeg");
        command.args([
            "-nostdin",
            "-hide_banner",
            "-loglevel",
            "error",
            "-re",
            "-i",
            &self.playlist(),
            "-t",
            &seconds.to_string(),
        ]);
        let mut player = command
            .args(["-f", "null", "-progress", "pipe:1", "-"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("ffmpeg runs");
        let lines = BufReader::new(player.stdout.take().expect("as asked for")).lines();
        let mut clock = Clock {
            seconds: 0.0,
            longest_stop: Duration::ZERO,
        };
        let mut moved = None;
        for line in lines.map_while(Result::ok) {
            let Some(at) = line
                .strip_prefix("out_time_us=")
                .and_then(|text| text.parse::<f64>().ok())
            else {
                continue;
            };
            if at / 1e6 > clock.seconds {
                let now = Instant::now();
                let stop = moved
                    .replace(now)
                    .map_or(Duration::ZERO, |before: Instant| now - before);
                clock = Clock {
                    seconds: at / 1e6,
                    longest_stop: clock.longest_stop.max(stop),
                };
            }
        }
        assert!(
            player.wait().is_ok_and(|status| status.success()),
            "ffmpeg plays to the end"
        );
        clock
    }

    /// The histogram of the time from closing a file to its first coded block.
    pub(crate) fn first_block_latency(&self) -> Latency {
        let metrics = self.metrics();
        let name = "ncserverd_session_first_block_seconds";
        let buckets = metrics.lines().filter_map(|line| {
            let (bound, count) = line
                .strip_prefix(&format!("{name}_bucket{{le=\""))?
                .split_once("\"} ")?;
            Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
        });
        Latency {
            count: value(&metrics, &format!("{name}_count")),
            buckets: buckets.collect(),
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn terminate_server(&mut self) -> ExitStatus {
        let mut server = self.server.take().expect("the server runs");
        run("kill", &["-TERM", &server.child.id().to_string()]).expect("kill");
        server.wait(Duration::from_secs(30))
    }
}

/// How the player's clock advanced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) seconds: f64,
    pub(crate) longest_stop: Duration,
}

/// A Prometheus histogram: the count of values up to each bound.
#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) count: f64,
    buckets: Vec<(f64, f64)>,
}

impl Latency {
    pub(crate) fn all_below(&self, seconds: f64) -> bool {
        self.buckets
            .iter()
            .any(|(bound, count)| *bound <= seconds && *count >= self.count)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} segments", self.count)?;
        let mut before = 0.0;
        for (bound, count) in &self.buckets {
            if *count > before {
                write!(f, ", {} within {:.0} ms", count, bound * 1e3)?;
            }
            before = *count;
        }
        Ok(())
    }
}

/// The value of a series in the text format.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{series} is shown"))
}

/// A network namespace, removed when dropped, or this host as it is.
struct Side {
    namespace: Option<String>,
}

impl Side {
    fn namespace(name: String) -> Self {
        run("ip", &["netns", "add", &name]).expect("a namespace");
        Self {
            namespace: Some(name),
        }
    }

    fn up(&self, address: &str, loss_percent: u32) {
        let name = self.namespace.as_deref().expect("a namespace");
        let ip = |arguments: &[&str]| {
            run("ip", &[&["-n", name], arguments].concat()).expect("ip configures the namespace")
        };
        ip(&["link", "set", "lo", "up"]);
        ip(&["addr", "add", &format!("{address}/24"), "dev", "veth0"]);
        ip(&["link", "set", "veth0", "up"]);
        // Otherwise several datagrams pass as one packet, and are lost together.
        ip(&["link", "set", "veth0", "gso_max_segs", "1"]);
        if loss_percent > 0 {
            let rules = [
                "add table inet loss".to_owned(),
                "add chain inet loss in { type filter hook input priority 0; policy accept; }"
                    .to_owned(),
                format!(
                    "add rule inet loss in iifname veth0 meta l4proto udp numgen random mod 100 < \
                     {loss_percent} drop"
                ),
            ];
            for rule in rules {
                let arguments = [&["netns", "exec", name, "nft"][..], &[&rule]].concat();
                run("ip", &arguments).expect("nft takes the rule");
            }
        }
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some(name) = &self.namespace else {
            return Command::new(program);
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).arg(program);
        command
    }

    fn page(&self, url: &str) -> Option<String> {
        let output = self
            .command("curl")
            .args(["-s", "-f", "-m", "5", url])
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn await_page(&self, url: &str, patience: Duration, good: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + patience;
        // nginx answers its root with 403, which is an answer.
        let answered = || {
            self.command("curl")
                .args(["-s", "-m", "5", url])
                .output()
                .ok()
                .filter(|output| output.status.success())
        };
        while !answered().is_some_and(|output| good(&String::from_utf8_lossy(&output.stdout))) {
            assert!(
                Instant::now() < deadline,
                "{url} answers within {patience:?}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn frames(&self, url: &str, seconds: Option<u64>) -> Frames {
        let mut command = self.command("ffmpeg");
        command.args(["-nostdin", "-hide_banner", "-loglevel", "error", "-i", url]);
        if let Some(seconds) = seconds {
            command.args(["-t", &seconds.to_string()]);
        }
        let Output {
            status,
            stdout,
            stderr,
        } = command
            .args(["-f", "framemd5", "-"])
            .output()
            .expect("ffmpeg runs");
        let complaints = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "ffmpeg reads {url}: {complaints}");
        Frames::parse(&String::from_utf8_lossy(&stdout))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some(name) = &self.namespace {
            let _ = run("ip", &["netns", "del", name]);
        }
    }
}

/// A running program and its output. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is there");
        let lines = BufReader::new(child.stderr.take().expect("as asked for")).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                keep.lock().expect("nobody panics with it").push(line);
            }
        });
        Self { child, said }
    }

    /// Waits for a line with this text.
    fn await_line(&self, text: &str, patience: Duration) -> String {
        let deadline = Instant::now() + patience;
        loop {
            let said = self.said.lock().expect("nobody panics with it");
            if let Some(line) = said.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            assert!(
                Instant::now() < deadline,
                "a line with {text:?} within {patience:?}; said: {said:#?}"
            );
            drop(said);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    pub(crate) fn wait(&mut self, patience: Duration) -> ExitStatus {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the program ends within {patience:?}; said: {:#?}",
                self.said
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            for line in self
                .said
                .lock()
                .map(|said| said.clone())
                .unwrap_or_default()
                .iter()
                .rev()
                .take(40)
                .rev()
            {
                println!("said: {line}");
            }
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
