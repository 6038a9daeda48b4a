//! Rights of peers: tokens, client certificates, and limits per holder and per address.
//!
//! The decisions are plain values without sockets and clocks: [`token`] verifies tokens, [`keys`]
//! holds the keys for that, [`scope`] says which paths a right covers, `account` counts connections
//! and bytes, [`ledger`] the memory in use. [`Admission`] holds the present configuration. A
//! [`Visitor`] is one connection and its credentials; an [`Access`] is what its session may do.
//!
//! Keys and authorities are read again every [`Config::refresh`], and on a reload. If a set cannot
//! be read or used, the present one stays in use, and the failure is logged and counted. After a
//! change, the credentials of every session are judged again: a removed key invalidates its tokens.
//! Before the first answer of a URL there are no keys, and no token is accepted.
//!
//! When full: a connection beyond its address's limit is refused before its handshake, and one
//! beyond its token's limit is closed. A peer that has used up its bytes waits. Servers of a fleet
//! share the limits of tokens: [`rolls`] says what is used of them here, and which part this server
//! has.

mod clients;
pub mod keys;
mod metrics;
pub mod rolls;
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
use keys::{KeySet, SET_BYTES_MAX};
pub use metrics::Metrics;
use ncs_net::secret::{Secret, SecretUrl};
use ncs_net::telemetry::{MILESTONE, Readiness};
pub use ncs_proto::admission::account::neighbourhood;
pub use ncs_proto::admission::{Access, Kept, Ledger, Scope, Share, Tickets, ledger, scope};
use ncs_proto::wire::message::{self, VisitId};
use rolls::{Rolls, Seat, Share as FleetShare, Use};
use token::{Expectation, Holder};
pub use visits::Ending;
use visits::{Visit, Visits};

use crate::source::{self, Named, Source};

/// Who is admitted, and the limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// File or URL of a JSON Web Key Set, whose keys verify tokens.
    pub keys: Option<SecretUrl>,
    /// PEM file of the authorities of client certificates; a client with a valid certificate may
    /// access everything.
    pub clients_ca: Option<PathBuf>,
    /// Whether peers with neither are refused, if one of the two is configured.
    pub required: bool,
    /// Allows listening on other addresses than loopback although everybody is admitted.
    pub insecure: bool,
    /// The required audience of tokens (`aud`); without it, tokens with an audience are refused.
    pub audience: Option<String>,
    /// The tolerated difference of clocks.
    #[serde(with = "ncs_net::units::duration")]
    pub leeway: Duration,
    /// How long a connection without a valid token may stay.
    #[serde(with = "ncs_net::units::duration")]
    pub grace: Duration,
    /// The interval at which keys and authorities are read again.
    #[serde(with = "ncs_net::units::duration")]
    pub refresh: Duration,
    /// Connections per token or client certificate, unless the token has its own limit.
    pub token_connections_max: Option<u32>,
    /// Bytes per second of these together, unless the token has its own limit.
    #[serde(with = "ncs_net::units::size::optional")]
    pub token_bytes_per_second: Option<ByteSize>,
    /// Connections per IPv4 address or 64 bits of IPv6, including open handshakes.
    pub address_connections_max: Option<u32>,
    /// Bytes per second of these together.
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
    /// Makes paths absolute, so that they survive changes of the working directory.
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

    /// The file of the keys, if they are in one.
    pub fn keys_file(&self) -> Option<PathBuf> {
        match Named::parse(self.keys.as_ref()?.expose()) {
            Ok(Named::File(path)) => Some(path),
            Ok(Named::Url(_)) | Err(_) => None,
        }
    }

    /// Whether peers without credentials are refused.
    pub fn is_closed(&self) -> bool {
        self.required && (self.keys.is_some() || self.clients_ca.is_some())
    }

    /// Fails if everybody would be served on an address that others can reach, unless that is
    /// configured explicitly.
    pub fn check_listen(&self, addresses: &[SocketAddr]) -> Result<(), Error> {
        let reachable = addresses
            .iter()
            .find(|address| !address.ip().to_canonical().is_loopback());
        match reachable {
            Some(address) if !self.is_closed() && !self.insecure => Err(Error::Open(*address)),
            _ => Ok(()),
        }
    }

    /// Checks that `keys` names a file or URL, and that an attacker on the path cannot replace the
    /// keys.
    pub fn check_keys(&self) -> Result<(), KeysComplaint> {
        match self.keys.as_ref().map(|keys| Named::parse(keys.expose())) {
            Some(Err(reason)) => Err(KeysComplaint::NoPlace(reason)),
            Some(Ok(named)) if named.is_open_to_the_network() => Err(KeysComplaint::Unprotected),
            _ => Ok(()),
        }
    }
}

