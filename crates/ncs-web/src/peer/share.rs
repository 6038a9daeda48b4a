//! Pages that serve each other: their connections, and what this one holds for others.
//!
//! A *link* is a connection with another page, over data channels that the page's script keeps.
//! Either side may be a consumer of the other. The server that is trusted introduces pages
//! (`PAGES`), and passes on what they say to each other until they are connected (`SIGNAL`).
//!
//! `serving` is the conversation in which the other page is the consumer; in the other one it is a
//! neighbour of the machine in `ncs-proto`. `holdings` are the segments that are passed on.
//!
//! Bounds, and what happens at each:
//!
//! - links that this page begins, and those that others begin: a link on which nothing has come or
//!   gone for a while makes room, otherwise more pages are left alone;
//! - a link that does not come about in ten seconds, or breaks: its page is left alone for a while;
//! - bytes of segments, and their number: the one used longest ago is forgotten;
//! - messages of data channels: a longer one ends the link, as does a flood of them;
//! - a page that lies is not connected again.

mod holdings;
mod serving;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use ncs_proto::object::SegmentId;
use ncs_proto::peer::alternates::FIRST_ID;
use ncs_proto::peer::{Cut, Event as News, FetchId, Proto, SourceId};
use ncs_proto::sorted::SortedMap;
use ncs_proto::time::Instant;
use ncs_proto::wire::message::{Credential, Meta, PageIntroduction, Ticket};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{Event, Peer};
use holdings::Holdings;
use serving::Serving;

/// Links that this page begins, and links that others begin.
const CALLED_MAX: usize = 4;
const CALLERS_MAX: usize = 4;
/// How long a link may take to come about, and how long one may do nothing if others want its
/// place.
const CALL_FOR: Duration = Duration::from_secs(10);
const IDLE_FOR: Duration = Duration::from_secs(20);
/// How long a page is left alone after its link has failed, and how many pages are remembered.
const REST: Duration = Duration::from_secs(30);
const RESTING_MAX: usize = 256;
/// Bytes of a message of the channel of frames.
const CONTROL_MAX: usize = 64 << 10;
/// Bytes of frames that a sender may send in such a time: nothing holds up a data channel.
const HEARD_MAX: usize = 256 << 10;
const HEARD_IN: Duration = Duration::from_secs(1);
/// The round-trip time to a page until it is measured, and the longest that is believed.
const RTT_ASSUMED: Duration = Duration::from_millis(100);
const RTT_MAX: Duration = Duration::from_secs(1);
/// Memory for segments that are passed on.
const HELD_MAX: u64 = 24 << 20;
/// The server is told this often what is held.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// The sources of links begin with this number. Servers have those below.
const FIRST_SOURCE: u32 = 1 << 16;

/// The name of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// What is counted of pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedCounts {
    /// Pages that are connected.
    pub connected: u64,
    /// Bytes of payload that came from them.
    pub received_bytes: u64,
    /// Bytes of payload that went to them.
    pub sent_bytes: u64,
    /// Pages that have lied.
    pub liars: u64,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Share {
    /// Under which others know this page, once the server has said.
    identity: Option<[u8; 32]>,
    holdings: Holdings,
    links: SortedMap<LinkId, Link>,
    next: u32,
    /// Pages that are left alone until then.
    resting: VecDeque<([u8; 32], Instant)>,
    liars: Vec<[u8; 32]>,
    /// The fetches under way, and what they bring.
    cuts: SortedMap<FetchId, Cut>,
    told_at: Option<Instant>,
    random: SmallRng,
    /// Bytes that went over links that have ended.
    sent_before: u64,
}

/// A connection with another page.
#[derive(Debug)]
struct Link {
    identity: [u8; 32],
    /// Whether this page has begun it.
    is_called: bool,
    /// Whether it is connected.
    is_open: bool,
    begun: Instant,
    /// The bytes that had come and gone when they last changed, and when that was.
    moved: (u64, Instant),
    /// Bytes of frames that have come as from a sender since then.
    heard: (usize, Instant),
    /// What is shown to the other page, if it was named.
    ticket: Option<Ticket>,
    /// Whether this page is a consumer of it.
    consumes: bool,
    serving: Option<Serving>,
}

