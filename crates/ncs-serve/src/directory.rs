//! The peers that serve others: what they hold, and to whom they are named.
//!
//! A peer that serves others gives its port (OFFER) and what it holds (HAVE); both end with its
//! connection. A client that asks for a segment of a stream with `peers` is told of some peers that
//! hold it (PEERS), each with a ticket signed by the stream's key. If too few are known to hold it,
//! for example a new live segment, peers that follow the stream are named too: they have asked for
//! segments of it lately, so they hold this one or soon will. Among all these, the peers named
//! least often are chosen, so that all take turns. A peer is named only by the address of its own
//! connection, so it cannot point others at a third party.
//!
//! In a fleet, peers of other servers are named too where this server has too few of its own. What
//! passes between the servers is not decided here: [`Directory::news`] says what has changed and
//! what is lacking, [`Directory::sharers`] whom the others may be told of, and
//! [`Directory::found`] takes those of the others. Web pages stay out of it, because they can only
//! be reached through their own server.
//!
//! Web pages are named to web pages alone, by an identity that is drawn for each, where the
//! stream's policy is [`Policy::All`]. What two pages say to each other before they are connected
//! goes through here ([`Directory::signal`]): only between pages of which one was named to the
//! other lately. It is not read, and not kept but in a short queue of the page that it is for.
//!
//! Bounds, and what happens at each:
//!
//! - offering peers: more are ignored;
//! - segments that a peer is known to hold: the oldest are forgotten;
//! - known holders of one segment, and entries in all: more are not recorded;
//! - streams that a peer follows: more are not recorded;
//! - peers examined for an answer, and named in it;
//! - circles in the news for other servers: more are left out, until they change again;
//! - pages named to a page: the one named longest ago is forgotten, and has to be named again;
//! - what waits for a page that does not read: more is dropped;
//! - reports of wrong blocks by one network or one token holder: more are ignored for ten minutes.
//!
//! A peer accused by several others is not named for a while.

mod circle;
mod elsewhere;
mod metrics;
mod tickets;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_proto::integrity::signing::SigningKey;
use ncs_proto::object::{Coding, SegmentId};
use ncs_proto::wire::message::{
    Holding, HoldingState, Introduction, Meant, PageIntroduction, Ticket,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::admission::token::Holder;
use crate::admission::{Now, neighbourhood};
use crate::ring::SessionId;
pub use circle::Circle;
use circle::Kind;
use elsewhere::Elsewhere;
pub use elsewhere::Sharer;
pub use metrics::Metrics;
use tickets::Tickets;

/// The maximum number of offering peers.
const OFFERS_MAX: usize = 16_384;
/// Known segments of one peer, and of all together: a few hundred bytes each.
const HOLDINGS_MAX: usize = 1024;
const HOLDINGS_TOTAL_MAX: usize = 1 << 18;
/// Known holders of one segment, and those examined for one answer.
const HOLDERS_MAX: usize = 512;
const LOOKED_AT_MAX: usize = 64;
/// Peers named in one answer.
const NAMED_MAX: usize = 8;
/// A serving peer that was told of so many followers of a stream is told of others after this time,
/// if most of them are still there: it has as many as it draws on by default, and asks them for the
/// next segments too.
const FOLLOWERS_AGAIN: Duration = Duration::from_secs(10);
/// Streams that a peer is known to follow, and for how long after it has asked for a segment.
const FOLLOWED_MAX: usize = 8;
const FOLLOWS_FOR: Duration = Duration::from_secs(30);
/// Peers of a circle of which other servers are told.
pub const SHARERS_MAX: usize = 16;
/// Circles in the news of each kind that nobody has taken.
const NEWS_MAX: usize = 1 << 17;
/// Pages that one page is told of at a time, and for how long two pages may send each other signals
/// after one was named to the other.
const PAGES_MAX: usize = 64;
const PAGES_FOR: Duration = Duration::from_secs(60);
/// Signals that wait for one page.
const SIGNALS_MAX: usize = 16;
/// A peer is not named if this many others have accused it within `BLAME_LASTS`; others count by
/// network and by token holder.
const REPORTERS_MIN: usize = 3;
const BLAME_LASTS: Duration = Duration::from_secs(600);
/// Reports of one network or token holder within that time: too few to suppress many peers.
const REPORTS_MAX: usize = 4;
/// Accused peers that are remembered, and networks and holders whose reports are counted.
const BLAMED_MAX: usize = 4096;
const REPORTERS_MAX: usize = 16_384;

/// Which viewers of a stream are told of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// None.
    #[default]
    Off,
    /// Those in the same network: the same /24 of IPv4, or /64 of IPv6.
    Lan,
    /// Of all.
    All,
}

