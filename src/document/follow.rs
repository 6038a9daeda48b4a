//! A server follows the fleet's configuration.
//!
//! A task reads the store: at the start, when somebody says that there is a new revision, every
//! [`Shared::refresh`](crate::cluster::Shared), and after pauses that grow where it cannot be read.
//! What it has read is then judged by whoever can apply a configuration: it asks for
//! [`Following::news`], and says what has come of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::Client;
use futures_util::{FutureExt as _, StreamExt as _};
use rand::RngExt as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::entry::Entry;
use super::keep::{self, Kept};
use super::store::{Newest, Store, Stored};
use crate::cluster::beat::{ConfigHash, Name};
use crate::cluster::{self, Cluster, Configured, engine};
use crate::config::{Document, Loaded, Sources};
use crate::telemetry::{MILESTONE, Readiness};

/// What a server knows of the fleet's configuration. Clones share it.
#[derive(Debug, Clone)]
pub struct Following {
    kept: Arc<Kept>,
    own: Name,
    config: cluster::Config,
    found: Arc<watch::Sender<Newest>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The revision in force.
    taken: Option<Stored>,
    /// The files that it needs.
    files: BTreeSet<String>,
    /// One that is not, and why.
    refused: Option<(u64, String)>,
    /// Why the store was not read at the last attempt.
    unread: Option<String>,
    /// Whether the store has none any more.
    is_gone: bool,
    /// A revision below the one in force that was read once: a store that was made anew, or a node
    /// that is behind.
    lower: Option<Stored>,
    /// Whether the last good revision cannot be kept.
    unkept: Option<String>,
    /// Where all this is told, once the server runs.
    cluster: Option<(Cluster, Readiness)>,
}

/// What comes from the store.
#[derive(Debug)]
pub struct News(watch::Receiver<Newest>);

/// A revision that was opened, and is to be tried.
#[derive(Debug)]
pub struct Taken {
    stored: Stored,
    files: BTreeSet<String>,
    /// The document, with what was sealed.
    pub document: Document,
}

impl Taken {
    /// Its number.
    pub fn revision(&self) -> u64 {
        self.stored.revision
    }
}

impl Following {
    /// What a server that is about to start follows, and its configuration with the last good
    /// revision. `None` if it follows nothing. A last good revision that is of no use any more
    /// changes nothing, and is complained of.
    pub fn begin(
        mut sources: Sources,
        loaded: Loaded,
    ) -> Result<(Sources, Loaded, Option<Self>), keep::Error> {
        let config = &loaded.config.cluster;
        let (true, Some(folder)) = (config.config.enabled, &config.config.directory) else {
            return Ok((sources, loaded, None));
        };
        let following = Self {
            kept: Arc::new(Kept::open(folder)?),
            own: config.name.clone().expect("a fleet's server has a name"),
            config: config.clone(),
            found: Arc::new(watch::Sender::new(Newest::Nothing)),
            state: Arc::default(),
        };
        let last = match following.kept.last() {
            Ok(None) => return Ok((sources, loaded, Some(following))),
            Ok(Some(stored)) => {
                // It is tried again after the server's own file was read, whether or not NATS is
                // reached.
                let seed = Newest::Revision(stored.clone());
                following.found.send_replace(seed);
                stored
            }
            Err(error) => {
                tracing::error!(%error, "the last good configuration of the fleet cannot be read");
                return Ok((sources, loaded, Some(following)));
            }
        };
        let revision = last.revision;
        let tried = following.open(last).and_then(|taken| {
            sources.document = Some(taken.document.clone());
            let with = sources
                .load_over(&loaded)
                .map_err(|error| error.to_string())?;
            Ok((taken, with))
        });
        match tried {
            Ok((taken, with)) => {
                tracing::info!(
                    revision,
                    "starting with the last good configuration of the fleet"
                );
                following.note_taken(taken, false);
                Ok((sources, with, Some(following)))
            }
            Err(reason) => {
                tracing::error!(
                    revision,
                    reason,
                    "the last good configuration of the fleet is of no use: starting without",
                );
                following.state().refused = Some((revision, reason));
                sources.document = None;
                Ok((sources, loaded, Some(following)))
            }
        }
    }

    /// The server does not start with the last good revision: it starts without one.
    pub fn give_up(&self, reason: String) {
        let mut state = self.state();
        let revision = state.taken.take().map_or(0, |taken| taken.revision);
        tracing::error!(
            revision,
            reason,
            "the server does not start with the last good configuration of the fleet: starting \
             without",
        );
        state.refused = Some((revision, reason));
    }

    /// Tells in beats, metrics and `/readyz` from now on.
    pub fn tell(&self, cluster: &Cluster, readiness: &Readiness) {
        self.state().cluster = Some((cluster.clone(), readiness.clone()));
        self.say();
    }

