//! What an operator does with the fleet's configuration: applies one, looks at it, goes back to an
//! earlier one.
//!
//! A revision is written only over the one that was looked at: of two operators who write at the
//! same time, the second is told of the first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use ncs_net::files;
use toml::{Table, Value};

use super::entry::{self, DOCUMENT_BYTES_MAX, Entry, Secrets, Written};
use super::sealing::PrivateKey;
use super::store::{self, Newest, Store, Stored};
use crate::admission::keys::{KeySet, SET_BYTES_MAX};
use crate::cluster::beat::{Beat, ConfigHash, Name, SealingKey};
use crate::cluster::engine::{self, Engine, Heard, Kind};
use crate::cluster::roster::{INTERVAL, Roster};
use crate::cluster::{self, REACHED_WITHIN};
use crate::config::{self, Config, Document, Finding, Sources};
use crate::console;
use crate::integrity::signing::SigningKey;
use crate::secret::SecretUrl;

/// How a document is applied.
#[derive(Debug, Clone)]
pub struct Apply {
    /// The file of the document.
    pub file: PathBuf,
    /// The revision that it must follow.
    pub base: Option<u64>,
    /// Whether to show only what would change.
    pub dry_run: bool,
    /// Whether the operator agrees to whatever changes.
    pub yes: bool,
}

/// Why a command has not done what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration of this machine, or with the document, is refused.
    #[error("{0}")]
    Config(#[from] config::Error),
    /// The engine is another one.
    #[error("the fleet's configuration is kept by NATS: set `cluster.engine = \"nats\"`")]
    Engine,
    /// The document is refused.
    #[error("{}: {reason}", file.display())]
    Document {
        /// Its file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// What the document names cannot be used.
    #[error("`{key}`: {reason}")]
    Named {
        /// The key that names it.
        key: String,
        /// Why.
        reason: String,
    },
    /// The engine cannot be opened.
    #[error("the engine: {0}")]
    Open(#[from] engine::Error),
    /// It is not reached.
    #[error("the engine is not reached: {0}")]
    Unreached(String),
    /// Somebody was faster.
    #[error(
        "revision {newest} is the newest one, not {base}: look at it with `ncserverd cluster \
         config`, and apply yours again"
    )]
    Moved {
        /// The one that was to be replaced.
        base: u64,
        /// The one that is there.
        newest: u64,
    },
    /// Nobody has agreed to what is lost.
    #[error("nothing is written: {}", match removed.as_slice() {
        [] => "you did not agree".to_owned(),
        removed => format!("this removes {}; agree with --yes", removed.join(", ")),
    })]
    NotAgreed {
        /// What is removed.
        removed: Vec<String>,
    },
    /// The store fails.
    #[error("the store of the configuration: {0}")]
    Store(String),
    /// There is no such revision.
    #[error("{0}")]
    NoRevision(String),
    /// Servers cannot open the secrets of what is to be taken up again.
    #[error(
        "nothing is written: {} cannot open the secrets of revision {revision}; apply its document \
         again, or go back all the same with --force", servers.join(", ")
    )]
    Shut {
        /// The revision.
        revision: u64,
        /// The servers.
        servers: Vec<String>,
    },
    /// It is written, and not in force everywhere.
    #[error(
        "revision {revision} is not yet in force on {}: their logs and /readyz say why",
        servers.join(", ")
    )]
    NotYet {
        /// The revision.
        revision: u64,
        /// The servers.
        servers: Vec<String>,
    },
    /// The output cannot be written.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Store(error.to_string())
    }
}

