//! Starts the parts in order, and stops them in order.
//!
//! Start: admission, device, store, publishing points, ring, encoder, then the sockets, so that
//! nobody connects to a server that cannot answer. Stop: new clients are refused, sessions finish
//! open requests within a bound, then sockets, encoder and device end.
//!
//! Only this module adds context to errors ("encoder: …").

mod handover;
mod service;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use futures_util::future::BoxFuture;
use ncs_serve::aside::Aside;
use ncs_serve::fleet::Fleet;
use ncs_serve::front::{self, Front, FrontParts, ROOM_LOOK};
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::admin;
use crate::admission::{self, Admission};
use crate::cluster::{self, Cluster};
use crate::config;
use crate::device::{self, Device, Health};
use crate::directory::{self, Directory, Policy};
use crate::document::{self, Following};
use crate::encoder::{self, Encoder, Pace};
use crate::endpoint::{self, Departure, Ports};
use crate::ingest;
use crate::ingest::members::Members;
use crate::machine::Machine;
use crate::object::{Codec, Refusal, RefusalCode};
use crate::pages::{self, Index, Site};
use crate::ring::{self, Capacity, Ring};
use crate::session::{self, Ask};
use crate::store::{self, Store};
use crate::stream::{self, Library};
use crate::supervise::{self, Death, ServerPart, Supervisor};
use crate::telemetry::{self, Readiness};
use crate::tls::{self, Rotated, ServerIdentity};
use crate::web;

pub use handover::Error as HandoverError;
pub(crate) use handover::is_socket;
use handover::{Inherited, Use};
pub use service::{END_WITHIN, STUCK, run};