impl LinkId {
    fn source(self) -> SourceId {
        SourceId(FIRST_SOURCE + self.0)
    }
}

/// The link of a source, if it is no server.
pub(super) fn link_of(source: SourceId) -> Option<LinkId> {
    let is_one = (FIRST_SOURCE..FIRST_ID).contains(&source.0);
    is_one.then(|| LinkId(source.0 - FIRST_SOURCE))
}

impl Share {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self {
            identity: None,
            holdings: Holdings::new(HELD_MAX),
            links: SortedMap::new(),
            next: 0,
            resting: VecDeque::new(),
            liars: Vec::new(),
            cuts: SortedMap::new(),
            told_at: None,
            random: SmallRng::from_seed(seed),
            sent_before: 0,
        }
    }

    /// A fetch begins.
    pub(super) fn begin(&mut self, now: Instant, fetch: FetchId, meta: &Meta, cut: Cut) {
        self.told_at.get_or_insert(now);
        self.holdings.begin(now, cut, &meta.path);
        self.cuts.insert(fetch, cut);
    }

    /// Bytes of a fetch are verified: the next ones, or all of them.
    pub(super) fn proved(&mut self, fetch: FetchId, pieces: &[Bytes], is_all: bool) {
        let Some(cut) = self.cuts.get(&fetch).copied() else {
            return;
        };
        self.holdings.proved(&cut, pieces);
        if is_all {
            self.cuts.remove(&fetch);
            self.holdings.complete(&cut);
        }
    }

    /// Forgets fetches that have ended.
    pub(super) fn retain(&mut self, is_under_way: impl Fn(&FetchId) -> bool) {
        self.cuts.retain(|fetch, _| is_under_way(fetch));
    }

    fn find(&self, identity: &[u8; 32]) -> Option<LinkId> {
        let is_it = |(_, link): &(&LinkId, &Link)| link.identity == *identity;
        self.links.iter().find(is_it).map(|(id, _)| *id)
    }

    /// Whether a link with a page may begin. A link that does nothing is named to make room.
    fn may_begin(
        &mut self,
        now: Instant,
        identity: &[u8; 32],
        is_called: bool,
    ) -> Option<Option<LinkId>> {
        self.resting.retain(|(_, until)| *until > now);
        let rests = self.resting.iter().any(|(page, _)| page == identity);
        if rests || self.liars.contains(identity) || self.identity == Some(*identity) {
            return None;
        }
        let most = if is_called { CALLED_MAX } else { CALLERS_MAX };
        let alike = || {
            let links = self.links.iter();
            links.filter(move |(_, link)| link.is_called == is_called)
        };
        if alike().count() < most {
            return Some(None);
        }
        let is_idle = |link: &Link| now.saturating_duration_since(link.moved.1) >= IDLE_FOR;
        let idle = alike().filter(|(_, link)| is_idle(link));
        let idle = idle.min_by_key(|(_, link)| link.moved.1);
        idle.map(|(id, _)| Some(*id))
    }

    fn insert(&mut self, now: Instant, identity: [u8; 32], is_called: bool) -> LinkId {
        let id = LinkId(self.next);
        self.next += 1;
        let link = Link {
            identity,
            is_called,
            is_open: false,
            begun: now,
            moved: (0, now),
            heard: (0, now),
            ticket: None,
            consumes: false,
            serving: None,
        };
        self.links.insert(id, link);
        id
    }

    fn rest(&mut self, now: Instant, identity: [u8; 32]) {
        if self.resting.len() >= RESTING_MAX {
            self.resting.pop_front();
        }
        self.resting.push_back((identity, now + REST));
    }

    /// Notes which links have moved bytes.
    fn look(&mut self, now: Instant, proto: &Proto) {
        for (id, link) in self.links.iter_mut() {
            let received = proto.source_counts(id.source()).payload_bytes;
            let bytes = received + link.serving.as_ref().map_or(0, |serving| serving.sent);
            if bytes != link.moved.0 {
                link.moved = (bytes, now);
            }
        }
    }

    /// Links that have not come about in time.
    fn late(&self, now: Instant) -> Vec<LinkId> {
        let is_late = |link: &Link| !link.is_open && link.begun + CALL_FOR <= now;
        let links = self.links.iter().filter(|(_, link)| is_late(link));
        links.map(|(id, _)| *id).collect()
    }

    fn tells_at(&self) -> Option<Instant> {
        let at = |told: Instant| told + TELL_EVERY;
        self.holdings
            .has_news()
            .then(|| self.told_at.map(at))
            .flatten()
    }

    /// When something is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let calls = self.links.values().filter(|link| !link.is_open);
        let calls = calls.map(|link| link.begun + CALL_FOR);
        let serving = self.links.values().filter_map(|link| {
            let serving = link.serving.as_ref()?;
            serving.poll_timeout()
        });
        calls.chain(serving).chain(self.tells_at()).min()
    }
}

