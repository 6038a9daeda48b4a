//! Segments under way: which generations are asked for, of whom, and with how much credit.
//!
//! Fetches are served in the order of their urgency and deadline; those without a deadline share
//! the path equally, as far as they are among the oldest ([`SHARING_MAX`]), and the generations of
//! each are served in order. So a short segment that is wanted beside a long one comes as soon as
//! by a connection of its own. Each generation has a time at which it is due, after those of its
//! fetch that are under way (start-time fair queueing, Goyal, Vin and Cheng 1996, with service
//! times reckoned by the rate of the path); requests carry it as their deadline, by which senders
//! order what they send.
//!
//! A request is opened while the credit in flight at a source is below the window that its path
//! needs, and at least two are, so that the last round trip of one is hidden behind the next.
//! Decoders exist for open requests alone, and for interrupted ones.
//!
//! Where there are several sources, each is asked for the part of a generation that it can send
//! while the others send theirs ([`split`]), and for other source blocks than they. What is lost on
//! the way to one is asked of whoever has it here first. A source that falls silent, or far behind
//! what the others could do, is not waited for: what it was to send is asked of them as well. One
//! that was silent is *suspect*: it gets a block now and then, beyond what is needed, until it
//! delivers one.

mod drip;
mod trial;

pub(super) use trial::Lie;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use ncs_codec::Outcome;
use ncs_codec::block::{Block, Vector};
use ncs_codec::numbers::Numbers;
use ncs_codec::rlnc::{Decoder, Progressive};

use drip::Drip;

use super::evidence::{Evidence, Row};
use super::flight::Arrival;
use super::gets::{Introduction, OUTAGE_MAX};
use super::keyring::{FIRST, Proof};
use super::pace::{self, Pace};
use super::path::{Load, Path, Trust, together};
use super::rebuilder::Rebuilder;
use super::shares::{Candidate, split};
use super::words::Words;
use super::work::{Asked, Work};
use super::{
    Config, Counts, Effects, Event, Failure, FetchId, Order, Place, Progress, RETRY_MIN, SourceCounts, SourceId, Urgency,
};
use crate::object::row_key;
use crate::object::{Generation, Refusal, RefusalCode, SegmentId, Shape};
use crate::time::Instant;
use crate::wire::Violation;
use crate::wire::block::{self, DatagramHead};
use crate::wire::message::{Accept, Hello, Meant, Message, RANGES_MAX, Request, StopReason, stream_of};

/// Blocks beyond the credit of a request that are put up with.
const EXCESS_MAX: u32 = 8;
/// Redundant seeded blocks of a generation that a connection may bring while more than two blocks
/// are missing: an honest sender's chance of more is 2^-64.
const USELESS_MAX: u32 = 8;
/// Useless blocks of a connection that are put up with, for each block of their generation, where a
/// recoder may have made them: those with explicit vectors, and all over the prime field. Each
/// takes elimination. No honest sender makes more recoded ones than its rows, and each source block
/// once.
const USELESS_PARTS_MAX: u32 = 2;
/// So many vectors of zeros count as n useless ones: no sender draws them.
const ZEROS_PER_N: u32 = 4;
/// A source that has rejected a request is asked again after twice as long each time, from
/// `RETRY_MIN` up to this.
const RETRY_MAX: Duration = Duration::from_secs(3);
/// Datagrams of a source that belong to nothing, put up with whatever their share.
const STRAY_MAX: u64 = 1000;
/// Aliases back from the newest whose blocks count as late and not as stray.
const LATE_ALIASES: u16 = 4096;
/// Fetches without a deadline that share the path; those that came later wait.
const SHARING_MAX: usize = 8;
/// Generations of a fetch are due at times so far apart at least, which servers tell apart.
const DUE_STEP: Duration = Duration::from_millis(10);
/// The time at which a generation is due is the patience with its segment away, earlier by at most
/// one part in so many of it (a fetch that is late by that much has no claim to more) and later by
/// at most one in so many (more than a window takes).
const DUE_EARLIER: u32 = 6;
const DUE_LATER: u32 = 3;
/// RANK goes out after at least this many blocks.
const RANK_BLOCKS: u32 = 8;
/// The pause after GOING_AWAY, in which the connection ends.
const LEAVING_PAUSE: Duration = Duration::from_secs(1);
/// What a path carries, in bytes a second, as long as no path has been measured.
const RATE_ASSUMED: f64 = 1e6;
/// Blocks of a generation that a source may be asked for before it has sent any, while there are
/// others that have.
const NEW_MAX: u32 = 8;
/// As many of the silences after which a datagram counts as lost may pass before a source is
/// suspect; a stream that repeats what was lost needs one or two.
const SUSPECT_AFTER: u32 = 3;
/// Segments that a neighbour is known to hold; of more, those named first are forgotten.
const HELD_MAX: usize = 256;
/// A neighbour that may come to know a segment is asked again after this time, for half of the time
/// that neighbours have for it: viewers of one stream hear of a segment when they read the playlist
/// again.
const EXPECT_AGAIN: Duration = Duration::from_millis(100);
/// How long neighbours are waited for at least and at most, and as long as it is not known how
/// often the stream has a new segment. Who reads as fast as it can waits a moment, too.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
const PATIENCE_MAX: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(1);
/// Segments by which it is told how often a stream has a new one: those of several tracks come at
/// the same time.
const CADENCE_SEGMENTS: usize = 4;
/// Streams of which that is known.
const CADENCES_MAX: usize = 64;
/// So many neighbours are taken for a part of a larger swarm, which has others still.
const CROWD: u32 = 6;
/// A source is not waited for if the others could send its part in a time that is shorter by this.
const OUTRUN: u32 = 2;

/// All segments under way.
#[derive(Debug)]
pub(super) struct Fetches {
    config: Config,
    paths: BTreeMap<SourceId, Path>,
    fetches: BTreeMap<FetchId, Fetch>,
    next_fetch: u64,
    /// When the last segments of each stream were wished for.
    cadences: BTreeMap<String, VecDeque<Instant>>,
    /// But for what is counted by source.
    counts: Counts,
    /// When anything last brought something.
    progress_at: Option<Instant>,
    drip: Drip,
    stirred: bool,
    evidence: Evidence,
    /// Names trials of blocks over the prime field.
    next_trial: u64,
    /// Those under way, also of fetches that are over.
    testing: usize,
    /// Fetches that are over while some of their generations are still asked for.
    given_up: Vec<FetchId>,
    /// Who has been proved to send wrong blocks, and is not dealt with yet.
    liars: VecDeque<Lie>,
    /// Who has sent wrong blocks of a segment that it has not named itself, with the shape that it
    /// is to name for this to be a lie.
    accused: BTreeMap<(FetchId, SourceId), (Lie, Shape)>,
    /// Who is to name a segment, and was not asked yet; and all that have not answered.
    unnamed: VecDeque<(Introduction, Place)>,
    naming: BTreeSet<Introduction>,
    /// Who has broken the rules by what was tested later than it came.
    broken: VecDeque<(Instant, SourceId, Violation)>,
    /// Since when there is no connection to any server, so that nothing can come.
    dark_since: Option<Instant>,
    /// How long that has been so before, in all.
    outages: Duration,
}

#[derive(Debug)]
struct Fetch {
    order: Order,
    works: BTreeMap<u32, Work>,
    /// The first generation that was never asked for.
    next: u32,
    /// When the one before it is due.
    last_due: Option<Instant>,
    /// When it last progressed, or began to be asked for.
    touched: Instant,
    /// Whether bytes have come since that made no block yet.
    trickles: bool,
    /// Whether the end of all connections has put that off, and nothing has come since.
    is_put_off: bool,
    /// How much time without a server may still be left out of account before something comes.
    outage_left: Duration,
    /// Sources that have rejected requests and have sent nothing since.
    rests: BTreeMap<SourceId, Rest>,
    /// Until when neighbours are waited for, and whether that has passed.
    patient_until: Instant,
    is_impatient: bool,
    /// Until when neighbours that follow the stream may come to know the segment, and what they can
    /// send is not known; and whether that has passed.
    expect_until: Instant,
    is_early: bool,
    /// The path that leads to it.
    place: Option<Place>,
    /// Sources that did not know it.
    strangers: BTreeMap<SourceId, Stranger>,
    /// Whether the trusted source alone is asked.
    is_alone: bool,
}

/// A source that is not asked for a while, because it has rejected what it was asked for.
#[derive(Debug)]
struct Rest {
    /// How often in a row.
    times: u32,
    until: Instant,
}

/// The place of a fetch in the order in which all are looked at.
type Turn = (Urgency, bool, Option<Instant>, FetchId);

/// The place of a generation in the order in which all are served.
type WorkTurn = (Urgency, bool, Instant, FetchId, u32);