/// The directory's settings of a stream.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Which viewers are told of each other.
    pub policy: Policy,
    /// Signs tickets.
    pub key: Arc<SigningKey>,
}

impl Stream {
    fn is_as(&self, other: &Self) -> bool {
        self.policy == other.policy && self.key.public() == other.key.public()
    }

    /// The circle of a peer at this address, and nothing if viewers are kept apart.
    fn circle(&self, kind: Kind, name: &str, address: IpAddr) -> Option<Circle> {
        let network = match self.policy {
            Policy::Off => return None,
            Policy::Lan => Some(network(address)),
            Policy::All => None,
        };
        Some(Circle::new(kind, name, &self.key.public(), network))
    }
}

/// All offers and their segments. Clones share them.
#[derive(Clone)]
pub struct Directory {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    metrics: Metrics,
}

struct State {
    random: StdRng,
    streams: HashMap<String, Stream>,
    offers: BTreeMap<SessionId, Offer>,
    holders: HashMap<Name, Vec<SessionId>>,
    /// The followers of streams.
    followers: HashMap<Circle, Followers>,
    /// Peers of other servers.
    elsewhere: Elsewhere,
    /// What the other servers may have to know or to say, if there are any.
    news: Option<News>,
    /// The sessions of pages that serve, by their identities.
    pages: HashMap<[u8; 32], SessionId>,
    blamed: HashMap<[u8; 32], Vec<Report>>,
    /// The times of reports, by reporter.
    reporters: HashMap<Reporter, Vec<Instant>>,
    /// The number of entries of all offers.
    holdings: usize,
}

/// What has happened since the news were taken last.
#[derive(Debug, Default)]
pub struct News {
    /// Circles of which other servers may be, or have been, told other peers than before.
    pub changed: HashSet<Circle>,
    /// Circles with too few peers here.
    pub wanted: HashSet<Circle>,
}

/// A segment in a peer's list. If the same bytes have two codings, blocks of one are useless for
/// the other.
type Name = (SegmentId, Meant);

/// The followers of a stream: an unordered set of sessions, with the position of each.
struct Followers {
    stream: String,
    sessions: Vec<SessionId>,
    places: HashMap<SessionId, usize>,
}

struct Offer {
    place: Place,
    identity: [u8; 32],
    /// When it last asked for a segment, per stream that it follows.
    follows: HashMap<Circle, Instant>,
    /// When it was last told of as many peers as one answer names, and of which, per stream that
    /// it follows.
    told: HashMap<Circle, (Instant, Vec<SessionId>)>,
    /// How often it was named.
    named: u64,
    held: HashMap<Name, HoldingState>,
    /// In the order in which they were reported.
    order: VecDeque<Name>,
    tickets: Tickets,
}

/// Where a peer is reached.
enum Place {
    /// At this address.
    Address(SocketAddr),
    /// A web page, by signals through its session.
    Page {
        signals: mpsc::Sender<Signal>,
        /// The pages that were named to it, and when last.
        named: HashMap<[u8; 32], Instant>,
    },
}

/// What one page says to another: the identity of the former, and the bytes.
pub type Signal = ([u8; 32], Bytes);

/// A page that serves others.
#[derive(Debug)]
pub struct Page {
    /// The identity under which others know it.
    pub identity: [u8; 32],
    /// What others say to it. They end with its offer.
    pub signals: mpsc::Receiver<Signal>,
}

/// A report that a peer has sent wrong blocks.
struct Report {
    network: IpAddr,
    /// The holder of the reporter's token, if it has one.
    holder: Option<Holder>,
    at: Instant,
}

/// The units by which reports are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reporter {
    Network(IpAddr),
    Holder(Holder),
}

/// The client that is told of peers.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    /// Its session, which is not named to itself.
    pub session: SessionId,
    /// Its address.
    pub address: IpAddr,
}

impl Directory {
    /// A directory that names no peers until it has streams.
    pub fn new(metrics: Metrics) -> Self {
        Self::with_random(metrics, StdRng::from_rng(&mut rand::rng()))
    }

