//! Notices parts of the process that end although they should go on.
//!
//! A part is a task or a thread. The consequence of its death depends on its purpose:
//!
//! - *vital*: nothing is served without it. If it ends or panics, the process ends: `/healthz` and
//!   `/readyz` answer 503, an error line names it, and the exit code is [`DIED`], so that a service
//!   manager restarts the process.
//! - *revived*: it is restarted after a pause, which doubles with each death. Until then `/readyz`
//!   answers 503 with its name.
//! - *contained*: it serves one session or one question, which ends with it. Its death is logged
//!   and counted.
//!
//! A running part costs nothing: a guard that is dropped with it notices its death. Once
//! [`Closing`] is dropped, deaths are ignored, because parts then end in order.

pub mod advice;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use prometheus::{IntCounterVec, Registry};
use tokio::sync::watch;

use self::advice::RESTARTING;
use crate::telemetry::{Readiness, register};

/// The exit code after the death of a vital part.
pub const DIED: u8 = 10;

/// The parts of a server or relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerPart {
    /// Accepts connections on a socket.
    Accept,
    /// Answers questions of sessions that need no time.
    Answers,
    /// Fetches from a relay's sources.
    Client,
    /// Tells the other servers of the fleet about this one, and hears them.
    Cluster,
    /// The back end that codes, if no other can replace it.
    Device,
    /// Reports the device's state to `/readyz`.
    DeviceHealth,
    /// Reads the configuration that the servers of the fleet share.
    Document,
    /// Follows the changes of a folder.
    Folder,
    /// Fills the ring of a server.
    Encoder,
    /// Fetches an object, or part of one.
    Fetch,
    /// Updates gauges.
    Gauges,
    /// Waits for a process that takes the place of this one.
    Handover,
    /// Measures whether there is time for new clients.
    Headroom,
    /// Keeps the keys of admission fresh.
    Keys,
    /// Follows the live playlists of a stream.
    LiveEdge,
    /// Takes the certificates of web pages as their terms begin.
    PageCertificates,
    /// Serves the player for viewers.
    Pages,
    /// Answers a question that takes time.
    Question,
    /// Fills the ring of a relay.
    Recoder,
    /// Reports to `/readyz` whether there is room for segments.
    Room,
    /// One peer's conversation.
    Session,
    /// Evicts expired segments from the store.
    Sweep,
    /// Answers `/metrics`, `/healthz` and `/readyz`.
    Telemetry,
    /// Reports to a relay's servers what it holds.
    Teller,
}

impl ServerPart {
    /// All parts.
    pub const ALL: [Self; 24] = [
        Self::Accept,
        Self::Answers,
        Self::Client,
        Self::Cluster,
        Self::Device,
        Self::DeviceHealth,
        Self::Document,
        Self::Folder,
        Self::Encoder,
        Self::Fetch,
        Self::Gauges,
        Self::Handover,
        Self::Headroom,
        Self::Keys,
        Self::LiveEdge,
        Self::PageCertificates,
        Self::Pages,
        Self::Question,
        Self::Recoder,
        Self::Room,
        Self::Session,
        Self::Sweep,
        Self::Telemetry,
        Self::Teller,
    ];

    /// The name in logs, metrics and `/readyz`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Answers => "answers",
            Self::Client => "client",
            Self::Cluster => "cluster",
            Self::Device => "device",
            Self::DeviceHealth => "device-health",
            Self::Document => "configuration",
            Self::Folder => "directory",
            Self::Encoder => "encoder",
            Self::Fetch => "fetch",
            Self::Gauges => "gauges",
            Self::Handover => "handover",
            Self::Headroom => "headroom-watch",
            Self::Keys => "keys",
            Self::LiveEdge => "live-edge",
            Self::PageCertificates => "page-certificates",
            Self::Pages => "pages",
            Self::Question => "question",
            Self::Recoder => "recoder",
            Self::Room => "room",
            Self::Session => "session",
            Self::Sweep => "sweep",
            Self::Telemetry => "telemetry",
            Self::Teller => "teller",
        }
    }
}

/// The death of a vital part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the process ends because an essential part died: {}: {reason}", part.name())]
pub struct Death {
    /// The part.
    pub part: ServerPart,
    /// The reason, as far as known.
    pub reason: String,
}

/// Supervises parts. Clones share it.
#[derive(Debug, Clone)]
pub struct Supervisor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    readiness: Readiness,
    /// The first death of a vital part.
    death: watch::Sender<Option<Death>>,
    is_closing: AtomicBool,
    deaths: IntCounterVec,
}