/// How a source stands to a segment that it did not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stranger {
    /// It is being asked for the path that leads there.
    AskedForPath,
    /// It has named the segment, and knows it from now on.
    Introduced,
    /// A neighbour that has had other segments of the stream: it may have this one.
    Expected,
    /// It does not have it.
    Refused,
    /// It is not asked: what came was wrong, and the trusted source sends all of it.
    Excluded,
}

impl Fetches {
    pub(super) fn new(config: Config) -> Self {
        Self {
            evidence: Evidence::new(config.kernels, config.rows_max, config.secret.clone()),
            drip: Drip::new(config.rate_min, config.stall_timeout),
            config,
            paths: BTreeMap::new(),
            fetches: BTreeMap::new(),
            next_fetch: 0,
            cadences: BTreeMap::new(),
            counts: Counts::default(),
            progress_at: None,
            stirred: false,
            next_trial: 0,
            testing: 0,
            given_up: Vec::new(),
            liars: VecDeque::new(),
            accused: BTreeMap::new(),
            unnamed: VecDeque::new(),
            naming: BTreeSet::new(),
            broken: VecDeque::new(),
            dark_since: None,
            outages: Duration::ZERO,
        }
    }

    /// `proof` is the order's, if the key of its stream is known and no other.
    pub(super) fn add(&mut self, now: Instant, order: Order, place: Option<Place>, proof: Option<Proof>) -> FetchId {
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        if let Some(place) = &place {
            let holders = self.paths.values_mut().filter(|path| path.is_neighbour && path.holds.contains(&order.segment));
            holders.for_each(|path| path.follow(stream_of(&place.path)));
        }
        let strangers = self.strangers(&order.segment, place.as_ref());
        let patience = self.patience_with_neighbours(now, place.as_ref());
        let (patient_until, expect_until) = (now + patience, now + patience / 2);
        self.evidence.open(id, order, place.clone(), proof);
        let leads_there = place.clone();
        if order.shape.codec().is_proving() {
            self.evidence.want_hashes(id);
        }
        self.fetches.insert(id, Fetch { strangers, patient_until, expect_until, ..Fetch::new(now, order, place) });
        self.ask_doubted(id, leads_there.as_ref());
        self.stirred = true;
        id
    }

    /// Somebody waits for a segment, or nobody does any more. Open requests become due earlier when
    /// somebody waits. When nobody does they are stopped and made anew, because a sender has
    /// blocks in QUIC already that would go before those of others.
    pub(super) fn set_urgency(&mut self, now: Instant, id: FetchId, urgency: Urgency, effects: &mut Effects) {
        let Some(mut fetch) = self.fetches.remove(&id) else { return };
        if fetch.order.urgency != urgency {
            fetch.order.urgency = urgency;
            (fetch.last_due, self.stirred) = (None, true);
            self.evidence.set_urgency(id, urgency);
            for index in fetch.works.keys().copied().collect::<Vec<_>>() {
                let due = self.due_of(now, &fetch, index);
                fetch.last_due = Some(due);
                let Some(work) = fetch.works.get_mut(&index) else { continue };
                work.due = due;
                if urgency == Urgency::Now {
                    let deadline_ms = millis(due.saturating_duration_since(now)).max(1);
                    for (source, asked) in &mut work.asked {
                        asked.deadline = due;
                        effects.send(*source, Message::Reschedule { alias: asked.alias, deadline_ms });
                    }
                    continue;
                }
                for (source, asked) in std::mem::take(&mut work.asked) {
                    if let Some(path) = self.paths.get_mut(&source) {
                        path.aliases.remove(&asked.alias);
                    }
                    effects.send(source, Message::Stop { alias: asked.alias, reason: StopReason::Cancelled });
                }
            }
        }
        self.fetches.insert(id, fetch);
    }

    pub(super) fn cancel(&mut self, id: FetchId, effects: &mut Effects) {
        self.evidence.close(id);
        self.remove(id, StopReason::Cancelled, effects);
    }

    pub(super) fn set_rtt(&mut self, source: SourceId, rtt: Duration) {
        self.paths.entry(source).or_default().pace.set_rtt(rtt);
    }

    /// How sources stand to a segment that nobody has been asked for: a neighbour has what it was
    /// named for, and may have what belongs to the same stream.
    fn strangers(&self, segment: &SegmentId, place: Option<&Place>) -> BTreeMap<SourceId, Stranger> {
        let stream = place.map(|place| stream_of(&place.path));
        let stands = |path: &Path| match path.holds.contains(segment) {
            true => Stranger::Introduced,
            false if stream.is_some_and(|stream| path.follows.contains_key(stream)) => Stranger::Expected,
            false => Stranger::Refused,
        };
        let neighbours = self.paths.iter().filter(|(_, path)| path.is_neighbour);
        neighbours.map(|(source, path)| (*source, stands(path))).collect()
    }

    /// How long neighbours may take for a segment that is wished for now: as long as the stream
    /// takes from one to the next.
    fn patience_with_neighbours(&mut self, now: Instant, place: Option<&Place>) -> Duration {
        let Some(stream) = place.map(|place| stream_of(&place.path)) else { return PATIENCE };
        if !self.cadences.contains_key(stream) && self.cadences.len() >= CADENCES_MAX {
            self.cadences.clear();
        }
        let wished = self.cadences.entry(stream.to_owned()).or_default();
        wished.push_back(now);
        if wished.len() > CADENCE_SEGMENTS + 1 {
            wished.pop_front();
        }
        let gaps = wished.iter().zip(wished.iter().skip(1)).map(|(one, next)| next.saturating_duration_since(*one));
        gaps.max().unwrap_or(PATIENCE).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// A source that a server has named.
    pub(super) fn add_neighbour(&mut self, source: SourceId) {
        self.paths.entry(source).or_default().is_neighbour = true;
        for fetch in self.fetches.values_mut() {
            fetch.strangers.insert(source, Stranger::Refused);
        }
    }

    /// A neighbour holds something of a segment.
    pub(super) fn note_holding(&mut self, source: SourceId, segment: SegmentId) {
        let Some(path) = self.paths.get_mut(&source).filter(|path| path.is_neighbour) else { return };
        path.holds.retain(|other| *other != segment);
        path.holds.push_back(segment);
        if path.holds.len() > HELD_MAX {
            path.holds.pop_front();
        }
        for fetch in self.fetches.values_mut().filter(|fetch| fetch.order.segment == segment && !fetch.is_alone) {
            fetch.strangers.insert(source, Stranger::Introduced);
            if let Some(place) = &fetch.place {
                path.follow(stream_of(&place.path));
            }
        }
        self.stirred = true;
    }

    /// A neighbour is none any more; its connection is gone.
    pub(super) fn remove_neighbour(&mut self, source: SourceId) {
        let Some(path) = self.paths.remove(&source) else { return };
        let SourceCounts { blocks, innovative, useless, systematic, lost, payload_bytes, wrong, .. } = path.counts;
        self.counts.blocks += blocks;
        self.counts.innovative += innovative;
        self.counts.useless += useless;
        self.counts.systematic += systematic;
        self.counts.lost += lost;
        self.counts.wrong += wrong;
        self.counts.payload_bytes += payload_bytes;
        self.counts.late += path.late;
        self.counts.neighbour_bytes += payload_bytes;
        for fetch in self.fetches.values_mut() {
            fetch.strangers.remove(&source);
        }
    }

    /// A source has said what it takes.
    pub(super) fn opened(&mut self, source: SourceId, hello: &Hello) {
        let path = self.paths.entry(source).or_default();
        path.is_open = true;
        path.trust = Trust::New;
        path.requests_max = self.config.requests_max.min(usize::from(hello.requests_max));
        path.credit_max = hello.credit_max;
        if path.is_doubted && !path.is_neighbour {
            let places = self.fetches.iter().filter_map(|(id, fetch)| Some((*id, fetch.place.clone()?)));
            for (id, place) in places.collect::<Vec<_>>() {
                self.ask_to_name(id, source, place);
            }
        }
        self.stirred = true;
    }

    /// A source takes nothing new.
    pub(super) fn leaving(&mut self, source: SourceId) {
        if let Some(path) = self.paths.get_mut(&source) {
            path.is_open = false;
        }
    }

    /// Whether [`Fetches::advance`] has something to do besides what is due.
    pub(super) fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// When anything last brought something.
    pub(super) fn progress_at(&self) -> Option<Instant> {
        self.progress_at
    }

    /// Whether no request is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.paths.values().all(|path| path.aliases.is_empty())
    }