/// Why the server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Logs or the metrics listener failed.
    #[error("telemetry: {0}")]
    Telemetry(#[from] telemetry::Error),
    /// A series cannot be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The certificate cannot be used.
    #[error("certificate: {0}")]
    Tls(#[from] tls::Error),
    /// Admission cannot work as configured.
    #[error("admission: {0}")]
    Admission(#[from] admission::Error),
    /// Everybody would be served on a socket that a reload leaves open.
    #[error("a change of `endpoint.listen` needs a restart; until then {0}")]
    StillBound(#[source] admission::Error),
    /// The device cannot be opened.
    #[error("device: {0}")]
    Device(#[from] device::Error),
    /// A socket cannot be opened.
    #[error("endpoint: {0}")]
    Endpoint(#[from] endpoint::Error),
    /// The player for viewers cannot be served.
    #[error("web.listen: {0}")]
    Pages(#[from] pages::Error),
    /// A publishing point cannot be opened.
    #[error("streams: {0}")]
    Stream(#[from] stream::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] std::io::Error),
    /// This process cannot take the place of another, or let another take its place.
    #[error("server.handover: {0}")]
    Handover(#[from] handover::Error),
    /// The folder of the fleet's configuration cannot be used.
    #[error("cluster.config.directory: {0}")]
    Document(#[from] document::Error),
    /// A vital part has died.
    #[error(transparent)]
    Died(#[from] Death),
}

impl From<front::Error> for Error {
    fn from(error: front::Error) -> Self {
        match error {
            front::Error::Endpoint(error) => error.into(),
            front::Error::Metrics(error) => error.into(),
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The first field, so that it is dropped before the parts end.
    closing: supervise::Closing,
    front: Front,
    ports: Arc<Ports>,
    library: Library,
    ring: Ring,
    ring_size: ByteSize,
    directory: Directory,
    admission: Admission,
    cluster: Cluster,
    readiness: Readiness,
    encoder_settings: watch::Sender<encoder::Config>,
    supervisor: Supervisor,
    site: Option<Arc<Site>>,
    /// Answers the viewers' browsers.
    showing: Option<JoinHandle<()>>,
    rotated: Option<Arc<Rotated>>,
    tasks: Vec<JoinHandle<()>>,
    _aside: Aside,
    device: Device,
    thread: device::Thread,
}

/// The expected shape of most batches: the first stream's generations.
pub(crate) fn workload(config: &config::Config) -> device::Workload {
    let default = device::Workload {
        batch_blocks: config.encoder.batch_blocks_max,
        ..device::Workload::default()
    };
    let stream = config.stream.values().next();
    stream.map_or(default, |stream| device::Workload {
        n: stream.n_max,
        block_bytes: stream.block_bytes,
        ..default
    })
}

impl Server {
    /// Starts every part; returns when peers can connect. Must be called within a tokio runtime.
    pub fn start(
        config: config::Config,
        identity: ServerIdentity,
        registry: &Registry,
        readiness: Readiness,
    ) -> BoxFuture<'_, Result<Self, Error>> {
        // Boxed: the body of an async function is compiled in each crate that awaits it.
        Box::pin(Self::open(config, identity, registry, readiness, None))
    }

    async fn open(
        mut config: config::Config,
        identity: ServerIdentity,
        registry: &Registry,
        readiness: Readiness,
        inherited: Option<&Inherited>,
    ) -> Result<Self, Error> {
        config.admission.check_listen(&config.endpoint.listen)?;
        let site = config.web.listen.map(|address| {
            Result::<_, Error>::Ok(match Inherited::listener(inherited, Use::Web, address)? {
                Some(socket) => Site::on(socket, address, &config.tls)?,
                None => Site::bind(address, &config.tls)?,
            })
        });
        let site = site.transpose()?.map(Arc::new);
        if let Some(site) = &site {
            config.web.origins.extend(site.origins());
        }
        let machine = Machine::here();
        let sizes = config.sizes(&machine);
        sizes.settle(&mut config.endpoint, &mut config.ring);
        sizes.tell(&machine);
        let supervisor = Supervisor::new(registry, readiness.clone())?;
        let admission = Admission::open(&config.admission, admission::Metrics::new(registry)?)?;
        let (device, thread) = Device::open_for(
            &config.device,
            &workload(&config),
            device::Metrics::new(registry)?,
        )?;
        open_gfq(&device, &config).await?;
        let store = Store::new(
            &config.store,
            device.clone(),
            store::Metrics::new(registry)?,
        );
        let (ingest, streams) = (
            ingest::Metrics::new(registry)?,
            stream::Metrics::new(registry)?,
        );
        let fleet = Fleet::new(config.cluster.steer);
        let token = config.cluster.token_file.clone();
        let asks = config.cluster.asks_members();
        let members = Members::new(fleet.clone(), token, asks, registry)?;
        let library = Library::open(
            &config.ingest,
            &config.stream,
            store.clone(),
            ingest,
            streams,
            members,
            &supervisor,
        )
        .await?;
        let metrics = ring::Metrics::new(registry)?;
        let ring = match device.memory() {
            None => Ring::new(&config.ring, metrics),
            Some(_) => {
                let device = device.clone();
                Ring::pinned(
                    &config.ring,
                    metrics,
                    Box::new(move |memory| device.pin(memory)),
                )
            }
        };

        ring.promise(config.stream.values().map(config::slot_bytes));
        let heeding = (device.clone(), readiness.clone(), supervisor.clone());
        let heed = move || {
            let (device, readiness, supervisor) = heeding.clone();
            async move {
                tokio::select! {
                    () = device.watch() => {}
                    () = heed_health(device.health(), readiness, supervisor) => {}
                }
            }
        };
        let room = (store.clone(), readiness.clone());
        let heed_room = move || heed_store(room.0.clone(), room.1.clone(), ROOM_LOOK);
        let mut tasks = vec![
            tokio::spawn(supervisor.clone().revived(ServerPart::DeviceHealth, heed)),
            tokio::spawn(supervisor.clone().revived(ServerPart::Room, heed_room)),
        ];
        let (encoder_settings, settings) = watch::channel(config.encoder);
        let metrics = encoder::Metrics::new(registry, device.backend(), device.kernel())?;
        let random = StdRng::from_rng(&mut rand::rng());
        let pace = Pace::of(Handle::current());
        let pace = match device.backend() {
            "cpu" => pace.with_cpu_threads(config.device.cpu_threads.count()),
            _ => pace,
        };
        let encoder = Encoder::new(
            config.encoder,
            ring.clone(),
            store,
            device.clone(),
            metrics,
            random,
        )
        .paced(pace);
        let aside = Aside::start("encode").map_err(Error::Thread)?;
        tasks.push(aside.spawn(supervisor.vital(
            ServerPart::Encoder,
            encoder.run(library.arrivals(), settings),
        )));

        let directory = Directory::new(directory::Metrics::new(registry)?);
        let (asks, questions) = mpsc::channel(session::ASKS_QUEUED);
        let answering = answer(
            questions,
            library.clone(),
            directory.clone(),
            Handle::current(),
            supervisor.clone(),
        );
        tasks.push(aside.spawn(supervisor.vital(ServerPart::Answers, answering)));
        let identity = config.web.show_pages(identity, &config.tls)?;
        if let Some(rotated) = identity.rotated() {
            let [present, next] = rotated.fingerprints();
            tracing::info!(
                %present,
                %next,
                "pages connect with serverCertificateHashes: one of these, best both",
            );
            let rotate = move || web::keep_rotating(Arc::clone(&rotated));
            tasks.push(tokio::spawn(
                supervisor
                    .clone()
                    .revived(ServerPart::PageCertificates, rotate),
            ));
        }
        let rotated = identity.rotated();
        let own = cluster::Own::new(&config.cluster, &identity);
        let (endpoint, session) = (&config.endpoint, config.session);
        let links = own.links();
        // Created last, so that it is dropped before the parts end if the start fails.
        let closing = supervisor.closing();
        let ports = Arc::new(match inherited {
            Some(inherited) => inherited.ports(&config)?,
            None => Ports::open(endpoint, config.server.handover.is_some())?,
        });
        let parts = FrontParts {
            endpoint,
            ports: &ports,
            origins: Arc::new(config.web.origins.clone()),
            session,
            identity,
            admission: admission.clone(),
            directory: directory.clone(),
            fleet: fleet.clone(),
            ring: ring.clone(),
            asks: asks.clone(),
            links,
            aside: &aside,
            supervisor: &supervisor,
        };
        let front = Front::open(parts, registry, &readiness).await?;
        let (headroom, counts) = (front.headroom().clone(), front.counts().clone());
        let places = endpoint.connections_max.limit();
        let streams = library.clone();
        let state = move || {
            let (is_full, viewers) = (counts.connections() >= places, counts.viewers());
            cluster::beat::State {
                load: cluster::beat::Load::of(headroom.usage(), viewers, places, is_full),
                streams: streams.names(),
                time_ms: streams.time(),
            }
        };
        let metrics = cluster::Metrics::new(registry)?;
        let cluster = Cluster::new(
            own,
            state,
            admission.clone(),
            directory.clone(),
            fleet,
            metrics,
            readiness.clone(),
        );
        let member = cluster.clone();
        let beat = move || member.clone().run();
        tasks.push(tokio::spawn(
            supervisor.clone().revived(ServerPart::Cluster, beat),
        ));
        let mut showing = None;
        if let Some(site) = &site {
            let facts = pages::facts(front.addresses(), rotated.clone());
            let (served, url) = (Arc::clone(site), site.url());
            let serve = move || Arc::clone(&served).serve(Index::Player, Arc::clone(&facts));
            showing = Some(tokio::spawn(
                supervisor.clone().revived(ServerPart::Pages, serve),
            ));
            tracing::info!("viewers play at {url}?play=/STREAM/PLAYLIST");
        }
        let server = Self {
            front,
            ports,
            library,
            ring,
            ring_size: sizes.ring,
            directory,
            admission,
            cluster,
            readiness,
            encoder_settings,
            supervisor,
            site,
            showing,
            rotated,
            tasks,
            _aside: aside,
            device,
            thread,
            closing,
        };
        server.front.set_streams(config.stream.keys());
        server.name_peers(&config);
        server.judge_streams(&config);
        Ok(server)
    }

    /// The same, on sockets of another process, which serves still.
    fn succeed<'a>(
        config: config::Config,
        identity: ServerIdentity,
        registry: &'a Registry,
        readiness: Readiness,
        inherited: &'a Inherited,
    ) -> BoxFuture<'a, Result<Self, Error>> {
        let inherited = Some(inherited);
        Box::pin(Self::open(config, identity, registry, readiness, inherited))
    }

    /// The UDP addresses of the server.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.front.addresses()
    }

    /// Reads the configuration that the servers of the fleet share, and tells of it. What is read
    /// is for [`Server::apply`].
    pub fn follow(&mut self, following: &Following) {
        following.tell(&self.cluster, &self.readiness);
        let (following, clients) = (following.clone(), self.cluster.clients());
        let read = move || following.clone().read(clients.clone());
        self.tasks.push(tokio::spawn(
            self.supervisor.clone().revived(ServerPart::Document, read),
        ));
    }

    /// Tells the state of every stream's origin.
    pub fn origins(&self) -> Arc<dyn Fn() -> Vec<admin::Origin> + Send + Sync> {
        let library = self.library.clone();
        Arc::new(move || {
            let status = library.status().into_iter();
            let origin = |stream::Status { name, fault, .. }| admin::Origin {
                stream: name,
                fault,
            };
            status.map(origin).collect()
        })
    }

    /// SHA-256 of the certificates that pages see, of the present and of the next term. None if an
    /// authority has signed it, or no page may connect.
    pub fn page_hashes(&self) -> Vec<String> {
        pages::hashes(self.rotated.as_deref())
    }

    /// Reads the certificate of the player's listener again.
    pub fn reload_site(&self, tls: &tls::Config) -> Result<(), pages::Error> {
        self.site.as_ref().map_or(Ok(()), |site| site.reload(tls))
    }

    /// The guard of its parts.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Applies the parts of a configuration that can change at run time: streams (for new
    /// segments), batch settings, admission. Nothing changes if a stream, the arithmetic that it
    /// needs, or keys cannot be opened, or if everybody would be served on the sockets that are
    /// bound, whatever addresses `config` has.
    pub async fn apply(&self, config: &config::Config) -> Result<(), Error> {
        config
            .admission
            .check_listen(self.front.addresses())
            .map_err(Error::StillBound)?;
        let admission = self.admission.read(&config.admission)?;
        open_gfq(&self.device, config).await?;
        self.library.apply(&config.stream).await?;
        self.cluster.streams_changed();
        self.admission.replace(admission);
        self.encoder_settings.send_replace(config.encoder);
        self.ring
            .promise(config.stream.values().map(config::slot_bytes));
        self.front.set_streams(config.stream.keys());
        self.name_peers(config);
        self.judge_streams(config);
        let wanted = config.sizes(&Machine::here()).ring;
        if config.ring.bytes == Capacity::Auto && wanted > self.ring_size {
            // Larger blocks or batches; that a key changed is said by the one that compares.
            tracing::warn!(
                ring_bytes = self.ring_size.as_u64(),
                wanted_bytes = wanted.as_u64(),
                "the ring is smaller than this configuration would have it: its size changes with \
                 a restart",
            );
        }
        Ok(())
    }

    /// Accepts no new clients, lets open requests finish for at most `bound`, then stops every
    /// part.
    pub async fn drain(self, bound: Duration) {
        self.cluster.drain();
        self.end(Departure::within(bound)).await;
    }

    /// The same, but another process is this server from now on: peers are sent to it.
    async fn give_way(self, bound: Duration) {
        self.cluster.hand_over();
        if let Some(showing) = &self.showing {
            showing.abort();
        }
        // Clients whose first packets have come here are accepted, and then sent on.
        tokio::time::sleep(LAST_CLIENTS).await;
        let is_replaced = true;
        self.end(Departure { bound, is_replaced }).await;
    }

    async fn end(self, departure: Departure) {
        drop(self.closing);
        self.front.drain(departure, self.cluster.leave()).await;
        self.tasks
            .iter()
            .chain(&self.showing)
            .for_each(JoinHandle::abort);
        self.thread.close();
    }

    /// Tells the directory which streams' viewers may be named to each other.
    fn name_peers(&self, config: &config::Config) {
        let stream = |(name, stream): (&String, &stream::Config)| {
            let signer = self
                .library
                .signer(name)
                .filter(|_| stream.peers != Policy::Off)?;
            Some((
                name.clone(),
                directory::Stream {
                    policy: stream.peers,
                    key: Arc::clone(signer.key()),
                },
            ))
        };
        self.directory
            .set_streams(config.stream.iter().filter_map(stream).collect());
    }

    fn judge_streams(&self, config: &config::Config) {
        if config.stream.is_empty() {
            self.readiness.not_ready("streams", "no streams");
        } else {
            self.readiness.ready("streams");
        }
    }
}

/// How long a process that another one replaces accepts clients that have come to its sockets.
const LAST_CLIENTS: Duration = Duration::from_millis(100);

/// Opens the arithmetic over the prime field, if a stream uses it. Opening it on a card takes time.
async fn open_gfq(device: &Device, config: &config::Config) -> Result<(), Error> {
    if !config
        .stream
        .values()
        .any(|stream| stream.codec().is_ok_and(Codec::is_gfq))
    {
        return Ok(());
    }
    let device = device.clone();
    let opened = tokio::task::spawn_blocking(move || device.open_gfq()).await;
    Ok(opened.map_err(|_| device::Error::Closed)??)
}

/// Answers questions of sessions. A question about an object may take as long as its origin, so
/// each has a task on `runtime`, and others do not wait for it. Sessions limit the number of these
/// tasks.
async fn answer(
    mut questions: mpsc::Receiver<Ask>,
    library: Library,
    directory: Directory,
    runtime: Handle,
    supervisor: Supervisor,
) {
    while let Some(ask) = questions.recv().await {
        // A failed send means that the session is gone.
        match ask {
            Ask::Resolve {
                get, by, mut reply, ..
            } => {
                let library = library.clone();
                runtime.spawn(supervisor.contained(ServerPart::Question, async move {
                    let answer = tokio::select! {
                        answer = async {
                            match get.held_only {
                                true => library.resolve_held(&get.path, get.offset, by),
                                false => library.resolve(&get.path, get.offset, by).await,
                            }
                        } => answer,
                        () = reply.closed() => return,
                    };
                    let _ = reply.send(answer);
                }));
            }
            Ask::Find {
                id, coding, reply, ..
            } => drop(reply.send(library.find(&id, coding))),
            Ask::Hashes { held, reply, .. } => {
                drop(reply.send(library.hashes(&held).ok_or_else(no_such_segment)))
            }
            Ask::Checks { held, asked, reply } => {
                let library = library.clone();
                runtime.spawn(supervisor.contained(ServerPart::Question, async move {
                    let _ = reply.send(library.checks(&held, &asked).await);
                }));
            }
            Ask::Blame(blame) => {
                blame.log();
                directory.blame(
                    Instant::now(),
                    blame.reporter.ip(),
                    blame.holder,
                    blame.identity,
                );
            }
            Ask::Subscribe { stream, reply } => {
                drop(reply.send(library.subscribe(&stream).ok_or_else(no_such_stream)))
            }
        }
    }
}

fn no_such_segment() -> Refusal {
    Refusal {
        code: RefusalCode::Unknown,
        retry_after: None,
        reason: "no such segment, or no hashes of it".to_owned(),
    }
}

fn no_such_stream() -> Refusal {
    Refusal {
        code: RefusalCode::Unknown,
        retry_after: None,
        reason: "no such stream".to_owned(),
    }
}

/// Reports the device's state to `/readyz`; if the device is lost, the process ends.
async fn heed_health(
    mut health: watch::Receiver<Health>,
    readiness: Readiness,
    supervisor: Supervisor,
) {
    loop {
        match &*health.borrow_and_update() {
            Health::Good => readiness.ready("device"),
            Health::Degraded(reason) => readiness.degraded("device", reason.as_str()),
            Health::Dead(reason) => supervisor.died(ServerPart::Device, reason.as_str()),
        }
        if health.changed().await.is_err() {
            return;
        }
    }
}

/// Reports to `/readyz` when no segment fits because all held ones are in use.
async fn heed_store(store: Store, readiness: Readiness, every: Duration) {
    readiness
        .heed_room("store", every, |now| store.refused(now))
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Shape;
    use crate::telemetry::Status;

    #[tokio::test]
    async fn a_store_without_room_is_shown_until_there_is_some() {
        let registry = Registry::new();
        let config = device::Config {
            backend: device::BackendChoice::Cpu,
            ..device::Config::default()
        };
        let (device, _thread) =
            Device::open(&config, device::Metrics::new(&registry).unwrap()).unwrap();
        let config = store::Config {
            bytes: ByteSize::b(3000),
            ..store::Config::default()
        };
        let store = Store::new(&config, device, store::Metrics::new(&registry).unwrap());
        let insert = async |byte: u8| {
            let shape = Shape::new(2048, 64, 32).unwrap();
            store
                .insert(vec![byte; 2048].into(), shape, store::Placement::default())
                .await
        };
        let held = insert(0).await.unwrap();
        let readiness = Readiness::new();
        readiness.ready("server");
        let heeding = tokio::spawn(heed_store(
            store.clone(),
            readiness.clone(),
            Duration::from_millis(1),
        ));
        while readiness.status().0 != Status::NotReady {
            held.lease.note_used(Instant::now(), 1);
            assert!(matches!(insert(1).await, Err(store::Error::Full { .. })));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(
            readiness.status().1[0].reason,
            "no room for a segment of 2048 bytes: every held segment is in use"
        );
        drop(held);
        while readiness.status().0 != Status::Ready {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        insert(1).await.unwrap();
        heeding.abort();
    }

    #[tokio::test]
    async fn a_degraded_device_is_shown_until_it_is_well() {
        let (say, health) = watch::channel(Health::Degraded("the GPU was lost".to_owned()));
        let readiness = Readiness::new();
        readiness.ready("server");
        let supervisor = Supervisor::new(&Registry::new(), readiness.clone()).unwrap();
        let heeding = tokio::spawn(heed_health(health, readiness.clone(), supervisor));
        while readiness.status().0 != Status::Degraded {
            tokio::task::yield_now().await;
        }
        assert_eq!(readiness.status().1[0].reason, "the GPU was lost");
        say.send(Health::Good).unwrap();
        drop(say);
        heeding.await.unwrap();
        assert_eq!(readiness.status().0, Status::Ready);
    }

    #[tokio::test]
    async fn a_dead_device_ends_the_process() {
        let (say, health) = watch::channel(Health::Good);
        let readiness = Readiness::new();
        let supervisor = Supervisor::new(&Registry::new(), readiness.clone()).unwrap();
        let heeding = tokio::spawn(heed_health(health, readiness.clone(), supervisor.clone()));
        say.send(Health::Dead("its thread died".to_owned()))
            .unwrap();
        let death = supervisor
            .until_done(std::future::pending::<()>())
            .await
            .unwrap_err();
        assert_eq!(
            death,
            Death {
                part: ServerPart::Device,
                reason: "its thread died".to_owned()
            }
        );
        assert!(readiness.is_dead());
        drop(say);
        heeding.await.unwrap();
    }
}
