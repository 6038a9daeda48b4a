//! Who may ask for what: tokens, client certificates, and how much one holder or one address may have.
//!
//! The decisions are plain values that know no socket and no clock: [`token`] verifies, [`keys`] holds what it verifies with,
//! [`scope`] says which paths are meant, `account` counts connections and bytes, [`ledger`] what is kept in memory. [`Admission`] holds what the configuration says of
//! them at present; a [`Visitor`] is one connection before it. What the session may do with the answer is an [`Access`].
//!
//! Keys and authorities are read again every [`Config::refresh`] and on a reload. A set that cannot be read or used leaves the one in use
//! as it is, is logged and counted. When they change, every session has what it brought judged anew: a key that is gone takes its tokens along.
//! Until a URL has answered for the first time there are no keys, and nobody is admitted by a token.
//!
//! When full: a connection beyond those of its address is refused before its handshake, one beyond those of its token is closed. Whoever
//! has spent its bytes waits.

mod clients;
pub mod keys;
mod metrics;
mod source;
pub mod token;
mod visits;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use bytesize::ByteSize;
use ncs_proto::admission::account::{Book, Place};
use ncs_proto::admission::tickets;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use clients::{Authorities, Door};
use keys::KeySet;
pub use metrics::Metrics;
use ncs_net::secret::{Secret, SecretUrl};
use ncs_net::telemetry::Readiness;
pub use ncs_proto::admission::account::neighbourhood;
pub use ncs_proto::admission::{Access, Kept, Ledger, Scope, Share, Tickets, ledger, scope};
use ncs_proto::wire::message::{self, VisitId};
use source::{Named, Source};
use token::{Expectation, Holder};
use visits::{Visit, Visits};

/// Who is admitted, and how much each may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// File or URL of a JSON Web Key Set; tokens are verified with its keys.
    pub keys: Option<SecretUrl>,
    /// File of certificates, in PEM, that client certificates are signed with; who shows one may have everything.
    pub clients_ca: Option<PathBuf>,
    /// Whether those are refused who bring neither, where one of the two is configured.
    pub required: bool,
    /// Takes other addresses than loopback to listen on though everybody is admitted.
    pub insecure: bool,
    /// Whom tokens must be meant for (`aud`); if not set, tokens that are meant for somebody are refused.
    pub audience: Option<String>,
    /// By how much clocks may differ.
    #[serde(with = "ncs_net::units::duration")]
    pub leeway: Duration,
    /// How long a connection stands that has no token, or none that counts any more.
    #[serde(with = "ncs_net::units::duration")]
    pub grace: Duration,
    /// How often keys and authorities are read again.
    #[serde(with = "ncs_net::units::duration")]
    pub refresh: Duration,
    /// Connections of one token or client certificate, unless the token says otherwise.
    pub token_connections_max: Option<u32>,
    /// Bytes a second of them all, unless the token says otherwise.
    #[serde(with = "ncs_net::units::size::optional")]
    pub token_bytes_per_second: Option<ByteSize>,
    /// Connections of one IPv4 address or 64 bits of IPv6, open handshakes included.
    pub address_connections_max: Option<u32>,
    /// Bytes a second of them all.
    #[serde(with = "ncs_net::units::size::optional")]
    pub address_bytes_per_second: Option<ByteSize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keys: None,
            clients_ca: None,
            required: true,
            insecure: false,
            audience: None,
            leeway: Duration::from_secs(5),
            grace: Duration::from_secs(10),
            refresh: Duration::from_secs(30),
            token_connections_max: None,
            token_bytes_per_second: None,
            address_connections_max: None,
            address_bytes_per_second: None,
        }
    }
}

impl Config {
    /// Makes paths final: they stay what they are when the working directory changes.
    pub fn resolve(&mut self) {
        if let Some(path) = &mut self.clients_ca {
            *path = ncs_net::units::absolute(path);
        }
        if let Some(keys) = &mut self.keys
            && let Ok(Named::File(path)) = Named::parse(keys.expose())
            && let Some(text) = ncs_net::units::absolute(&path).to_str()
        {
            *keys = text.into();
        }
    }

    /// The file that the keys stand in, if it is one.
    pub fn keys_file(&self) -> Option<PathBuf> {
        match Named::parse(self.keys.as_ref()?.expose()) {
            Ok(Named::File(path)) => Some(path),
            Ok(Named::Url(_)) | Err(_) => None,
        }
    }