    /// Reads the store for as long as it is polled.
    pub async fn read(self, mut clients: watch::Receiver<Option<Client>>) {
        loop {
            let client = clients.borrow_and_update().clone();
            match client {
                Some(client) => self.read_from(client, &mut clients).await,
                // The server ends only with this task.
                None => drop(clients.changed().await),
            }
        }
    }

    /// Reads with a client until there is another one.
    async fn read_from(&self, client: Client, clients: &mut watch::Receiver<Option<Client>>) {
        let store = Store::new(client.clone(), &self.config.nats.subject);
        let Ok(mut notices) = client.subscribe(store.notices().to_owned()).await else {
            // This client has ended.
            return drop(clients.changed().await);
        };
        let mut attempts = 0;
        loop {
            let wait = match store.newest().await {
                Ok(newest) => {
                    attempts = 0;
                    self.note_read(newest);
                    let part = rand::rng().random_range(0.75..1.0);
                    self.config.config.refresh.mul_f64(part)
                }
                Err(error) => {
                    self.note_unread(error.to_string());
                    attempts += 1;
                    engine::pause(attempts)
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                Some(_) = notices.next() => {
                    // A hundred servers do not ask in the same instant, and who says so without end
                    // has each of them ask a few times a second.
                    let part = rand::rng().random_range(0.2..1.0);
                    sleep(SPREAD.mul_f64(part)).await;
                    while notices.next().now_or_never().flatten().is_some() {}
                }
                changed = clients.changed() => match changed {
                    Ok(()) => return,
                    Err(_) => return std::future::pending().await,
                },
            }
        }
    }

    /// What is in the store, from now on.
    pub fn news(&self) -> News {
        let mut found = self.found.subscribe();
        // It may have been read already.
        found.mark_changed();
        News(found)
    }

    /// Waits until there is a revision to try, and opens it. Cancelling this loses nothing.
    pub async fn next(&self, news: &mut News) -> Taken {
        loop {
            if news.0.changed().await.is_err() {
                return std::future::pending().await;
            }
            let newest = news.0.borrow_and_update().clone();
            let Newest::Revision(stored) = newest else {
                continue;
            };
            if !self.is_new(&stored) {
                continue;
            }
            let revision = stored.revision;
            match self.open(stored) {
                Ok(taken) => return taken,
                Err(reason) => self.note_refused(revision, reason),
            }
        }
    }

    fn is_new(&self, stored: &Stored) -> bool {
        let mut state = self.state();
        let revision = stored.revision;
        let taken = state.taken.as_ref();
        let is_lower = taken.is_some_and(|taken| revision < taken.revision);
        let is_same = taken.is_some_and(|taken| taken == stored);
        // Whatever its number: another one below the one in force begins to count anew.
        let was_read = state.lower.as_ref() == Some(stored);
        state.lower = is_lower.then(|| stored.clone());
        !is_same && (!is_lower || was_read)
    }

    /// Opens a revision, and writes the files that it needs.
    fn open(&self, stored: Stored) -> Result<Taken, String> {
        let files = self.kept.files();
        let opened = Entry::from_bytes(&stored.bytes)
            .and_then(|entry| entry.open(&self.own, self.kept.key(), &files))
            .map_err(|error| error.to_string())?;
        let fail = |error: &dyn std::error::Error| error.to_string();
        let document = Document::of_revision(stored.revision, opened.text);
        let document = document.map_err(|error| fail(&error))?;
        self.kept
            .write_files(&opened.files)
            .map_err(|error| fail(&error))?;
        Ok(Taken {
            stored,
            files: opened.files.into_iter().map(|(name, _)| name).collect(),
            document,
        })
    }

    /// A revision is in force.
    pub fn note_taken(&self, taken: Taken, is_new: bool) {
        let Taken { stored, files, .. } = taken;
        let revision = stored.revision;
        let kept = if is_new {
            self.kept.keep(&stored)
        } else {
            Ok(())
        };
        if let Err(error) = &kept {
            tracing::error!(%error, "the last good configuration of the fleet cannot be kept");
        }
        let mut state = self.state();
        // One that cannot be kept is not there at the next start, and the one before needs its own.
        if kept.is_ok() {
            self.kept.keep_files(&files);
        }
        state.files = files;
        state.unkept = kept.err().map(|error| error.to_string());
        state.taken = Some(stored);
        state.refused = None;
        drop(state);
        if is_new {
            tracing::info!(name: MILESTONE, revision, "the fleet's configuration is in force");
        }
        self.say();
    }

    /// A revision cannot be in force.
    pub fn note_refused(&self, revision: u64, reason: String) {
        let mut state = self.state();
        let refused = Some((revision, reason));
        let is_known = state.refused == refused;
        if state.unkept.is_none() {
            self.kept.keep_files(&state.files);
        }
        if let (false, Some((_, reason))) = (is_known, &refused) {
            let in_force = state.taken.as_ref().map_or(0, |taken| taken.revision);
            tracing::error!(
                revision,
                reason,
                in_force,
                "the fleet's configuration is refused: the last good one stays in force",
            );
        }
        state.refused = refused;
        drop(state);
        self.say();
    }

    /// Tries the newest revision again, if it was refused: this server's own file has changed.
    pub fn try_again(&self) {
        if self.state().refused.is_some() {
            self.found.send_modify(|_| {});
        }
    }

    fn note_read(&self, newest: Newest) {
        let revision = newest.revision();
        let mut state = self.state();
        if state.unread.take().is_some() {
            tracing::info!(revision, "the fleet's configuration is read again");
        }
        let in_force = state.taken.as_ref().map_or(0, |taken| taken.revision);
        let is_gone = in_force > 0 && !matches!(newest, Newest::Revision(_));
        if is_gone && !state.is_gone {
            tracing::warn!(
                in_force,
                "the store has no configuration any more: this one stays"
            );
        }
        state.is_gone = is_gone;
        let is_in_force =
            matches!(&newest, Newest::Revision(stored) if state.taken.as_ref() == Some(stored));
        if is_in_force && let Some((refused, _)) = state.refused.take() {
            tracing::info!(
                revision,
                refused,
                "the store is back at the configuration that is in force"
            );
        }
        if let Some((cluster, _)) = &state.cluster {
            // Nobody can come to a revision that was deleted.
            let newest = match &newest {
                Newest::Revision(stored) => Some(stored),
                Newest::Nothing | Newest::Deleted(_) => state.taken.as_ref(),
            };
            let metrics = cluster.metrics();
            metrics
                .config_newest
                .set(newest.map_or(0, |stored| number(stored.revision)));
            metrics
                .config_newest_hash
                .set(newest.map_or(0, |stored| stored.hash().number()));
        }
        drop(state);
        self.say();
        self.found.send_replace(newest);
    }

    fn note_unread(&self, reason: String) {
        let mut state = self.state();
        if state.unread.as_ref() != Some(&reason) {
            tracing::warn!(
                reason,
                "the fleet's configuration is not read: trying again"
            );
        }
        state.unread = Some(reason);
        drop(state);
        self.say();
    }

    /// Tells how things are.
    fn say(&self) {
        let state = self.state();
        let Some((cluster, readiness)) = &state.cluster else {
            return;
        };
        let revision = state.taken.as_ref().map_or(0, |taken| taken.revision);
        let hash = state.taken.as_ref().map(Stored::hash);
        let hash_number = hash.as_ref().map_or(0, ConfigHash::number);
        let metrics = cluster.metrics();
        metrics.config_revision.set(number(revision));
        metrics.config_hash.set(hash_number);
        if metrics.config_newest.get() == 0 {
            metrics.config_newest.set(number(revision));
            metrics.config_newest_hash.set(hash_number);
        }
        metrics.config_up.set(i64::from(state.unread.is_none()));
        let complaint = match (&state.refused, &state.unread, &state.unkept) {
            (Some((revision, reason)), ..) => {
                Some(format!("revision {revision} is refused: {reason}"))
            }
            (None, Some(reason), _) => Some(format!("it is not read: {reason}")),
            (None, None, Some(reason)) => Some(format!("it cannot be kept: {reason}")),
            (None, None, None) if state.is_gone => {
                Some("the store has none any more: the last one stays in force".to_owned())
            }
            (None, None, None) => None,
        };
        match complaint {
            Some(complaint) => readiness.degraded(PART, complaint),
            None => readiness.ready(PART),
        }
        let configured = Configured {
            revision: Some(revision),
            hash,
            sealing_key: Some(self.kept.key().public()),
        };
        cluster.configured(configured);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// Its name in `/readyz`.
const PART: &str = "configuration";
/// The time over which servers spread their questions.
const SPREAD: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn following(folder: &std::path::Path) -> Following {
        Following {
            kept: Arc::new(Kept::open(folder).unwrap()),
            own: "one".parse().unwrap(),
            config: cluster::Config::default(),
            found: Arc::new(watch::Sender::new(Newest::Nothing)),
            state: Arc::default(),
        }
    }

    fn stored(revision: u64, document: &str) -> Stored {
        let json = serde_json::json!({ "form": 1, "document": document });
        Stored {
            revision,
            written_ms: 0,
            bytes: Bytes::from(json.to_string()),
        }
    }

    const DOCUMENT: &str = "[stream.a]\norigin = \"http://origin.example/\"";

    /// A node that is behind tells it once; a store that was made anew goes on telling it.
    #[tokio::test]
    async fn a_lower_revision_counts_when_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let following = following(folder.path());
        let mut news = following.news();
        let read = |revision| following.note_read(Newest::Revision(stored(revision, DOCUMENT)));
        read(7);
        let taken = following.next(&mut news).await;
        assert_eq!(taken.revision(), 7);
        following.note_taken(taken, true);
        let is_quiet = |news: &mut News| following.next(news).now_or_never().is_none();
        read(7);
        assert!(is_quiet(&mut news), "it is in force");
        read(3);
        assert!(is_quiet(&mut news));
        read(7);
        assert!(is_quiet(&mut news));
        read(3);
        assert!(is_quiet(&mut news));
        read(3);
        assert_eq!(following.next(&mut news).await.revision(), 3);
    }

    /// A number is no identity: a store that was made anew begins at 1 again.
    #[tokio::test]
    async fn a_revision_is_known_by_its_hash_and_not_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let following = following(folder.path());
        let mut news = following.news();
        let read = |revision, document: &str| {
            following.note_read(Newest::Revision(stored(revision, document)));
        };
        let other = DOCUMENT.replace("stream.a", "stream.b");
        read(2, DOCUMENT);
        let taken = following.next(&mut news).await;
        following.note_taken(taken, true);
        // A node that is behind has no other document under the number of the newest one.
        read(2, &other);
        let taken = following.next(&mut news).await;
        assert_eq!(taken.stored.hash(), stored(2, &other).hash());
        following.note_taken(taken, true);
        // Two different ones below it are not one that stays.
        let is_quiet = |news: &mut News| following.next(news).now_or_never().is_none();
        read(1, DOCUMENT);
        assert!(is_quiet(&mut news));
        read(1, &other);
        assert!(is_quiet(&mut news));
        read(1, &other);
        assert_eq!(following.next(&mut news).await.revision(), 1);
    }

