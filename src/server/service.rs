//! The server as a service: signals, reloads, and notifications to the service manager.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use prometheus::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use tokio::sync::{mpsc, watch};

use super::handover::{self, Handover, Inherited, Predecessor, Sockets, Successor, Use};
use super::{Error, Server};
use crate::admin::{self, Facts};
use crate::config::Config;
use crate::config::{Effect, Loaded, Sources, changes};
use crate::document::{Following, News, Taken};
use crate::host;
use crate::machine::OpenFiles;
use crate::supervise::{self, ServerPart};
use crate::telemetry::{self, Logs, MILESTONE, Readiness};
use crate::tls::{self, ServerIdentity};

/// Serves until SIGTERM or SIGINT, then drains.
pub fn run(sources: Sources, loaded: Loaded) -> BoxFuture<'static, Result<(), Error>> {
    // Boxed: the body of an async function is compiled in each crate that awaits it.
    Box::pin(serve(sources, loaded))
}

async fn serve(sources: Sources, loaded: Loaded) -> Result<(), Error> {
    // From here on a request for a reload waits for the end of the start, and does not end the
    // process.
    let hangup = listen(SignalKind::hangup())?;
    let logs = telemetry::init(&loaded.config.telemetry)?;
    let (mut sources, mut loaded, following) = Following::begin(sources, loaded)?;
    raise_open_files(loaded.config.files_needed());
    let identity = ServerIdentity::open(&loaded.config.tls)?;
    for finding in &loaded.findings {
        tracing::warn!(%finding, "the configuration needs attention");
    }
    let mut predecessor = match &loaded.config.server.handover {
        Some(path) => Predecessor::meet(path).await?,
        None => None,
    };
    let inherited = predecessor.as_ref().map(Predecessor::inherited);
    let begun = match (
        Begun::begin(&loaded, &identity, inherited).await,
        &following,
    ) {
        (Err(error), Some(following)) if sources.document.is_some() => {
            sources.document = None;
            let Ok(without) = sources.load_over(&loaded) else {
                return Err(error);
            };
            following.give_up(error.to_string());
            loaded = without;
            // Anew: what has begun has left its metrics, and said how it is.
            Begun::begin(&loaded, &identity, inherited).await?
        }
        (begun, _) => begun?,
    };
    let Begun {
        registry,
        readiness,
        certificate,
        mut server,
    } = begun;
    if let Some(following) = &following {
        server.follow(following);
    }
    let stops = [
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
    ];
    let telemetry = &loaded.config.telemetry;
    let address = telemetry.listen;
    let socket = Inherited::listener(inherited, Use::Telemetry, address)?;
    if let Some(predecessor) = &mut predecessor {
        predecessor.inherit(&server.library).await?;
    }
    let socket = match socket {
        Some(socket) => socket,
        None => admin::bind(telemetry)?,
    };
    let handed = socket.try_clone().map_err(handover::Error::from)?;
    // After all parts have registered theirs, so that the first scrape sees every metric.
    let listener = admin::serve_on(
        socket,
        telemetry,
        Facts {
            registry,
            readiness: readiness.clone(),
            events: logs.events().clone(),
            origins: server.origins(),
        },
        server.supervisor(),
    )?;
    tracing::info!("metrics on {}/metrics", listener.url());
    tell_how_to_connect(&server, &identity, &loaded);
    readiness.ready("server");
    let handover = server.offer_place(&loaded.config, handed)?;
    if let Some(predecessor) = predecessor {
        predecessor.replace(Arc::clone(&server.ports)).await?;
    }
    if let Some((handover, _)) = &handover {
        handover.publish()?;
    }
    tracing::info!(name: MILESTONE, version = env!("CARGO_PKG_VERSION"), "started");
    notify(&[sd_notify::NotifyState::Ready]);

    let (drain_timeout, bound) = watch::channel(loaded.config.server.drain_timeout);
    end_in_time(bound)?;
    let mut running = Running {
        sources,
        loaded,
        logs,
        identity,
        certificate,
        listener,
        server,
        drain_timeout,
        following,
        handover,
    };
    let ended = running.until_stopped(hangup, stops).await;
    let bound = running.loaded.config.server.drain_timeout;
    let drain_timeout = humantime::format_duration(bound);
    let ended = match ended {
        Ok(Stop::Replaced(successor)) => {
            tracing::info!(
                name: MILESTONE,
                %drain_timeout,
                "another process serves: peers go there",
            );
            end_after(bound + 2 * END_WITHIN, STUCK)?;
            // The next process has the sockets of both listeners.
            drop(running.listener);
            running.server.give_way(bound).await;
            drop(successor);
            Ok(())
        }
        Ok(Stop::Signal) => {
            notify(&[sd_notify::NotifyState::Stopping]);
            readiness.not_ready("server", "draining");
            tracing::info!(name: MILESTONE, %drain_timeout, "draining: open requests may finish");
            running.close_handover();
            running.server.drain(bound).await;
            Ok(())
        }
        // Open requests would not be answered: peers are told to go elsewhere.
        Err(error) => {
            notify(&[sd_notify::NotifyState::Stopping]);
            end_after(2 * END_WITHIN, supervise::DIED)?;
            running.close_handover();
            running.server.drain(Duration::ZERO).await;
            Err(error)
        }
    };
    tracing::info!("stopped");
    ended
}

