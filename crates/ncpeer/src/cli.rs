//! The command line of `ncpeer`.
//!
//! Standard output carries only the requested data, so that it can be piped; progress, logs and
//! errors go to standard error.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ncs_device::{self as device, BackendChoice, Device};
use ncs_net::admin::{self, Facts};
use ncs_net::console;
use ncs_net::endpoint::{Congestion, Connections, Sockets};
use ncs_net::supervise::{DIED, Death, ServerPart, Supervisor};
use ncs_net::telemetry::{self, Events, Readiness};
use ncs_net::tls::{self, ClientPair, Fingerprint, ServerIdentity, Trust};
use ncs_proto::integrity::signing::{NoKey, StreamKey};
use ncs_proto::object::RefusalCode;
use ncs_proto::wire::message::is_stream_name;
use ncs_serve::admission;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::fetch::{self, Target};
use crate::gateway::{self, Gateway};
use crate::info;
use crate::pause;
use crate::proto::Keys;
use crate::relay::{self, Relay};
use crate::{Client, Config, ParseServerError, Server, Stats, TokenSource};

/// Client of ncserverd: fetches coded blocks over QUIC, decodes and verifies them
#[derive(Debug, Parser)]
#[command(name = "ncpeer", version, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
    /// Log more: -v logs info messages, -vv debug messages
    #[arg(long, short, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch one object to a file or a pipe
    Fetch {
        /// The server, such as ncs://media.example:4443
        #[arg(value_name = "URL")]
        server: Server,
        /// Path of the object; its first part is the stream's name, such as /live/bunny/master.m3u8
        #[arg(value_parser = parse_path)]
        path: String,
        /// Output file, which appears when it is complete, or - for standard output [default: the
        /// object's name in this directory]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Decoder: the CPU, one generation after another, or a GPU, many generations at once
        #[arg(long, value_enum, default_value_t = Decoding::Cpu)]
        backend: Decoding,
        /// Refuse an object larger than this; nothing of it is kept [default: nine tenths of the
        /// free space when writing a file]
        #[arg(long, value_name = "SIZE")]
        max_bytes: Option<ByteSize>,
    },
    /// Serve the server's streams to players on this machine over HTTP, until interrupted
    Gateway {
        /// The server, such as ncs://media.example:4443
        #[arg(value_name = "URL")]
        server: Server,
        /// HTTP address for players
        #[arg(long, value_name = "ADDRESS", default_value_t = gateway::Config::default().listen)]
        listen: SocketAddr,
        /// Also accept this host name, besides loopback names and the address that the player
        /// connects to (repeatable)
        #[arg(long = "host", value_name = "NAME", value_parser = gateway::parse_host)]
        hosts: Vec<String>,
        /// Allow web pages of this origin to read streams, such as <https://player.example>, or *
        /// for all pages (repeatable). By default all pages may read; if the gateway has a token or
        /// a certificate, only its own page may
        #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = gateway::parse_origin)]
        origins: Vec<String>,
        /// Segments to fetch ahead of the player
        #[arg(
            long,
            value_name = "COUNT",
            default_value_t = gateway::Config::default().ahead_segments,
        )]
        ahead: usize,
        /// Share played segments with other viewers at this UDP address; viewers need a ticket from
        /// the server (repeatable)
        #[arg(long, value_name = "ADDRESS")]
        share: Vec<SocketAddr>,
        /// Memory for shared segments
        #[arg(
            long,
            value_name = "SIZE",
            default_value_t = relay::Config::default().bytes,
            requires = "share",
        )]
        share_bytes: ByteSize,
        /// Viewers served at the same time; fewer viewers get more bandwidth each
        #[arg(long, value_name = "COUNT", default_value_t = 10, requires = "share")]
        share_peers: u32,
        /// HTTP address for the metrics of fetching and sharing
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<SocketAddr>,
    },
    /// Relay streams to other peers until interrupted: fetch segments on request and recode them
    /// before they are complete
    Relay {
        /// The server, such as ncs://media.example:4443
        #[arg(value_name = "URL")]
        server: Server,
        /// UDP address for peers (repeatable)
        #[arg(
            long,
            value_name = "ADDRESS",
            default_values_t = relay::Config::default().endpoint.listen,
        )]
        listen: Vec<SocketAddr>,
        /// Memory for segments, complete or not
        #[arg(long, value_name = "SIZE", default_value_t = relay::Config::default().bytes)]
        bytes: ByteSize,
        /// Certificate chain for peers, in PEM; by default the relay makes a certificate
        #[arg(long, value_name = "FILE", requires = "listen_key")]
        listen_cert: Option<PathBuf>,
        /// Private key of that certificate, in PEM
        #[arg(long, value_name = "FILE", requires = "listen_cert")]
        listen_key: Option<PathBuf>,
        /// Directory that keeps the certificate that the relay makes; without it every start makes
        /// a new one
        #[arg(long, value_name = "DIR", conflicts_with = "listen_cert")]
        identity: Option<PathBuf>,
        /// File or URL of the key set (JWKS) that verifies peers' tokens
        #[arg(long, value_name = "FILE|URL")]
        keys: Option<String>,
        /// Certificate authorities for peers' certificates, in PEM
        #[arg(long, value_name = "FILE")]
        clients_ca: Option<PathBuf>,
        /// Serve everybody without authentication, also on addresses other than loopback
        #[arg(long)]
        insecure: bool,
        /// Tell the servers which segments the relay holds, so that they send viewers here
        #[arg(long)]
        offer: bool,
        /// HTTP address for metrics
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<SocketAddr>,
    },
    /// Show a server's identity, and optionally describe one of its objects
    Info {
        /// The server, such as ncs://media.example:4443
        #[arg(value_name = "URL")]
        server: Server,
        /// Path of an object
        #[arg(value_parser = parse_path)]
        path: Option<String>,
        /// Also fetch the object, discard it, and report what each source sent, packet loss and
        /// repair
        #[arg(long, requires = "path")]
        fetch: bool,
        /// Stop after about this much of the object
        #[arg(long, value_name = "SIZE", default_value = "1GiB", requires = "fetch")]
        max_bytes: ByteSize,
    },
}

/// Decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Decoding {
    /// A GPU if one works, otherwise the CPU
    Auto,
    /// The CPU
    Cpu,
    /// A GPU; fail if none works
    Cuda,
}

impl Decoding {
    /// Opens the device, if one is chosen. Uses the default kernel: any of them is faster than the
    /// card's link.
    fn open(self) -> Result<Option<(Device, device::Thread)>, Failure> {
        if self == Self::Cpu {
            return Ok(None);
        }
        let config = device::Config {
            backend: BackendChoice::Cuda,
            ..device::Config::default()
        };
        let reason = match Device::open(&config, device::Unrecorded) {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => error.reason(),
        };
        if self == Self::Cuda {
            return Err(Failure::Device(reason));
        }
        tracing::info!(reason, "decoding on the CPU");
        Ok(None)
    }
}

#[derive(Debug, Args)]
struct Connection {
    /// Another server or relay with the same content, used at the same time (repeatable). Append #
    /// and the SHA-256 of its certificate to pin it. Append ",token" to send it the token, too
    #[arg(long, global = true, value_name = "URL[,token]")]
    source: Vec<Source>,
    /// Trust only the certificate with this SHA-256, if the URL names none; by default the system's
    /// certificate authorities decide
    #[arg(long, global = true, value_name = "HEX")]
    fingerprint: Option<Fingerprint>,
    /// Send this token to the first server, and to each --source marked with ",token"
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "NCPEER_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// Read the token from this file, again whenever the file changes
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Client certificate chain, in PEM, for servers that ask for one
    #[arg(long, global = true, value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, in PEM
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Accept only segments of this stream that this Ed25519 key signed; without STREAM= it holds
    /// for all streams without their own --key (repeatable). For other streams the first server
    /// names the key
    #[arg(long, global = true, value_name = "[STREAM=]HEX", value_parser = parse_key)]
    key: Vec<(Option<String>, StreamKey)>,
    /// Accept blocks on streams only, for networks that drop or delay datagrams
    #[arg(long, global = true)]
    no_datagrams: bool,
    /// Fetch from up to this many other viewers that the server names; 0 for none
    #[arg(long, global = true, value_name = "COUNT", default_value_t = 8)]
    peers: usize,
    /// Also fetch from viewers at private and loopback addresses; the server can then direct this
    /// peer to any host of its own network
    #[arg(long, global = true)]
    private_peers: bool,
    /// Give up a segment that is not complete within this time, such as 800ms; repair blocks are
    /// requested ahead of loss if the deadline is near
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    deadline: Option<Duration>,
    /// Give up a transfer slower than this over 30 seconds, in bytes per second; "none" accepts any
    /// rate
    #[arg(
        long,
        global = true,
        value_name = "SIZE",
        default_value = "1KiB",
        value_parser = parse_rate,
    )]
    min_rate: MinRate,
    /// Congestion controller of this side; the server's own configuration selects the one for its
    /// sending
    #[arg(long, global = true, value_enum, value_name = "NAME", default_value_t)]
    congestion: Congestion,
}