/// Pages that serve each other. Poll [`Peer::poll_link_control`] and [`Peer::poll_link_blocks`] of
/// each open link after any call that puts something in.
impl Peer {
    /// A peer that serves other pages, and is served by them. `secret` and `window_max` are as for
    /// [`Peer::new`]; `seed` is random.
    pub fn sharing(secret: [u8; 32], window_max: u64, seed: [u8; 32]) -> Self {
        let mut peer = Self::with(secret, window_max, true);
        peer.share = Some(Share::new(seed));
        peer.proto.offer_page();
        peer
    }

    /// What the script says to the page of a link ([`Event::Signal`] there).
    pub fn signal(&mut self, link: LinkId, bytes: Bytes) {
        let share = self.share.as_ref();
        let known = share.and_then(|share| share.links.get(&link));
        if let Some(identity) = known.map(|link| link.identity) {
            self.proto.signal(identity, bytes);
        }
    }

    /// A link is connected.
    pub fn link_opened(&mut self, now: Instant, id: LinkId) {
        let Some(share) = &mut self.share else { return };
        if let Some(link) = share.links.get_mut(&id) {
            (link.is_open, link.moved.1) = (true, now);
            self.consume(now, id);
        }
    }

    /// The round-trip time to the page of a link, as ICE measures it. What answers take tells
    /// nothing: a page waits for rows itself, and would seem to be far away.
    pub fn set_link_rtt(&mut self, id: LinkId, rtt: Duration) {
        self.set_rtt(id.source(), rtt.min(RTT_MAX));
    }

    /// A link has ended, or could not be made.
    pub fn link_closed(&mut self, now: Instant, id: LinkId) {
        let Some(share) = &mut self.share else { return };
        let Some(link) = share.links.remove(&id) else {
            return;
        };
        share.sent_before += link.serving.as_ref().map_or(0, |serving| serving.sent);
        share.rest(now, link.identity);
        self.disconnected(now, id.source(), false);
        self.proto.remove_source(id.source());
    }

    /// Takes bytes of frames of a link: as a consumer of the other page, or as its sender.
    pub fn link_control(&mut self, now: Instant, id: LinkId, as_consumer: bool, bytes: &[u8]) {
        let Self { share, proto, .. } = self;
        let Some(share) = share.as_mut() else { return };
        let Some(link) = share.links.get_mut(&id) else {
            return;
        };
        if bytes.len() > CONTROL_MAX {
            return self.hang_up(now, id);
        }
        if as_consumer {
            if now.saturating_duration_since(link.heard.1) >= HEARD_IN {
                link.heard = (0, now);
            }
            link.heard.0 += bytes.len();
            if link.heard.0 > HEARD_MAX {
                return self.hang_up(now, id);
            }
            return self.control(now, id.source(), bytes);
        }
        let (number, seed) = (id.0, share.random.random());
        let serving = link
            .serving
            .get_or_insert_with(|| Serving::new(now, number, seed));
        let key_of = |stream: &str| proto.key(&format!("/{stream}/"));
        if serving.control(now, bytes, share.identity, key_of).is_err() {
            self.hang_up(now, id);
        }
    }