    /// Whether whoever brings nothing is refused.
    pub fn is_closed(&self) -> bool {
        self.required && (self.keys.is_some() || self.clients_ca.is_some())
    }

    /// Refuses to serve everybody on an address that others reach, unless that is what somebody has said to want.
    pub fn check_listen(&self, addresses: &[SocketAddr]) -> Result<(), Error> {
        let reachable = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        match reachable {
            Some(address) if !self.is_closed() && !self.insecure => Err(Error::Open(*address)),
            _ => Ok(()),
        }
    }

    /// Whether `keys` names a place, and one that nobody on the way can change: a complaint if not.
    pub fn check_keys(&self) -> Result<(), KeysComplaint> {
        match self.keys.as_ref().map(|keys| Named::parse(keys.expose())) {
            Some(Err(reason)) => Err(KeysComplaint::NoPlace(reason)),
            Some(Ok(named)) if named.is_open_to_the_network() => Err(KeysComplaint::Unprotected),
            _ => Ok(()),
        }
    }
}

/// What may be wrong with `keys` before anything is read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysComplaint {
    /// It cannot be used.
    #[error("{0}")]
    NoPlace(String),
    /// It can.
    #[error("plain HTTP lets an attacker on the path replace the keys: use https or a file")]
    Unprotected,
}

/// Why nobody can be admitted as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Everybody would be served, on an address that is not loopback.
    #[error(
        "the server would serve everybody who reaches {0}: set `admission.keys` (tokens) or `admission.clients_ca` (client \
         certificates) and leave `admission.required` on, or set `admission.insecure = true` if that is intended"
    )]
    Open(SocketAddr),
    /// The keys cannot be read or used.
    #[error("admission.keys = \"{0}\": {1}")]
    Keys(String, String),
    /// The authorities cannot be read or used.
    #[error("admission.clients_ca = \"{0}\": {1}")]
    Authorities(String, String),
}

/// The present instant on both clocks: the one that sessions count by, and the one that tokens are dated by.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For what is waited for.
    pub instant: Instant,
    /// Since 1970, for what is dated.
    pub date: Duration,
}

impl Now {
    /// This moment.
    pub fn read() -> Self {
        let date = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), date }
    }
}

/// What the configuration says at present of who is admitted. Clones are the same.
#[derive(Debug, Clone)]
pub struct Admission {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rules: ArcSwap<Rules>,
    /// Held while the rules are exchanged, so that a reload and a refresh do not undo each other.
    exchange: Mutex<()>,
    /// Told when sessions are to be judged anew.
    reviews: watch::Sender<()>,
    /// Wakes whoever keeps keys fresh.
    stir: Notify,
    holders: Book<Holder>,
    addresses: Book<IpAddr>,
    visits: Visits,
    /// Whose tickets count, where any do.
    tickets: Option<Tickets>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Rules {
    config: Config,
    source: Option<Source>,
    keys: Arc<KeySet>,
    /// What the keys were read from.
    keys_text: Secret<Vec<u8>>,
    authorities: Option<Arc<Authorities>>,
}

/// Rules that have been read and checked, and are not in use yet.
#[derive(Debug)]
pub struct Replacement(Rules);

/// A connection's place among those of its address, and the address itself: the one that its handshake has proved. Where its packets
/// come from later is anybody's word until QUIC has validated it.
#[derive(Debug)]
pub struct AddressPlace {
    place: Arc<Place<IpAddr>>,
    ip: IpAddr,
}

/// Why a newcomer has no place among those of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowded {
    /// It must prove first that the address is its own: others may have borrowed it to fill its places.
    Prove,
    /// There is none.
    Full,
}

/// There are as many connections of this token or certificate, or with tickets in all, as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited;

impl Admission {
    /// Reads keys and authorities that are files; a URL is asked by [`Admission::keep_fresh`].
    pub fn open(config: &Config, metrics: Metrics) -> Result<Self, Error> {
        Self::open_with(config, None, metrics)
    }