/// Checks a document, shows what it changes, and applies it.
pub async fn apply(sources: &Sources, options: &Apply) -> Result<(), Error> {
    let config = sources.load()?.config;
    let (mut entry, secrets, findings) = prepare(sources, &options.file)?;
    for finding in findings {
        console::print(format_args!("warning: {finding}\n"))?;
    }
    let mut session = Session::open(&config, "ncserverd cluster apply").await?;
    let newest = session.store.newest().await?;
    let base = options.base.unwrap_or_else(|| newest.revision());
    if base != newest.revision() {
        let newest = newest.revision();
        return Err(Error::Moved { base, newest });
    }
    let before = readable(&newest);
    let has_secrets = secrets != Secrets::default();
    let servers = if has_secrets {
        session.listen(2 * INTERVAL + LATE).await;
        session.servers()
    } else {
        BTreeMap::new()
    };
    entry.seal(&secrets, &servers, rand::random);
    let document = |reason: entry::Unfit| Error::Document {
        file: options.file.clone(),
        reason: reason.to_string(),
    };
    let bytes = entry.to_bytes().map_err(document)?;
    try_out(&bytes, &secrets).map_err(document)?;
    console::print(changes(before.as_ref(), &entry))?;
    if has_secrets {
        console::print(recipients(before.as_ref(), &servers))?;
        if servers.is_empty() {
            return Err(Error::Unreached(
                "no server tells a key that secrets can be sealed to: `cluster.config.enabled` is \
                 off, or none runs"
                    .to_owned(),
            ));
        }
    }
    if options.dry_run {
        return Ok(console::print("nothing is applied\n")?);
    }
    if before.as_ref() == Some(&entry) {
        return Ok(console::print(format_args!(
            "nothing changes: revision {base} stays\n"
        ))?);
    }
    let removed = removed(before.as_ref(), &entry);
    match consent(&removed, before.is_some(), options, is_dialog()) {
        Consent::Given => {}
        Consent::Asked if agrees()? => {}
        Consent::Asked => {
            return Err(Error::NotAgreed {
                removed: Vec::new(),
            });
        }
        Consent::Missing => return Err(Error::NotAgreed { removed }),
    }
    let replicas = config.cluster.config.replicas;
    session.write(base, bytes, replicas).await
}

/// Whether an operator agrees to what a document changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Consent {
    Given,
    /// He is there, and is asked.
    Asked,
    Missing,
}

/// On a terminal, whoever has not named the revision that he looked at sees only now what changes,
/// and is asked. A script is not, unless viewers lose something: it would have to agree each time,
/// and that would mean nothing.
fn consent(removed: &[String], has_before: bool, options: &Apply, is_dialog: bool) -> Consent {
    let is_unseen = has_before && options.base.is_none();
    match (options.yes, is_dialog) {
        (true, _) => Consent::Given,
        (false, true) if is_unseen || !removed.is_empty() => Consent::Asked,
        (false, false) if !removed.is_empty() => Consent::Missing,
        (false, _) => Consent::Given,
    }
}

/// Whether somebody reads what is printed, and can answer.
fn is_dialog() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