/// Why a server ends.
enum Stop {
    /// It was told to.
    Signal,
    /// Another process serves in its place.
    Replaced(Successor),
}

impl Server {
    /// Lets another process take the place of this one, if the configuration says so.
    fn offer_place(
        &mut self,
        config: &Config,
        telemetry: TcpListener,
    ) -> Result<Option<(Handover, mpsc::Receiver<Successor>)>, Error> {
        let Some(path) = &config.server.handover else {
            return Ok(None);
        };
        let mut listeners = vec![(Use::Telemetry, config.telemetry.listen, telemetry)];
        if let Some((site, address)) = self.site.as_ref().zip(config.web.listen) {
            let socket = site.socket().map_err(handover::Error::from)?;
            listeners.push((Use::Web, address, socket));
        }
        let sockets = Sockets {
            ports: Arc::clone(&self.ports),
            listeners,
        };
        let handover = Handover::open(path, sockets, self.library.clone())?;
        let (served, successors) = mpsc::channel(1);
        let attended = handover.clone();
        let attend = move || attended.clone().attend(served.clone());
        let supervisor = self.supervisor.clone();
        self.tasks.push(tokio::spawn(
            supervisor.revived(ServerPart::Handover, attend),
        ));
        Ok(Some((handover, successors)))
    }
}

/// A server that has begun, and where it tells how it is.
struct Begun {
    registry: Registry,
    readiness: Readiness,
    certificate: tls::Metrics,
    server: Server,
}

impl Begun {
    /// On the sockets of another process, or on its own.
    async fn begin(
        loaded: &Loaded,
        identity: &ServerIdentity,
        inherited: Option<&Inherited>,
    ) -> Result<Self, Error> {
        let registry = telemetry::registry()?;
        let readiness = Readiness::new();
        readiness.not_ready("server", "starting");
        let certificate = tls::Metrics::new(&registry)?;
        show_certificate(&certificate, identity);
        let (config, identity) = (loaded.config.clone(), identity.clone());
        let server = match inherited {
            Some(inherited) => {
                let readiness = readiness.clone();
                Server::succeed(config, identity, &registry, readiness, inherited).await?
            }
            None => Server::start(config, identity, &registry, readiness.clone()).await?,
        };
        Ok(Self {
            registry,
            readiness,
            certificate,
            server,
        })
    }
}

struct Running {
    sources: Sources,
    loaded: Loaded,
    logs: Logs,
    identity: ServerIdentity,
    certificate: tls::Metrics,
    listener: admin::Listener,
    server: Server,
    /// For the watchdog of the shutdown.
    drain_timeout: watch::Sender<Duration>,
    /// The configuration that the servers of the fleet share, if this one takes it.
    following: Option<Following>,
    /// Where the next process comes, if there is such a place, and the one that has taken over.
    handover: Option<(Handover, mpsc::Receiver<Successor>)>,
}