    pub(super) fn is_quiet_at(&self, source: SourceId) -> bool {
        self.paths.get(&source).is_none_or(|path| path.aliases.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fetches.is_empty() && !self.evidence.is_trying()
    }

    /// Whether anything of a segment is still to come, or to be tried.
    pub(super) fn is_under_way(&self, id: FetchId) -> bool {
        self.fetches.contains_key(&id) || self.evidence.is_tried(id)
    }

    /// What every source has done, and what none has alone.
    pub(super) fn counts(&self) -> Counts {
        self.paths.values().fold(self.counts, |counts, path| Counts {
            blocks: counts.blocks + path.counts.blocks,
            innovative: counts.innovative + path.counts.innovative,
            useless: counts.useless + path.counts.useless,
            systematic: counts.systematic + path.counts.systematic,
            lost: counts.lost + path.counts.lost,
            payload_bytes: counts.payload_bytes + path.counts.payload_bytes,
            late: counts.late + path.late,
            neighbour_bytes: counts.neighbour_bytes + if path.is_neighbour { path.counts.payload_bytes } else { 0 },
            wrong: counts.wrong + path.counts.wrong,
            kept_bytes: self.evidence.bytes(),
            ..counts
        })
    }

    pub(super) fn source_counts(&self, source: SourceId) -> SourceCounts {
        let counts = |path: &Path| SourceCounts { loss: path.pace.loss(), rate: path.pace.rate(), ..path.counts };
        self.paths.get(&source).map(counts).unwrap_or_default()
    }

    /// Loss and rate of all open paths together.
    pub(super) fn path(&self) -> (f64, f64) {
        together(self.paths.values().filter(|path| path.is_open), Pace::loss)
    }

    pub(super) fn progress(&self) -> Vec<Progress> {
        let works = self.fetches.values().flat_map(|fetch| fetch.works.iter().map(|work| (fetch.order.segment, work)));
        works
            .map(|(segment, (index, work))| Progress {
                segment,
                generation: *index,
                rank: work.decoder.rank(),
                n: work.decoder.n(),
            })
            .collect()
    }

    /// The generation that an open request asks for.
    pub(super) fn generation(&self, source: SourceId, alias: u16) -> Option<Generation> {
        let (fetch, index) = self.paths.get(&source)?.aliases.get(&alias)?;
        self.fetches.get(fetch)?.order.shape.generation(*index)
    }

    /// How long there was no connection to any server, in all, until there was one again.
    pub(super) fn outages(&self) -> Duration {
        self.outages
    }

    /// Whether there is no connection to any server.
    pub(super) fn set_dark(&mut self, now: Instant, is_dark: bool) {
        self.drip.set_dark(now, is_dark);
        if is_dark {
            self.dark_since.get_or_insert(now);
        } else if let Some(since) = self.dark_since.take() {
            self.outages += now.saturating_duration_since(since);
            self.fetches.values_mut().for_each(|fetch| fetch.excuse(since, now));
        }
    }

    /// Bytes have come on a request's stream, whether or not they make a block.
    pub(super) fn note_bytes(&mut self, source: SourceId, alias: u16) {
        let name = self.paths.get(&source).and_then(|path| path.aliases.get(&alias));
        if let Some(fetch) = name.and_then(|(id, _)| self.fetches.get_mut(id)) {
            fetch.trickles = true;
        }
    }

    /// The requests of a source are gone; what was decoded is not.
    pub(super) fn disconnected(&mut self, now: Instant, source: SourceId) {
        if let Some(path) = self.paths.get_mut(&source) {
            path.is_open = false;
            path.aliases.clear();
            path.pace.idle();
        }
        let is_last = self.paths.values().all(|path| !path.is_open);
        for fetch in self.fetches.values_mut() {
            fetch.trickles = false;
            // Once: who comes and goes and brings nothing is not waited for without end.
            if is_last && !std::mem::replace(&mut fetch.is_put_off, true) {
                fetch.touched = fetch.touched.max(now);
            }
            match fetch.strangers.get_mut(&source) {
                // What a neighbour holds its server has said.
                Some(stranger) if self.paths.get(&source).is_some_and(|path| path.is_neighbour) => {
                    if !self.paths.get(&source).is_some_and(|path| path.holds.contains(&fetch.order.segment)) {
                        *stranger = Stranger::Refused;
                    }
                }
                _ => drop(fetch.strangers.remove(&source)),
            }
            fetch.exclude_others(self.paths.keys());
            fetch.works.values_mut().for_each(|work| {
                work.asked.remove(&source);
                work.paused.remove(&source);
                // By its next connection it may send as much again.
                work.useless.remove(&source);
            });
        }
        self.accused.retain(|(_, accused), _| *accused != source);
        self.unnamed.retain(|(introduction, _)| introduction.source != source);
        self.naming.retain(|introduction| introduction.source != source);
        self.evidence.disconnected(source);
        self.stirred = true;
    }

    pub(super) fn rejected(
        &mut self,
        now: Instant,
        source: SourceId,
        alias: u16,
        refusal: Refusal,
        effects: &mut Effects,
    ) -> Option<(Introduction, Place)> {
        // Stopped here while it was rejected there.
        let (id, index) = self.paths.get_mut(&source).and_then(|path| path.aliases.remove(&alias))?;
        let is_several = self.is_several();
        let is_neighbour = self.paths.get(&source).is_some_and(|path| path.is_neighbour);
        let fetch = self.fetches.get_mut(&id)?;
        let work = fetch.works.get_mut(&index)?;
        work.asked.remove(&source);
        self.stirred = true;
        match (refusal.code, refusal.retry_after) {
            (RefusalCode::Deadline, _) => fetch.rest(now, source),
            (RefusalCode::GoingAway, _) => drop(work.paused.insert(source, now + LEAVING_PAUSE)),
            (_, Some(after)) => {
                work.paused.insert(source, now + after);
                fetch.rest(now, source);
            }
            (code, None) => match (fetch.strangers.get(&source), &fetch.place) {
                (Some(Stranger::Introduced | Stranger::Expected), _) if is_neighbour && now < fetch.expect_until => {
                    fetch.strangers.insert(source, Stranger::Expected);
                    work.paused.insert(source, now + EXPECT_AGAIN);
                }
                (Some(Stranger::Introduced | Stranger::Expected), place) if is_neighbour => {
                    let segment = fetch.order.segment;
                    if let Some(path) = self.paths.get_mut(&source) {
                        path.holds.retain(|held| *held != segment);
                        if let Some(place) = place {
                            path.missed(stream_of(&place.path));
                        }
                    }
                    self.refuse(id, source, refusal, effects);
                }
                (Some(Stranger::AskedForPath), _) => fetch.rest(now, source),
                (None, Some(place)) if is_several && !is_neighbour && code == RefusalCode::Unknown => {
                    let introduction = (Introduction { fetch: id, source }, place.clone());
                    fetch.strangers.insert(source, Stranger::AskedForPath);
                    return Some(introduction);
                }
                _ => self.refuse(id, source, refusal, effects),
            },
        }
        None
    }

    /// A source that did not know a segment has been asked for the path that leads to it, and has
    /// named this one. One that has the same bytes in another shape sends blocks of its own: it is
    /// left out, and nothing is held against it.
    pub(super) fn introduced(&mut self, introduction: Introduction, named: Option<(SegmentId, Shape)>, effects: &mut Effects) {
        let Introduction { fetch: id, source } = introduction;
        self.naming.remove(&introduction);
        if let Some((lie, shape)) = self.accused.remove(&(id, source))
            && named == Some((lie.segment, shape))
        {
            // What it names is what it was asked for, and what it sent is not.
            self.liars.push_back(lie);
            self.stirred = true;
            return;
        }
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        fetch.strangers.insert(source, Stranger::Introduced);
        self.stirred = true;
        let reason = match named {
            Some(named) if named == (fetch.order.segment, fetch.order.shape) => return self.evidence.note_named(id, source),
            Some((segment, _)) if segment == fetch.order.segment => "the source codes the same segment with other parameters",
            Some(_) => "the source has a different segment at this position",
            None => "the source does not know the segment",
        };
        let refusal = Refusal { code: RefusalCode::Unknown, retry_after: None, reason: reason.to_owned() };
        self.refuse(id, source, refusal, effects);
    }

    /// A source does not have a segment. If nobody does that may be asked, it cannot be had.
    fn refuse(&mut self, id: FetchId, source: SourceId, refusal: Refusal, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        fetch.strangers.insert(source, Stranger::Refused);
        let mut open = self.paths.iter().filter(|(_, path)| path.is_open);
        let cannot = |stranger: Option<&Stranger>| matches!(stranger, Some(Stranger::Refused | Stranger::Excluded));
        if open.all(|(source, _)| cannot(fetch.strangers.get(source))) {
            self.evidence.close(id);
            self.remove(id, StopReason::Cancelled, effects);
            effects.report(Event::Failed { fetch: id, failure: Failure::Refused(refusal) });
        }
    }

    /// A datagram that belongs to nothing.
    pub(super) fn stray(&mut self, source: SourceId) -> Result<(), Violation> {
        self.counts.stray += 1;
        self.unwanted(source)
    }

    /// A source sends what it was not asked for. It may, as long as most of what it sends is
    /// something else.
    fn unwanted(&mut self, source: SourceId) -> Result<(), Violation> {
        let path = self.paths.entry(source).or_default();
        path.stray += 1;
        let all = path.counts.blocks + path.late + path.stray;
        if path.stray > STRAY_MAX && path.stray * 10 > all {
            return Err(Violation::Flood("blocks that nobody asked for"));
        }
        Ok(())
    }

    pub(super) fn datagram(
        &mut self,
        now: Instant,
        source: SourceId,
        head: DatagramHead,
        rest: Bytes,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(path) = self.paths.get_mut(&source) else { return Ok(()) };
        let Some((id, index)) = path.aliases.get(&head.alias).copied() else { return self.late(source, head.alias) };
        let Some(work) = find(&mut self.fetches, id, index) else { return Ok(()) };
        let Some(asked) = work.asked.get_mut(&source) else { return Ok(()) };
        let (arrival, given_up) = asked.flight.datagram(now, head.seq, head.last);
        work.lost += given_up;
        path.note_lost(given_up);
        path.note_datagram(work.block_bytes());
        if arrival == Arrival::Returned {
            work.lost = work.lost.saturating_sub(1);
            path.counts.lost = path.counts.lost.saturating_sub(1);
        }
        self.stirred = true;
        match arrival {
            // QUIC delivers no datagram twice.
            Arrival::Duplicate => {
                self.counts.duplicate += 1;
                self.unwanted(source)
            }
            Arrival::Excess => self.excess(source, id, index),
            Arrival::New | Arrival::Returned => match block::parse_block(head.kind, work.decoder.generation(), rest) {
                Some(block) => self.take(now, source, id, index, block, effects),
                None => self.stray(source),
            },
        }
    }

    /// A block came on the stream of a request. False if the request is over.
    pub(super) fn record(
        &mut self,
        now: Instant,
        source: SourceId,
        alias: u16,
        block: Block,
        effects: &mut Effects,
    ) -> Result<bool, Violation> {
        let Some(path) = self.paths.get_mut(&source) else { return Ok(false) };
        let Some((id, index)) = path.aliases.get(&alias).copied() else {
            path.late += 1;
            return Ok(false);
        };
        let Some(work) = find(&mut self.fetches, id, index) else { return Ok(false) };
        let Some(asked) = work.asked.get_mut(&source) else { return Ok(false) };
        self.stirred = true;
        if !asked.flight.is_reliable() {
            path.note_record(work.block_bytes());
        }
        let Some(asked) = work.asked.get_mut(&source) else { return Ok(false) };
        match asked.flight.record(now) {
            Arrival::New | Arrival::Returned => self.take(now, source, id, index, block, effects)?,
            Arrival::Duplicate | Arrival::Excess => self.excess(source, id, index)?,
        }
        Ok(true)
    }

    /// Gives credit, opens requests, and ends what is too late. To be called when something has
    /// come and when something is due.
    pub(super) fn advance(&mut self, now: Instant, effects: &mut Effects) {
        self.stirred = false;
        self.try_rows(now, effects);
        let order = self.order();
        self.watch(now, &order);
        for &id in &order {
            if let Some(failure) = self.failure(id, now) {
                self.evidence.close(id);
                self.remove(id, StopReason::Deadline, effects);
                effects.report(Event::Failed { fetch: id, failure });
            }
        }
        self.tidy(now, effects);
        self.weigh(now);
        for fetch in self.fetches.values_mut() {
            fetch.exclude_others(self.paths.keys());
            fetch.is_impatient = fetch.patient_until <= now;
            fetch.is_early = now < fetch.expect_until;
        }
        for (.., id, index) in self.work_turns() {
            self.tend(now, id, index, effects);
        }
        while let Some((id, index)) = self.begin(now, &order) {
            self.tend(now, id, index, effects);
        }
        self.watch(now, &order);
        for path in self.paths.values_mut().filter(|path| path.load.all.1 == 0) {
            path.pace.idle();
        }
    }

    /// Has the first be watched of those that are asked for.
    fn watch(&mut self, now: Instant, order: &[FetchId]) {
        let first = order.iter().find(|id| self.fetches.get(id).is_some_and(|fetch| !fetch.works.is_empty()));
        self.drip.watch(now, first.copied());
    }

    /// Generations under way in the order in which they are served.
    fn work_turns(&self) -> Vec<WorkTurn> {
        let of = |(id, fetch): (&FetchId, &Fetch)| fetch.work_turns(*id).collect::<Vec<_>>();
        let mut turns: Vec<_> = self.fetches.iter().flat_map(of).collect();
        turns.sort_unstable();
        turns
    }

    /// When [`Fetches::advance`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let mut heard: BTreeMap<SourceId, Instant> = BTreeMap::new();
        let mut due: Option<Instant> = self.evidence.due();
        let mut at = |instant: Option<Instant>| due = due.into_iter().chain(instant).min();
        at(self.broken.front().map(|(at, ..)| *at));
        at(self.drip.due());
        for fetch in self.fetches.values() {
            at(Some(self.stalls_at(fetch)));
            at(fetch.order.deadline);
            at(fetch.patience_ends());
        }
        for (.., id, index) in self.work_turns() {
            let Some(fetch) = self.fetches.get(&id) else { continue };
            let Some(work) = fetch.works.get(&index) else { continue };
            let shuns = self.shuns(&fetch.strangers);
            if let Rebuilder::Words(words) = &*work.decoder
                && self.testing < self.config.tests_max
                && self.evidence.hashes(id).is_some()
            {
                at(words.due());
            }
            at(work.paused.values().copied().min());
            let near_at = |deadline: Instant| deadline.checked_sub(pace::near(self.rtt()));
            at(fetch.order.deadline.filter(|_| work.near.is_none()).and_then(near_at));
            for (source, asked) in &work.asked {
                let Some(path) = self.paths.get(source) else { continue };
                let heard = heard.entry(*source).or_insert_with(|| asked.heard());
                *heard = asked.heard().max(*heard);
                at(Some(asked.deadline));
                at(asked.flight.give_up_at(path.pace.patience()));
                let is_shunned = !fetch.may_ask(source) || (shuns && path.trust == Trust::Suspect);
                if asked.room(path.credit_max) > 0 {
                    at(match work.lacking > 0 && !is_shunned {
                        // The others have their times.
                        true if work.spared.contains(source) => None,
                        true => Some(asked.flight.credited_at() + path.pace.rtt()),
                        false => asked.silent_at(*heard, work.block_bytes(), path),
                    });
                } else if asked.is_exhausted() {
                    at(asked.silent_at(*heard, work.block_bytes(), path));
                }
                if path.trust != Trust::Suspect && asked.in_flight() > 0 && self.is_several() {
                    at(path.load.heard.map(|heard| heard + path.load.silence * SUSPECT_AFTER));
                }
            }
        }
        due
    }

