//! The side towards peers: sockets, admission and sessions. Servers and relays share it; only what
//! is behind the sessions differs.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either};
use ncs_net::endpoint::{self, Departure, Ports, Uplink};
use ncs_net::supervise::{ServerPart, Supervisor};
use ncs_net::telemetry::{Readiness, register};
use ncs_net::tls::{self, FLEET_ALPN, ServerIdentity};
use ncs_net::web::Origins;
use prometheus::{IntGauge, Registry};
use quinn::{Connection, Endpoint};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::accept::{self, Elsewhere, Keeper, Place};
use crate::admission::Admission;
use crate::aside::Aside;
use crate::directory::Directory;
use crate::fleet::Fleet;
use crate::headroom::{self, Headroom};
use crate::ring::{Ring, SessionId};
use crate::session::driver::Context;
use crate::session::{self, Ask};

/// The interval of updates of gauges that are not counted as they change.
const GAUGES_EVERY: Duration = Duration::from_secs(1);

/// The interval of checks for room.
pub const ROOM_LOOK: Duration = Duration::from_secs(1);

/// Why a front does not open.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket cannot be opened.
    #[error(transparent)]
    Endpoint(#[from] endpoint::Error),
    /// A series cannot be registered.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

/// Open sockets and their sessions.
#[derive(Debug)]
pub struct Front {
    addresses: Vec<SocketAddr>,
    endpoints: Vec<Endpoint>,
    drain: watch::Sender<Option<Departure>>,
    audience: session::Audience,
    headroom: Headroom,
    counts: Counts,
    links: Links,
    tasks: Vec<JoinHandle<()>>,
}

/// Counts viewers and connections. Clones count the same.
#[derive(Debug, Clone)]
pub struct Counts {
    sessions: IntGauge,
    accepted: accept::Metrics,
}

impl Counts {
    /// Viewers that are connected.
    pub fn viewers(&self) -> u32 {
        u32::try_from(self.sessions.get()).unwrap_or(0)
    }

    /// All connections, including handshakes in progress.
    pub fn connections(&self) -> u32 {
        self.accepted.connections()
    }
}

/// Serves the connections of other servers of the fleet, which are no sessions. Clones share the
/// count of those that are open.
#[derive(Clone, Default)]
pub struct Links {
    serve: Option<ServeServer>,
    open: Arc<AtomicUsize>,
}

/// Serves a server's connection until its end. It gives the place back, or parts of it, when it
/// no longer needs them.
pub type ServeServer = Arc<dyn Fn(Connection, Place) -> BoxFuture<'static, ()> + Send + Sync>;

impl Links {
    /// Other servers may connect, and are served so. By default none may.
    pub fn new(serve: ServeServer) -> Self {
        Self {
            serve: Some(serve),
            open: Arc::default(),
        }
    }

    /// Serves a connection, if it is one of a server.
    fn take(&self, connection: &Connection) -> Option<(ServeServer, OpenServer)> {
        let serve = self.serve.as_ref()?;
        let is_server = tls::alpn(connection).is_some_and(|alpn| alpn == FLEET_ALPN);
        is_server.then(|| (Arc::clone(serve), OpenServer::new(&self.open)))
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// Counts a server's connection as open until dropped, even by a panic.
struct OpenServer(Arc<AtomicUsize>);

impl OpenServer {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for OpenServer {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The parts it needs.
#[derive(Debug)]
pub struct FrontParts<'a> {
    /// How many may connect.
    pub endpoint: &'a endpoint::Config,
    /// The sockets on which it listens.
    pub ports: &'a Ports,
    /// The origins whose pages may connect.
    pub origins: Arc<Origins>,
    /// What peers may do in a session.
    pub session: session::Config,
    /// The certificate that it shows.
    pub identity: ServerIdentity,
    /// Rights of peers.
    pub admission: Admission,
    /// The peers that serve others.
    pub directory: Directory,
    /// The other servers of the fleet.
    pub fleet: Fleet,
    /// The source of blocks.
    pub ring: Ring,
    /// The queue for questions.
    pub asks: mpsc::Sender<Ask>,
    /// The connections of other servers of the fleet.
    pub links: Links,
    /// Runs tasks that serve all sessions.
    pub aside: &'a Aside,
    /// The guard of its tasks.
    pub supervisor: &'a Supervisor,
}

impl Front {
    /// Opens the sockets. The tasks that answer and encode must be running already. Must be called
    /// within a tokio runtime.
    pub fn open<'a>(
        parts: FrontParts<'a>,
        registry: &'a Registry,
        readiness: &'a Readiness,
    ) -> BoxFuture<'a, Result<Self, Error>> {
        // Boxed: the body of an async function is compiled in each crate that awaits it.
        Box::pin(Self::bind(parts, registry, readiness))
    }

    async fn bind(
        parts: FrontParts<'_>,
        registry: &Registry,
        readiness: &Readiness,
    ) -> Result<Self, Error> {
        let FrontParts {
            endpoint: config,
            ports,
            origins,
            session,
            identity,
            admission,
            directory,
            fleet,
            ring,
            asks,
            links,
            aside,
            supervisor,
        } = parts;
        let gauges = ring.clone();
        let gauges = supervisor
            .clone()
            .revived(ServerPart::Gauges, move || keep_gauges(gauges.clone()));
        let mut tasks = vec![tokio::spawn(gauges)];
        register::gauge(
            registry,
            "ncserverd_endpoint_max_connections",
            "Maximum number of connections (`endpoint.connections_max`).",
        )?
        .set(i64::from(config.connections_max.limit()));
        let (drain, drained) = watch::channel(None);
        let metrics = session::Metrics::new(registry)?;
        let open_sessions = metrics.sessions.clone();
        let audience = metrics.audience.clone();
        let headroom = Headroom::new(registry)?;
        let (watched, sessions) = (
            (headroom.clone(), ring.clone(), readiness.clone()),
            Handle::current(),
        );
        let wait_max = config.wait_max;
        let every = match config.is_aside {
            true => headroom::LOOK_SELDOM,
            false => headroom::LOOK_EVERY,
        };
        tasks.push(
            aside.spawn(supervisor.clone().revived(ServerPart::Headroom, move || {
                let (headroom, ring, readiness) = watched.clone();
                headroom.watch(ring, sessions.clone(), wait_max, readiness, every)
            })),
        );
        // A server's own line is not what limits it.
        let uplink = config.is_aside.then(Uplink::new);
        let context = Context {
            ring,
            asks,
            admission: admission.clone(),
            directory,
            fleet: fleet.clone(),
            origins: Arc::clone(&origins),
            config: session,
            metrics,
            uplink: uplink.clone(),
            drain: drained,
        };
        admission.refresh(readiness).await;
        let kept = (admission.clone(), readiness.clone());
        let keep = move || kept.0.clone().keep_fresh(kept.1.clone());
        tasks.push(tokio::spawn(
            supervisor.clone().revived(ServerPart::Keys, keep),
        ));
        let mut identity = identity.with_door(admission.door());
        if links.serve.is_some() {
            identity = identity.with_fleet();
        }
        let metrics = accept::Metrics::new(registry)?;
        let counts = Counts {
            sessions: open_sessions,
            accepted: metrics.clone(),
        };
        let keeper = Arc::new(Keeper::new(
            headroom.clone(),
            context.drain.clone(),
            metrics.clone(),
        ));
        let listeners = endpoint::open_guarded(
            config,
            ports,
            session.idle_timeout,
            &identity,
            keeper,
            uplink.as_ref(),
        )?;
        let addresses = listeners.iter().map(|listener| listener.address).collect();
        let endpoints: Vec<_> = listeners
            .into_iter()
            .flat_map(|listener| listener.endpoints)
            .collect();
        let next_session = Arc::new(AtomicU64::new(0));
        let others = Elsewhere { fleet, origins };
        for endpoint in &endpoints {
            let (context, next_session, contain) = (
                context.clone(),
                Arc::clone(&next_session),
                supervisor.clone(),
            );
            let members = links.clone();
            let serve = move |connection, place| {
                if let Some((serve, open)) = members.take(&connection) {
                    let served = serve(connection, place);
                    return Either::Left(contain.contained(ServerPart::Cluster, async move {
                        let _open = open;
                        served.await;
                    }));
                }
                let session = SessionId(next_session.fetch_add(1, Ordering::Relaxed));
                Either::Right(contain.contained(
                    ServerPart::Session,
                    session::driver::run(connection, session, place, context.clone()),
                ))
            };
            let (config, admission, metrics) = (config.clone(), admission.clone(), metrics.clone());
            let accepting = accept::accept(
                endpoint.clone(),
                config,
                admission,
                headroom.clone(),
                others.clone(),
                metrics,
                serve,
            );
            tasks.push(tokio::spawn(
                supervisor.vital(ServerPart::Accept, accepting),
            ));
        }
        Ok(Self {
            addresses,
            endpoints,
            drain,
            audience,
            headroom,
            counts,
            links,
            tasks,
        })
    }

    /// The UDP addresses for peers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The measure of its load.
    pub fn headroom(&self) -> &Headroom {
        &self.headroom
    }

    /// What counts its viewers and connections.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts viewers and traffic by these streams from now on.
    pub fn set_streams<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        self.audience.set_streams(names);
    }

    /// Accepts no new clients, lets open requests finish, then closes. Other servers of the fleet
    /// stay connected until `farewell` has ended.
    pub async fn drain(self, departure: Departure, farewell: impl Future<Output = ()>) {
        let servers = || self.links.open.load(Ordering::Relaxed);
        endpoint::drain(&self.endpoints, &self.drain, departure, servers).await;
        farewell.await;
        endpoint::close_all(&self.endpoints).await;
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn keep_gauges(ring: Ring) {
    let mut tick = tokio::time::interval(GAUGES_EVERY);
    loop {
        tick.tick().await;
        ring.publish_metrics();
    }
}