fn agrees() -> io::Result<bool> {
    console::print("Apply this? Only \"yes\" counts: ")?;
    let mut answer = String::new();
    // More than a line is no answer.
    io::stdin()
        .lock()
        .take(ANSWER_BYTES_MAX)
        .read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// The streams that a document takes away, and the keys of tokens if it leaves none.
fn removed(before: Option<&Entry>, after: &Entry) -> Vec<String> {
    let names = |entry: &Entry| {
        let table = entry.shown().unwrap_or_default();
        let section = |name: &str| table.get(name).and_then(Value::as_table).cloned();
        let streams = section("stream").unwrap_or_default();
        let mut names: BTreeSet<String> = streams
            .keys()
            .map(|name| format!("stream.{name}"))
            .collect();
        if section("admission").is_some_and(|admission| admission.contains_key("keys")) {
            names.insert("admission.keys".to_owned());
        }
        names
    };
    let before = before.map(names).unwrap_or_default();
    before.difference(&names(after)).cloned().collect()
}

/// What a server with this configuration finds in the store, or why it finds nothing, and advice.
pub async fn inspect(config: &Config) -> Result<String, (String, &'static str)> {
    let session = Session::open(config, "ncserverd doctor").await;
    let session = session.map_err(|error| {
        let advice = "check that NATS runs, and what `cluster.nats` names";
        (error.to_string(), advice)
    })?;
    // NATS answers nothing where a right is missing.
    let newest = session.store.newest().await.map_err(|error| {
        let advice = "check that JetStream is on at NATS, and that this server may publish \
                      $JS.API.STREAM.MSG.GET.KV_SUBJECT_config (docs/fleet.md)";
        (error.to_string(), advice)
    })?;
    let stored = match newest {
        Newest::Revision(stored) => stored,
        Newest::Nothing => return Ok("it can be read; nothing was applied yet".to_owned()),
        Newest::Deleted(revision) => {
            let found = format!("revision {revision} has deleted the document");
            return Err((found, "apply one again: `ncserverd cluster apply`"));
        }
    };
    let again = "apply the document again: `ncserverd cluster apply`";
    let entry = Entry::from_bytes(&stored.bytes);
    let entry = entry.map_err(|error| {
        let found = format!("revision {} cannot be used: {error}", stored.revision);
        (found, again)
    })?;
    let line = line(&stored, Some(&entry));
    let own = config.cluster.name.as_ref();
    let recipients = entry.recipients();
    if recipients.is_some_and(|sealed_to| !own.is_some_and(|own| sealed_to.contains_key(own))) {
        let found = format!("{line}; this server has no copy of its secrets");
        return Err((found, again));
    }
    Ok(format!("{line} can be read"))
}

/// Takes up an earlier revision again: the one before, unless another is named. Refuses one whose
/// secrets a server that beats cannot open, unless it is forced.
pub async fn roll_back(
    sources: &Sources,
    revision: Option<u64>,
    is_forced: bool,
) -> Result<(), Error> {
    let config = sources.load()?.config;
    let mut session = Session::open(&config, "ncserverd cluster rollback").await?;
    let newest = session.store.newest().await?;
    let base = newest.revision();
    let earlier = match revision {
        Some(revision) => session.store.revision(revision).await?,
        None => one_before(&newest, session.store.history().await?),
    };
    let earlier = earlier.filter(|stored| stored.revision != base);
    let Some(earlier) = earlier else {
        let text = match revision {
            Some(revision) if revision == base => format!("revision {base} is the newest one"),
            Some(revision) => format!("revision {revision} is not kept"),
            None => "no earlier revision is kept that can be read".to_owned(),
        };
        return Err(Error::NoRevision(text));
    };
    let before = readable(&newest);
    let mut entry = Entry::from_bytes(&earlier.bytes).map_err(|error| refused(&earlier, &error))?;
    session.listen(2 * INTERVAL + LATE).await;
    let shut = shut(&entry, &session.servers());
    for (server, why) in &shut {
        console::print(format_args!("{server} {why}\n"))?;
    }
    entry.repeats = Some(entry.repeats.unwrap_or(earlier.revision));
    console::print(changes(before.as_ref(), &entry))?;
    let bytes = entry.to_bytes();
    let bytes = bytes.map_err(|error| Error::NoRevision(error.to_string()))?;
    if !shut.is_empty() && !is_forced {
        return Err(Error::Shut {
            revision: earlier.revision,
            servers: shut.into_iter().map(|(name, _)| name.to_string()).collect(),
        });
    }
    let replicas = config.cluster.config.replicas;
    session.write(base, bytes, replicas).await
}

/// The servers that cannot open the secrets of an entry, and why.
fn shut(entry: &Entry, servers: &BTreeMap<Name, SealingKey>) -> Vec<(Name, &'static str)> {
    let Some(recipients) = entry.recipients() else {
        return Vec::new();
    };
    let why = |(name, key): (&Name, &SealingKey)| match recipients.get(name) {
        None => Some((name.clone(), "has no copy of its secrets")),
        Some(sealed_to) if *sealed_to != key => Some((
            name.clone(),
            "has another key than the one they were sealed to",
        )),
        Some(_) => None,
    };
    servers.iter().filter_map(why).collect()
}

/// Reads what is to be written, and opens it, as a server does.
fn try_out(bytes: &[u8], secrets: &Secrets) -> Result<(), entry::Unfit> {
    let mut entry = Entry::from_bytes(bytes)?;
    let key = PrivateKey::of(rand::random());
    let own: Name = "trial".parse().expect("this is a name");
    let servers = BTreeMap::from([(own.clone(), key.public())]);
    entry.seal(secrets, &servers, rand::random);
    entry.open(&own, &key, Path::new("/")).map(drop)
}

/// The revision that was in force before the newest one. One that takes up an earlier one again
/// stands for it, so that who goes back twice comes to a third and not to where he began.
fn one_before(newest: &Newest, history: Vec<Stored>) -> Option<Stored> {
    let base = newest.revision();
    let repeats = readable(newest).and_then(|entry| entry.repeats);
    let from = repeats.map_or(base, |repeats| repeats.min(base));
    let mut earlier = history
        .into_iter()
        .rev()
        .filter(|stored| stored.revision < from);
    earlier.find(|stored| Entry::from_bytes(&stored.bytes).is_ok())
}

/// Prints a revision, the newest unless another is named, and which ones are kept.
pub async fn show(sources: &Sources, revision: Option<u64>) -> Result<(), Error> {
    let config = sources.load()?.config;
    let session = Session::open(&config, "ncserverd cluster config").await?;
    let stored = match (revision, session.store.newest().await?) {
        (Some(revision), _) => session.store.revision(revision).await?,
        (None, Newest::Revision(stored)) => Some(stored),
        (None, Newest::Nothing | Newest::Deleted(_)) => None,
    };
    let Some(stored) = stored else {
        let text = match revision {
            Some(revision) => format!("revision {revision} is not kept"),
            None => "no configuration was applied yet".to_owned(),
        };
        return Err(Error::NoRevision(text));
    };
    let refused = |error: entry::Unfit| refused(&stored, &error);
    let entry = Entry::from_bytes(&stored.bytes).map_err(refused)?;
    let history = session.store.history().await?;
    let shown = entry.shown().map_err(refused)?;
    Ok(console::print(
        head(&stored, &entry, &history) + &shown.to_string(),
    )?)
}

/// The newest entry, if there is one that can be read.
fn readable(newest: &Newest) -> Option<Entry> {
    match newest {
        Newest::Revision(stored) => Entry::from_bytes(&stored.bytes).ok(),
        Newest::Nothing | Newest::Deleted(_) => None,
    }
}

fn refused(stored: &Stored, error: &entry::Unfit) -> Error {
    Error::NoRevision(format!("revision {} is refused: {error}", stored.revision))
}

/// What is to be said of a revision, as comments.
fn head(stored: &Stored, entry: &Entry, history: &[Stored]) -> String {
    let mut text = format!("# {}\n", line(stored, Some(entry)));
    if let Some(servers) = entry.recipients() {
        let names: Vec<_> = servers.keys().map(|name| name.as_str()).collect();
        let _ = writeln!(text, "# Its secrets are sealed to {}.", names.join(", "));
    }
    text.push_str("# Kept are:\n");
    for stored in history {
        let entry = Entry::from_bytes(&stored.bytes).ok();
        let _ = writeln!(text, "#   {}", line(stored, entry.as_ref()));
    }
    text.push('\n');
    text
}

fn line(stored: &Stored, entry: Option<&Entry>) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(stored.written_ms);
    let mut text = format!(
        "revision {}, {}, {}",
        stored.revision,
        stored.hash(),
        humantime::format_rfc3339_seconds(at)
    );
    match entry {
        None => text.push_str(", not readable"),
        Some(entry) => {
            if let Some(repeats) = entry.repeats {
                let _ = write!(text, ", revision {repeats} again");
            }
        }
    }
    text
}