    /// Fetches in the order in which they are served.
    fn order(&self) -> Vec<FetchId> {
        let mut order: Vec<_> = self.fetches.iter().map(|(id, fetch)| fetch.turn(*id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }

    fn failure(&self, id: FetchId, now: Instant) -> Option<Failure> {
        let fetch = self.fetches.get(&id)?;
        if fetch.order.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Failure::Deadline);
        }
        if fetch.order.shape.codec().is_proving() && !self.evidence.is_signed(id) {
            // Its blocks cannot be told right from wrong.
            let reason = "the hashes of its blocks are not signed by the stream's key".to_owned();
            return Some(Failure::Refused(Refusal { code: RefusalCode::Origin, retry_after: None, reason }));
        }
        if self.stalls_at(fetch) <= now {
            return Some(if fetch.trickles { Failure::Slow } else { Failure::Stalled });
        }
        self.drip.is_over(now, id).then_some(Failure::Slow)
    }

    /// A fetch that is not asked for yet waits as long as others progress.
    fn stalls_at(&self, fetch: &Fetch) -> Instant {
        let others = self.progress_at.filter(|_| fetch.works.is_empty());
        let outage = if self.dark_since.is_some() { fetch.outage_left } else { Duration::ZERO };
        fetch.touched.max(others.unwrap_or(fetch.touched)) + self.config.stall_timeout + outage
    }

    /// Whether more than one source takes requests.
    fn is_several(&self) -> bool {
        self.paths.values().filter(|path| path.is_open).nth(1).is_some()
    }

