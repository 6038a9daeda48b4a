//! The admission of connections: accepts new clients from an endpoint, or refuses them.
//!
//! A new client with an unvalidated address must validate it (Retry) while more than
//! [`Config::retry_above`] handshakes are open: a flood of spoofed Initial packets then costs no
//! state. New clients are refused above [`Config::connections_max`], above the rate for which there
//! is time ([`Headroom`]), and above [`Admission`]'s limit per address, from the first packet on.
//! If there is no time, most of them are refused at the socket ([`Keeper`]), and told when to come
//! again; those that have passed before the answer changed are refused here.
//!
//! A refusal names no other server, because nothing authenticates it. A client above
//! [`Config::connections_max`] that has validated its address may finish its handshake, if another
//! server of the fleet has room: it is told where, and closed.
//!
//! One task accepts for each endpoint, and answers the clients' first packets itself: quinn does
//! that under the lock of the endpoint, so tasks of their own would only hold threads that wait for
//! each other. After [`TURN`] it lets other tasks run. The counts are those of all endpoints.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ncs_net::endpoint::{self, Config, Departure, Doorkeeper};
use ncs_net::telemetry::register;
use ncs_net::web::{self, Binding, Origins};
use ncs_proto::wire::message::REASON_MAX;
use ncs_proto::wire::text::plain;
use ncs_proto::wire::{CloseCode, elsewhere};
use prometheus::{IntCounter, IntGauge, Registry};
use quinn::{Connection, ConnectionError, Endpoint, Incoming};
use tokio::sync::{Semaphore, watch};
use tokio::task::yield_now;

use super::headroom::{Closed, Entry, Headroom, Proof};
use crate::admission::{AddressPlace, Admission, Crowded};
use crate::fleet::{Fleet, Key};

/// Metrics of connections and handshakes, of all endpoints.
#[derive(Debug, Clone)]
pub struct Metrics {
    connections: IntGauge,
    half_open: IntGauge,
    handshakes: IntCounter,
    failed: IntCounter,
    refused: IntCounter,
    retried: IntCounter,
    sent_on: IntCounter,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        Ok(Self {
            connections: register::gauge(
                registry,
                "ncserverd_endpoint_open_connections",
                "Connections, including handshakes in progress.",
            )?,
            half_open: register::gauge(
                registry,
                "ncserverd_endpoint_open_handshakes",
                "Handshakes in progress.",
            )?,
            handshakes: counter("ncserverd_endpoint_handshakes_total", "Handshakes started.")?,
            failed: counter(
                "ncserverd_endpoint_handshakes_failed_total",
                "Handshakes that failed.",
            )?,
            refused: counter(
                "ncserverd_endpoint_handshakes_refused_total",
                "Handshakes refused at a connection limit (in all, or per address), or under \
                 overload.",
            )?,
            retried: counter(
                "ncserverd_endpoint_handshakes_retried_total",
                "New clients asked to validate their address first (Retry).",
            )?,
            sent_on: counter(
                "ncserverd_endpoint_handshakes_sent_on_total",
                "Clients above the connection limit that were told of another server of the \
                 fleet, and closed.",
            )?,
        })
    }
}

impl Metrics {
    /// Connections now, including handshakes in progress.
    pub fn connections(&self) -> u32 {
        u32::try_from(self.connections.get()).unwrap_or(0)
    }
}

/// Refuses clients at the socket while there is no time for handshakes.
#[derive(Debug)]
pub struct Keeper {
    headroom: Headroom,
    drain: watch::Receiver<Option<Departure>>,
    metrics: Metrics,
}

impl Keeper {
    /// Refuses by the rules of `headroom` until the server drains: then there is no time to tell.
    pub fn new(
        headroom: Headroom,
        drain: watch::Receiver<Option<Departure>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            headroom,
            drain,
            metrics,
        }
    }
}

impl Doorkeeper for Keeper {
    fn refuses(&self, now: Instant) -> Option<Duration> {
        if self.drain.borrow().is_some() {
            return None;
        }
        let retry_after = self.headroom.turn_away(now)?;
        self.metrics.handshakes.inc();
        self.metrics.refused.inc();
        Some(retry_after)
    }
}

/// What becomes of a newcomer.
enum Newcomer {
    /// It is served.
    In(Incoming, Place),
    /// It is told of other servers.
    SentOn(Incoming, AddressPlace),
}

/// What a client that finds no place is told.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    /// The other servers.
    pub fleet: Fleet,
    /// The origins whose pages may connect.
    pub origins: Arc<Origins>,
}