/// A connection to the engine, and the servers that beat.
struct Session {
    engine: Engine,
    roster: Roster,
    store: Store,
}

impl Session {
    async fn open(config: &Config, client: &str) -> Result<Self, Error> {
        let cluster: &cluster::Config = &config.cluster;
        if cluster.engine != Kind::Nats {
            return Err(Error::Engine);
        }
        let mut engine = Engine::listen(cluster, client).await?;
        let reached = async {
            while engine.reached().is_err() {
                engine.hear().await;
            }
        };
        let _ = tokio::time::timeout(REACHED_WITHIN, reached).await;
        engine.reached().map_err(Error::Unreached)?;
        let client = engine.client().ok_or(Error::Engine)?;
        Ok(Self {
            store: Store::new(client, &cluster.nats.subject),
            engine,
            roster: Roster::new(),
        })
    }

    /// Hears beats for this time.
    async fn listen(&mut self, time: Duration) {
        let hear = async {
            loop {
                if let Heard::Beat(beat) = self.engine.hear().await {
                    self.roster.hear(Instant::now(), *beat);
                }
            }
        };
        let _ = tokio::time::timeout(time, hear).await;
        self.roster.expire(Instant::now());
    }

    /// The servers that secrets can be sealed to.
    fn servers(&self) -> BTreeMap<Name, SealingKey> {
        let beats = self.roster.members().map(|known| &known.beat);
        beats
            .filter_map(|beat| Some((beat.server.clone(), beat.sealing_key.clone()?)))
            .collect()
    }