    /// Takes a datagram of a link.
    pub fn link_datagram(&mut self, now: Instant, id: LinkId, bytes: Bytes) {
        if bytes.len() > holdings::MESSAGE_MAX {
            return self.hang_up(now, id);
        }
        self.datagram(now, id.source(), bytes);
    }

    /// Bytes of frames for a link: as a consumer of the other page, or as its sender.
    pub fn poll_link_control(&mut self, now: Instant, id: LinkId, as_consumer: bool) -> Vec<u8> {
        if as_consumer {
            return self.poll_messages(now, id.source());
        }
        let Some(share) = &mut self.share else {
            return Vec::new();
        };
        let serving = share
            .links
            .get_mut(&id)
            .and_then(|link| link.serving.as_mut());
        let Some(serving) = serving else {
            return Vec::new();
        };
        serving
            .poll_control(now, &share.holdings)
            .unwrap_or_else(|_| {
                self.hang_up(now, id);
                Vec::new()
            })
    }

    /// Datagrams for a link, of so many bytes and a few more: each with its length before it, in
    /// two bytes, the lower one first.
    pub fn poll_link_blocks(&mut self, now: Instant, id: LinkId, room: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let Some(share) = &mut self.share else {
            return out;
        };
        let serving = share
            .links
            .get_mut(&id)
            .and_then(|link| link.serving.as_mut());
        if let Some(serving) = serving
            && serving
                .push(now, &mut share.holdings, room, &mut share.random, &mut out)
                .is_err()
        {
            self.hang_up(now, id);
        }
        out
    }

    /// What is counted of pages.
    pub fn shared_counts(&self) -> SharedCounts {
        let Some(share) = &self.share else {
            return SharedCounts::default();
        };
        let links = || share.links.values();
        let serving = links().filter_map(|link| link.serving.as_ref());
        SharedCounts {
            connected: links().filter(|link| link.is_open).count() as u64,
            received_bytes: self.counts().neighbour_bytes,
            sent_bytes: share.sent_before + serving.map(|serving| serving.sent).sum::<u64>(),
            liars: share.liars.len() as u64,
        }
    }

    /// Takes what concerns other pages.
    pub(super) fn take_shared(&mut self, now: Instant, news: News) {
        let Some(share) = &mut self.share else { return };
        match news {
            News::Brought {
                cut,
                generation,
                source,
                block,
                is_checked,
            } => share
                .holdings
                .brought(&cut, generation, source, block, is_checked),
            News::Checked {
                cut,
                generation,
                rows,
            } => share.holdings.checked(&cut, generation, rows),
            News::Page { identity } => {
                let before = share.identity.replace(identity);
                if before.is_some_and(|before| before != identity) {
                    // Others know this page by another name, and their tickets are void.
                    let links: Vec<LinkId> = share.links.keys().copied().collect();
                    links.into_iter().for_each(|link| self.hang_up(now, link));
                }
            }
            News::Pages { segment, pages } => {
                for page in pages {
                    self.named(now, segment, page);
                }
            }
            News::Signal { page, bytes } => self.signalled(now, page, bytes),
            _ => {}
        }
    }

    /// The page of this source has lied.
    pub(super) fn take_liar(&mut self, now: Instant, source: SourceId) -> bool {
        let (Some(id), Some(share)) = (link_of(source), &mut self.share) else {
            return false;
        };
        if let Some(link) = share.links.get(&id) {
            let identity = link.identity;
            if share.liars.len() >= RESTING_MAX {
                share.liars.remove(0);
            }
            share.liars.push(identity);
        }
        self.hang_up(now, id);
        true
    }