    /// The same, with choices drawn from `random`, so that they can be reproduced.
    pub fn with_random(metrics: Metrics, random: StdRng) -> Self {
        let (streams, offers, holders, followers, pages, blamed, reporters) = Default::default();
        let (elsewhere, news) = Default::default();
        let state = State {
            random,
            streams,
            offers,
            holders,
            followers,
            elsewhere,
            news,
            pages,
            blamed,
            reporters,
            holdings: 0,
        };
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(state),
                metrics,
            }),
        }
    }

    /// Sets the streams whose viewers are told of each other.
    pub fn set_streams(&self, streams: HashMap<String, Stream>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.streams, streams);
        state.forget_changed(&before);
        // Tickets of removed keys are invalid.
        state
            .offers
            .values_mut()
            .for_each(|offer| offer.tickets.clear());
    }

    /// A peer offers to serve at this address. Replaces an earlier offer.
    pub fn offer(&self, session: SessionId, address: SocketAddr, identity: [u8; 32]) {
        self.put(session, Place::Address(address), identity);
    }

    /// A web page offers to serve others. Replaces an earlier offer. `None` if there are too many
    /// offers.
    pub fn offer_page(&self, session: SessionId) -> Option<Page> {
        let identity = self.state().random.random();
        let (sender, signals) = mpsc::channel(SIGNALS_MAX);
        let place = Place::Page {
            signals: sender,
            named: HashMap::new(),
        };
        self.put(session, place, identity)
            .then_some(Page { identity, signals })
    }

    fn put(&self, session: SessionId, place: Place, identity: [u8; 32]) -> bool {
        let mut state = self.state();
        // A new offer is no way to be named before others again.
        let named = state.offers.get(&session).map_or(0, |offer| offer.named);
        state.withdraw(session);
        let has_room = state.offers.len() < OFFERS_MAX;
        if has_room {
            if let Place::Page { .. } = place {
                state.pages.insert(identity, session);
            }
            let offer = Offer {
                named,
                ..Offer::new(place, identity)
            };
            state.offers.insert(session, offer);
        }
        self.show(&state);
        has_room
    }

    /// A peer withdraws its offer.
    pub fn withdraw(&self, session: SessionId) {
        let mut state = self.state();
        state.withdraw(session);
        self.show(&state);
    }

    /// A peer reports changes in what it holds. Ignored without an offer.
    pub fn have(&self, session: SessionId, holdings: &[Holding]) {
        let mut state = self.state();
        for Holding {
            segment,
            meant,
            state: held,
        } in holdings
        {
            state.have(session, (*segment, *meant), *held);
        }
    }

    /// Peers that hold some of a segment, with this coding as far as they have said: complete ones
    /// first, then partial ones, then followers of the stream, then those of other servers. No
    /// pages.
    pub fn introduce(
        &self,
        now: Now,
        asker: Asker,
        stream: &str,
        segment: (SegmentId, Coding),
    ) -> Vec<Introduction> {
        let mut state = self.state();
        let Some(settings) = state.streams.get(stream).cloned() else {
            return Vec::new();
        };
        let Some(circle) = settings.circle(Kind::Programs, stream, asker.address) else {
            return Vec::new();
        };
        let of_stream = (stream, settings.policy, circle);
        let Some(chosen) = state.choose(now.instant, asker, of_stream, segment) else {
            return Vec::new();
        };
        let introduction = |session| {
            let offer = state.offers.get_mut(&session)?;
            let Place::Address(address) = offer.place else {
                return None;
            };
            let (ticket, lasts_ms) = offer.ticket(now, stream, &settings.key)?;
            Some(Introduction {
                address,
                identity: offer.identity,
                lasts_ms,
                ticket,
            })
        };
        let mut named: Vec<_> = chosen.into_iter().filter_map(introduction).collect();
        let here = named.len();
        state.introduce_others(now, asker, (stream, &settings, circle), &mut named);
        let metrics = &self.inner.metrics;
        metrics.introductions.inc_by(named.len() as u64);
        metrics
            .fleet_introductions
            .inc_by((named.len() - here) as u64);
        named
    }

    /// Pages that hold some of a segment, or follow its stream, for a page that serves, too. From
    /// now on they can send each other signals for a while.
    pub fn introduce_pages(
        &self,
        now: Now,
        asker: Asker,
        stream: &str,
        segment: (SegmentId, Coding),
    ) -> Vec<PageIntroduction> {
        let mut state = self.state();
        let Some(settings) = state.streams.get(stream).cloned() else {
            return Vec::new();
        };
        let circle = settings.circle(Kind::Pages, stream, asker.address);
        let Some(circle) = circle.filter(|_| settings.policy == Policy::All) else {
            return Vec::new();
        };
        let of_stream = (stream, settings.policy, circle);
        let chosen = state.choose(now.instant, asker, of_stream, segment);
        let introduction = |session| {
            let offer = state.offers.get_mut(&session)?;
            let Place::Page { .. } = offer.place else {
                return None;
            };
            let (ticket, lasts_ms) = offer.ticket(now, stream, &settings.key)?;
            Some(PageIntroduction {
                identity: offer.identity,
                lasts_ms,
                ticket,
            })
        };
        let chosen = chosen.into_iter().flatten();
        let mut named: Vec<_> = chosen.filter_map(introduction).collect();
        let Some(Offer {
            place: Place::Page { named: known, .. },
            ..
        }) = state.offers.get_mut(&asker.session)
        else {
            return Vec::new();
        };
        named.truncate(PAGES_MAX);
        known.retain(|_, at| now.instant.saturating_duration_since(*at) < PAGES_FOR);
        for page in &named {
            known.insert(page.identity, now.instant);
        }
        while known.len() > PAGES_MAX {
            let oldest = known.iter().min_by_key(|(_, at)| **at);
            let Some(oldest) = oldest.map(|(identity, _)| *identity) else {
                break;
            };
            known.remove(&oldest);
        }
        self.inner
            .metrics
            .page_introductions
            .inc_by(named.len() as u64);
        named
    }

    /// Passes on what a page says to another, if one was named to the other lately, and the other
    /// reads what it is told.
    pub fn signal(&self, now: Instant, from: SessionId, to: [u8; 32], bytes: Bytes) {
        let state = self.state();
        let Some((identity, door)) = state.door(now, from, to) else {
            return;
        };
        if door.try_send((identity, bytes)).is_ok() {
            self.inner.metrics.signals.inc();
        }
    }

    /// Records a report that the peer with this identity has sent wrong blocks, by a reporter with
    /// this address and, if it has shown a token, holder.
    pub fn blame(
        &self,
        now: Instant,
        reporter: IpAddr,
        holder: Option<Holder>,
        identity: [u8; 32],
    ) {
        let mut state = self.state();
        let report = Report {
            network: site(reporter),
            holder,
            at: now,
        };
        // Checked first, so that excess reports cost no time.
        if state.counts(now, &report) {
            state.note_blame(now, report, identity);
        }
    }

    /// What has happened since the last call. News are kept from the first call on, which has what
    /// is known then.
    pub fn news(&self) -> News {
        let mut state = self.state();
        let news = state.news.replace(News::default());
        news.unwrap_or_else(|| News {
            changed: state.followers.keys().copied().collect(),
            wanted: HashSet::new(),
        })
    }

    /// Some peers of a circle of which other servers may be told: at most [`SHARERS_MAX`], and
    /// those of the last time if they still serve and follow the stream.
    pub fn sharers(&self, now: Instant, circle: Circle) -> Vec<Sharer> {
        self.state().sharers(now, circle)
    }

    /// Other servers have these peers of a circle.
    pub fn found(&self, circle: Circle, sharers: Vec<Sharer>) {
        self.state().elsewhere.set(circle, sharers);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, state: &State) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let pages = state.pages.len();
        self.inner.metrics.pages.set(count(pages));
        self.inner
            .metrics
            .offers
            .set(count(state.offers.len() - pages));
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Directory")
            .field("streams", &state.streams.len())
            .field("offers", &state.offers.len())
            .finish()
    }
}