/// The place of a connection among those of its address, and among all.
#[derive(Debug)]
pub struct Place {
    /// Among those of its address.
    pub address: AddressPlace,
    /// Among all viewers and newcomers.
    pub entry: Entry,
}

/// Accepts connections of an endpoint until it is closed, and runs `serve` on each, with its place.
pub async fn accept<S, F>(
    endpoint: Endpoint,
    config: Config,
    admission: Admission,
    headroom: Headroom,
    others: Elsewhere,
    metrics: Metrics,
    serve: S,
) where
    S: Fn(Connection, Place) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let mut begun = Instant::now();
    let desk = Arc::new(Semaphore::new(SENT_ON_MAX));
    loop {
        if begun.elapsed() >= TURN {
            yield_now().await;
            begun = Instant::now();
        }
        let Some(incoming) = endpoint.accept().await else {
            break;
        };
        metrics.handshakes.inc();
        let has_room = || desk.available_permits() > 0 && others.fleet.has_room_elsewhere();
        let admitted = admit(incoming, &config, &admission, &headroom, &metrics, has_room);
        let (incoming, place) = match admitted {
            None => continue,
            Some(Newcomer::In(incoming, place)) => (incoming, place),
            Some(Newcomer::SentOn(incoming, place)) => {
                if let Ok(permit) = Arc::clone(&desk).try_acquire_owned() {
                    let (metrics, others) = (metrics.clone(), others.clone());
                    tokio::spawn(async move {
                        let told = send_on(incoming, &others);
                        let told = tokio::time::timeout(HANDSHAKE_MAX, told).await;
                        if let Ok(Ok(true)) = told {
                            metrics.sent_on.inc();
                        }
                        drop((place, permit));
                    });
                }
                continue;
            }
        };
        let (half_open, open) = (
            Open::new(&metrics.half_open),
            Open::new(&metrics.connections),
        );
        let (metrics, serve, peer) = (metrics.clone(), serve.clone(), incoming.remote_address());
        let connecting = incoming.accept();
        tokio::spawn(async move {
            let _open = open;
            let connection = match connecting {
                Ok(connecting) => tokio::time::timeout(HANDSHAKE_MAX, connecting)
                    .await
                    .unwrap_or(Err(ConnectionError::TimedOut)),
                Err(error) => Err(error),
            };
            drop(half_open);
            match connection {
                Ok(connection) => {
                    place.entry.connected();
                    serve(connection, place).await;
                }
                Err(error) => {
                    metrics.failed.inc();
                    tracing::debug!(
                        %peer,
                        error = plain(&error.to_string(), REASON_MAX),
                        "handshake failed",
                    );
                }
            }
        });
    }
}

/// Counts a connection or a handshake until dropped, even by a panic of its task.
struct Open(IntGauge);