    /// Does what is due.
    pub(super) fn handle_shared_timeout(&mut self, now: Instant) {
        let Some(share) = &mut self.share else { return };
        let mut over = share.late(now);
        for (id, link) in share.links.iter_mut() {
            if let Some(serving) = &mut link.serving
                && serving.handle_timeout(now).is_err()
            {
                over.push(*id);
            }
        }
        let told = *share.told_at.get_or_insert(now);
        if share.holdings.has_news() && told + TELL_EVERY <= now {
            share.told_at = Some(now);
            let news = share.holdings.take_news();
            self.proto.tell_holdings(&news);
        }
        over.into_iter().for_each(|id| self.hang_up(now, id));
    }

    /// Ends a link.
    pub(super) fn hang_up(&mut self, now: Instant, id: LinkId) {
        if self
            .share
            .as_ref()
            .is_some_and(|share| share.links.contains_key(&id))
        {
            self.link_closed(now, id);
            self.events.push_back(Event::HangUp(id));
        }
    }

    /// The server has named a page that holds something of a segment.
    fn named(&mut self, now: Instant, segment: SegmentId, page: PageIntroduction) {
        let Some(share) = &mut self.share else { return };
        let (id, is_new) = match share.find(&page.identity) {
            Some(id) => (id, false),
            None => {
                share.look(now, &self.proto);
                let Some(gone) = share.may_begin(now, &page.identity, true) else {
                    return;
                };
                if let Some(gone) = gone {
                    self.hang_up(now, gone);
                }
                let Some(share) = &mut self.share else { return };
                (share.insert(now, page.identity, true), true)
            }
        };
        let Some(share) = &mut self.share else { return };
        let Some(link) = share.links.get_mut(&id) else {
            return;
        };
        let before = link.ticket.replace(page.ticket.clone());
        let source = id.source();
        if before.is_none() {
            self.proto.add_neighbour(source);
            self.proto.identify(source, page.identity);
        }
        self.proto.note_holding(source, segment);
        if link.consumes {
            if before.is_some_and(|before| before != page.ticket) {
                let credential = Credential::Ticket(page.ticket);
                self.proto.authorise(source, credential);
            }
        } else if link.is_open {
            self.consume(now, id);
        }
        if is_new {
            let is_lesser = self.is_lesser(&page.identity);
            self.events.push_back(Event::Call(id, is_lesser));
        }
    }

    /// A page says something to this one.
    fn signalled(&mut self, now: Instant, page: [u8; 32], bytes: Bytes) {
        let Some(share) = &mut self.share else { return };
        let id = match share.find(&page) {
            Some(id) => id,
            None => {
                share.look(now, &self.proto);
                let Some(gone) = share.may_begin(now, &page, false) else {
                    return;
                };
                if let Some(gone) = gone {
                    self.hang_up(now, gone);
                }
                let Some(share) = &mut self.share else { return };
                share.insert(now, page, false)
            }
        };
        let is_lesser = self.is_lesser(&page);
        self.events.push_back(Event::Signal(id, is_lesser, bytes));
    }

    /// Whether this page is the caller if it and this one call each other at once.
    fn is_lesser(&self, other: &[u8; 32]) -> bool {
        let own = self.share.as_ref().and_then(|share| share.identity);
        own.is_some_and(|own| own < *other)
    }

    /// Draws on the page of a link, once it is connected and was named.
    fn consume(&mut self, now: Instant, id: LinkId) {
        let Some(share) = &mut self.share else { return };
        let Some(link) = share.links.get_mut(&id) else {
            return;
        };
        if let Some(ticket) = &link.ticket
            && link.is_open
            && !std::mem::replace(&mut link.consumes, true)
        {
            let credential = Credential::Ticket(ticket.clone());
            self.connect(now, id.source(), Some(credential), None, grease(id));
            self.set_link_rtt(id, RTT_ASSUMED);
        }
    }
}

/// A number for what others have to skip.
fn grease(id: LinkId) -> u32 {
    id.0.wrapping_mul(0x9e37_79b9)
}