impl State {
    fn withdraw(&mut self, session: SessionId) {
        let Some(offer) = self.offers.remove(&session) else {
            return;
        };
        if let Place::Page { .. } = offer.place {
            self.pages.remove(&offer.identity);
        }
        offer
            .held
            .keys()
            .for_each(|segment| self.forget(session, segment));
        offer
            .follows
            .keys()
            .for_each(|circle| self.leave(session, *circle));
    }

    /// Forgets who follows streams that are gone, or have another policy or key than before.
    fn forget_changed(&mut self, before: &HashMap<String, Stream>) {
        let stays = |followers: &Followers| {
            let (now, before) = (
                self.streams.get(&followers.stream),
                before.get(&followers.stream),
            );
            now.zip(before)
                .is_some_and(|(now, before)| now.is_as(before))
        };
        let gone = self.followers.iter().filter(|(_, known)| !stays(known));
        let gone: Vec<Circle> = gone.map(|(circle, _)| *circle).collect();
        for circle in gone {
            let followers = self.followers.remove(&circle);
            for session in followers.into_iter().flat_map(|known| known.sessions) {
                self.stop_following(session, circle);
            }
            self.note_change(circle);
        }
    }

    /// The peers to name to a client for a segment, those that are best first. Pages are named to
    /// pages, and others to others. Nothing if it knows enough of them.
    fn choose(
        &mut self,
        now: Instant,
        asker: Asker,
        (stream, policy, circle): (&str, Policy, Circle),
        (segment, coding): (SegmentId, Coding),
    ) -> Option<Vec<SessionId>> {
        let mut chosen = self.candidates(now, asker, policy, &(segment, Meant::Coded(coding)));
        // Older peers do not report the coding. One that reports it only for some entries is named
        // once.
        let unsaid = self.candidates(now, asker, policy, &(segment, Meant::LastNamed));
        let said: HashSet<SessionId> = chosen.iter().map(|(session, _)| *session).collect();
        chosen.extend(
            unsaid
                .into_iter()
                .filter(|(session, _)| !said.contains(session)),
        );
        let complete = |held: &Option<HoldingState>| *held == Some(HoldingState::Complete);
        // A segment that few have is mostly new, and those who follow the stream soon have it.
        let holders: Vec<SessionId> = chosen
            .iter()
            .filter(|(_, held)| complete(held))
            .map(|(session, _)| *session)
            .collect();
        let is_new = holders.len() < NAMED_MAX;
        if is_new && self.knows_enough(now, asker.session, circle, &holders) {
            self.note_following(now, asker.session, circle, stream);
            return None;
        }
        if chosen.len() < NAMED_MAX {
            let followers = self.following(now, asker, circle);
            let known: HashSet<SessionId> = chosen.iter().map(|(session, _)| *session).collect();
            chosen.extend(
                followers
                    .into_iter()
                    .filter(|session| !known.contains(session))
                    .map(|session| (session, None)),
            );
        }
        self.note_following(now, asker.session, circle, stream);
        chosen.shuffle(&mut self.random);
        let named_before =
            |session: &SessionId| self.offers.get(session).map_or(0, |offer| offer.named);
        chosen.sort_by_key(|(session, held)| (rank(*held), named_before(session)));
        // No peer should be asked by all others because it was the first with a part.
        if is_new {
            chosen[holders.len()..].sort_by_key(|(session, _)| named_before(session));
        }
        chosen.truncate(NAMED_MAX);
        chosen.sort_by_key(|(_, held)| rank(*held));
        let chosen: Vec<SessionId> = chosen.into_iter().map(|(session, _)| session).collect();
        if chosen.len() == NAMED_MAX {
            self.note_told(now, asker.session, circle, chosen.clone());
        }
        Some(chosen)
    }