impl Running {
    async fn until_stopped(
        &mut self,
        mut hangup: Signal,
        [mut terminate, mut interrupt]: [Signal; 2],
    ) -> Result<Stop, Error> {
        let supervisor = self.server.supervisor().clone();
        let following = self.following.clone();
        let mut news = following.as_ref().map(Following::news);
        loop {
            tokio::select! {
                death = supervisor.death() => return Err(death.into()),
                _ = hangup.recv() => supervisor.until_done(self.reload()).await?,
                taken = next(following.as_ref(), news.as_mut()) => {
                    supervisor.until_done(self.take(taken)).await?;
                }
                successor = successor(self.handover.as_mut()) => {
                    return Ok(Stop::Replaced(successor));
                }
                _ = terminate.recv() => return Ok(Stop::Signal),
                _ = interrupt.recv() => return Ok(Stop::Signal),
            }
        }
    }

    /// No process is to take over any more.
    fn close_handover(&self) {
        if let Some((handover, _)) = &self.handover {
            handover.close();
        }
    }

    /// Applies a new configuration as a whole, or changes nothing.
    async fn reload(&mut self) {
        let mut reloading = vec![sd_notify::NotifyState::Reloading];
        reloading.extend(sd_notify::NotifyState::monotonic_usec_now());
        notify(&reloading);
        self.take_new().await;
        notify(&[sd_notify::NotifyState::Ready]);
    }

    async fn take_new(&mut self) {
        let next = match self.sources.load() {
            Ok(next) => next,
            Err(error) => {
                return tracing::error!(
                    %error,
                    "reload failed: the old configuration stays in force",
                );
            }
        };
        let pair = match self.identity.read(&next.config.tls) {
            Ok(pair) => pair,
            Err(error) => {
                return tracing::error!(
                    %error,
                    "reload failed: the old configuration and certificate stay in force",
                );
            }
        };
        if let Err(error) = self.server.apply(&next.config).await {
            return tracing::error!(%error, "reload failed: the old configuration stays in force");
        }
        if self.identity.replace(pair) {
            tracing::info!(
                name: MILESTONE,
                fingerprint = %self.identity.fingerprint(),
                "the certificate was replaced",
            );
            show_certificate(&self.certificate, &self.identity);
        }
        if let Err(error) = self.listener.reload() {
            tracing::error!(%error, "the metrics listener keeps its certificate and credential");
        }
        if let Err(error) = self.server.reload_site(&next.config.tls) {
            tracing::error!(%error, "the listener of the player keeps its certificate");
        }
        if let Err(error) = self.logs.set_filter(&next.config.telemetry.log_filter) {
            tracing::error!(%error, "the old log filter stays in force");
        }
        self.drain_timeout
            .send_replace(next.config.server.drain_timeout);
        self.note(next);
        tracing::info!(name: MILESTONE, "configuration reloaded");
        if let Some(following) = &self.following {
            following.try_again();
        }
    }

    /// Applies a revision of the configuration that the servers of the fleet share, or changes
    /// nothing. The server's own file counts as it was read last.
    async fn take(&mut self, taken: Taken) {
        let Some(following) = self.following.clone() else {
            return;
        };
        let sources = Sources {
            document: Some(taken.document.clone()),
            ..self.sources.clone()
        };
        let next = match sources.load_over(&self.loaded) {
            Ok(next) => next,
            Err(error) => return following.note_refused(taken.revision(), error.to_string()),
        };
        if let Err(error) = self.server.apply(&next.config).await {
            return following.note_refused(taken.revision(), error.to_string());
        }
        self.sources = sources;
        self.note(next);
        following.note_taken(taken, true);
    }

    /// A configuration is in force from now on.
    fn note(&mut self, next: Loaded) {
        for change in changes(&self.loaded.config, &next.config) {
            match change.effect {
                Effect::Restart => tracing::warn!(%change, "a changed setting needs a restart"),
                Effect::Live | Effect::NewSegments => tracing::info!(%change, "a setting changed"),
            }
        }
        for finding in &next.findings {
            if !self.loaded.findings.contains(finding) {
                tracing::warn!(%finding, "the configuration needs attention");
            }
        }
        self.loaded = next;
    }
}