/// Faults of `keys` that are found without reading them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeysComplaint {
    /// It is unusable.
    #[error("{0}")]
    NoPlace(String),
    /// It is usable, but unprotected.
    #[error("plain HTTP lets an attacker on the path replace the keys: use https or a file")]
    Unprotected,
}

/// Why admission cannot work as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Everybody would be served, on an address other than loopback.
    #[error(
        "the server would serve everybody who reaches {0}: set `admission.keys` (tokens) or \
         `admission.clients_ca` (client certificates) and leave `admission.required` on, or set \
         `admission.insecure = true` if that is intended"
    )]
    Open(SocketAddr),
    /// The keys cannot be read or used.
    #[error("admission.keys = \"{0}\": {1}")]
    Keys(String, String),
    /// The authorities cannot be read or used.
    #[error("admission.clients_ca = \"{0}\": {1}")]
    Authorities(String, String),
}

/// The present time on two clocks: that of sessions, and that of tokens' dates.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For deadlines.
    pub instant: Instant,
    /// Since 1970, for dates.
    pub date: Duration,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        let date = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            instant: Instant::now(),
            date,
        }
    }
}

/// The present rules of admission. Clones share them.
#[derive(Debug, Clone)]
pub struct Admission {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rules: ArcSwap<Rules>,
    /// Locked while rules are replaced, so that a reload and a refresh do not undo each other.
    exchange: Mutex<()>,
    /// Notified when sessions have to be judged again.
    reviews: watch::Sender<()>,
    /// Wakes the task that keeps keys fresh.
    stir: Notify,
    holders: Book<Holder>,
    rolls: Arc<Rolls>,
    addresses: Book<IpAddr>,
    visits: Visits,
    /// Verifies tickets, if they are accepted.
    tickets: Option<Tickets>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Rules {
    config: Config,
    source: Option<Source>,
    keys: Arc<KeySet>,
    /// The text of the keys.
    keys_text: Secret<Vec<u8>>,
    authorities: Option<Arc<Authorities>>,
}

/// Rules that were read and checked, but are not in use.
#[derive(Debug)]
pub struct Replacement(Rules);

/// A connection's place among those of its address, with the address that its handshake has proved.
/// Packets may later come from another address, which counts for nothing until QUIC has validated
/// it.
#[derive(Debug)]
pub struct AddressPlace {
    place: Arc<Place<IpAddr>>,
    ip: IpAddr,
}

/// Why a new client has no place among those of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowded {
    /// It must validate its address first: others may have spoofed it to use up its places.
    Prove,
    /// All places are taken.
    Full,
}

/// This token or certificate, or all tickets together, have the maximum number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited;

impl Admission {
    /// Reads keys and authorities from files; [`Admission::keep_fresh`] fetches those of a URL.
    pub fn open(config: &Config, metrics: Metrics) -> Result<Self, Error> {
        Self::open_with(config, None, metrics)
    }