    #[tokio::test]
    async fn a_refusal_ends_when_the_store_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let following = following(folder.path());
        let mut news = following.news();
        let read = |revision| following.note_read(Newest::Revision(stored(revision, DOCUMENT)));
        read(1);
        let taken = following.next(&mut news).await;
        following.note_taken(taken, true);
        read(2);
        let taken = following.next(&mut news).await;
        following.note_refused(taken.revision(), "a reason".to_owned());
        assert!(following.state().refused.is_some());
        read(1);
        assert_eq!(following.state().refused, None);
    }

    /// The copy on the disk does not need NATS to be tried again.
    #[tokio::test]
    async fn the_last_good_revision_is_tried_again_without_nats() {
        let folder = tempfile::tempdir().unwrap();
        let settings = [
            ("cluster.engine", "nats"),
            ("cluster.name", "one"),
            ("cluster.advertise", "one.example:4443"),
            ("cluster.nats.urls", "nats://127.0.0.1"),
            ("cluster.config.enabled", "true"),
            ("cluster.config.directory", folder.path().to_str().unwrap()),
        ];
        let settings = settings.map(|(key, text)| (key.to_owned(), text.to_owned()));
        let sources = Sources {
            overrides: settings.to_vec(),
            ..Sources::default()
        };
        let last = stored(7, "[stream.a]\norigin = \"http://a.example/\"\nn_max = 0");
        Kept::open(folder.path()).unwrap().keep(&last).unwrap();
        let loaded = sources.load().unwrap();
        let (sources, loaded, following) = Following::begin(sources, loaded).unwrap();
        let following = following.unwrap();
        assert!(sources.document.is_none() && loaded.config.stream.is_empty());
        let refused = following.state().refused.clone();
        assert!(refused.is_some_and(|(revision, _)| revision == 7));
        let mut news = following.news();
        assert_eq!(following.next(&mut news).await.revision(), 7);
        following.note_refused(7, "a reason".to_owned());
        following.try_again();
        assert_eq!(following.next(&mut news).await.revision(), 7);
    }

    #[tokio::test]
    async fn a_document_is_tried_each_time_that_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let following = following(folder.path());
        following.note_read(Newest::Revision(stored(1, DOCUMENT)));
        // Read before anybody has asked.
        let mut news = following.news();
        let taken = following.next(&mut news).await;
        following.note_refused(taken.revision(), "a reason".to_owned());
        assert!(following.next(&mut news).now_or_never().is_none());
        following.try_again();
        assert_eq!(following.next(&mut news).await.revision(), 1);
        following.note_read(Newest::Revision(stored(2, "[cluster]")));
        assert!(following.next(&mut news).now_or_never().is_none());
        let refused = following.state().refused.clone();
        assert!(refused.is_some_and(|(revision, _)| revision == 2));
    }
}