    /// Names peers of other servers, where those of this one are too few.
    fn introduce_others(
        &mut self,
        now: Now,
        asker: Asker,
        (stream, settings, circle): (&str, &Stream, Circle),
        named: &mut Vec<Introduction>,
    ) {
        if named.len() >= NAMED_MAX {
            return;
        }
        if let Some(news) = &mut self.news
            && news.wanted.len() < NEWS_MAX
        {
            news.wanted.insert(circle);
        }
        let own = self.offers.get(&asker.session).map(|offer| offer.identity);
        let mut elsewhere = std::mem::take(&mut self.elsewhere);
        for remote in elsewhere.in_turn(circle, &mut self.random) {
            let Sharer { address, identity } = remote.sharer;
            let is_near =
                settings.policy == Policy::All || network(address.ip()) == network(asker.address);
            let is_known =
                own == Some(identity) || named.iter().any(|other| other.identity == identity);
            if named.len() >= NAMED_MAX
                || !is_near
                || is_known
                || self.is_blamed(now.instant, &identity)
            {
                continue;
            }
            let ticket = remote.tickets.give(now, stream, &settings.key, identity);
            if let Some((ticket, lasts_ms)) = ticket {
                remote.named += 1;
                named.push(Introduction {
                    address,
                    identity,
                    lasts_ms,
                    ticket,
                });
            }
        }
        self.elsewhere = elsewhere;
    }