/// The minimum rate in bytes per second, if there is one.
#[derive(Debug, Clone, Copy)]
struct MinRate(Option<ByteSize>);

/// A server in addition to the first.
#[derive(Debug, Clone)]
struct Source {
    server: Server,
    /// Whether it gets the token.
    gets_token: bool,
}

impl FromStr for Source {
    type Err = ParseServerError;

    fn from_str(text: &str) -> Result<Self, ParseServerError> {
        let (server, gets_token) = text
            .strip_suffix(",token")
            .map_or((text, false), |server| (server, true));
        Ok(Self {
            server: server.parse()?,
            gets_token,
        })
    }
}

/// The program: parses the command line, runs the command, and reports errors.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Command::Gateway { share, .. } = &cli.command
        && !share.is_empty()
    {
        // Of several threads, each packet of a neighbour would wake another one.
        runtime.worker_threads(1);
        pause::between_events(&mut runtime);
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            console::note(format_args!("ncpeer: cannot start worker threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(run(cli));
    // A stalled reader of our output must not keep us from ending.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_closed_pipe() {
                console::note(format_args!("ncpeer: {failure}"));
            }
            ExitCode::from(failure.exit())
        }
    }
}

/// Runs the command. An error is to be shown to the user.
async fn run(cli: Cli) -> Result<(), Failure> {
    let filter = ["warn", "info", "debug"]
        .get(usize::from(cli.verbose))
        .unwrap_or(&"trace");
    // The verifier's log lines repeat the error.
    let filter = format!("{filter},rustls_platform_verifier=off");
    let logs = telemetry::Config {
        log_filter: filter,
        log_format: telemetry::LogFormat::Pretty,
        ..Default::default()
    };
    let logs = telemetry::init(&logs).map_err(|error| Failure::Logs(error.to_string()))?;
    let events = logs.events();
    match cli.command {
        Command::Fetch {
            server,
            path,
            output,
            backend,
            max_bytes,
        } => {
            let target = Target::new(output, &path)?;
            let (device, _thread) = tokio::task::block_in_place(|| backend.open())?.unzip();
            let connecting = cli.connection.connect_with(server, device);
            with_client(connecting, async |client| {
                fetch::fetch(client, &path, target, max_bytes).await?;
                let stats = client.stats().borrow().clone();
                if backend != Decoding::Cpu {
                    console::note(fetch::summary(&stats));
                }
                if let Some(pollution) = fetch::pollution(&stats) {
                    console::note(pollution);
                }
                say_repair(&stats);
                Ok(())
            })
            .await
        }
        Command::Gateway {
            server,
            listen,
            hosts,
            origins,
            ahead,
            share,
            share_bytes,
            share_peers,
            metrics,
        } if !share.is_empty() => {
            let config = gateway::Config {
                listen,
                hosts,
                origins,
                ahead_segments: ahead,
                ..Default::default()
            };
            let usual = relay::Config::listening(share);
            let mut shared = relay::Config {
                bytes: share_bytes,
                offers: true,
                own_only: true,
                waits: true,
                ..usual
            };
            shared.served_max = Some(share_peers);
            shared.endpoint.connections_max =
                Connections::at_most(share_peers.saturating_add(TICKETLESS_MAX));
            // A receiving thread for each core would be too much for a few peers.
            shared.endpoint.sockets = Sockets::ONE;
            shared.endpoint.is_aside = true;
            shared.admission.address_connections_max =
                Some(share_peers.saturating_add(TICKETLESS_OF_ADDRESS_MAX));
            cli.connection
                .share(server, config, shared, metrics, events)
                .await
        }
        Command::Gateway {
            server,
            listen,
            hosts,
            origins,
            ahead,
            metrics,
            ..
        } => {
            let config = gateway::Config {
                listen,
                hosts,
                origins,
                ahead_segments: ahead,
                ..Default::default()
            };
            let (registry, readiness) = (registry()?, Readiness::new());
            let followed =
                crate::Metrics::new(&registry).map_err(|error| Failure::Logs(error.to_string()))?;
            let (gateway, client, fault) = unless_interrupted(async {
                let (client, fault) = cli.connection.connect_when_there(server.clone()).await?;
                Ok((Gateway::start(config, client.clone()).await?, client, fault))
            })
            .await?;
            let stats = client.stats();
            let supervisor = supervisor(&registry, &readiness)?;
            tokio::spawn(supervisor.vital(ServerPart::Client, followed.follow(stats.clone())));
            let _listener = metrics
                .map(|listen| serve_metrics(listen, registry, &readiness, events, &supervisor))
                .transpose()?;
            console::note(format_args!(
                "{server} is served at {} (Ctrl-C stops)",
                gateway.url("/")
            ));
            say_waiting(&server, fault.as_ref());
            tokio::spawn(follow_server(
                stats.clone(),
                server,
                readiness,
                fault.is_some(),
            ));
            let ended = until_interrupted(&supervisor).await;
            drop(supervisor.closing());
            gateway.stop(DRAIN).await;
            say_repair(&stats.borrow());
            client.close().await;
            ended.map(drop)
        }
        Command::Relay {
            server,
            listen,
            bytes,
            listen_cert,
            listen_key,
            identity,
            keys,
            clients_ca,
            insecure,
            offer,
            metrics,
        } => {
            let kept = tls::Config {
                cert: listen_cert,
                key: listen_key,
                directory: identity,
                ..tls::Config::default()
            };
            let identity = match kept.cert.is_some() || kept.directory.is_some() {
                true => ServerIdentity::open(&kept)?,
                false => ServerIdentity::ephemeral()?,
            };
            let admission = admission::Config {
                keys: keys.map(Into::into),
                clients_ca,
                insecure,
                ..admission::Config::default()
            };
            // The same error in terms of the options here.
            if let Err(admission::Error::Open(address)) = admission.check_listen(&listen) {
                return Err(Failure::Open(address));
            }
            let config = relay::Config {
                admission,
                bytes,
                offers: offer,
                ..relay::Config::listening(listen)
            };
            let sources = cli.connection.config(server.clone(), None)?;
            let registry = registry()?;
            let readiness = Readiness::new();
            let relay = unless_interrupted(async {
                Ok(Relay::start(config, sources, identity.clone(), &registry, &readiness).await?)
            })
            .await?;
            let supervisor = relay.supervisor().clone();
            let _listener = metrics
                .map(|listen| serve_metrics(listen, registry, &readiness, events, &supervisor))
                .transpose()?;
            for address in relay.addresses() {
                console::note(format_args!(
                    "relays at ncs://{address}#{} (Ctrl-C stops)",
                    identity.fingerprint()
                ));
            }
            tokio::spawn(follow_server(
                relay.client().stats(),
                server,
                readiness,
                false,
            ));
            let ended = until_interrupted(&supervisor).await;
            relay.drain(DRAIN).await;
            ended.map(drop)
        }
        Command::Info {
            server,
            path,
            fetch,
            max_bytes,
        } => {
            with_client(cli.connection.connect_with(server, None), async |client| {
                let mut text = info::describe(client, path.as_deref()).await?;
                if let Some(path) = path.filter(|_| fetch) {
                    text += &info::measure(client, &path, max_bytes).await?;
                }
                console::print(text).map_err(Failure::Output)
            })
            .await
        }
    }
}