/// The next revision to try. Without a fleet's configuration there is none.
async fn next(following: Option<&Following>, news: Option<&mut News>) -> Taken {
    match following.zip(news) {
        Some((following, news)) => following.next(news).await,
        None => std::future::pending().await,
    }
}

/// The process that has taken over. Without a place to come to there is none.
async fn successor(handover: Option<&mut (Handover, mpsc::Receiver<Successor>)>) -> Successor {
    let taken = match handover {
        Some((_, successors)) => successors.recv().await,
        None => None,
    };
    match taken {
        Some(successor) => successor,
        None => std::future::pending().await,
    }
}

/// Raises the limit on open files as far as the system lets this process.
fn raise_open_files(needed: u64) {
    let before = OpenFiles::here();
    let OpenFiles { soft, hard } = match OpenFiles::raise() {
        Ok(limits) => limits,
        Err(error) => {
            tracing::debug!(%error, "the system refuses to raise the limit on open files");
            before
        }
    };
    if soft < needed {
        tracing::warn!(
            limit = soft,
            hard,
            needed,
            "the limit on open files is too low: fetches and scrapes may fail; raise LimitNOFILE \
             of the service",
        );
    } else if soft > before.soft {
        tracing::info!(
            from = before.soft,
            to = soft,
            "raised the limit on open files"
        );
    } else {
        tracing::debug!(limit = soft, needed, "the limit on open files suffices");
    }
}

/// Registers for a signal, which loses its default effect by that.
fn listen(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(Error::Signals)
}

/// Ends the process a few seconds after it should have ended, if something hangs: a file system, a
/// device, or the reader of the log.
fn end_in_time(drain_timeout: watch::Receiver<Duration>) -> Result<(), Error> {
    let (mut terminate, mut interrupt) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
    );
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let bound = *drain_timeout.borrow() + 2 * END_WITHIN;
        if let Err(error) = end_after(bound, STUCK) {
            tracing::error!(
                %error,
                "cannot start the watchdog for shutdown: a hang will not be noticed",
            );
        }
    });
    Ok(())
}

/// Ends the process with this exit code if it is still running after `bound`.
fn end_after(bound: Duration, code: u8) -> Result<(), Error> {
    // Not a task, because the threads that run tasks may hang.
    let watching = std::thread::Builder::new()
        .name("end".into())
        .spawn(move || {
            std::thread::sleep(bound);
            std::thread::spawn(|| {
                tracing::error!("shutdown timed out because a thread hangs: exiting now")
            });
            std::thread::sleep(Duration::from_secs(1));
            std::process::exit(code.into());
        });
    watching.map(drop).map_err(Error::Thread)
}

/// The time that threads have to end after the server has stopped.
pub const END_WITHIN: Duration = Duration::from_secs(5);
/// The exit code if they have not ended.
pub const STUCK: u8 = 9;

/// Logs the command with which a user reaches this server.
fn tell_how_to_connect(server: &Server, identity: &ServerIdentity, loaded: &Loaded) {
    let stream = loaded
        .config
        .stream
        .keys()
        .next()
        .map_or("STREAM", String::as_str);
    for address in server.addresses() {
        let address = host::reachable(*address);
        tracing::info!(
            "peers connect with: ncpeer gateway ncs://{address} --fingerprint {} --listen \
             127.0.0.1:8081, and play http://127.0.0.1:8081/{stream}/…",
            identity.fingerprint()
        );
    }
}

/// Publishes the certificate's dates, and warns if they are not good.
fn show_certificate(metrics: &tls::Metrics, identity: &ServerIdentity) {
    metrics.show(identity);
    match identity
        .validity()
        .map(|validity| validity.complaint(tls::now()))
    {
        Some(Some(complaint)) => tracing::warn!("the certificate {complaint}"),
        Some(None) => {}
        None => tracing::warn!(
            "cannot read the dates of the certificate: its expiry will not be noticed"
        ),
    }
}

/// Notifies systemd, if it started this process and wants notifications.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