    /// Whether suspects are left out: somebody else can be asked.
    fn shuns(&self, strangers: &BTreeMap<SourceId, Stranger>) -> bool {
        let mut others = self.paths.iter().filter(|(_, path)| path.is_open && path.trust != Trust::Suspect);
        others.any(|(source, _)| may_ask(strangers, source))
    }

    /// The shortest round trip to a source that takes requests.
    fn rtt(&self) -> Duration {
        let open = self.paths.values().filter(|path| path.is_open);
        open.map(|path| path.pace.rtt()).min().unwrap_or_else(|| Pace::new().rtt())
    }

    /// Ends requests whose deadline has passed and gives up what is lost.
    fn tidy(&mut self, now: Instant, effects: &mut Effects) {
        for work in self.fetches.values_mut().flat_map(|fetch| fetch.works.values_mut()) {
            work.paused.retain(|_, until| *until > now);
            let Work { asked, lost, .. } = work;
            asked.retain(|source, asked| {
                let Some(path) = self.paths.get_mut(source) else { return false };
                let given_up = asked.flight.give_up(now, path.pace.patience());
                *lost += given_up;
                path.note_lost(given_up);
                // It is to be asked again.
                let has_expired = asked.deadline <= now;
                if has_expired {
                    path.aliases.remove(&asked.alias);
                    effects.send(*source, Message::Stop { alias: asked.alias, reason: StopReason::Deadline });
                }
                !has_expired
            });
        }
    }

    /// Finds what is asked of each source, and who is silent.
    fn weigh(&mut self, now: Instant) {
        let load = Load { is_only: !self.is_several(), ..Load::default() };
        self.paths.values_mut().for_each(|path| path.load = load);
        // Since when neighbours have had something to send.
        let mut waiting: BTreeMap<SourceId, Instant> = BTreeMap::new();
        for fetch in self.fetches.values() {
            for work in fetch.works.values() {
                for (source, asked) in &work.asked {
                    let Some(path) = self.paths.get_mut(source) else { continue };
                    path.load.add(fetch.order.urgency, 1, u64::from(asked.in_flight()) * u64::from(work.block_bytes()));
                    let silence = path.silence(work.block_bytes(), 0);
                    path.load.silence = silence.max(path.load.silence);
                    if !path.is_neighbour {
                        path.load.heard = path.load.heard.max(Some(asked.heard()));
                        continue;
                    }
                    // It is asked for something new more often than its silence would be noticed,
                    // if that began anew.
                    path.load.heard = path.load.heard.max(asked.flight.came_at()).max(asked.served_before);
                    if asked.in_flight() > 0 {
                        let since = waiting.entry(*source).or_insert_with(|| asked.flight.begun_at());
                        *since = asked.flight.begun_at().min(*since);
                    }
                }
            }
        }
        for (source, since) in waiting {
            if let Some(path) = self.paths.get_mut(&source) {
                path.load.heard = path.load.heard.max(Some(since));
            }
        }
        if self.is_several() {
            for path in self.paths.values_mut().filter(|path| path.load.all.1 > 0) {
                if path.load.heard.is_some_and(|heard| heard + path.load.silence * SUSPECT_AFTER <= now) {
                    path.trust = Trust::Suspect;
                }
            }
        }
    }

    /// Begins the generation that is due next of those that were never asked for, if anybody can be
    /// asked for it. `order` is that of the fetches.
    fn begin(&mut self, now: Instant, order: &[FetchId]) -> Option<(FetchId, u32)> {
        let fetches = order.iter().filter_map(|id| Some((*id, self.fetches.get(id)?)));
        let unasked = fetches.filter(|(_, fetch)| fetch.next < fetch.order.shape.generations());
        let able = unasked.filter(|(_, fetch)| self.can_begin(now, fetch)).take(SHARING_MAX);
        let next = able.map(|(id, fetch)| fetch.work_turn(self.due_of(now, fetch, fetch.next), id, fetch.next)).min();
        let (.., due, id, index) = next?;
        let fetch = self.fetches.get(&id)?;
        let generation = fetch.order.shape.generation(index)?;
        let left = fetch.order.deadline.map(|deadline| deadline.saturating_duration_since(now));
        let is_pressed = left.is_some_and(|left| pace::is_pressed(self.rate(), self.rtt(), left, &generation));
        let decoder = self.decoder(&fetch.order.segment, generation, is_pressed);
        let fetch = self.fetches.get_mut(&id)?;
        if fetch.works.is_empty() {
            fetch.touched = now;
        }
        let paused = fetch.rests.iter().map(|(source, rest)| (*source, rest.until)).collect();
        fetch.works.insert(index, Work { paused, ..Work::new(decoder, due) });
        (fetch.next, fetch.last_due) = (index + 1, Some(due));
        Some((id, index))
    }

    /// Whether anybody can be asked for one more generation.
    fn can_begin(&self, now: Instant, fetch: &Fetch) -> bool {
        let shuns = self.shuns(&fetch.strangers);
        let mut sources = self.paths.iter().filter(|(source, _)| fetch.may_ask(source));
        sources.any(|(source, path)| {
            let is_shunned = (shuns && path.trust == Trust::Suspect) || fetch.rests(now, source);
            path.has_room_for_request(fetch.order.urgency, &self.config) && !is_shunned
        })
    }

    /// When a generation of a fetch is due, after that of [`Fetch::last_due`]: one service time
    /// after the one before it. A service time is what a generation takes of the path, beside those
    /// of other fetches. A fetch that somebody waits for begins with what is served now, so that
    /// such fetches share the path. One ahead begins when those before it end, by what is left of
    /// them and the present rate: the first of them is wanted first.
    fn due_of(&self, now: Instant, fetch: &Fetch, index: u32) -> Instant {
        if let Some(deadline) = fetch.order.deadline {
            return deadline;
        }
        let patience = match fetch.order.urgency {
            Urgency::Now => self.config.stall_timeout,
            Urgency::Ahead => self.config.stall_timeout * 2,
        };
        let usual = now + patience;
        let (earliest, latest) = (usual - patience / DUE_EARLIER, usual + patience / DUE_LATER);
        let rate = if self.rate() > 0.0 { self.rate() } else { RATE_ASSUMED };
        let takes = |bytes: u64| Duration::from_secs_f64((bytes as f64 / rate.max(1.0)).min(patience.as_secs_f64()));
        let alike = |other: &&Fetch| other.order.urgency == fetch.order.urgency && other.order.deadline.is_none();
        let under_way = || self.fetches.values().filter(alike).filter(|other| !other.works.is_empty());
        let served = || under_way().flat_map(|other| other.works.values()).map(|work| work.due).min();
        let ends = || under_way().filter_map(|other| Some(other.last_due? + takes(other.left()).max(DUE_STEP))).max();
        let (begins, earliest, sharing) = match fetch.order.urgency {
            Urgency::Now => {
                let begins = served().unwrap_or(usual).clamp(earliest, usual);
                (begins, begins, under_way().count().clamp(1, SHARING_MAX))
            }
            Urgency::Ahead => (ends().unwrap_or(usual).clamp(earliest, latest), earliest, 1),
        };
        let Some(last) = fetch.last_due else { return begins };
        let bytes = fetch.order.shape.generation(index).map_or(0, |generation| generation.length);
        let step = takes(bytes).mul_f64(sharing as f64).min(patience).max(DUE_STEP);
        (last + step).clamp(earliest, latest)
    }

    /// When a generation is due that is asked for before all others of its fetch.
    fn first_due(&self, now: Instant, order: Order) -> Instant {
        self.due_of(now, &Fetch::new(now, order, None), 0)
    }

    /// Bytes a second that come on all open paths.
    fn rate(&self) -> f64 {
        together(self.paths.values().filter(|path| path.is_open), Pace::loss).1
    }

    fn decoder(&self, segment: &SegmentId, generation: Generation, is_pressed: bool) -> Box<Rebuilder> {
        if let Some(words) = Words::new(generation) {
            return Box::new(Rebuilder::Words(Box::new(words)));
        }
        let (key, kernels) = (row_key(segment, &generation), self.config.kernels);
        Box::new(match (self.config.gathers, is_pressed) {
            (true, _) => Rebuilder::Blocked(Decoder::gathering(generation, key, kernels)),
            (false, false) => Rebuilder::Blocked(Decoder::new(generation, key, kernels)),
            (false, true) => Rebuilder::Progressive(Progressive::new(generation, key, kernels)),
        })
    }

    /// Gives the credit that a generation is due.
    fn tend(&mut self, now: Instant, id: FetchId, index: u32, effects: &mut Effects) {
        let Some(mut fetch) = self.fetches.remove(&id) else { return };
        self.tend_one_of(now, id, &mut fetch, index, effects);
        self.fetches.insert(id, fetch);
    }