impl Connection {
    /// The client's configuration, with the device that decodes, if any.
    fn config(&self, server: Server, device: Option<Device>) -> Result<Config, Failure> {
        let trust = self.fingerprint.map_or(Trust::System, Trust::Fingerprint);
        let (token, certificate) = (self.token()?, self.certificate()?);
        let (datagrams, congestion, deadline) =
            (!self.no_datagrams, self.congestion, self.deadline);
        let usual = Config {
            keys: self.keys()?,
            neighbours_max: self.peers,
            private_neighbours: self.private_peers,
            ..Config::new(server, trust)
        };
        let entrusted: Vec<Server> = self
            .source
            .iter()
            .filter(|source| source.gets_token)
            .map(|source| source.server.clone())
            .collect();
        if token.is_none()
            && let Some(source) = entrusted.first()
        {
            return Err(Failure::Credential(format!(
                "--source {source},token: there is no --token or --token-file to send"
            )));
        }
        let rate_min = self.min_rate.0;
        let mut config = Config {
            datagrams,
            congestion,
            deadline,
            rate_min,
            device,
            token,
            entrusted,
            certificate,
            ..usual
        };
        config
            .servers
            .extend(self.source.iter().map(|source| source.server.clone()));
        Ok(config)
    }

    /// Runs a gateway that also serves other viewers, until interrupted.
    async fn share(
        &self,
        server: Server,
        config: gateway::Config,
        shared: relay::Config,
        metrics: Option<SocketAddr>,
        events: &Events,
    ) -> Result<(), Failure> {
        let (identity, sources) = (
            ServerIdentity::ephemeral()?,
            self.config(server.clone(), None)?,
        );
        let registry = registry()?;
        let readiness = Readiness::new();
        let (relay, gateway) = unless_interrupted(async {
            let relay = Relay::start(shared, sources, identity, &registry, &readiness).await?;
            let gateway = Gateway::start(config, relay.client().clone()).await?;
            Ok((relay, gateway))
        })
        .await?;
        let supervisor = relay.supervisor().clone();
        let _listener = metrics
            .map(|listen| serve_metrics(listen, registry, &readiness, events, &supervisor))
            .transpose()?;
        for address in relay.addresses() {
            console::note(format_args!("played segments are shared at {address}"));
        }
        console::note(format_args!(
            "{server} is served at {} (Ctrl-C stops)",
            gateway.url("/")
        ));
        say_waiting(&server, relay.fault());
        tokio::spawn(follow_server(
            relay.client().stats(),
            server,
            readiness,
            relay.fault().is_some(),
        ));
        let ended = until_interrupted(&supervisor).await;
        gateway.stop(DRAIN).await;
        relay.drain(DRAIN).await;
        ended.map(drop)
    }