    /// Writes a revision, and tells which servers have taken it. Fails if not all have in time.
    async fn write(&mut self, base: u64, bytes: Vec<u8>, replicas: u8) -> Result<(), Error> {
        let hash = ConfigHash::of(&bytes);
        let revision = match self.store.swap(base, bytes, replicas).await {
            Ok(revision) => revision,
            Err(store::Error::Moved) => {
                let newest = self.store.newest().await?.revision();
                return Err(Error::Moved { base, newest });
            }
            Err(error) => return Err(error.into()),
        };
        console::print(format_args!("revision {revision} is applied\n"))?;
        let begun = Instant::now();
        loop {
            self.listen(LOOK_EVERY).await;
            let waited = begun.elapsed();
            let (taken, not_yet) = self.taken(revision, &hash);
            let is_known = waited >= 2 * INTERVAL + LATE;
            if !is_known || (!not_yet.is_empty() && waited < TAKEN_WITHIN) {
                continue;
            }
            if !taken.is_empty() {
                let taken = taken.join(", ");
                console::print(format_args!("in force on {taken}\n"))?;
            }
            if not_yet.is_empty() {
                return Ok(());
            }
            let servers = not_yet.into_iter().map(str::to_owned).collect();
            return Err(Error::NotYet { revision, servers });
        }
    }

    /// The servers that take configurations: those that have this one, and the others.
    fn taken(&self, revision: u64, hash: &ConfigHash) -> (Vec<&str>, Vec<&str>) {
        let beats = self.roster.members().map(|known| &known.beat);
        let takers = beats.filter(|beat| beat.config.is_some());
        let (taken, not_yet): (Vec<&Beat>, _) = takers.partition(|beat| has(beat, revision, hash));
        fn names(all: Vec<&Beat>) -> Vec<&str> {
            all.into_iter().map(|beat| beat.server.as_str()).collect()
        }
        (names(taken), names(not_yet))
    }
}

/// Whether this revision is in force on a server. An older version tells the number alone.
fn has(beat: &Beat, revision: u64, hash: &ConfigHash) -> bool {
    let is_same = beat.config_hash.as_ref().is_none_or(|told| told == hash);
    beat.config == Some(revision) && is_same
}