/// Dropping it allows parts to end.
#[derive(Debug)]
pub struct Closing(Supervisor);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.shared.is_closing.store(true, Ordering::Release);
    }
}

impl Supervisor {
    /// Registers its metrics; deaths are reported to `readiness`.
    pub fn new(registry: &Registry, readiness: Readiness) -> Result<Self, prometheus::Error> {
        let help = "Parts of the process that panicked or ended unexpectedly.";
        let deaths = register::counters(
            registry,
            "ncserverd_supervise_deaths_total",
            help,
            &["part"],
        )?;
        for part in ServerPart::ALL {
            deaths.with_label_values(&[part.name()]);
        }
        let (death, is_closing) = (watch::Sender::new(None), AtomicBool::new(false));
        Ok(Self {
            shared: Arc::new(Shared {
                readiness,
                death,
                is_closing,
                deaths,
            }),
        })
    }

    /// Held by the owner of the parts, and dropped before it ends them.
    pub fn closing(&self) -> Closing {
        Closing(self.clone())
    }

    /// Guards a vital task. It may be aborted, but must not end by itself.
    pub fn vital<F>(&self, part: ServerPart, task: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Future<Output = ()> + Send,
    {
        let guard = Guard {
            supervisor: self.clone(),
            part,
            is_vital: true,
        };
        async move {
            let guard = guard;
            task.await;
            guard.supervisor.died(part, "it ended");
        }
    }

    /// Guards a task that serves one session or question, which ends with it.
    pub fn contained<F>(
        &self,
        part: ServerPart,
        task: F,
    ) -> impl Future<Output = F::Output> + Send + use<F>
    where
        F: Future<Output: Send> + Send,
    {
        let guard = Guard {
            supervisor: self.clone(),
            part,
            is_vital: false,
        };
        async move {
            let _guard = guard;
            task.await
        }
    }

    /// Runs a task, and restarts it when it dies.
    pub async fn revived<F: Future<Output = ()> + Send>(
        self,
        part: ServerPart,
        mut make: impl FnMut() -> F + Send,
    ) {
        let mut pause = PAUSE_FIRST;
        loop {
            let begun = Instant::now();
            let ended = AssertUnwindSafe(make()).catch_unwind().await;
            if self.is_closing() {
                return;
            }
            let reason = if ended.is_err() {
                "it panicked"
            } else {
                "it ended"
            };
            self.count(part);
            self.shared
                .readiness
                .not_ready(part.name(), format!("{reason} {RESTARTING}"));
            if begun.elapsed() >= STEADY_AFTER {
                pause = PAUSE_FIRST;
            }
            tracing::error!(
                part = part.name(),
                reason,
                ?pause,
                "a part of the process died and restarts"
            );
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MOST);
            self.shared.readiness.ready(part.name());
        }
    }

    /// Reports the death of a vital part, after which the process ends. The first death counts.
    pub fn died(&self, part: ServerPart, reason: impl Into<String>) {
        if self.is_closing() {
            return;
        }
        self.count(part);
        let death = Death {
            part,
            reason: reason.into(),
        };
        self.shared
            .readiness
            .dead(part.name(), death.reason.as_str());
        self.shared.death.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                tracing::error!(error = %death, "an essential part died");
                *first = Some(death);
            }
            is_first
        });
    }

    /// Waits for the death of a vital part.
    pub async fn death(&self) -> Death {
        let mut deaths = self.shared.death.subscribe();
        let death = deaths
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|death| death.clone());
        match death {
            Some(death) => death,
            // `self` holds the sender.
            None => std::future::pending().await,
        }
    }

    /// Completes `work`, unless a vital part dies first.
    pub async fn until_done<T>(&self, work: impl Future<Output = T>) -> Result<T, Death> {
        tokio::select! {
            biased;
            death = self.death() => Err(death),
            done = work => Ok(done),
        }
    }

    fn panicked(&self, part: ServerPart) {
        self.count(part);
        tracing::error!(
            part = part.name(),
            "a task panicked: other tasks of its kind continue"
        );
    }

    fn count(&self, part: ServerPart) {
        self.shared.deaths.with_label_values(&[part.name()]).inc();
    }

    fn is_closing(&self) -> bool {
        self.shared.is_closing.load(Ordering::Acquire)
    }
}

/// Dropped with a task's state; if the task panicked, while its thread unwinds.
struct Guard {
    supervisor: Supervisor,
    part: ServerPart,
    is_vital: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true if self.is_vital => self.supervisor.died(self.part, "it panicked"),
            true => self.supervisor.panicked(self.part),
            false => {}
        }
    }
}