    /// The same for a peer that serves those who show a ticket for it, where there are `tickets`. Who brings neither that nor anything
    /// else that counts is refused then.
    pub fn open_with(config: &Config, tickets: Option<Tickets>, metrics: Metrics) -> Result<Self, Error> {
        let rules = Rules::read(config, None)?;
        metrics.keys.set(i64::try_from(rules.keys.len()).unwrap_or(i64::MAX));
        let inner = Inner {
            rules: ArcSwap::from_pointee(rules),
            exchange: Mutex::new(()),
            reviews: watch::channel(()).0,
            stir: Notify::new(),
            holders: Book::with_room_for(tickets.as_ref().and_then(|tickets| tickets.served_max)),
            addresses: Book::new(),
            visits: Visits::default(),
            tickets,
            metrics,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Reads what another configuration names, for [`Admission::replace`]. What cannot be used is refused whole.
    pub fn read(&self, config: &Config) -> Result<Replacement, Error> {
        Rules::read(config, Some(&self.inner.rules.load())).map(Replacement)
    }

    /// Goes by other rules from now on, for sessions that stand, too.
    pub fn replace(&self, replacement: Replacement) {
        let _exchange = self.inner.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        self.exchange(replacement.0);
        self.inner.stir.notify_one();
    }

    /// Reads keys and authorities again once, and says of it at `/readyz` what matters there.
    pub async fn refresh(&self, readiness: &Readiness) {
        let outcome = self.read_again().await;
        if let Err(error) = &outcome {
            self.inner.metrics.reloads.with_label_values(&["failed"]).inc();
            tracing::error!("cannot read keys or authorities for admission, the old ones stay in force: {error}");
        }
        let rules = self.inner.rules.load();
        match outcome {
            Err(error) if rules.source.is_some() && rules.keys.is_empty() => readiness.not_ready("admission", error.to_string()),
            _ => readiness.ready("admission"),
        }
    }

    /// Keeps keys and authorities fresh for as long as it is polled.
    pub async fn keep_fresh(self, readiness: Readiness) {
        let mut reviewed = Instant::now();
        loop {
            let wait = self.inner.rules.load().config.refresh;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.inner.stir.notified() => {}
            }
            self.refresh(&readiness).await;
            // The dates of certificates are looked at by whoever verifies them, so it is done now and then.
            if self.inner.rules.load().authorities.is_some() && reviewed.elapsed() >= REVIEW_EVERY {
                reviewed = Instant::now();
                self.inner.reviews.send_replace(());
            }
        }
    }

    /// What TLS is to ask of clients.
    pub fn door(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Door::new(Arc::clone(&self.inner)))
    }

    /// A place for a newcomer from this address, which it has `proven` to be its own or not.
    pub fn address(&self, now: Instant, address: IpAddr, proven: bool) -> Result<AddressPlace, Crowded> {
        let rules = self.inner.rules.load();
        let (key, most) = (neighbourhood(address), rules.config.address_connections_max);
        // Half of the places are for those who are what they say they are.
        if !proven && most.is_some_and(|most| self.inner.addresses.places(&key) >= most / 2) {
            return Err(Crowded::Prove);
        }
        let place = self.inner.addresses.enter(now, key, most).map_err(|_| {
            self.inner.metrics.limited.with_label_values(&["address"]).inc();
            Crowded::Full
        })?;
        place.set_rate(rules.config.address_rate());
        Ok(AddressPlace { place: Arc::new(place), ip: address.to_canonical() })
    }

    /// A connection that stands, with the certificates its client has shown, its own first.
    pub fn visitor(&self, address: AddressPlace, certificates: Vec<CertificateDer<'static>>) -> Visitor {
        let credential = if certificates.is_empty() { Credential::None } else { Credential::Certificates(certificates) };
        Visitor {
            admission: self.clone(),
            address,
            credential,
            holder: None,
            inherited: None,
            visit: (None, Arc::default()),
            pays: (false, false),
            reviews: self.inner.reviews.subscribe(),
        }
    }