    /// Peers of a circle of which other servers may be told.
    fn sharers(&mut self, now: Instant, circle: Circle) -> Vec<Sharer> {
        let (mut sharers, mut place) = (Vec::new(), 0);
        while sharers.len() < SHARERS_MAX
            && let Some(session) = self.follower(circle, place)
        {
            if !self.follows(now, session, circle) {
                // Another takes its place.
                self.stop_following(session, circle);
                self.leave(session, circle);
                continue;
            }
            place += 1;
            if let Some(Offer {
                place: Place::Address(address),
                identity,
                ..
            }) = self.offers.get(&session)
                && !self.is_blamed(now, identity)
            {
                sharers.push(Sharer {
                    address: SocketAddr::new(address.ip().to_canonical(), address.port()),
                    identity: *identity,
                });
            }
        }
        sharers
    }

    fn follower(&self, circle: Circle, place: usize) -> Option<SessionId> {
        self.followers.get(&circle)?.sessions.get(place).copied()
    }

    /// Whether a peer has lately asked for a segment of a stream.
    fn follows(&self, now: Instant, session: SessionId, circle: Circle) -> bool {
        let offer = self.offers.get(&session);
        let asked = offer.and_then(|offer| offer.follows.get(&circle));
        asked.is_some_and(|at| now.saturating_duration_since(*at) < FOLLOWS_FOR)
    }

    fn stop_following(&mut self, session: SessionId, circle: Circle) {
        if let Some(offer) = self.offers.get_mut(&session) {
            offer.follows.remove(&circle);
            offer.told.remove(&circle);
        }
    }

    /// The other servers may have to be told something else of a circle.
    fn note_change(&mut self, circle: Circle) {
        if let Some(news) = &mut self.news
            && news.changed.len() < NEWS_MAX
        {
            news.changed.insert(circle);
        }
    }

    /// The identity of a page, and the queue of the page to which it says something, if one was
    /// named to the other lately.
    fn door(
        &self,
        now: Instant,
        from: SessionId,
        to: [u8; 32],
    ) -> Option<([u8; 32], &mpsc::Sender<Signal>)> {
        let (sender, receiver) = (
            self.offers.get(&from)?,
            self.offers.get(self.pages.get(&to)?)?,
        );
        let Place::Page { signals, .. } = &receiver.place else {
            return None;
        };
        let are_introduced =
            sender.knows(now, &receiver.identity) || receiver.knows(now, &sender.identity);
        are_introduced.then_some((sender.identity, signals))
    }

    /// Notes that an offering peer has asked for a segment of a stream.
    fn note_following(&mut self, now: Instant, session: SessionId, circle: Circle, stream: &str) {
        let Some(offer) = self.offers.get_mut(&session) else {
            return;
        };
        if offer.follows.len() < FOLLOWED_MAX || offer.follows.contains_key(&circle) {
            offer.follows.insert(circle, now);
            let followers = self.followers.entry(circle);
            let followers = followers.or_insert_with(|| Followers::of(stream));
            if followers.add(session) {
                self.note_change(circle);
            }
        }
    }

    /// Whether a serving peer was lately told of enough others that follow the stream, most of
    /// which still serve, and of one of these holders, if there are any.
    fn knows_enough(
        &self,
        now: Instant,
        session: SessionId,
        circle: Circle,
        holders: &[SessionId],
    ) -> bool {
        let offer = self.offers.get(&session);
        let Some((at, told)) = offer.and_then(|offer| offer.told.get(&circle)) else {
            return false;
        };
        let serving = told.iter().filter(|peer| self.offers.contains_key(peer));
        now.saturating_duration_since(*at) < FOLLOWERS_AGAIN
            && 2 * serving.count() >= NAMED_MAX
            && (holders.is_empty() || holders.iter().any(|holder| told.contains(holder)))
    }

    /// Notes that a peer was told of these others, as many as one answer names. Pages often cannot
    /// connect to each other, and never know enough.
    fn note_told(
        &mut self,
        now: Instant,
        session: SessionId,
        circle: Circle,
        others: Vec<SessionId>,
    ) {
        if let Some(offer) = self.offers.get_mut(&session)
            && offer.follows.contains_key(&circle)
            && !matches!(offer.place, Place::Page { .. })
        {
            offer.told.insert(circle, (now, others));
        }
    }

    fn leave(&mut self, session: SessionId, circle: Circle) {
        if let Some(followers) = self.followers.get_mut(&circle) {
            followers.remove(session);
            if followers.sessions.is_empty() {
                self.followers.remove(&circle);
            }
            self.note_change(circle);
        }
    }