impl Open {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Finishes the handshake of a client, tells it of other servers, and closes. Whether it was told
/// of any.
async fn send_on(incoming: Incoming, others: &Elsewhere) -> Result<bool, ConnectionError> {
    let key = Key::of_address(incoming.remote_address().ip());
    let connection = incoming.accept()?.await?;
    let binding = Binding::of(&connection);
    let servers = others.fleet.elsewhere((key, binding)).servers;
    let reason = elsewhere::write("the server is full", &servers);
    match binding {
        Binding::Quic => {
            // A client believes a close only when its own handshake is complete. Then it opens its
            // stream.
            match tokio::time::timeout(OPENS_WITHIN, connection.accept_bi()).await {
                Ok(opened) => drop(opened?),
                Err(_) => return Ok(false),
            }
            others.fleet.count_sent(&servers);
            endpoint::close(&connection, CloseCode::Overload, &reason);
        }
        // A page is told nothing without a session.
        Binding::Web => {
            let accepted = web::accept(&connection, &others.origins);
            match tokio::time::timeout(OPENS_WITHIN, accepted).await {
                Ok(Ok((opened, _))) => {
                    others.fleet.count_sent(&servers);
                    opened.session.close(CloseCode::Overload, &reason).await;
                }
                Ok(Err(error)) => {
                    web::refuse(&connection, &error);
                    return Ok(false);
                }
                Err(_) => return Ok(false),
            }
        }
    }
    Ok(!servers.is_empty())
}

/// Lets a newcomer in, or deals with it.
fn admit(
    incoming: Incoming,
    config: &Config,
    admission: &Admission,
    headroom: &Headroom,
    metrics: &Metrics,
    has_room_elsewhere: impl FnOnce() -> bool,
) -> Option<Newcomer> {
    let is_proven = incoming.remote_address_validated();
    let place = admission.address(Instant::now(), incoming.remote_address().ip(), is_proven);
    let connections_max = i64::from(config.connections_max.limit());
    let is_crowded = metrics.connections.get() >= connections_max;
    let is_pressed = metrics.half_open.get() >= i64::from(config.retry_above);
    let proof = match place {
        _ if is_proven => Proof::Given,
        Err(_) => Proof::Wanted,
        Ok(_) if is_pressed => Proof::Wanted,
        Ok(_) => Proof::Absent,
    };
    let place = match place {
        Err(Crowded::Full) => return refuse(incoming, metrics),
        Err(_) if is_crowded => return refuse(incoming, metrics),
        Ok(place) if is_crowded => {
            return match (has_room_elsewhere(), is_proven) {
                (false, _) => refuse(incoming, metrics),
                (true, false) => retry(incoming, metrics),
                // It takes the time of a handshake, which has to be there.
                (true, true) => match headroom.knock(Proof::Given) {
                    Ok(_) => Some(Newcomer::SentOn(incoming, place)),
                    Err(_) => refuse(incoming, metrics),
                },
            };
        }
        place => place,
    };
    match (headroom.knock(proof), place) {
        (Ok(entry), Ok(address)) => Some(Newcomer::In(incoming, Place { address, entry })),
        (Err(Closed::Full), _) => refuse(incoming, metrics),
        (Ok(_) | Err(Closed::Unproven), _) => retry(incoming, metrics),
    }
}

fn retry<T>(incoming: Incoming, metrics: &Metrics) -> Option<T> {
    metrics.retried.inc();
    // A client that cannot get a Retry has validated its address, and does not come here.
    let _ = incoming.retry();
    None
}

fn refuse<T>(incoming: Incoming, metrics: &Metrics) -> Option<T> {
    metrics.refused.inc();
    incoming.refuse();
    None
}

/// The time for a handshake. The idle timeout does not bound it: any packet restarts that, and the
/// keys of first packets are public.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a client that is told of other servers may take to open its stream or its session.
const OPENS_WITHIN: Duration = Duration::from_secs(3);
/// Clients of an endpoint that are told of other servers at a time. Each costs a handshake.
const SENT_ON_MAX: usize = 16;
/// Time spent on first packets before other tasks of the thread run: a few handshakes, and much
/// less than the delay that counts as overload.
const TURN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use ncs_proto::admission::intake;

    use super::*;

    #[test]
    fn a_full_server_tells_a_time_until_it_drains() {
        let (registry, now) = (Registry::new(), Instant::now());
        let headroom = Headroom::new(&registry).unwrap();
        let metrics = Metrics::new(&registry).unwrap();
        let (drain, drains) = watch::channel(None);
        let keeper = Keeper::new(headroom.clone(), drains, metrics.clone());
        assert_eq!(keeper.refuses(now), None, "nothing is measured");
        headroom.begin(intake::Config::default(), now);
        let mut entries = Vec::new();
        while keeper.refuses(now).is_none() {
            entries.push(headroom.knock(Proof::Given).unwrap());
        }
        assert!(!entries.is_empty() && headroom.knock(Proof::Given).is_err());
        let told: Vec<Duration> = (0..100).filter_map(|_| keeper.refuses(now)).collect();
        assert_eq!((told.len(), metrics.refused.get()), (100, 101));
        assert!(told.is_sorted() && told[0] < told[99]);
        drain.send_replace(Some(Departure::within(Duration::ZERO)));
        assert_eq!(keeper.refuses(now), None);
    }

    #[test]
    fn there_is_room_again_when_handshakes_have_ended() {
        let (registry, now) = (Registry::new(), Instant::now());
        let headroom = Headroom::new(&registry).unwrap();
        let config = intake::Config {
            handshakes_max: 2,
            ..intake::Config::default()
        };
        headroom.begin(config, now);
        let entries = [(); 2].map(|()| headroom.knock(Proof::Given).unwrap());
        assert!(headroom.turn_away(now).is_some());
        entries[0].connected();
        assert_eq!(headroom.turn_away(now), None);
        let third = headroom.knock(Proof::Given).unwrap();
        assert!(headroom.turn_away(now).is_some());
        drop(third);
        assert_eq!(headroom.turn_away(now), None);
    }
}