    async fn read_again(&self) -> Result<(), Error> {
        let before = self.inner.rules.load_full();
        let keys = match &before.source {
            Some(source) => Some(source.fetch().await.map_err(|reason| before.config.keys_error(reason))?),
            None => None,
        };
        let authorities = before.config.authorities()?;
        let is_same = keys.as_ref().is_none_or(|text| *text == *before.keys_text.expose() && !before.keys.is_empty());
        if is_same && authorities.as_ref().map(|new| &new.text) == before.authorities.as_ref().map(|old| &old.text) {
            return Ok(());
        }
        let (keys, keys_text) = match keys {
            Some(text) => (Arc::new(before.config.parse_keys(&text)?), Secret::new(text)),
            None => (Arc::clone(&before.keys), Secret::default()),
        };
        let after = Rules {
            config: before.config.clone(),
            source: before.source.clone(),
            keys,
            keys_text,
            authorities: authorities.map(Arc::new),
        };
        let _exchange = self.inner.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        // A reload that came in between has read everything itself.
        if Arc::ptr_eq(&before, &self.inner.rules.load()) {
            self.exchange(after);
        }
        Ok(())
    }

    fn exchange(&self, rules: Rules) {
        let keys = rules.keys.len();
        self.inner.metrics.keys.set(i64::try_from(keys).unwrap_or(i64::MAX));
        let before = self.inner.rules.swap(Arc::new(rules));
        if !before.has_the_means_of(&self.inner.rules.load()) {
            self.inner.metrics.reloads.with_label_values(&["taken"]).inc();
            tracing::info!(keys, "keys or authorities for admission changed");
        }
        self.inner.reviews.send_replace(());
    }
}

impl Rules {
    /// Whether keys and authorities are those of other rules.
    fn has_the_means_of(&self, other: &Self) -> bool {
        fn authorities(rules: &Rules) -> Option<&[u8]> {
            rules.authorities.as_ref().map(|authorities| authorities.text.as_slice())
        }
        self.keys_text == other.keys_text && authorities(self) == authorities(other)
    }

    /// Reads what is a file; of a URL the keys of before stay until it is asked again.
    fn read(config: &Config, before: Option<&Self>) -> Result<Self, Error> {
        let named = config
            .keys
            .as_ref()
            .map(|keys| Named::parse(keys.expose()))
            .transpose()
            .map_err(|reason| config.keys_error(reason))?;
        let source = named.map(Source::new).transpose().map_err(|reason| config.keys_error(reason))?;
        let (keys, keys_text) = match source.as_ref().map(Source::read) {
            Some(Some(text)) => {
                let text = text.map_err(|reason| config.keys_error(reason))?;
                (Arc::new(config.parse_keys(&text)?), Secret::new(text))
            }
            Some(None) => match before.filter(|before| before.source.is_some()) {
                Some(before) => (Arc::clone(&before.keys), before.keys_text.clone()),
                None => (Arc::new(KeySet::none()), Secret::default()),
            },
            None => (Arc::new(KeySet::none()), Secret::default()),
        };
        let authorities = config.authorities()?.map(Arc::new);
        Ok(Self { config: config.clone(), source, keys, keys_text, authorities })
    }
}

impl Config {
    fn keys_error(&self, reason: String) -> Error {
        Error::Keys(self.keys.as_ref().map_or_else(String::new, ToString::to_string), reason)
    }

    fn parse_keys(&self, text: &[u8]) -> Result<KeySet, Error> {
        KeySet::parse(text).map_err(|error| self.keys_error(error.to_string()))
    }

    fn authorities(&self) -> Result<Option<Authorities>, Error> {
        let Some(path) = &self.clients_ca else { return Ok(None) };
        let read = clients::read(path, AUTHORITIES_BYTES_MAX).and_then(Authorities::parse);
        read.map(Some).map_err(|reason| Error::Authorities(path.display().to_string(), reason))
    }

    fn token_rate(&self) -> Option<u64> {
        self.token_bytes_per_second.map(|size| size.as_u64())
    }

    fn address_rate(&self) -> Option<u64> {
        self.address_bytes_per_second.map(|size| size.as_u64())
    }

    fn expectation(&self) -> Expectation {
        Expectation { audience: self.audience.clone(), leeway: self.leeway }
    }
}

/// One connection before admission: what it has brought, and the places it takes.
#[derive(Debug)]
pub struct Visitor {
    admission: Admission,
    address: AddressPlace,
    credential: Credential,
    holder: Option<Arc<Place<Holder>>>,
    /// The place of the connection of the same visit that this one has replaced.
    inherited: Option<Arc<Place<Holder>>>,
    /// The visit that it is of, once it has said which, and what the next connection of it finds.
    visit: (Option<VisitId>, Arc<Visit>),
    /// Whether bytes are counted, for the address and for the holder: where they are not, nobody waits for a lock.
    pays: (bool, bool),
    reviews: watch::Receiver<()>,
}