    fn tend_one_of(&mut self, now: Instant, id: FetchId, fetch: &mut Fetch, index: u32, effects: &mut Effects) {
        let (shuns, rtt) = (self.shuns(&fetch.strangers), self.rtt());
        let (loss, _) = together(self.paths.values().filter(|path| path.is_open), Pace::path_loss);
        let Fetch { order, works, strangers, patient_until, is_early, .. } = fetch;
        let Some(work) = works.get_mut(&index) else { return };
        let left = order.deadline.map(|deadline| deadline.saturating_duration_since(now));
        work.near = left.filter(|left| *left <= pace::near(rtt)).map(|_| work.near.unwrap_or(now));
        for (source, asked) in &work.asked {
            let Some(path) = self.paths.get_mut(source) else { continue };
            path.load.ahead += u64::from(asked.in_flight()) * u64::from(work.block_bytes());
            path.load.heard_ahead = path.load.heard_ahead.max(Some(asked.heard()));
        }
        self.end_exhausted(now, work, effects);
        let is_patient = now < *patient_until && work.near.is_none();
        let target = pace::target(work.decoder.missing(), work.near.is_some(), loss);
        let (mut awaited, mut left_behind) = (0, 0);
        for (source, asked) in &work.asked {
            let is_left = shuns && self.is_left_behind(*source, asked.in_flight(), work.block_bytes(), strangers, is_patient);
            *if is_left { &mut left_behind } else { &mut awaited } += asked.in_flight();
        }
        let lacking = target.saturating_sub(awaited);
        work.spared.clear();
        let mut shares = Vec::new();
        if lacking > 0 {
            let mut candidates = self.candidates(now, work, order.urgency, strangers, shuns);
            if is_patient {
                let left = patient_until.saturating_duration_since(now);
                work.spared = self.spare_servers(left, *is_early, lacking, work, strangers, &mut candidates);
            }
            shares = split(lacking, candidates);
        }
        let given: u32 = shares.iter().map(|(_, share)| share).sum();
        work.lacking = lacking - given;
        let needed = given.min(u32::from(work.decoder.missing()).saturating_sub(awaited));
        work.needed += needed;
        work.ahead += given - needed;
        self.counts.ahead += u64::from(given - needed);
        self.counts.reassigned += u64::from(given.min(left_behind));
        for (source, share) in shares {
            self.give(now, source, share, (id, index), order, work, effects);
        }
        if lacking == 0 || left_behind > 0 {
            self.probe(now, work, order.deadline.is_some(), effects);
        }
        if shuns {
            self.sound_out(now, (id, index), order, strangers, work, effects);
        }
    }

    /// Ends requests that nothing more comes of, because all blocks that they name have come or are
    /// lost: what is lacking takes others. Who is silent once more when asked anew is suspect where
    /// others can be asked.
    fn end_exhausted(&mut self, now: Instant, work: &mut Work, effects: &mut Effects) {
        let (is_several, block_bytes) = (self.is_several(), work.block_bytes());
        let Work { asked, silences, .. } = work;
        asked.retain(|source, asked| {
            let Some(path) = self.paths.get_mut(source).filter(|_| asked.is_exhausted()) else { return true };
            let heard = path.load.heard_ahead.unwrap_or_else(|| asked.heard());
            let is_silent = asked.silent_at(heard, block_bytes, path).is_some_and(|at| at <= now);
            if asked.in_flight() > 0 && !is_silent {
                return true;
            }
            if is_silent {
                let before = silences.entry(*source).or_default();
                if *before > 0 && is_several {
                    path.trust = Trust::Suspect;
                }
                *before += 1;
            }
            path.aliases.remove(&asked.alias);
            effects.send(*source, Message::Stop { alias: asked.alias, reason: StopReason::Cancelled });
            false
        });
    }

    /// Whether a source is not waited for: it is suspect, or the others could send what it has to
    /// send in far less time than it. While there is time (`is_patient`), a neighbour is compared
    /// with others like it.
    fn is_left_behind(
        &self,
        source: SourceId,
        blocks: u32,
        block_bytes: u32,
        strangers: &BTreeMap<SourceId, Stranger>,
        is_patient: bool,
    ) -> bool {
        let Some(path) = self.paths.get(&source) else { return false };
        if path.trust == Trust::Suspect {
            return true;
        }
        if path.pace.rate() == 0.0 || blocks == 0 {
            return false;
        }
        let bytes = u64::from(blocks) * u64::from(block_bytes);
        let spares_servers = is_patient && path.is_neighbour;
        let others = self.paths.iter().filter(|(other, path)| {
            **other != source
                && path.is_open
                && path.trust == Trust::Proven
                && path.pace.rate() > 0.0
                && may_ask(strangers, other)
                && (path.is_neighbour || !spares_servers)
        });
        let silence = if spares_servers { path.silence(block_bytes, 0) } else { path.pace.silence(block_bytes, 0) };
        let time = path.pace.time(path.load.ahead, 0, RATE_ASSUMED);
        let mut others = others.map(|(_, other)| other.pace.time(other.load.ahead, bytes, RATE_ASSUMED));
        others.any(|other| time > other * OUTRUN + silence * SUSPECT_AFTER)
    }

    /// Who could send more of a generation now.
    fn candidates(
        &self,
        now: Instant,
        work: &Work,
        urgency: Urgency,
        strangers: &BTreeMap<SourceId, Stranger>,
        shuns: bool,
    ) -> Vec<Candidate> {
        let mut proven = self.paths.iter().filter(|(_, path)| path.is_open && path.trust == Trust::Proven);
        let has_proven = proven.any(|(source, _)| may_ask(strangers, source));
        let rates = self.paths.values().filter(|path| path.is_open).map(|path| path.pace.rate());
        let assumed = rates.filter(|rate| *rate > 0.0).fold(f64::INFINITY, f64::min);
        let assumed = if assumed.is_finite() { assumed } else { RATE_ASSUMED };
        let candidate = |(source, path): (&SourceId, &Path)| {
            if !may_ask(strangers, source) || work.paused.contains_key(source) || (shuns && path.trust == Trust::Suspect) {
                return None;
            }
            let room = match work.asked.get(source) {
                // What comes of a credit is not known before a round trip has passed. When that
                // becomes too late, nothing waits.
                Some(asked) if asked.flight.credited_at() + path.pace.rtt() > now && work.near != Some(now) => 0,
                Some(asked) => asked.room(path.credit_max),
                None if !path.has_room_for_request(urgency, &self.config) => 0,
                None if path.trust == Trust::New && has_proven => NEW_MAX.min(path.credit_max),
                None => path.credit_max,
            };
            let room = if path.is_doubtful() { room.min(NEW_MAX.saturating_sub(work.in_flight_at(source))) } else { room };
            let rate = if path.pace.rate() > 0.0 { path.pace.rate() } else { assumed };
            let bytes = path.load.of(urgency).1;
            let backlog = path.pace.time(bytes, 0, assumed).as_secs_f64();
            Some(Candidate { source: *source, backlog, rate: rate / f64::from(work.block_bytes()), room })
        };
        self.paths.iter().filter_map(candidate).collect()
    }

    /// Where neighbours have some of it, each server is asked for what would be its part if all
    /// sent the same, or two thirds of that in a crowd: all else is left to them, what is lost on
    /// the way too, but, as soon as it is not early any more, for what they cannot send in the time
    /// that is left. Before, their rates say little: they send what they are asked for. While some
    /// are expected to have it soon, nobody is asked for their parts. Says who is asked for nothing
    /// more because of that.
    fn spare_servers(
        &self,
        left: Duration,
        is_early: bool,
        lacking: u32,
        work: &Work,
        strangers: &BTreeMap<SourceId, Stranger>,
        candidates: &mut [Candidate],
    ) -> BTreeSet<SourceId> {
        let is_neighbour = |source: &SourceId| self.paths.get(source).is_some_and(|path| path.is_neighbour);
        let is_asked = |source: &&SourceId| is_neighbour(source) && may_ask(strangers, source);
        let is_expected = |source: &&SourceId| strangers.get(source) == Some(&Stranger::Expected);
        let expected: BTreeSet<SourceId> = work.paused.keys().filter(is_expected).copied().collect();
        let able = candidates.iter().filter(|candidate| is_neighbour(&candidate.source) && candidate.room > 0);
        let sharing = able.map(|candidate| candidate.source).chain(work.asked.keys().filter(is_asked).copied());
        let sharing = sharing.chain(expected.iter().copied()).collect::<BTreeSet<_>>().len();
        if sharing == 0 {
            return BTreeSet::new();
        }
        let sharing = u32::try_from(sharing).unwrap_or(u32::MAX);
        let n = u32::from(work.decoder.n());
        let part = n.div_ceil(sharing.saturating_add(1));
        let servers_part = if sharing < CROWD { part } else { (2 * n).div_ceil(sharing.saturating_mul(3)) };
        let given = |source: &SourceId| work.asked.get(source).map_or(0, |asked| asked.flight.kept());
        // What the neighbours can send in time, of what they are asked for now or in a round trip.
        let mut theirs = part.saturating_mul(u32::try_from(expected.len()).unwrap_or(u32::MAX));
        let mut spared = BTreeSet::new();
        for candidate in candidates.iter_mut().filter(|candidate| is_neighbour(&candidate.source)) {
            let Some(path) = self.paths.get(&candidate.source) else { continue };
            let most = if expected.is_empty() { u32::MAX } else { part.saturating_sub(given(&candidate.source)) };
            let in_time = if path.pace.rate() > 0.0 { candidate.within(left) } else { most };
            // What it can do is known by what it does.
            let in_time = in_time.max(u32::from(given(&candidate.source) == 0)).min(most);
            let later = if candidate.room == 0 && path.is_open && !path.is_doubtful() { path.credit_max } else { 0 };
            theirs = theirs.saturating_add(candidate.room.max(later).min(in_time));
            if candidate.room > 0 && in_time == 0 {
                spared.insert(candidate.source);
            }
            candidate.room = candidate.room.min(in_time);
        }
        let unmet = if is_early { 0 } else { lacking.saturating_sub(theirs) };
        for candidate in candidates.iter_mut().filter(|candidate| !is_neighbour(&candidate.source) && candidate.room > 0) {
            candidate.room = candidate.room.min(servers_part.saturating_sub(given(&candidate.source)).max(unmet));
            if candidate.room == 0 {
                spared.insert(candidate.source);
            }
        }
        spared
    }