    /// Some followers of a stream, drawn at random; former followers are forgotten.
    fn following(&mut self, now: Instant, asker: Asker, circle: Circle) -> Vec<SessionId> {
        let count = self
            .followers
            .get(&circle)
            .map_or(0, |followers| followers.sessions.len());
        let places = rand::seq::index::sample(&mut self.random, count, count.min(LOOKED_AT_MAX));
        let drawn: Vec<SessionId> = places
            .into_iter()
            .filter_map(|place| self.follower(circle, place))
            .collect();
        let (current, gone): (Vec<SessionId>, Vec<SessionId>) = drawn
            .into_iter()
            .partition(|session| self.follows(now, *session, circle));
        for session in gone {
            self.stop_following(session, circle);
            self.leave(session, circle);
        }
        current
            .into_iter()
            .filter(|session| self.may_name(now, asker, *session))
            .collect()
    }

    /// Whether to name a peer to a client: it is another peer of its kind, and not accused.
    fn may_name(&self, now: Instant, asker: Asker, session: SessionId) -> bool {
        let own = self.offers.get(&asker.session);
        let Some(offer) = self.offers.get(&session) else {
            return false;
        };
        if own.is_some_and(Offer::is_page) != offer.is_page() {
            return false;
        }
        let (own, identity) = (own.map(|offer| offer.identity), &offer.identity);
        session != asker.session && Some(*identity) != own && !self.is_blamed(now, identity)
    }

    fn forget(&mut self, session: SessionId, segment: &Name) {
        if let Some(holders) = self.holders.get_mut(segment) {
            let before = holders.len();
            holders.retain(|holder| *holder != session);
            self.holdings -= before - holders.len();
            if holders.is_empty() {
                self.holders.remove(segment);
            }
        }
    }

    fn have(&mut self, session: SessionId, segment: Name, held: HoldingState) {
        let Some(offer) = self.offers.get_mut(&session) else {
            return;
        };
        if held == HoldingState::Gone {
            if offer.held.remove(&segment).is_some() {
                offer.order.retain(|other| *other != segment);
                self.forget(session, &segment);
            }
            return;
        }
        if let Some(known) = offer.held.get_mut(&segment) {
            *known = held;
            return;
        }
        let holders = self.holders.get(&segment).map_or(0, Vec::len);
        if holders >= HOLDERS_MAX || self.holdings >= HOLDINGS_TOTAL_MAX {
            return;
        }
        offer.held.insert(segment, held);
        offer.order.push_back(segment);
        let oldest = if offer.order.len() > HOLDINGS_MAX {
            offer.order.pop_front()
        } else {
            None
        };
        if let Some(oldest) = &oldest {
            offer.held.remove(oldest);
        }
        self.holders.entry(segment).or_default().push(session);
        self.holdings += 1;
        if let Some(oldest) = oldest {
            self.forget(session, &oldest);
        }
    }

    fn candidates(
        &mut self,
        now: Instant,
        asker: Asker,
        policy: Policy,
        segment: &Name,
    ) -> Vec<(SessionId, Option<HoldingState>)> {
        let holders = self.holders.get(segment).map_or(&[][..], Vec::as_slice);
        // Starts at a random position, so that all take turns.
        let first = if holders.is_empty() {
            0
        } else {
            self.random.random_range(0..holders.len())
        };
        let holders = holders
            .iter()
            .cycle()
            .skip(first)
            .take(holders.len().min(LOOKED_AT_MAX));
        let known = holders.filter_map(|session| Some((*session, self.offers.get(session)?)));
        let allowed = known.filter(|(_, offer)| match policy {
            Policy::Off => false,
            Policy::Lan => matches!(offer.place, Place::Address(address)
                if network(address.ip()) == network(asker.address)),
            Policy::All => true,
        });
        let trusted = allowed.filter(|(session, _)| self.may_name(now, asker, *session));
        trusted
            .filter_map(|(session, offer)| Some((session, Some(*offer.held.get(segment)?))))
            .collect()
    }

    /// Whether a report counts: neither its network nor its holder has made too many lately. If so,
    /// it is recorded.
    fn counts(&mut self, now: Instant, report: &Report) -> bool {
        let by: Vec<Reporter> = report.by().collect();
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < BLAME_LASTS;
        if self.reporters.len() + by.len() > REPORTERS_MAX {
            self.reporters
                .retain(|_, times| times.iter().any(is_recent));
        }
        if self.reporters.len() + by.len() > REPORTERS_MAX {
            return false;
        }
        let made = |reporter: &Reporter| {
            self.reporters
                .get(reporter)
                .map_or(0, |times| times.iter().filter(|at| is_recent(at)).count())
        };
        if by.iter().any(|reporter| made(reporter) >= REPORTS_MAX) {
            return false;
        }
        for reporter in by {
            let times = self.reporters.entry(reporter).or_default();
            times.retain(is_recent);
            times.push(now);
        }
        true
    }