    async fn connect_with(
        &self,
        server: Server,
        device: Option<Device>,
    ) -> Result<Client, Failure> {
        let config = self.config(server, device)?;
        let trust = config.trust;
        Client::connect(config)
            .await
            .map_err(|error| untrusted(error, trust))
    }

    /// A client that waits for its server, with the reason if it has to.
    async fn connect_when_there(
        &self,
        server: Server,
    ) -> Result<(Client, Option<crate::Error>), Failure> {
        let config = self.config(server, None)?;
        let trust = config.trust;
        Client::connect_when_there(config)
            .await
            .map_err(|error| untrusted(error, trust))
    }
}

/// Explains how to trust a server whose certificate no authority of the system has signed.
fn untrusted(error: crate::Error, trust: Trust) -> Failure {
    match error {
        crate::Error::Untrusted(reason) if trust == Trust::System => Failure::Untrusted(reason),
        error => error.into(),
    }
}

/// Reports that the server is being waited for, if it is.
fn say_waiting(server: &Server, fault: Option<&crate::Error>) {
    if let Some(fault) = fault {
        console::note(format_args!(
            "{fault}: waiting for {server}; players' requests wait until it answers"
        ));
    }
}

/// Reports to `/readyz` whether a server is connected, and, if it was waited for, once to standard
/// error.
async fn follow_server(
    mut stats: watch::Receiver<Stats>,
    server: Server,
    readiness: Readiness,
    mut says: bool,
) {
    let mut connected = None;
    loop {
        let is_connected = stats.borrow_and_update().connected;
        if connected.replace(is_connected) != Some(is_connected) {
            if is_connected {
                readiness.ready("server");
            } else {
                readiness.not_ready("server", "no connection");
            }
        }
        if is_connected && std::mem::take(&mut says) {
            console::note(format_args!("{server} answers"));
        }
        if stats.changed().await.is_err() {
            return;
        }
    }
}

impl Connection {
    fn token(&self) -> Result<Option<TokenSource>, Failure> {
        TokenSource::of_options(self.token.as_deref(), self.token_file.as_deref())
            .map_err(Failure::Credential)
    }

    /// A stream must have a single key.
    fn keys(&self) -> Result<Keys, Failure> {
        let mut keys = Keys::default();
        for (stream, key) in &self.key {
            let (before, of) = match stream {
                Some(stream) => (
                    keys.streams.insert(stream.clone(), *key),
                    format!("stream {stream}"),
                ),
                None => (keys.any.replace(*key), "all streams".to_owned()),
            };
            if before.is_some_and(|before| before != *key) {
                return Err(Failure::Credential(format!(
                    "--key: two keys for {of}; give one"
                )));
            }
        }
        Ok(keys)
    }