    /// Gives a source credit for a generation: more of it, or a request.
    #[expect(clippy::too_many_arguments, reason = "a request has as many parts")]
    fn give(
        &mut self,
        now: Instant,
        source: SourceId,
        blocks: u32,
        name: (FetchId, u32),
        order: &Order,
        work: &mut Work,
        effects: &mut Effects,
    ) {
        let sources = self.paths.values().filter(|path| path.is_open).count();
        let is_shared = self.paths.values().any(|path| path.is_neighbour && path.is_open);
        let deadline = work.due.max(now + self.config.stall_timeout / 2);
        let deadline = order.deadline.unwrap_or(deadline);
        let Some(path) = self.paths.get_mut(&source) else { return };
        let bytes = u64::from(blocks) * u64::from(work.block_bytes());
        path.load.ahead += bytes;
        path.credited += u64::from(blocks);
        if let Some(asked) = work.asked.get_mut(&source) {
            path.load.add(order.urgency, 0, bytes);
            asked.flight.credit(now, blocks);
            self.counts.credits += 1;
            effects.send(source, Message::Credit { alias: asked.alias, blocks });
            return;
        }
        path.load.add(order.urgency, 1, bytes);
        let all = Numbers::of(work.decoder.generation());
        let numbers = all.map(|all| work.allot(&all, blocks, sources).in_ranges(RANGES_MAX));
        let ranges = match numbers {
            Some(numbers) if Some(numbers) == all => Some(Vec::new()),
            Some(numbers) => Some(numbers.ranges(RANGES_MAX)),
            // Neighbours are asked for what this side will have; source blocks would be the same
            // everywhere.
            None if is_shared => None,
            None => work.source_blocks(blocks, sources <= 1),
        };
        let blocks = numbers.map_or(blocks, |numbers| blocks.min(numbers.len()));
        // There are codes whose blocks travel in no datagram.
        let is_on_stream = order.shape.codec().is_proving();
        let datagrams = self.config.datagrams && !is_on_stream;
        let accept = Accept { coded: true, systematic: ranges.is_some(), datagrams, recoded: true };
        let alias = path.take_alias(name);
        effects.send(
            source,
            Message::Request(Request {
                alias,
                segment: order.segment,
                generation: name.1,
                deadline_ms: millis(deadline.saturating_duration_since(now)).max(1),
                credit: blocks,
                accept,
                ranges: ranges.unwrap_or_default(),
                meant: Meant::Coded(order.shape.coding()),
            }),
        );
        let asked = Asked::new(now, alias, deadline, blocks);
        let flight = asked.flight.after(work.silences.get(&source).copied().unwrap_or_default());
        let flight = if is_on_stream { flight.on_stream() } else { flight };
        work.asked.insert(source, Asked { numbers, flight, ..asked });
    }

    /// Asks for a few blocks more where nothing has come for so long that the end of the flight may
    /// be lost.
    fn probe(&mut self, now: Instant, work: &mut Work, is_pressing: bool, effects: &mut Effects) {
        let (missing, block_bytes) = (u32::from(work.decoder.missing()), work.block_bytes());
        for (source, asked) in &mut work.asked {
            let Some(path) = self.paths.get_mut(source) else { continue };
            let heard = path.load.heard_ahead.unwrap_or_else(|| asked.heard());
            if asked.silent_at(heard, block_bytes, path).is_none_or(|at| at > now) {
                continue;
            }
            // Two at first where time is short: one of them may be lost too.
            let probe =
                if work.near.is_some() { missing } else { (1 + u32::from(is_pressing)) << asked.flight.silences().min(10) };
            let probe = probe.min(missing).min(asked.room(path.credit_max));
            if probe > 0 {
                asked.flight.probe(now, probe);
                work.needed += probe;
                path.credited += u64::from(probe);
                self.counts.credits += 1;
                effects.send(*source, Message::Credit { alias: asked.alias, blocks: probe });
            }
        }
    }

    /// Asks suspects of whom nothing is wanted at present for a block, to see whether they are
    /// there again.
    fn sound_out(
        &mut self,
        now: Instant,
        name: (FetchId, u32),
        order: &Order,
        strangers: &BTreeMap<SourceId, Stranger>,
        work: &mut Work,
        effects: &mut Effects,
    ) {
        let idle = self.paths.iter().filter(|(source, path)| {
            path.is_open && path.trust == Trust::Suspect && path.load.all.0 == 0 && may_ask(strangers, source)
        });
        let idle: Vec<SourceId> = idle.map(|(source, _)| *source).filter(|source| !work.paused.contains_key(source)).collect();
        for source in idle {
            self.give(now, source, 1, name, order, work, effects);
        }
    }

    fn late(&mut self, source: SourceId, alias: u16) -> Result<(), Violation> {
        let path = self.paths.entry(source).or_default();
        let is_recent = (1..=LATE_ALIASES).contains(&path.next_alias.wrapping_sub(alias));
        // What was asked for under an alias may come after its end, and no more than was asked for.
        if is_recent && path.counts.blocks + path.late < path.credited {
            path.late += 1;
            return Ok(());
        }
        self.stray(source)
    }

    fn excess(&mut self, source: SourceId, id: FetchId, index: u32) -> Result<(), Violation> {
        let asked = find(&mut self.fetches, id, index).and_then(|work| work.asked.get_mut(&source));
        let excess = asked.map_or(0, |asked| {
            asked.excess += 1;
            asked.excess
        });
        self.counts.stray += 1;
        if excess > EXCESS_MAX { Err(Violation::Flood("blocks without credit")) } else { Ok(()) }
    }

    #[expect(clippy::too_many_arguments, reason = "what came, of whom, for what")]
    fn absorb(
        &mut self,
        now: Instant,
        source: SourceId,
        id: FetchId,
        index: u32,
        block: Block,
        is_checked: bool,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(path) = self.paths.get_mut(&source) else { return Ok(()) };
        let Some(work) = find(&mut self.fetches, id, index).filter(|work| work.asked.contains_key(&source)) else {
            return Ok(());
        };
        let Ok(outcome) = work.decoder.absorb(&block.vector, &block.payload) else { return self.stray(source) };
        path.pace.arrived(now, block.payload.len());
        self.brought(now, source, id, index, block, outcome, is_checked, effects)
    }