/// The pause after the first death, and the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(10);
/// A part that has run for this long begins with the first pause again.
const STEADY_AFTER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Status;

    fn supervisor() -> Supervisor {
        let readiness = Readiness::new();
        readiness.ready("server");
        Supervisor::new(&Registry::new(), readiness).unwrap()
    }

    fn deaths(supervisor: &Supervisor, part: ServerPart) -> u64 {
        supervisor
            .shared
            .deaths
            .with_label_values(&[part.name()])
            .get()
    }

    #[test]
    fn every_part_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> =
            ServerPart::ALL.iter().map(|part| part.name()).collect();
        assert_eq!(names.len(), ServerPart::ALL.len());
    }

    #[tokio::test]
    async fn a_vital_part_that_panics_or_ends_ends_the_process() {
        for (panics, reason) in [(true, "it panicked"), (false, "it ended")] {
            let supervisor = supervisor();
            let part = supervisor.vital(ServerPart::Encoder, async move {
                tokio::task::yield_now().await;
                assert!(!panics, "injected");
            });
            let _ = tokio::spawn(part).await;
            let death = supervisor
                .until_done(std::future::pending::<()>())
                .await
                .unwrap_err();
            assert_eq!(
                death,
                Death {
                    part: ServerPart::Encoder,
                    reason: reason.to_owned()
                }
            );
            assert_eq!(
                death.to_string(),
                format!("the process ends because an essential part died: encoder: {reason}")
            );
            assert!(supervisor.shared.readiness.is_dead());
            assert_eq!(supervisor.shared.readiness.status().0, Status::NotReady);
            supervisor.died(ServerPart::Answers, "later");
            assert_eq!(
                supervisor.death().await.part,
                ServerPart::Encoder,
                "the first one counts"
            );
            assert_eq!(
                (
                    deaths(&supervisor, ServerPart::Encoder),
                    deaths(&supervisor, ServerPart::Answers)
                ),
                (1, 1)
            );
        }
    }

    #[tokio::test]
    async fn a_vital_part_may_be_aborted_and_may_end_once_the_server_closes() {
        let supervisor = supervisor();
        let part = tokio::spawn(supervisor.vital(ServerPart::Accept, std::future::pending()));
        tokio::task::yield_now().await;
        part.abort();
        assert!(part.await.unwrap_err().is_cancelled());
        drop(supervisor.closing());
        tokio::spawn(supervisor.vital(ServerPart::Accept, async {}))
            .await
            .unwrap();
        assert_eq!(supervisor.until_done(async { 7 }).await, Ok(7));
        assert!(!supervisor.shared.readiness.is_dead());
        assert_eq!(deaths(&supervisor, ServerPart::Accept), 0);
    }

    #[tokio::test]
    async fn what_is_contained_ends_alone() {
        let supervisor = supervisor();
        let part = supervisor.contained(ServerPart::Session, async {
            tokio::task::yield_now().await;
            panic!("injected");
        });
        assert!(tokio::spawn(part).await.unwrap_err().is_panic());
        assert_eq!(
            tokio::spawn(supervisor.contained(ServerPart::Session, async { 7 }))
                .await
                .unwrap(),
            7
        );
        assert_eq!(deaths(&supervisor, ServerPart::Session), 1);
        assert_eq!(supervisor.shared.readiness.status().0, Status::Ready);
    }

    #[tokio::test]
    async fn a_revived_part_is_not_ready_until_it_runs_again() {
        let (supervisor, is_well) = (supervisor(), Arc::new(AtomicBool::new(false)));
        let readiness = supervisor.shared.readiness.clone();
        let mut panics = true;
        let wellness = Arc::clone(&is_well);
        let part = tokio::spawn(supervisor.clone().revived(ServerPart::Keys, move || {
            // It panics and ends alternately.
            panics = !panics;
            let (panics, is_well) = (panics, wellness.load(Ordering::Relaxed));
            async move {
                match (is_well, panics) {
                    (true, _) => std::future::pending().await,
                    (false, true) => panic!("injected"),
                    (false, false) => {}
                }
            }
        }));
        let is = async |status: Status| {
            while readiness.status().0 != status {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        is(Status::NotReady).await;
        assert_eq!(readiness.status().1[0].part, "keys");
        while deaths(&supervisor, ServerPart::Keys) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        is_well.store(true, Ordering::Relaxed);
        is(Status::Ready).await;
        assert!(!part.is_finished() && !readiness.is_dead());
        part.abort();
    }
}