#[derive(Debug)]
enum Credential {
    None,
    Token(Secret<String>),
    Ticket(message::Ticket),
    Certificates(Vec<CertificateDer<'static>>),
}

/// What a credential is worth: paths, an end, and the account that it counts for.
struct Worth {
    scope: Scope,
    until: Option<Duration>,
    holder: Holder,
    connections: Option<u32>,
    rate: Option<u64>,
}

impl Visitor {
    /// What it may have as it comes.
    pub fn enter(&mut self, now: Now) -> Result<Access, Limited> {
        let access = self.review(now)?;
        if let (Access::Granted { .. }, Credential::Certificates(_)) = (&access, &self.credential) {
            self.admission.inner.metrics.certificates.inc();
        }
        Ok(access)
    }

    /// It is of this visit: it takes over the places of the connection before, which ends.
    pub fn resume(&mut self, id: VisitId) {
        self.visit.0 = Some(id);
        if let Some(before) = self.admission.inner.visits.take_over(id, &self.visit.1) {
            let (address, holder) = before.places();
            if let Some(place) = address.filter(|place| place.is_of(self.address.place.key())) {
                self.address.place = place;
            }
            // With a certificate it has a place of its own already.
            match (&self.holder, holder) {
                (Some(own), Some(place)) if place.is_of(own.key()) => self.holder = Some(place),
                (_, place) => self.inherited = place,
            }
        }
        self.visit.1.note(&self.address.place, self.holder.as_ref());
    }

    /// Completes when another connection of its visit has taken its place.
    pub fn replaced(&self) -> impl Future<Output = ()> + Send + use<> {
        let visit = Arc::clone(&self.visit.1);
        async move { visit.replaced.notified().await }
    }

    /// Takes a token, and says whether it counts and what the visitor may have. One that is refused leaves what an earlier one has brought.
    pub fn present(&mut self, now: Now, token: String) -> Result<(bool, Access), Limited> {
        let rules = self.admission.inner.rules.load_full();
        // A certificate is enough, and where nobody reads tokens none is refused.
        if rules.source.is_none()
            || self.worth(&rules, now).is_some_and(|_| matches!(self.credential, Credential::Certificates(_)))
        {
            return Ok((true, self.review(now)?));
        }
        let verdict = token::verify(&token, &rules.keys, &rules.config.expectation(), now.date);
        self.admission.inner.metrics.judged(verdict.as_ref().map(drop).map_err(|error| *error));
        if let Err(error) = &verdict {
            tracing::debug!(%error, "token refused");
        } else {
            self.credential = Credential::Token(Secret::new(token));
        }
        Ok((verdict.is_ok(), self.review(now)?))
    }

    /// The same with a ticket.
    pub fn present_ticket(&mut self, now: Now, ticket: message::Ticket) -> Result<(bool, Access), Limited> {
        let tickets = self.admission.inner.tickets.as_ref();
        let counts = tickets.is_some_and(|tickets| tickets.verify(&ticket, now.date).is_some());
        self.admission.inner.metrics.ticket_judged(counts);
        if counts {
            self.credential = Credential::Ticket(ticket);
        }
        Ok((counts, self.review(now)?))
    }

    /// What it may have now, by the rules of now.
    pub fn review(&mut self, now: Now) -> Result<Access, Limited> {
        let rules = self.admission.inner.rules.load_full();
        let config = &rules.config;
        self.address.place.set_rate(config.address_rate());
        self.pays = (config.address_rate().is_some(), false);
        let Some(worth) = self.worth(&rules, now) else {
            self.holder = None;
            return Ok(if self.is_closed(config) { Access::Refused { until: now.instant + config.grace } } else { Access::Free });
        };
        if !self.holder.as_ref().is_some_and(|place| place.is_of(&worth.holder)) {
            let most = worth.connections.or(config.token_connections_max);
            // The old place is given back first: whoever changes tokens at the limit keeps one of the two.
            self.holder = None;
            self.holder = match self.inherited.take().filter(|place| place.is_of(&worth.holder)) {
                Some(place) => Some(place),
                None => Some(Arc::new(self.admission.inner.holders.enter(now.instant, worth.holder, most).map_err(|_| {
                    self.admission.inner.metrics.limited.with_label_values(&["token"]).inc();
                    Limited
                })?)),
            };
            self.visit.1.note(&self.address.place, self.holder.as_ref());
        }
        if let Some(place) = &self.holder {
            let rate = worth.rate.or_else(|| config.token_rate());
            place.set_rate(rate);
            self.pays.1 = rate.is_some();
        }
        // An end that no clock can tell is none.
        let until = worth.until.and_then(|until| now.instant.checked_add(until.saturating_sub(now.date)));
        Ok(Access::Granted { scope: worth.scope, until, grace: self.is_closed(config).then_some(config.grace) })
    }