    /// The same for a peer that serves clients with a ticket. With `tickets`, clients without any
    /// valid credential are refused.
    pub fn open_with(
        config: &Config,
        tickets: Option<Tickets>,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let rules = Rules::read(config, None)?;
        metrics
            .keys
            .set(i64::try_from(rules.keys.len()).unwrap_or(i64::MAX));
        let inner = Inner {
            rules: ArcSwap::from_pointee(rules),
            exchange: Mutex::new(()),
            reviews: watch::channel(()).0,
            stir: Notify::new(),
            holders: Book::with_room_for(tickets.as_ref().and_then(|tickets| tickets.served_max)),
            rolls: Arc::default(),
            addresses: Book::new(),
            visits: Visits::default(),
            tickets,
            metrics,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Reads another configuration, for [`Admission::replace`]. An unusable one is refused as a
    /// whole.
    pub fn read(&self, config: &Config) -> Result<Replacement, Error> {
        Rules::read(config, Some(&self.inner.rules.load())).map(Replacement)
    }

    /// Replaces the rules, for existing sessions too.
    pub fn replace(&self, replacement: Replacement) {
        let _exchange = self
            .inner
            .exchange
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.exchange(replacement.0);
        self.inner.stir.notify_one();
    }

    /// Reads keys and authorities once more, and reports failures to `/readyz` if they matter
    /// there.
    pub async fn refresh(&self, readiness: &Readiness) {
        let outcome = self.read_again().await;
        if let Err(error) = &outcome {
            self.inner
                .metrics
                .reloads
                .with_label_values(&["failed"])
                .inc();
            tracing::error!(
                %error,
                "cannot read keys or authorities for admission: the old ones stay in force",
            );
        }
        let rules = self.inner.rules.load();
        match outcome {
            Err(error) if rules.source.is_some() && rules.keys.is_empty() => {
                readiness.not_ready("admission", error.to_string())
            }
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
            // Dates of certificates are only checked during verification, so it is repeated from
            // time to time.
            if self.inner.rules.load().authorities.is_some() && reviewed.elapsed() >= REVIEW_EVERY {
                reviewed = Instant::now();
                self.inner.reviews.send_replace(());
            }
        }
    }

    /// The verifier of client certificates for TLS.
    pub fn door(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Door::new(Arc::clone(&self.inner)))
    }

    /// A place for a new client at this address, validated (`proven`) or not.
    pub fn address(
        &self,
        now: Instant,
        address: IpAddr,
        proven: bool,
    ) -> Result<AddressPlace, Crowded> {
        let rules = self.inner.rules.load();
        let (key, most) = (neighbourhood(address), rules.config.address_connections_max);
        // Half of the places are reserved for clients with a validated address.
        if !proven && most.is_some_and(|most| self.inner.addresses.places(&key) >= most / 2) {
            return Err(Crowded::Prove);
        }
        let place = self.inner.addresses.enter(now, key, most).map_err(|_| {
            self.inner.metrics.limited_by("address", 1);
            Crowded::Full
        })?;
        place.set_rate(rules.config.address_rate());
        Ok(AddressPlace {
            place: Arc::new(place),
            ip: address.to_canonical(),
        })
    }

    /// A connected client, with its certificate chain, its own first.
    pub fn visitor(
        &self,
        address: AddressPlace,
        certificates: Vec<CertificateDer<'static>>,
    ) -> Visitor {
        let credential = if certificates.is_empty() {
            Credential::None
        } else {
            Credential::Certificates(certificates)
        };
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

    /// The holders with a limit whose use has changed since the last call, by their numbers.
    pub fn changed_holders(&self) -> Vec<u128> {
        self.inner.rolls.take_changed()
    }

    /// What a holder uses at this server.
    pub fn use_of(&self, holder: u128) -> Use {
        self.inner.rolls.use_of(holder)
    }

    /// This server has such a share of the holder's limits from now on. Of more connections than
    /// may stay, the newest are closed.
    pub fn restrict(&self, holder: u128, share: FleetShare) {
        let closed = self.inner.rolls.restrict(holder, share);
        self.inner.metrics.limited_by("fleet", closed.into());
    }

    async fn read_again(&self) -> Result<(), Error> {
        let before = self.inner.rules.load_full();
        let keys = match &before.source {
            Some(source) => Some(
                source
                    .fetch()
                    .await
                    .map_err(|reason| before.config.keys_error(reason))?,
            ),
            None => None,
        };
        let authorities = before.config.authorities()?;
        let is_same = keys
            .as_ref()
            .is_none_or(|text| *text == *before.keys_text.expose() && !before.keys.is_empty());
        if is_same
            && authorities.as_ref().map(|new| &new.text)
                == before.authorities.as_ref().map(|old| &old.text)
        {
            return Ok(());
        }
        let (keys, keys_text) = match keys {
            Some(text) => (
                Arc::new(before.config.parse_keys(&text)?),
                Secret::new(text),
            ),
            None => (Arc::clone(&before.keys), Secret::default()),
        };
        let after = Rules {
            config: before.config.clone(),
            source: before.source.clone(),
            keys,
            keys_text,
            authorities: authorities.map(Arc::new),
        };
        let _exchange = self
            .inner
            .exchange
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A reload in between has read everything itself.
        if Arc::ptr_eq(&before, &self.inner.rules.load()) {
            self.exchange(after);
        }
        Ok(())
    }

    fn exchange(&self, rules: Rules) {
        let keys = rules.keys.len();
        self.inner
            .metrics
            .keys
            .set(i64::try_from(keys).unwrap_or(i64::MAX));
        let before = self.inner.rules.swap(Arc::new(rules));
        if !before.has_the_means_of(&self.inner.rules.load()) {
            self.inner
                .metrics
                .reloads
                .with_label_values(&["taken"])
                .inc();
            tracing::info!(name: MILESTONE, keys, "keys or authorities for admission changed");
        }
        self.inner.reviews.send_replace(());
    }
}

impl Inner {
    /// A place for one more connection of a holder that may have so many.
    fn seat(&self, now: Instant, holder: Holder, most: Option<u32>) -> Result<Arc<Seat>, Limited> {
        if self.rolls.is_full(holder) {
            self.metrics.limited_by("fleet", 1);
            return Err(Limited);
        }
        let place = self.holders.enter(now, holder, most).map_err(|_| {
            self.metrics.limited_by("token", 1);
            Limited
        })?;
        Ok(self.rolls.seat(now, place))
    }
}

impl Rules {
    /// Whether keys and authorities equal those of other rules.
    fn has_the_means_of(&self, other: &Self) -> bool {
        fn authorities(rules: &Rules) -> Option<&[u8]> {
            rules
                .authorities
                .as_ref()
                .map(|authorities| authorities.text.as_slice())
        }
        self.keys_text == other.keys_text && authorities(self) == authorities(other)
    }

    /// Reads files; for a URL, the earlier keys stay until it is fetched again.
    fn read(config: &Config, before: Option<&Self>) -> Result<Self, Error> {
        let named = config
            .keys
            .as_ref()
            .map(|keys| Named::parse(keys.expose()))
            .transpose()
            .map_err(|reason| config.keys_error(reason))?;
        let source = named
            .map(|named| Source::new(named, SET_BYTES_MAX))
            .transpose()
            .map_err(|reason| config.keys_error(reason))?;
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
        Ok(Self {
            config: config.clone(),
            source,
            keys,
            keys_text,
            authorities,
        })
    }
}

impl Config {
    fn keys_error(&self, reason: String) -> Error {
        Error::Keys(
            self.keys
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            reason,
        )
    }

    fn parse_keys(&self, text: &[u8]) -> Result<KeySet, Error> {
        KeySet::parse(text).map_err(|error| self.keys_error(error.to_string()))
    }

    fn authorities(&self) -> Result<Option<Authorities>, Error> {
        let Some(path) = &self.clients_ca else {
            return Ok(None);
        };
        let read = source::read(path, AUTHORITIES_BYTES_MAX).and_then(Authorities::parse);
        read.map(Some)
            .map_err(|reason| Error::Authorities(path.display().to_string(), reason))
    }

    fn token_rate(&self) -> Option<u64> {
        self.token_bytes_per_second.map(|size| size.as_u64())
    }

    fn address_rate(&self) -> Option<u64> {
        self.address_bytes_per_second.map(|size| size.as_u64())
    }

    fn expectation(&self) -> Expectation {
        Expectation {
            audience: self.audience.clone(),
            leeway: self.leeway,
        }
    }
}

/// One connection to admission: its credentials, and the places it holds.
#[derive(Debug)]
pub struct Visitor {
    admission: Admission,
    address: AddressPlace,
    credential: Credential,
    holder: Option<Arc<Seat>>,
    /// The place of the connection of the same visit that this one has replaced.
    inherited: Option<Arc<Seat>>,
    /// The visit, once the peer has given its id, and the state that its next connection takes
    /// over.
    visit: (Option<VisitId>, Arc<Visit>),
    /// Whether bytes are counted for the address and for the holder; otherwise no lock is taken.
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

/// The value of a credential: paths, an end, and the account that it counts for.
struct Worth {
    scope: Scope,
    until: Option<Duration>,
    holder: Holder,
    connections: Option<u32>,
    rate: Option<u64>,
}

impl Visitor {
    /// The initial rights.
    pub fn enter(&mut self, now: Now) -> Result<Access, Limited> {
        let access = self.review(now)?;
        if let (Access::Granted { .. }, Credential::Certificates(_)) = (&access, &self.credential) {
            self.admission.inner.metrics.certificates.inc();
        }
        Ok(access)
    }

    /// Joins a visit: takes over the places of its earlier connection, which ends.
    pub fn resume(&mut self, id: VisitId) {
        self.visit.0 = Some(id);
        if let Some(before) = self.admission.inner.visits.take_over(id, &self.visit.1) {
            let (address, holder) = before.places();
            if let Some(place) = address.filter(|place| place.is_of(self.address.place.key())) {
                self.address.place = place;
            }
            // With a certificate it already has a place.
            match (&self.holder, holder) {
                (Some(own), Some(seat)) if seat.place().is_of(own.place().key()) => {
                    self.holder = Some(seat);
                }
                (_, seat) => self.inherited = seat,
            }
        }
        self.note_places();
    }

    /// Records its places for the next connection of its visit.
    fn note_places(&self) {
        if let Some(seat) = &self.holder {
            seat.belongs_to(&self.visit.1);
        }
        self.visit.1.note(&self.address.place, self.holder.as_ref());
    }

    /// Completes when the connection has to end for another one, or for a limit of the fleet.
    pub fn ended(&self) -> impl Future<Output = Ending> + Send + use<> {
        let visit = Arc::clone(&self.visit.1);
        async move { visit.ended().await }
    }

    /// Judges a token; returns whether it is valid, and the visitor's rights. An invalid one leaves
    /// the rights of an earlier token.
    pub fn present(&mut self, now: Now, token: String) -> Result<(bool, Access), Limited> {
        let rules = self.admission.inner.rules.load_full();
        // A certificate is enough, and without keys no token is refused.
        if rules.source.is_none()
            || self
                .worth(&rules, now)
                .is_some_and(|_| matches!(self.credential, Credential::Certificates(_)))
        {
            return Ok((true, self.review(now)?));
        }
        let verdict = token::verify(&token, &rules.keys, &rules.config.expectation(), now.date);
        self.admission
            .inner
            .metrics
            .judged(verdict.as_ref().map(drop).map_err(|error| *error));
        if let Err(error) = &verdict {
            tracing::debug!(%error, "token refused");
        } else {
            self.credential = Credential::Token(Secret::new(token));
        }
        Ok((verdict.is_ok(), self.review(now)?))
    }

    /// The same for a ticket.
    pub fn present_ticket(
        &mut self,
        now: Now,
        ticket: message::Ticket,
    ) -> Result<(bool, Access), Limited> {
        let tickets = self.admission.inner.tickets.as_ref();
        let counts = tickets.is_some_and(|tickets| tickets.verify(&ticket, now.date).is_some());
        self.admission.inner.metrics.ticket_judged(counts);
        if counts {
            self.credential = Credential::Ticket(ticket);
        }
        Ok((counts, self.review(now)?))
    }

    /// The rights by the present rules.
    pub fn review(&mut self, now: Now) -> Result<Access, Limited> {
        let rules = self.admission.inner.rules.load_full();
        let config = &rules.config;
        self.address.place.set_rate(config.address_rate());
        self.pays = (config.address_rate().is_some(), false);
        let Some(worth) = self.worth(&rules, now) else {
            self.holder = None;
            return Ok(if self.is_closed(config) {
                Access::Refused {
                    until: now.instant + config.grace,
                }
            } else {
                Access::Free
            });
        };
        let most = worth.connections.or(config.token_connections_max);
        let is_of = |seat: &Arc<Seat>| seat.place().is_of(&worth.holder);
        if !self.holder.as_ref().is_some_and(is_of) {
            // The old place is returned first, so that a peer at the limit can change its token.
            self.holder = None;
            let seat = match self.inherited.take().filter(is_of) {
                Some(seat) => seat,
                None => self.admission.inner.seat(now.instant, worth.holder, most)?,
            };
            self.holder = Some(seat);
            self.note_places();
        }
        if let Some(seat) = &self.holder {
            let rate = worth.rate.or_else(|| config.token_rate());
            seat.limit(most, rate);
            self.pays.1 = rate.is_some();
        }
        // An end beyond the clock's range counts as none.
        let until = worth
            .until
            .and_then(|until| now.instant.checked_add(until.saturating_sub(now.date)));
        Ok(Access::Granted {
            scope: worth.scope,
            until,
            grace: self.is_closed(config).then_some(config.grace),
        })
    }

    fn is_closed(&self, config: &Config) -> bool {
        config.is_closed() || self.admission.inner.tickets.is_some()
    }

    /// The account that it is counted under: the holder of its token, or its address.
    pub fn account(&self) -> u128 {
        match &self.holder {
            Some(seat) => seat.place().key().as_u128(),
            None => match neighbourhood(self.address.ip) {
                IpAddr::V4(four) => four.to_ipv6_mapped().to_bits(),
                IpAddr::V6(six) => six.to_bits(),
            },
        }
    }

    /// The address at the start of its connection.
    pub fn ip(&self) -> IpAddr {
        self.address.ip
    }

    /// The holder of its token or certificate, if valid.
    pub fn holder(&self) -> Option<Holder> {
        self.holder.as_ref().map(|seat| *seat.place().key())
    }

    /// The memory ledgers of its address and, with a valid credential, of its holder.
    pub fn ledgers(&self) -> (Arc<Ledger>, Option<Arc<Ledger>>) {
        (
            self.address.place.ledger(),
            self.holder.as_ref().map(|seat| seat.place().ledger()),
        )
    }

    /// Changes when a review is due.
    pub fn reviews(&self) -> watch::Receiver<()> {
        self.reviews.clone()
    }

    /// Bytes that may be sent to it now, or when more than none may be.
    pub fn allowance(&self, now: Instant) -> Result<u64, Instant> {
        let address = if self.pays.0 {
            self.address.place.allowance(now)
        } else {
            Ok(u64::MAX)
        };
        let holder = self
            .paying_holder()
            .map_or(Ok(u64::MAX), |place| place.allowance(now));
        match (address, holder) {
            (Ok(one), Ok(other)) => Ok(one.min(other)),
            (Err(one), Err(other)) => Err(one.max(other)),
            (Err(only), Ok(_)) | (Ok(_), Err(only)) => Err(only),
        }
    }

    /// Counts bytes sent to it.
    pub fn spend(&self, now: Instant, bytes: usize) {
        if self.pays.0 {
            self.address.place.spend(now, bytes as u64);
        }
        if let Some(place) = self.paying_holder() {
            place.spend(now, bytes as u64);
        }
    }

    fn paying_holder(&self) -> Option<&Place<Holder>> {
        let paying = self.holder.as_deref().filter(|_| self.pays.1);
        paying.map(Seat::place)
    }

    /// The value of its credential by these rules, if any.
    fn worth(&self, rules: &Rules, now: Now) -> Option<Worth> {
        match &self.credential {
            Credential::None => None,
            Credential::Token(token) => {
                let claims = token::verify(
                    token.expose(),
                    &rules.keys,
                    &rules.config.expectation(),
                    now.date,
                )
                .ok()?;
                let token::Claims {
                    scope,
                    until,
                    rate,
                    connections,
                    holder,
                } = claims;
                Some(Worth {
                    scope,
                    until: Some(until),
                    holder,
                    connections,
                    rate,
                })
            }
            Credential::Ticket(ticket) => {
                let tickets::Right {
                    scope,
                    until,
                    holder,
                } = self
                    .admission
                    .inner
                    .tickets
                    .as_ref()?
                    .verify(ticket, now.date)?;
                Some(Worth {
                    scope,
                    until: Some(until),
                    holder,
                    connections: None,
                    rate: None,
                })
            }
            Credential::Certificates(chain) => {
                rules
                    .authorities
                    .as_ref()?
                    .vouch_for(chain, now.date)
                    .ok()?;
                let own = chain.first().map_or(&[][..], |own| own.as_ref());
                let holder = Holder::of("certificate", &[own]);
                Some(Worth {
                    scope: Scope::everything(),
                    until: None,
                    holder,
                    connections: None,
                    rate: None,
                })
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

/// The interval of checks of open sessions' certificates.
const REVIEW_EVERY: Duration = Duration::from_secs(300);
/// Far above any bundle of authorities.
const AUTHORITIES_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests;