    /// A block has been absorbed; what it was asked for by may be over.
    #[expect(clippy::too_many_arguments, reason = "what came, of whom, for what, and what it brought")]
    fn brought(
        &mut self,
        now: Instant,
        source: SourceId,
        id: FetchId,
        index: u32,
        block: Block,
        outcome: Outcome,
        is_checked: bool,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let keeps = self.keeps_rows_of(source);
        let Some(path) = self.paths.get_mut(&source) else { return Ok(()) };
        let Some(Fetch { order, works, touched, trickles, is_put_off, outage_left, rests, .. }) = self.fetches.get_mut(&id)
        else {
            return Ok(());
        };
        let Some(work) = works.get_mut(&index) else { return Ok(()) };
        // What proves itself is not kept for later tests.
        let is_proving = order.shape.codec().is_proving();
        let keeps = keeps && !is_proving;
        work.silences.remove(&source);
        rests.remove(&source);
        Numbers::number(&block.vector).map(|number| work.held.insert(number));
        let useless = u64::from(outcome == Outcome::Redundant);
        path.counts.blocks += 1;
        path.counts.innovative += 1 - useless;
        path.counts.useless += useless;
        path.counts.systematic += u64::from(matches!(block.vector, Vector::Source(_)));
        path.counts.payload_bytes += block.payload.len() as u64;
        path.trust = Trust::Proven;
        if let Some(asked) = work.asked.get_mut(&source) {
            asked.unreported += 1;
        }
        match outcome {
            Outcome::Redundant => {
                if let Some(asked) = work.asked.get_mut(&source) {
                    asked.useless += 1;
                }
                let n = u32::from(work.decoder.n());
                let useless = work.useless.entry(source).or_default();
                if is_proving || matches!(block.vector, Vector::Explicit(_) | Vector::Unverified(_)) {
                    useless.chosen += if is_zero(&block.vector) { n.div_ceil(ZEROS_PER_N) } else { 1 };
                }
                let has_all = matches!(block.vector, Vector::Seed(_) | Vector::Symbol(_) | Vector::Narrow(_));
                useless.seeded += u32::from(has_all);
                let is_unlikely = useless.seeded > USELESS_MAX && work.decoder.missing() > 2;
                if is_unlikely || useless.chosen > USELESS_PARTS_MAX * n {
                    return Err(Violation::Flood("useless blocks"));
                }
            }
            Outcome::Innovative | Outcome::Complete => {
                (*touched, *trickles, *is_put_off, *outage_left) = (now, false, false, OUTAGE_MAX);
                self.progress_at = Some(now);
                self.drip.brought(id, block.payload.len());
                if self.config.tells {
                    let (cut, block) = (order.cut(), block.clone());
                    effects.report(Event::Brought { cut, generation: index, source, block, is_checked });
                }
                if keeps {
                    self.evidence.keep(id, index, Row { source, block, is_right: is_checked });
                }
            }
        }
        if outcome == Outcome::Complete {
            self.evidence.finished(id, index);
            self.finish(id, index, effects);
        } else if let Some(asked) = work.asked.get_mut(&source)
            && asked.unreported >= RANK_BLOCKS
            && asked.reported_at + path.pace.rtt() / 2 <= now
        {
            effects.send(source, asked.rank(work.decoder.rank()));
            asked.unreported = 0;
            asked.reported_at = now;
        }
        Ok(())
    }

    /// A generation is complete.
    fn finish(&mut self, id: FetchId, index: u32, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        let Some(work) = fetch.works.remove(&index) else { return };
        let turn = fetch.work_turn(work.due, id, index);
        let used = work.used_ahead();
        self.counts.ahead_used += u64::from(used);
        self.counts.generations_spared += u64::from(used > 0);
        for (source, asked) in work.asked {
            if let Some(path) = self.paths.get_mut(&source) {
                path.aliases.remove(&asked.alias);
            }
            self.release(source, turn, asked.flight.came_at());
            effects.send(source, asked.rank(work.decoder.rank()));
            effects.send(source, Message::Stop { alias: asked.alias, reason: StopReason::Complete });
        }
        self.counts.repaired += work.lost;
        self.counts.generations += 1;
        self.counts.generations_progressive += u64::from(work.decoder.is_progressive());
        if self.fetches.get(&id).is_some_and(|fetch| fetch.works.is_empty() && fetch.next >= fetch.order.shape.generations()) {
            self.fetches.remove(&id);
        }
        effects.report(Event::Decoded { fetch: id, decoder: work.decoder });
    }

    fn remove(&mut self, id: FetchId, reason: StopReason, effects: &mut Effects) {
        let Some(fetch) = self.fetches.remove(&id) else { return };
        let turns: Vec<_> = fetch.work_turns(id).collect();
        for (turn, work) in turns.into_iter().zip(fetch.works.into_values()) {
            for (source, asked) in work.asked {
                if let Some(path) = self.paths.get_mut(&source) {
                    path.aliases.remove(&asked.alias);
                }
                self.release(source, turn, asked.flight.came_at());
                effects.send(source, Message::Stop { alias: asked.alias, reason });
            }
        }
        self.stirred = true;
    }

    /// A request is over: those behind it at the same source could not be served before something
    /// last came for it. Those before it could, and their silence goes on.
    fn release(&mut self, source: SourceId, ended: WorkTurn, came_at: Option<Instant>) {
        for (id, fetch) in &mut self.fetches {
            let turns: Vec<_> = fetch.work_turns(*id).collect();
            let behind = fetch.works.values_mut().zip(turns).filter(|(_, turn)| *turn > ended);
            for asked in behind.filter_map(|(work, _)| work.asked.get_mut(&source)) {
                asked.served_before = asked.served_before.max(came_at);
            }
        }
    }
}

impl Fetch {
    fn turn(&self, id: FetchId) -> Turn {
        (self.order.urgency, self.order.deadline.is_none(), self.order.deadline, id)
    }

    /// Bytes of the generation that was asked for last, and of those that are not asked for yet.
    fn left(&self) -> u64 {
        let shape = self.order.shape;
        let last = shape.generation(self.next.saturating_sub(1));
        last.map_or(0, |last| shape.length().saturating_sub(last.offset))
    }

    /// Of a generation that is due then.
    fn work_turn(&self, due: Instant, id: FetchId, index: u32) -> WorkTurn {
        (self.order.urgency, self.order.deadline.is_none(), due, id, index)
    }

    /// Of all generations under way.
    fn work_turns(&self, id: FetchId) -> impl Iterator<Item = WorkTurn> {
        self.works.iter().map(move |(index, work)| self.work_turn(work.due, id, *index))
    }

    fn new(now: Instant, order: Order, place: Option<Place>) -> Self {
        let (works, strangers) = (BTreeMap::new(), BTreeMap::new());
        Self {
            order,
            works,
            next: 0,
            last_due: None,
            touched: now,
            trickles: false,
            is_put_off: false,
            outage_left: OUTAGE_MAX,
            rests: BTreeMap::new(),
            patient_until: now,
            is_impatient: false,
            expect_until: now,
            is_early: true,
            place,
            strangers,
            is_alone: false,
        }
    }

    /// There was no server between these times, which is left out of account as far as that goes.
    fn excuse(&mut self, since: Instant, until: Instant) {
        let outage = until.saturating_duration_since(self.touched.max(since)).min(self.outage_left);
        self.touched += outage;
        self.outage_left -= outage;
    }

    /// A source has rejected a request: whatever it says, it is not asked in a loop.
    fn rest(&mut self, now: Instant, source: SourceId) {
        let rest = self.rests.entry(source).or_insert(Rest { times: 0, until: now });
        // What is rejected meanwhile was asked for before.
        if rest.until <= now {
            rest.until = now + (RETRY_MIN * (1 << rest.times.min(10))).min(RETRY_MAX);
            rest.times += 1;
        }
        for work in self.works.values_mut() {
            let until = work.paused.entry(source).or_insert(rest.until);
            *until = rest.until.max(*until);
        }
    }

    /// Whether a source is left in peace at present.
    fn rests(&self, now: Instant, source: &SourceId) -> bool {
        self.rests.get(source).is_some_and(|rest| now < rest.until)
    }

    /// When more is asked of servers, and when neighbours are not waited for any more, unless that
    /// has passed.
    fn patience_ends(&self) -> Option<Instant> {
        let ends = if self.is_early { self.expect_until } else { self.patient_until };
        Some(ends).filter(|_| !self.is_impatient)
    }

    /// Leaves the others out where the trusted source is to send all of it.
    fn exclude_others<'a>(&mut self, sources: impl Iterator<Item = &'a SourceId>) {
        if self.is_alone {
            self.strangers.extend(sources.filter(|source| **source != FIRST).map(|source| (*source, Stranger::Excluded)));
        }
    }

    /// Whether a source may have it.
    fn may_ask(&self, source: &SourceId) -> bool {
        may_ask(&self.strangers, source)
    }
}

fn may_ask(strangers: &BTreeMap<SourceId, Stranger>, source: &SourceId) -> bool {
    matches!(strangers.get(source), None | Some(Stranger::Introduced | Stranger::Expected))
}

/// A generation under way.
fn find(fetches: &mut BTreeMap<FetchId, Fetch>, id: FetchId, index: u32) -> Option<&mut Work> {
    fetches.get_mut(&id)?.works.get_mut(&index)
}

/// Whether a block combines nothing; no sender draws such a vector.
fn is_zero(vector: &Vector) -> bool {
    use Vector::{Explicit, Narrow, Unverified, Wide};
    matches!(vector, Explicit(row) | Unverified(row) | Narrow(row) | Wide(row) if row.iter().all(|coefficient| *coefficient == 0))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