    fn is_closed(&self, config: &Config) -> bool {
        config.is_closed() || self.admission.inner.tickets.is_some()
    }

    /// Who it is counted together with: the holder of its token, or its address.
    pub fn account(&self) -> u128 {
        match &self.holder {
            Some(place) => place.key().as_u128(),
            None => match neighbourhood(self.address.ip) {
                IpAddr::V4(four) => four.to_ipv6_mapped().to_bits(),
                IpAddr::V6(six) => six.to_bits(),
            },
        }
    }

    /// Where its connection began.
    pub fn ip(&self) -> IpAddr {
        self.address.ip
    }

    /// Whom its token or certificate stands for, if it counts.
    pub fn holder(&self) -> Option<Holder> {
        self.holder.as_ref().map(|place| *place.key())
    }

    /// What its address keeps in memory, and the holder of its token or certificate, if that counts.
    pub fn ledgers(&self) -> (Arc<Ledger>, Option<Arc<Ledger>>) {
        (self.address.place.ledger(), self.holder.as_ref().map(|place| place.ledger()))
    }

    /// Changes when it is to be reviewed.
    pub fn reviews(&self) -> watch::Receiver<()> {
        self.reviews.clone()
    }

    /// Bytes that may be sent to it now, or when that will be more than none.
    pub fn allowance(&self, now: Instant) -> Result<u64, Instant> {
        let address = if self.pays.0 { self.address.place.allowance(now) } else { Ok(u64::MAX) };
        let holder = self.paying_holder().map_or(Ok(u64::MAX), |place| place.allowance(now));
        match (address, holder) {
            (Ok(one), Ok(other)) => Ok(one.min(other)),
            (Err(one), Err(other)) => Err(one.max(other)),
            (Err(only), Ok(_)) | (Ok(_), Err(only)) => Err(only),
        }
    }

    /// Counts bytes that are sent to it.
    pub fn spend(&self, now: Instant, bytes: usize) {
        if self.pays.0 {
            self.address.place.spend(now, bytes as u64);
        }
        if let Some(place) = self.paying_holder() {
            place.spend(now, bytes as u64);
        }
    }

    fn paying_holder(&self) -> Option<&Place<Holder>> {
        self.holder.as_deref().filter(|_| self.pays.1)
    }

    /// What its credential is worth by these rules, if anything.
    fn worth(&self, rules: &Rules, now: Now) -> Option<Worth> {
        match &self.credential {
            Credential::None => None,
            Credential::Token(token) => {
                let claims = token::verify(token.expose(), &rules.keys, &rules.config.expectation(), now.date).ok()?;
                let token::Claims { scope, until, rate, connections, holder } = claims;
                Some(Worth { scope, until: Some(until), holder, connections, rate })
            }
            Credential::Ticket(ticket) => {
                let tickets::Right { scope, until, holder } = self.admission.inner.tickets.as_ref()?.verify(ticket, now.date)?;
                Some(Worth { scope, until: Some(until), holder, connections: None, rate: None })
            }
            Credential::Certificates(chain) => {
                rules.authorities.as_ref()?.vouch_for(chain, now.date).ok()?;
                let own = chain.first().map_or(&[][..], |own| own.as_ref());
                let holder = Holder::of("certificate", &[own]);
                Some(Worth { scope: Scope::everything(), until: None, holder, connections: None, rate: None })
            }
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if let Some(id) = &self.visit.0 {
            self.admission.inner.visits.leave(id, &self.visit.1);
        }
    }
}

/// How often certificates of open sessions are looked at again.
const REVIEW_EVERY: Duration = Duration::from_secs(300);
/// Far above any bundle of authorities.
const AUTHORITIES_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests;