    /// Keeps a report about an offering peer.
    fn note_blame(&mut self, now: Instant, report: Report, identity: [u8; 32]) {
        self.blamed.retain(|_, reports| {
            reports.retain(|report| report.is_recent(now));
            !reports.is_empty()
        });
        let is_offered = self.offers.values().any(|offer| offer.identity == identity);
        let is_offered = is_offered || self.elsewhere.knows(&identity);
        if is_offered && (self.blamed.len() < BLAMED_MAX || self.blamed.contains_key(&identity)) {
            let reports = self.blamed.entry(identity).or_default();
            // A repeated report replaces the earlier one.
            reports.retain(|before| {
                (before.network, before.holder) != (report.network, report.holder)
            });
            reports.push(report);
        }
    }

    fn is_blamed(&self, now: Instant, identity: &[u8; 32]) -> bool {
        let Some(reports) = self.blamed.get(identity) else {
            return false;
        };
        let recent = || reports.iter().filter(|report| report.is_recent(now));
        let networks: HashSet<IpAddr> = recent().map(|report| report.network).collect();
        // A reporter without a token counts only by its network.
        let holders: HashSet<Reporter> = recent().filter_map(|report| report.by().last()).collect();
        networks.len().min(holders.len()) >= REPORTERS_MIN
    }
}

impl Report {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < BLAME_LASTS
    }

    /// The reporter: its network, then its holder.
    fn by(&self) -> impl Iterator<Item = Reporter> + use<> {
        [
            Some(Reporter::Network(self.network)),
            self.holder.map(Reporter::Holder),
        ]
        .into_iter()
        .flatten()
    }
}

impl Followers {
    fn of(stream: &str) -> Self {
        Self {
            stream: stream.to_owned(),
            sessions: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Whether it is new.
    fn add(&mut self, session: SessionId) -> bool {
        let is_new = !self.places.contains_key(&session);
        if is_new {
            self.places.insert(session, self.sessions.len());
            self.sessions.push(session);
        }
        is_new
    }

    fn remove(&mut self, session: SessionId) {
        let Some(place) = self.places.remove(&session) else {
            return;
        };
        self.sessions.swap_remove(place);
        if let Some(moved) = self.sessions.get(place) {
            self.places.insert(*moved, place);
        }
    }
}

impl Offer {
    fn new(place: Place, identity: [u8; 32]) -> Self {
        Self {
            place,
            identity,
            follows: HashMap::new(),
            told: HashMap::new(),
            named: 0,
            held: HashMap::new(),
            order: VecDeque::new(),
            tickets: Tickets::default(),
        }
    }

    fn is_page(&self) -> bool {
        matches!(self.place, Place::Page { .. })
    }

    /// Whether a page was named to this one lately.
    fn knows(&self, now: Instant, identity: &[u8; 32]) -> bool {
        let Place::Page { named, .. } = &self.place else {
            return false;
        };
        let at = named.get(identity);
        at.is_some_and(|at| now.saturating_duration_since(*at) < PAGES_FOR)
    }

    /// A ticket for this peer, and for how many milliseconds it counts. The peer is about to be
    /// named.
    fn ticket(&mut self, now: Now, stream: &str, key: &SigningKey) -> Option<(Ticket, u64)> {
        self.named += 1;
        self.tickets.give(now, stream, key, self.identity)
    }
}

/// The order of naming: complete holders, partial holders, followers.
fn rank(held: Option<HoldingState>) -> u8 {
    match held {
        Some(HoldingState::Complete) => 0,
        Some(_) => 1,
        None => 2,
    }
}

/// The network of an address: 24 bits of IPv4, 64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match neighbourhood(address) {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            IpAddr::from([a, b, c, 0])
        }
        six => six,
    }
}

/// The site of an address: 24 bits of IPv4; 48 of IPv6, all of which one subscriber may own.
fn site(address: IpAddr) -> IpAddr {
    match network(address) {
        IpAddr::V6(six) => IpAddr::from((six.to_bits() >> 80 << 80).to_be_bytes()),
        four => four,
    }
}

#[cfg(test)]
mod tests;