    fn certificate(&self) -> Result<Option<ClientPair>, Failure> {
        let (Some(cert), Some(key)) = (&self.cert, &self.cert_key) else {
            return Ok(None);
        };
        ClientPair::read(cert, key)
            .map(Some)
            .map_err(|error| Failure::Credential(error.to_string()))
    }
}

/// Reports on blocks requested in advance, if there were any.
fn say_repair(stats: &Stats) {
    if let Some(repair) = fetch::repair(stats) {
        console::note(format_args!("repair: {repair}"));
    }
}

/// Works with a client, unless interrupted, and closes its connections.
async fn with_client<T>(
    connecting: impl Future<Output = Result<Client, Failure>>,
    work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let client = unless_interrupted(connecting).await?;
    let done = unless_interrupted(work(&client)).await;
    client.close().await;
    done
}

/// Runs until done or interrupted. Dropping the work cleans up.
async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = work => done,
        signal = interrupted() => Err(Failure::Interrupted(signal?)),
    }
}

/// Waits for SIGINT or SIGTERM, and returns its number.
async fn interrupted() -> Result<u8, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::Signals)?;
    tokio::select! {
        _ = interrupt.recv() => Ok(2),
        _ = terminate.recv() => Ok(15),
    }
}

/// The same, unless a vital part dies first.
async fn until_interrupted(supervisor: &Supervisor) -> Result<u8, Failure> {
    supervisor.until_done(interrupted()).await?
}

fn supervisor(
    registry: &prometheus::Registry,
    readiness: &Readiness,
) -> Result<Supervisor, Failure> {
    Supervisor::new(registry, readiness.clone()).map_err(|error| Failure::Logs(error.to_string()))
}

fn registry() -> Result<prometheus::Registry, Failure> {
    telemetry::registry().map_err(|error| Failure::Logs(error.to_string()))
}

fn serve_metrics(
    listen: SocketAddr,
    registry: prometheus::Registry,
    readiness: &Readiness,
    events: &Events,
    supervisor: &Supervisor,
) -> Result<admin::Listener, Failure> {
    let config = telemetry::Config {
        listen,
        ..Default::default()
    };
    let facts = Facts {
        events: events.clone(),
        ..Facts::new(registry, readiness.clone())
    };
    let listener = admin::serve(&config, facts, supervisor)?;
    console::note(format_args!("metrics on {}/metrics", listener.url()));
    Ok(listener)
}

fn parse_rate(text: &str) -> Result<MinRate, String> {
    if text == "none" {
        Ok(MinRate(None))
    } else {
        text.parse().map(|rate| MinRate(Some(rate)))
    }
}

fn parse_key(text: &str) -> Result<(Option<String>, StreamKey), String> {
    let (stream, hex) = text
        .split_once('=')
        .map_or((None, text), |(stream, hex)| (Some(stream), hex));
    if let Some(stream) = stream.filter(|stream| !is_stream_name(stream)) {
        return Err(format!(
            "`{stream}` is not the name of a stream: a name is visible ASCII without `/`, `?` or \
             `#`"
        ));
    }
    Ok((
        stream.map(str::to_owned),
        hex.parse().map_err(|error: NoKey| error.to_string())?,
    ))
}

fn parse_path(text: &str) -> Result<String, String> {
    let stream = text
        .strip_prefix('/')
        .and_then(|path| path.split('/').next())
        .unwrap_or_default();
    if stream.is_empty() {
        Err("a path starts with / and the stream's name".into())
    } else {
        Ok(text.to_owned())
    }
}