/// Reads a document and what it names, and checks it as a server with this configuration would.
fn prepare(sources: &Sources, file: &Path) -> Result<(Entry, Secrets, Vec<Finding>), Error> {
    let refuse = |reason: String| Error::Document {
        file: file.to_owned(),
        reason,
    };
    let bytes = files::read(file, DOCUMENT_BYTES_MAX as u64);
    let bytes = bytes.map_err(|error| refuse(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".to_owned()))?;
    let document = Document::of_file(file, text.clone())?;
    let mut table = entry::parse(&text).map_err(|error| refuse(error.to_string()))?;
    entry::check(&table, Written::ByOperator).map_err(|error| refuse(error.to_string()))?;
    let with_own = Sources {
        document: Some(document.clone()),
        ..sources.clone()
    };
    let findings = with_own.load()?.findings;
    // What is taken into the store is the document's alone.
    let environment = sources.environment.iter();
    let alone = Sources {
        file: None,
        document: Some(document),
        environment: environment
            .filter(|(name, _)| !name.starts_with("NCSERVERD_"))
            .cloned()
            .collect(),
        overrides: Vec::new(),
    };
    let config = alone.load()?.config;
    let mut secrets = Secrets::default();
    let keys = match &config.admission.keys {
        Some(keys) => take_keys(keys, &config, &mut table, &mut secrets)?,
        None => None,
    };
    for (name, stream) in &config.stream {
        let table = table.get_mut("stream").and_then(|all| all.get_mut(name));
        let Some(Value::Table(table)) = table else {
            continue;
        };
        take_secrets(name, stream, table, &mut secrets)?;
    }
    let of_document = |finding: &Finding| {
        ["stream.", "admission."]
            .iter()
            .any(|section| finding.key.starts_with(section))
    };
    let findings = findings.into_iter().filter(of_document).collect();
    Ok((Entry::new(&table, keys), secrets, findings))
}

/// The key set, if it is in a file. A URL stays, unless it holds credentials.
fn take_keys(
    keys: &SecretUrl,
    config: &Config,
    table: &mut Table,
    secrets: &mut Secrets,
) -> Result<Option<String>, Error> {
    let Some(Value::Table(admission)) = table.get_mut("admission") else {
        return Ok(None);
    };
    let refuse = |reason: String| named("admission.keys", reason);
    let Some(path) = config.admission.keys_file() else {
        if keys.to_string() != keys.expose() {
            secrets.set_keys_url(keys.expose());
            admission.remove("keys");
        }
        return Ok(None);
    };
    let fail =
        |reason: &dyn ToString| refuse(format!("{}: {}", path.display(), reason.to_string()));
    let bytes = files::read(&path, SET_BYTES_MAX as u64).map_err(|error| fail(&error))?;
    KeySet::parse(&bytes).map_err(|error| fail(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| fail(&"not UTF-8"))?;
    admission.remove("keys");
    if has_secrets(&text) {
        secrets.set_keys(&text);
        return Ok(None);
    }
    Ok(Some(text))
}

/// Whether a key set has more than public keys: members that only the private half or a shared key
/// has (RFC 7518, section 6).
fn has_secrets(set: &str) -> bool {
    let set: serde_json::Value = serde_json::from_str(set).unwrap_or_default();
    let keys = set.get("keys").and_then(serde_json::Value::as_array);
    keys.into_iter()
        .flatten()
        .any(|key| ["k", "d"].iter().any(|member| key.get(member).is_some()))
}

/// Takes what is secret out of a stream.
fn take_secrets(
    name: &str,
    stream: &crate::stream::Config,
    table: &mut Table,
    secrets: &mut Secrets,
) -> Result<(), Error> {
    let key = |part: &str| format!("stream.{name}.{part}");
    if let Some(origin) = &stream.origin
        && origin.to_string() != origin.expose()
    {
        secrets.set_origin(name, origin.expose());
        table.remove("origin");
    }
    for (header, text) in &stream.headers {
        let text = text.value().expose();
        if text.starts_with("[sealed") {
            let reason = "this stands in place of the secret where a configuration is shown: write \
                          the secret, or name its file";
            return Err(named(&key(&format!("headers.{header}")), reason.to_owned()));
        }
        secrets.set_header(name, header, text);
    }
    table.remove("headers");
    if let Some(path) = &stream.signing_key {
        let fail = |reason: &dyn ToString| {
            named(
                &key("signing_key"),
                format!("{}: {}", path.display(), reason.to_string()),
            )
        };
        let bytes = files::read(path, KEY_FILE_BYTES_MAX).map_err(|error| fail(&error))?;
        SigningKey::from_pem(&bytes).map_err(|error| fail(&error))?;
        let pem = String::from_utf8(bytes).map_err(|_| fail(&"not UTF-8"))?;
        secrets.set_signing_key(name, &pem);
        table.remove("signing_key");
    }
    Ok(())
}

fn named(key: &str, reason: String) -> Error {
    Error::Named {
        key: key.to_owned(),
        reason,
    }
}

/// What an entry changes, a line for each key.
fn changes(before: Option<&Entry>, after: &Entry) -> String {
    let flat = |entry: &Entry| {
        let mut keys = BTreeMap::new();
        if let Ok(table) = entry.shown() {
            flatten("", &table, &mut keys);
        }
        keys
    };
    let old = before.map(flat).unwrap_or_default();
    let new = flat(after);
    let mut text = String::new();
    for (key, value) in &old {
        match new.get(key) {
            None => drop(writeln!(text, "- {key} = {value}")),
            Some(other) if other != value => {
                let _ = writeln!(text, "- {key} = {value}\n+ {key} = {other}");
            }
            Some(_) => {}
        }
    }
    for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
        let _ = writeln!(text, "+ {key} = {value}");
    }
    let both = before.and_then(|before| before.keys().zip(after.keys()));
    if both.is_some_and(|(old, new)| old != new) {
        text.push_str("~ admission.keys: another key set\n");
    }
    text
}

fn flatten(prefix: &str, table: &Table, keys: &mut BTreeMap<String, String>) {
    for (name, value) in table {
        let key = match prefix {
            "" => name.clone(),
            _ => format!("{prefix}.{name}"),
        };
        match value {
            Value::Table(inner) if !inner.is_empty() => flatten(&key, inner, keys),
            value => drop(keys.insert(key, value.to_string())),
        }
    }
}

/// Whom secrets are sealed to, and who had them before and does not beat now.
fn recipients(before: Option<&Entry>, servers: &BTreeMap<Name, SealingKey>) -> String {
    let before = before.and_then(Entry::recipients).unwrap_or_default();
    let mut text = String::new();
    for (name, key) in servers {
        let what = match before.get(name) {
            Some(earlier) if *earlier == key => "",
            Some(_) => ", which has ANOTHER KEY than before",
            None => ", which is new",
        };
        let _ = writeln!(
            text,
            "secrets are sealed to {name}{what} (key {})",
            &key.as_str()[..16]
        );
    }
    for name in before.keys().filter(|name| !servers.contains_key(**name)) {
        let _ = writeln!(
            text,
            "secrets are not sealed to {name}, which does not beat: apply again when it does"
        );
    }
    text
}

/// Beats come in time, or as late as this.
const LATE: Duration = Duration::from_millis(250);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long servers may take.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 80;
/// Far above any key.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn stored(revision: u64, bytes: Vec<u8>) -> Stored {
        Stored {
            revision,
            written_ms: 0,
            bytes: Bytes::from(bytes),
        }
    }

    fn revision(revision: u64, repeats: Option<u64>) -> Stored {
        let mut entry = Entry::new(&Table::new(), None);
        entry.repeats = repeats;
        stored(revision, entry.to_bytes().unwrap())
    }

    #[test]
    fn who_cannot_open_a_revision_is_found() {
        let [one, two] = [1, 2].map(|byte| PrivateKey::of([byte; 32]).public());
        let name = |text: &str| text.parse::<Name>().unwrap();
        let table: Table = "[stream.live]".parse().unwrap();
        let mut entry = Entry::new(&table, None);
        let beating = BTreeMap::from([
            (name("one"), one.clone()),
            (name("three"), one.clone()),
            (name("two"), two),
        ]);
        assert!(shut(&entry, &beating).is_empty(), "it has no secrets");
        let mut secrets = Secrets::default();
        secrets.set_header("live", "authorization", "hidden");
        let sealed_to = BTreeMap::from([(name("one"), one.clone()), (name("two"), one)]);
        entry.seal(&secrets, &sealed_to, || [7; 32]);
        let found = shut(&entry, &beating);
        let found: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, ["three", "two"]);

        // What is written can be read and opened.
        assert_eq!(try_out(&entry.to_bytes().unwrap(), &secrets), Ok(()));
        let mut other = Secrets::default();
        other.set_origin("live", "/etc/passwd");
        assert!(try_out(&entry.to_bytes().unwrap(), &other).is_err());
        assert!(try_out(b"{}", &secrets).is_err());
    }

    #[test]
    fn what_viewers_lose_is_agreed_to() {
        let entry = |text: &str| Entry::new(&text.parse().unwrap(), None);
        let [both, one] = ["[stream.a]\n[stream.b]", "[stream.b]\n[stream.c]"].map(entry);
        assert_eq!(removed(Some(&both), &one), ["stream.a"]);
        assert!(removed(Some(&one), &one).is_empty() && removed(None, &one).is_empty());
        let keys = entry("[stream.b]\n[stream.c]\n[admission]\nkeys = \"https://a.example/\"");
        assert_eq!(removed(Some(&keys), &one), ["admission.keys"]);
        assert!(removed(Some(&one), &keys).is_empty());

        let options = |base: Option<u64>, yes: bool| Apply {
            file: PathBuf::new(),
            base,
            dry_run: false,
            yes,
        };
        let lost = vec!["stream.a".to_owned()];
        for (removed, has_before, options, is_dialog, expected) in [
            (&lost, true, options(None, false), false, Consent::Missing),
            (
                &lost,
                true,
                options(Some(1), false),
                false,
                Consent::Missing,
            ),
            (&lost, true, options(Some(1), false), true, Consent::Asked),
            (&lost, true, options(None, true), false, Consent::Given),
            (&lost, true, options(None, true), true, Consent::Given),
            (&vec![], true, options(None, false), true, Consent::Asked),
            (&vec![], true, options(Some(1), false), true, Consent::Given),
            (&vec![], true, options(None, false), false, Consent::Given),
            // Nothing is there that could be overwritten.
            (&vec![], false, options(None, false), true, Consent::Given),
        ] {
            let found = consent(removed, has_before, &options, is_dialog);
            assert_eq!(found, expected, "{removed:?} {options:?} {is_dialog}");
        }
    }

    #[test]
    fn a_revision_is_in_force_by_its_hash() {
        let beat = |config: Option<u64>, hash: Option<&[u8]>| Beat {
            config,
            config_hash: hash.map(ConfigHash::of),
            ..cluster::beat::tests::beat("a")
        };
        let hash = ConfigHash::of(b"new");
        assert!(has(&beat(Some(1), Some(b"new")), 1, &hash));
        // The first one of a store that was lost.
        assert!(!has(&beat(Some(1), Some(b"old")), 1, &hash));
        assert!(!has(&beat(Some(2), Some(b"new")), 1, &hash));
        assert!(has(&beat(Some(1), None), 1, &hash), "an older version");
        assert!(!has(&beat(None, None), 1, &hash));
    }

    #[test]
    fn going_back_twice_does_not_bring_the_bad_revision_back() {
        let mut history = vec![
            revision(1, None),
            stored(2, b"junk".to_vec()),
            revision(3, None),
            revision(4, None),
        ];
        let before = |history: &[Stored]| {
            let newest = Newest::Revision(history.last().unwrap().clone());
            one_before(&newest, history.to_vec()).map(|stored| stored.revision)
        };
        assert_eq!(before(&history), Some(3));
        history.push(revision(5, Some(3)));
        assert_eq!(before(&history), Some(1), "2 is not readable");
        history.push(revision(6, Some(1)));
        assert_eq!(before(&history), None);
        // After a new one the last one counts again, and it stands for the first.
        history.push(revision(7, None));
        assert_eq!(before(&history), Some(6));
        // Nobody is sent forward, and a revision that was deleted is none.
        history.push(revision(8, Some(99)));
        assert_eq!(before(&history), Some(7));
        let deleted = one_before(&Newest::Deleted(9), history).unwrap();
        assert_eq!(deleted.revision, 8);
    }
}