/// Why `ncpeer` ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Connecting or fetching failed.
    #[error("{0}")]
    Peer(#[from] crate::Error),
    /// No authority of the system has signed the server's certificate.
    #[error(
        "no connection: {0}\na server without a public certificate prints its fingerprint when it \
         starts: use --fingerprint"
    )]
    Untrusted(String),
    /// The token or certificate is unusable.
    #[error("{0}")]
    Credential(String),
    /// Fetching to a file failed.
    #[error("{0}")]
    Fetch(#[from] fetch::Error),
    /// The decoding device cannot be used.
    #[error("--backend cuda: {0}")]
    Device(String),
    /// The gateway failed.
    #[error("{0}")]
    Gateway(#[from] gateway::Error),
    /// The relay failed.
    #[error("{0}")]
    Relay(#[from] relay::Error),
    /// The relay would serve everybody.
    #[error(
        "the relay would serve everybody who reaches {0}: set --keys or --clients-ca, or \
         --insecure if that is intended"
    )]
    Open(SocketAddr),
    /// The relay's certificate is unusable.
    #[error("certificate: {0}")]
    Certificate(#[from] tls::Error),
    /// The listener for metrics failed.
    #[error("metrics: {0}")]
    Metrics(#[from] telemetry::Error),
    /// Standard output failed.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),
    /// Logging cannot start.
    #[error("cannot set up logs or metrics: {0}")]
    Logs(String),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    /// A vital part has died.
    #[error(transparent)]
    Died(#[from] Death),
    /// A signal, by number.
    #[error("interrupted")]
    Interrupted(u8),
}

impl Failure {
    /// Whether only the reader of the output is gone.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        match self {
            Self::Output(error) | Self::Fetch(fetch::Error::Write(_, error)) => {
                console::is_closed_pipe(error)
            }
            _ => false,
        }
    }

    /// The exit code; the help text lists them.
    pub(crate) fn exit(&self) -> u8 {
        match self {
            _ if self.is_closed_pipe() => console::CLOSED_PIPE,
            Self::Peer(error) | Self::Fetch(fetch::Error::Peer(error)) => exit_of(error),
            Self::Untrusted(_) => 3,
            Self::Interrupted(signal) => 128 + signal,
            Self::Died(_) => DIED,
            Self::Relay(relay::Error::Peer(error)) => exit_of(error),
            Self::Gateway(gateway::Error::Listen(..))
            | Self::Relay(relay::Error::Endpoint(_) | relay::Error::Thread(_))
            | Self::Metrics(_) => 6,
            Self::Open(_)
            | Self::Gateway(gateway::Error::Name(_))
            | Self::Relay(relay::Error::Admission(_)) => 2,
            Self::Credential(_) => 2,
            Self::Fetch(_)
            | Self::Device(_)
            | Self::Output(_)
            | Self::Logs(_)
            | Self::Signals(_)
            | Self::Relay(_)
            | Self::Certificate(_) => 1,
        }
    }
}

fn exit_of(error: &crate::Error) -> u8 {
    use crate::Error;
    match error {
        Error::Connection(_) | Error::Untrusted(_) | Error::Closed => 3,
        Error::Refused(refusal) if refusal.code == RefusalCode::Unknown => 4,
        Error::Refused(_)
        | Error::Deadline
        | Error::Stalled(_)
        | Error::Gone
        | Error::Slow
        | Error::Corrupt
        | Error::Changed
        | Error::Missing(_) => 5,
        Error::Path(_) | Error::Range(_) => 2,
        Error::Setup(_) => 1,
    }
}

/// How long players may finish reading when the gateway ends.
const DRAIN: Duration = Duration::from_secs(2);
/// Connections to a sharing viewer that have not shown a ticket yet: in all, and per address in
/// addition to those being served.
const TICKETLESS_MAX: u32 = 128;
const TICKETLESS_OF_ADDRESS_MAX: u32 = 4;

const AFTER_HELP: &str = "\
Examples:
  ncpeer fetch ncs://media.example /live/bunny/master.m3u8 -o -
  ncpeer fetch ncs://media.example /files/clip.mp4 --backend auto   decodes on a GPU if one works
  ncpeer gateway ncs://127.0.0.1:4443 --fingerprint 3f0c…   then: \
ffplay http://127.0.0.1:8080/live/bunny/master.m3u8
  ncpeer fetch ncs://a.example /files/clip.mp4 --source ncs://b.example   fetches from both servers
  ncpeer relay ncs://media.example --listen 0.0.0.0:4443 --keys keys.json --identity ncpeer-tls
  ncpeer gateway ncs://media.example --share 0.0.0.0:4444   serves a player and other viewers
  ncpeer info ncs://media.example

Exit codes: 0 done, 1 failed on this machine, 2 wrong usage, 3 no connection, 4 no such object,
5 the server could not deliver the object, 6 cannot listen, 10 an essential part died,
130 and 143 interrupted, 141 the output pipe was closed.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn keys_belong_to_one_stream_or_to_all() {
        let (one, other) = ("ab".repeat(32), "cd".repeat(32));
        let keys = |words: &[&str]| {
            let cli = Cli::try_parse_from(["ncpeer", "info", "ncs://a"].iter().chain(words))
                .map_err(|error| error.to_string())?;
            cli.connection.keys().map_err(|error| error.to_string())
        };
        let live = format!("live={one}");
        let both = keys(&["--key", &live, "--key", &other]).unwrap();
        assert_eq!(
            (both.streams["live"], both.any),
            (one.parse().unwrap(), Some(other.parse().unwrap()))
        );
        assert!(keys(&["--key", &one, "--key", &one]).is_ok());
        assert!(
            keys(&["--key", &one, "--key", &other])
                .unwrap_err()
                .contains("two keys for all streams")
        );
        assert!(
            keys(&["--key", &format!("a/b={one}")])
                .unwrap_err()
                .contains("not the name of a stream")
        );
        assert!(
            keys(&["--key", "client.key"])
                .unwrap_err()
                .contains("64 hexadecimal digits")
        );
    }

    /// Other sources may belong to anybody: they get the token only if the command line says so.
    #[test]
    fn sources_get_the_token_that_are_marked() {
        let config = |words: &[&str]| {
            let cli = Cli::try_parse_from(["ncpeer", "info", "ncs://a"].iter().chain(words))
                .map_err(|error| error.to_string())?;
            cli.connection
                .config("ncs://a".parse().unwrap(), None)
                .map_err(|error| error.to_string())
        };
        let pinned = format!("ncs://c:7#{},token", "ab".repeat(32));
        let with = config(&["--token", "x", "--source", "ncs://b", "--source", &pinned]).unwrap();
        assert_eq!(
            (with.servers.len(), &with.entrusted[..]),
            (3, &with.servers[2..])
        );
        assert!(
            config(&["--source", "ncs://b"])
                .unwrap()
                .entrusted
                .is_empty()
        );
        assert!(
            config(&["--source", "ncs://b,token"])
                .unwrap_err()
                .contains("there is no --token")
        );
        assert!(config(&["--token", "x", "--source", "ncs://b,tokens"]).is_err());
        assert!(config(&["--token", "x", "--source", ",token"]).is_err());
    }

    #[test]
    fn flags_may_stand_anywhere() {
        let fingerprint = "ab".repeat(32);
        let line = [
            "ncpeer",
            "fetch",
            "ncs://a",
            "/live/x.ts",
            "--fingerprint",
            &fingerprint,
            "--no-datagrams",
            "-vo",
            "-",
        ];
        let cli = Cli::try_parse_from(line).unwrap();
        assert!(
            cli.connection.no_datagrams && cli.connection.fingerprint.is_some() && cli.verbose == 1
        );
        let sources = [
            "ncpeer",
            "info",
            "a",
            "--source",
            "b",
            "--source",
            &format!("ncs://c:7#{fingerprint}"),
        ];
        let cli = Cli::try_parse_from(sources).unwrap();
        let pinned = cli
            .connection
            .source
            .iter()
            .map(|source| source.server.fingerprint.is_some());
        assert_eq!(pinned.collect::<Vec<_>>(), [false, true]);
        let backend = |words: &[&str]| match Cli::try_parse_from(
            ["ncpeer", "fetch", "ncs://a", "/b/c"].iter().chain(words),
        ) {
            Ok(Cli {
                command: Command::Fetch { backend, .. },
                ..
            }) => Some(backend),
            _ => None,
        };
        assert_eq!(
            (backend(&[]), backend(&["--backend", "auto"])),
            (Some(Decoding::Cpu), Some(Decoding::Auto))
        );
        assert_eq!(
            (
                backend(&["--backend", "cuda"]),
                backend(&["--backend", "gpu"])
            ),
            (Some(Decoding::Cuda), None)
        );
        assert!(Cli::try_parse_from(["ncpeer", "fetch", "ncs://a", "live/x.ts"]).is_err());
        let congestion = |name| {
            Cli::try_parse_from(["ncpeer", "info", "ncs://a", "--congestion", name])
                .map(|cli| cli.connection.congestion)
        };
        assert!(
            congestion("cubic").is_ok_and(|chosen| chosen == Congestion::Cubic)
                && congestion("reno").is_err()
        );
        assert!(Cli::try_parse_from(["ncpeer", "fetch", "ncs://a", "/"]).is_err());
    }
}
