//! What a stream's HLS playlists say about its objects: which to fetch ahead, which have left the window, where a large object
//! is cut, when to look again, and whether the playlist itself is out of date. A plain value: texts and `now` go in, plans come
//! out.
//!
//! The text is reduced to the tags that matter before the parser sees it. The parser stops at a line it cannot read and
//! returns what came before as if that were all; segments behind that line would then look as if they had left. Fewer segments
//! than the text has URI lines is therefore [`Error::Unreadable`], and changes nothing.
//!
//! A playlist that goes back is one of two things. If what it lists agrees with what was listed before, a replica of the origin
//! lags behind: the newer text stays. Otherwise the encoder has started over, and may use the old names for other bytes:
//! everything listed before is dropped at once.
//!
//! Reading a long playlist takes long, and so does comparing it with the one before, so neither is done where the planner is:
//! [`Planner::reader`] hands out what there is to compare with, [`Reader::read`] makes a [`Reading`] of it wherever that holds nobody
//! up, and [`Planner::take`] puts it in the place of the one before. What a playlist lists is made once and shared; what all of
//! them list together is bounded by bytes, and of a crowd of playlists the large ones are no longer followed first.
//!
//! An origin may answer a path whatever its query says, and a peer may ask with any query. So of the queries of a path few are
//! followed at once ([`Config::queries_max`]); the others are answered like any file, and nothing is planned by them. A playlist
//! that is configured or asked for without a query goes before those that are asked for with one, and those that nobody has
//! asked for lately make room.
//!
//! Peers may make up other names as well, and ask for them as often as they like. So a playlist that is not configured counts for whoever has
//! asked for it first ([`Followed::by`]): those who are counted together have so many of them at most, and who has most of them, or of their
//! bytes, makes room for who has less.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use m3u8_rs::{ByteRange, MasterPlaylist, MediaPlaylist, MediaPlaylistType, Playlist};
use url::Url;

use super::path::{ObjectPath, Parameters};

/// How playlists are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How many segments at the live edge are fetched ahead; none with 0.
    pub prefetch: usize,
    /// How long a live playlist may stay the same.
    pub stale_after: Duration,
    /// How long a playlist is followed after it was last asked for.
    pub interest: Duration,
    /// Playlists of one path that are followed at once, told apart by their queries; at least one.
    pub queries_max: usize,
    /// Which parameters of a query select another object.
    pub parameters: Parameters,
    /// Bytes of memory that what all playlists list may take.
    pub bytes_max: u64,
}

/// How a playlist is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Followed {
    /// Whether anybody asks for it or not.
    pub is_pinned: bool,
    /// Who asked for it first, of those who are counted together; `None` if nobody has.
    pub by: Option<u128>,
}

/// The playlists of a stream.
#[derive(Debug)]
pub struct Planner {
    config: Config,
    base: Option<Url>,
    playlists: HashMap<ObjectPath, Tracked>,
    pinned: HashSet<ObjectPath>,
    /// What the listings of all playlists take.
    bytes: u64,
}

/// An object or the byte range of it that a playlist lists.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The object.
    pub path: ObjectPath,
    /// The range; `None` for the whole object.
    pub range: Option<Range<u64>>,
}

/// What follows from a playlist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What kind of step it was.
    pub step: Step,
    /// What to fetch now and announce, in playlist order.
    pub prefetch: Vec<Cut>,
    /// What is listed no more and may go when nobody needs it.
    pub left: Vec<Cut>,
    /// What must not be used any more, because its names now mean something else.
    pub dropped: Vec<Cut>,
}

/// How a playlist relates to the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Step {
    /// The first one, a newer one, or the same again.
    #[default]
    Forward,
    /// Older than one already seen: the newer one stays valid.
    Lagging,
    /// The encoder has started over.
    Restarted,
}

/// Why a playlist is of no use for planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Does not begin with `#EXTM3U`.
    #[error("the text is not an HLS playlist")]
    NoPlaylist,
    /// The parser stopped before the end, or a number is impossible.
    #[error("the playlist is malformed")]
    Unreadable,
    /// What it lists takes more than there is for it.
    #[error("the playlist lists too many segments to follow")]
    TooLong,
}

impl Planner {
    /// A planner without playlists. `base` is the URL of the stream's top, where it has one.
    pub fn new(config: Config, base: Option<Url>) -> Self {
        Self { config, base, playlists: HashMap::new(), pinned: HashSet::new(), bytes: 0 }
    }

    /// Takes a new configuration; it applies from the next playlist on.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// Follows these playlists whether anybody asks for them or not, and no others.
    pub fn pin(&mut self, paths: impl IntoIterator<Item = ObjectPath>, now: Instant) {
        self.pinned = paths.into_iter().collect();
        for path in self.pinned.clone() {
            self.pinned_at(&path, now).next.get_or_insert(now);
        }
        for (path, tracked) in &mut self.playlists {
            tracked.pinned = self.pinned.contains(path);
        }
    }

    /// What the text of a playlist is read with that somebody has asked for, or nobody.
    pub fn reader(&self, path: &ObjectPath, by: Option<u128>, now: Instant) -> Reader {
        let listing = |tracked: &Tracked| tracked.listing.clone();
        let others = self.playlists.iter().filter(|(other, _)| *other != path);
        Reader {
            path: path.clone(),
            by,
            config: self.config.clone(),
            base: self.base.clone(),
            is_followed: self.makes_room(path, now).is_ok(),
            before: self.playlists.get(path).and_then(listing),
            others: others.filter_map(|(_, tracked)| listing(tracked)).collect(),
        }
    }

    /// Takes a reading of a playlist. One that was compared with something else than what is here now says nothing: the other has
    /// come first, and the next look at the playlist decides. The reading is best dropped where no lock is held, because what it
    /// was compared with may go with it.
    pub fn take(&mut self, reading: &mut Reading, now: Instant) -> Result<Plan, Error> {
        let Reading { reader: Reader { path, by, before, .. }, found } = reading;
        let by = *by;
        let is_followed = self.makes_room(path, now);
        let (Ok(other), false) = (is_followed, matches!(found, What::Nothing)) else { return Ok(Plan::default()) };
        let at = self.playlists.get(&*path).and_then(|tracked| tracked.listing.as_ref());
        if at.map(Arc::as_ptr) != before.as_ref().map(Arc::as_ptr) {
            return Ok(Plan::default());
        }
        if let Some(other) = other {
            self.let_go(&other);
        }
        match std::mem::replace(found, What::Nothing) {
            What::Nothing => Ok(Plan::default()),
            What::Same => {
                self.unchanged(path, now);
                Ok(Plan::default())
            }
            What::Master(variants) => {
                self.update_master(path, by, variants, now);
                Ok(Plan::default())
            }
            What::Media { listing, plan, is_other } => self.update_media((&*path, by), listing, plan, is_other, now),
        }
    }

    /// How a playlist is followed, if it is.
    pub fn followed(&self, path: &ObjectPath) -> Option<Followed> {
        self.playlists.get(path).map(Tracked::followed)
    }

    /// How many segments a playlist lists that is followed.
    pub fn listed(&self, path: &ObjectPath) -> usize {
        self.playlists.get(path).and_then(|tracked| tracked.listing.as_ref()).map_or(0, |listing| listing.segments.len())
    }

    /// Bytes of memory that what all playlists list takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that a playlist was looked at and is the same.
    pub fn unchanged(&mut self, path: &ObjectPath, now: Instant) {
        if let Some(tracked) = self.playlists.get_mut(path) {
            tracked.looked(now);
        }
    }

    /// Forgets a playlist that is gone.
    pub fn forget(&mut self, path: &ObjectPath, now: Instant) -> Forgotten {
        let Some(tracked) = self.let_go(path) else { return Forgotten { listing: None, others: Vec::new() } };
        if tracked.pinned {
            let kept = self.pinned_at(path, now);
            kept.next = Some(now + RELOAD_MAX);
        }
        let others = self.playlists.values().filter_map(|tracked| tracked.listing.clone()).collect();
        Forgotten { listing: tracked.listing, others }
    }

    /// Notes that somebody wants a playlist, so that it is followed for a while.
    pub fn asked(&mut self, path: &ObjectPath, now: Instant) {
        if let Some(tracked) = self.playlists.get_mut(path) {
            tracked.wanted(now);
        } else if path.query().is_some() {
            // It is not followed, but one of the same path is, which lists the same where the query says nothing to the origin.
            let same_path = self.playlists.iter_mut().filter(|(other, _)| other.path() == path.path());
            same_path.for_each(|(_, tracked)| tracked.wanted(now));
        }
    }

    /// The playlists to look at now. Ask again at [`Planner::next_look`], or after any other call.
    pub fn due(&mut self, now: Instant) -> Vec<ObjectPath> {
        let interest = self.config.interest;
        let mut due = Vec::new();
        for (path, tracked) in &mut self.playlists {
            if tracked.next.is_none_or(|next| next > now) {
                continue;
            }
            if !tracked.pinned && now.saturating_duration_since(tracked.asked) > interest {
                tracked.next = None;
                continue;
            }
            // Until the answer is known; a failing origin is not asked more often than this.
            tracked.next = Some(now + tracked.target.max(RETRY_MIN));
            due.push(path.clone());
        }
        due.sort();
        due
    }

    /// When [`Planner::due`] has something next.
    pub fn next_look(&self) -> Option<Instant> {
        self.playlists.values().filter_map(|tracked| tracked.next).min()
    }

    /// How long a live playlist has been the same, if that is too long.
    pub fn stale(&self, path: &ObjectPath, now: Instant) -> Option<Duration> {
        let tracked = self.playlists.get(path).filter(|tracked| tracked.is_live())?;
        let still = now.saturating_duration_since(tracked.changed);
        (still > self.config.stale_after.max(tracked.target * 3)).then_some(still)
    }

    /// How often a playlist changes, as far as it says.
    pub fn target_duration(&self, path: &ObjectPath) -> Option<Duration> {
        self.playlists.get(path).map(|tracked| tracked.target)
    }

    /// Whether segments of this directory are announced by a live playlist rather than by themselves.
    pub fn governs(&self, parent: &str) -> bool {
        self.listings().any(|listing| listing.live && listing.parents.contains(parent))
    }

    /// Whether a live playlist lists this cut near its end.
    pub fn is_edge(&self, cut: &Cut) -> bool {
        self.edge(cut).is_some()
    }

    /// How a live playlist is followed that lists this cut near its end: the one that is pinned, if one is.
    pub fn edge(&self, cut: &Cut) -> Option<Followed> {
        let lists =
            |tracked: &&Tracked| tracked.listing.as_ref().is_some_and(|listing| listing.live && listing.edge.contains(cut));
        self.playlists.values().filter(lists).map(Tracked::followed).max()
    }

    /// The bytes to read for `offset` of an object: the range that a playlist lists there, or the part between such ranges, in
    /// steps of `part_bytes_max`.
    pub fn part(&self, path: &ObjectPath, offset: u64, part_bytes_max: u64) -> Part {
        let step = part_bytes_max.max(1);
        let ranges = self.playlists.values().filter_map(|tracked| Some((tracked.changed, tracked.ranges(path)?)));
        let mut before: Option<(u64, Instant, u64)> = None;
        let mut next = None;
        for (changed, ranges) in ranges {
            // Where two playlists list different ranges from one offset on, the newer one counts.
            before = before.max(ranges.range(..=offset).next_back().map(|(start, end)| (*start, changed, *end)));
            let after = ranges.range(offset.saturating_add(1)..).next().map_or(u64::MAX, |(start, _)| *start);
            next = Some(next.unwrap_or(u64::MAX).min(after));
        }
        let Some(next) = next else {
            let start = offset / step * step;
            return Part { range: start..start.saturating_add(step), listed: false };
        };
        let before = before.map(|(start, _, end)| start..end);
        let (whole, listed) = match before {
            Some(range) if range.end > offset => (range, true),
            Some(range) => (range.end..next, false),
            None => (0..next, false),
        };
        let start = whole.start + (offset - whole.start) / step * step;
        Part { range: start..start.saturating_add(step).min(whole.end), listed }
    }

    fn update_master(&mut self, path: &ObjectPath, by: Option<u128>, variants: Vec<ObjectPath>, now: Instant) {
        let pinned = self.pinned.contains(path);
        let tracked = self.track(path, by, now);
        tracked.next = pinned.then(|| now + RELOAD_MAX);
        let before = tracked.listing.take();
        self.bytes -= before.map_or(0, |listing| listing.bytes);
        if !pinned {
            return;
        }
        for variant in variants {
            if !self.playlists.get(&variant).is_some_and(|known| known.pinned) {
                self.pinned_at(&variant, now).next.get_or_insert(now);
            }
        }
    }

    fn update_media(
        &mut self,
        (path, by): (&ObjectPath, Option<u128>),
        listing: Arc<Listing>,
        plan: Plan,
        is_other: bool,
        now: Instant,
    ) -> Result<Plan, Error> {
        if plan.step == Step::Lagging {
            self.track(path, by, now).looked(now);
            return Ok(plan);
        }
        if !self.has_room((path, by), listing.bytes, now) {
            let pinned = self.let_go(path).is_some_and(|tracked| tracked.pinned);
            if pinned {
                self.pinned_at(path, now).next = Some(now + RELOAD_MAX);
            }
            return Err(Error::TooLong);
        }
        let bytes = listing.bytes;
        let tracked = self.track(path, by, now);
        if is_other {
            tracked.changed = now;
        }
        tracked.target = listing.target;
        tracked.next = listing.live.then(|| now + tracked.reload());
        let before = tracked.listing.replace(listing);
        self.bytes = self.bytes + bytes - before.map_or(0, |before| before.bytes);
        Ok(plan)
    }

    /// Makes room for so many bytes of a playlist: those go that nobody has asked for lately, then those of whoever has more, then those that
    /// take more than it.
    fn has_room(&mut self, (path, by): (&ObjectPath, Option<u128>), bytes: u64, now: Instant) -> bool {
        let own = self.playlists.get(path);
        let by = own.map_or(by, |tracked| tracked.by);
        let (is_pinned, own) = (self.pinned.contains(path) || own.is_some_and(|own| own.pinned), own.map_or(0, Tracked::bytes));
        while (self.bytes - own).saturating_add(bytes) > self.config.bytes_max {
            let may_go = |other: &ObjectPath, tracked: &Tracked| other != path && !tracked.pinned && tracked.bytes() > 0;
            let others = || self.playlists.iter().filter(|(other, tracked)| may_go(other, tracked));
            let mut totals: HashMap<Option<u128>, u64> = HashMap::new();
            others().for_each(|(_, tracked)| *totals.entry(tracked.by).or_default() += tracked.bytes());
            let with_it = totals.get(&by).copied().unwrap_or_default().saturating_add(bytes);
            let most = totals.into_iter().max_by_key(|(other, total)| (*total, *other));
            let most = most.filter(|(_, total)| is_pinned || *total > with_it).map(|(other, _)| other);
            let goes = |tracked: &Tracked| match most {
                Some(account) => tracked.by == account,
                None => tracked.by == by && tracked.bytes() > bytes,
            };
            let is_idle = |tracked: &Tracked| tracked.is_idle(now, self.config.interest);
            let others = others().filter(|(_, tracked)| is_idle(tracked) || goes(tracked));
            let first = others.max_by_key(|(_, tracked)| (is_idle(tracked), tracked.bytes()));
            let Some(other) = first.map(|(other, _)| other.clone()) else { return false };
            self.let_go(&other);
        }
        true
    }

    /// Whether a playlist is one to follow, and which of the same path makes room for it then.
    fn makes_room(&self, path: &ObjectPath, now: Instant) -> Result<Option<ObjectPath>, NotFollowed> {
        if self.playlists.contains_key(path) {
            return Ok(None);
        }
        let same_path = self.playlists.iter().filter(|(other, _)| other.path() == path.path());
        let same_path: Vec<(&ObjectPath, &Tracked)> = same_path.collect();
        if same_path.len() < self.config.queries_max.max(1) {
            return Ok(None);
        }
        let goes = |(other, tracked): &&(&ObjectPath, &Tracked)| {
            let is_odd = path.query().is_none() && other.query().is_some();
            !tracked.pinned && (is_odd || tracked.is_idle(now, self.config.interest))
        };
        let other = same_path.iter().filter(goes).min_by_key(|(_, tracked)| tracked.asked);
        other.map(|(other, _)| Some((*other).clone())).ok_or(NotFollowed)
    }

    /// Follows a playlist whether anybody asks for it or not.
    fn pinned_at(&mut self, path: &ObjectPath, now: Instant) -> &mut Tracked {
        let tracked = self.track(path, None, now);
        tracked.pinned = true;
        tracked
    }

    /// Follows a playlist no more.
    fn let_go(&mut self, path: &ObjectPath) -> Option<Tracked> {
        let tracked = self.playlists.remove(path)?;
        self.bytes -= tracked.bytes();
        Some(tracked)
    }

    fn listings(&self) -> impl Iterator<Item = &Arc<Listing>> {
        self.playlists.values().filter_map(|tracked| tracked.listing.as_ref())
    }

    fn track(&mut self, path: &ObjectPath, by: Option<u128>, now: Instant) -> &mut Tracked {
        if !self.playlists.contains_key(path)
            && let Some(other) = self.over(by, now)
        {
            self.let_go(&other);
        }
        self.playlists.entry(path.clone()).or_insert_with(|| Tracked::new(by, now))
    }

    /// The playlist that goes where one more is followed for somebody, if one has to: of those that count together the one that was not
    /// asked for longest.
    fn over(&self, by: Option<u128>, now: Instant) -> Option<ObjectPath> {
        let others = || self.playlists.iter().filter(|(_, tracked)| !tracked.pinned);
        let mut counts: HashMap<Option<u128>, usize> = HashMap::new();
        others().for_each(|(_, tracked)| *counts.entry(tracked.by).or_default() += 1);
        let own = counts.entry(by).or_default();
        *own += 1;
        let is_own = by.is_some() && *own > PLAYLISTS_OF_ONE_MAX;
        if !is_own && self.playlists.len() < PLAYLISTS_MAX {
            return None;
        }
        let most = counts.into_iter().max_by_key(|(account, count)| (*count, *account != by, *account))?.0;
        let account = if is_own { by } else { most };
        let is_idle = |tracked: &Tracked| !is_own && tracked.is_idle(now, self.config.interest);
        let others = others().filter(|(_, tracked)| tracked.by == account || is_idle(tracked));
        others.min_by_key(|(_, tracked)| (!is_idle(tracked), tracked.asked)).map(|(other, _)| other.clone())
    }
}

/// A playlist that is not followed, because another of its path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NotFollowed;

/// What the text of one playlist is read with.
#[derive(Debug)]
pub struct Reader {
    path: ObjectPath,
    by: Option<u128>,
    config: Config,
    base: Option<Url>,
    is_followed: bool,
    before: Option<Arc<Listing>>,
    others: Vec<Arc<Listing>>,
}

/// What the text of a playlist says.
#[derive(Debug)]
pub struct Reading {
    reader: Reader,
    found: What,
}

#[derive(Debug)]
enum What {
    /// Nothing to plan by.
    Nothing,
    /// The same as before.
    Same,
    /// The playlists that a master playlist lists.
    Master(Vec<ObjectPath>),
    /// What a media playlist lists, what follows from that, and whether it lists anything else than before.
    Media { listing: Arc<Listing>, plan: Plan, is_other: bool },
}

/// A playlist that was followed.
#[derive(Debug)]
pub struct Forgotten {
    listing: Option<Arc<Listing>>,
    others: Vec<Arc<Listing>>,
}

impl Forgotten {
    /// How many segments it listed.
    pub fn len(&self) -> usize {
        self.listing.as_ref().map_or(0, |listing| listing.segments.len())
    }

    /// Whether it listed none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What follows: what no other playlist lists may go.
    pub fn plan(&self) -> Plan {
        let listed = |cut: &Cut| self.others.iter().any(|other| other.cuts.contains(cut));
        let left = self.listing.iter().flat_map(|listing| listing.in_order()).filter(|cut| !listed(cut)).collect();
        Plan { left, ..Plan::default() }
    }
}

impl Reader {
    /// Reads the text of the playlist, and compares it with the one before. May take long where it is long.
    pub fn read(self, text: &[u8]) -> Result<Reading, Error> {
        let found = self.look(text)?;
        Ok(Reading { reader: self, found })
    }

    fn look(&self, text: &[u8]) -> Result<What, Error> {
        if is_partial(&self.path, text) {
            return Ok(What::Nothing);
        }
        let hash = *blake3::hash(text).as_bytes();
        if self.before.as_ref().is_some_and(|before| before.hash == hash) {
            return Ok(What::Same);
        }
        let lines = Lines::read(text)?;
        if !self.is_followed {
            return Ok(What::Nothing);
        }
        // Before anything is made of them.
        if as_bytes(lines.uris, Listing::SEGMENT_BYTES) > self.config.bytes_max {
            return Err(Error::TooLong);
        }
        match m3u8_rs::parse_playlist_res(lines.text.as_bytes()) {
            Ok(Playlist::MasterPlaylist(master)) => {
                let named = |variant: &&m3u8_rs::VariantStream| !variant.is_i_frame && !variant.uri.is_empty();
                if master.variants.iter().filter(named).count() != lines.uris {
                    return Err(Error::Unreadable);
                }
                Ok(What::Master(self.variants(&master)))
            }
            Ok(Playlist::MediaPlaylist(media)) if media.segments.len() == lines.uris => {
                let listing = self.listing(&media, hash)?;
                let plan = self.plan(&listing);
                let is_other = self.before.as_ref().is_none_or(|before| !before.is_same(&listing));
                Ok(What::Media { listing: Arc::new(listing), plan, is_other })
            }
            Ok(Playlist::MediaPlaylist(_)) | Err(_) => Err(Error::Unreadable),
        }
    }

    fn variants(&self, master: &MasterPlaylist) -> Vec<ObjectPath> {
        let uris = master.variants.iter().filter(|variant| !variant.is_i_frame).map(|variant| Some(&variant.uri));
        let uris = uris.chain(master.alternatives.iter().map(|alternative| alternative.uri.as_ref())).flatten();
        uris.filter_map(|uri| self.locate(uri)).take(PLAYLISTS_MAX / 2).collect()
    }

    fn listing(&self, media: &MediaPlaylist, hash: [u8; 32]) -> Result<Listing, Error> {
        let segments = self.segments(media)?;
        let live = !media.end_list && media.playlist_type != Some(MediaPlaylistType::Vod);
        let edge_from = if live { segments.len().saturating_sub(self.config.prefetch) } else { segments.len() };
        let all = |segments: &[Segment]| segments.iter().flat_map(Segment::cuts).cloned().collect::<HashSet<Cut>>();
        let (cuts, edge) = (all(&segments), all(&segments[edge_from..]));
        let mut ranges: HashMap<ObjectPath, Ranges> = HashMap::new();
        for Cut { path, range } in segments.iter().flat_map(Segment::cuts) {
            if let Some(range) = range {
                ranges.entry(path.clone()).or_default().insert(range.start, range.end);
            }
        }
        let parents =
            segments.iter().filter_map(|segment| segment.cut.as_ref()).map(|cut| cut.path.parent().to_owned()).collect();
        let names: usize = cuts.iter().map(|cut| cut.path.as_str().len()).sum();
        let bytes = as_bytes(segments.len(), Listing::SEGMENT_BYTES) + as_bytes(names, 1);
        let target = Duration::from_secs(media.target_duration).clamp(RELOAD_MIN, RELOAD_MAX);
        Ok(Listing {
            hash,
            live,
            target,
            sequence: media.media_sequence,
            segments,
            cuts,
            edge,
            edge_from,
            parents,
            ranges,
            bytes,
        })
    }

    /// What follows from a listing where the one before was what it was.
    fn plan(&self, listing: &Listing) -> Plan {
        let before = self.before.as_deref();
        let step = before.map_or(Step::Forward, |before| before.step(listing));
        if step == Step::Lagging {
            return Plan { step, ..Plan::default() };
        }
        let is_known = |cut: &Cut| match before.filter(|_| step == Step::Forward) {
            // What was fetched ahead once, and is still listed, is not new again when the window grows backwards.
            Some(before) => before.edge.contains(cut) || (before.live && before.cuts.contains(cut)),
            None => false,
        };
        let mut seen = HashSet::new();
        let edge = listing.segments[listing.edge_from..].iter().flat_map(Segment::cuts);
        let prefetch = edge.filter(|cut| seen.insert(*cut) && !is_known(cut)).cloned().collect();
        if step == Step::Restarted {
            return Plan { step, prefetch, left: Vec::new(), dropped: before.map(Listing::in_order).unwrap_or_default() };
        }
        let is_listed = |cut: &Cut| listing.cuts.contains(cut) || self.others.iter().any(|other| other.cuts.contains(cut));
        let left = before.map(|before| before.in_order().into_iter().filter(|cut| !is_listed(cut)).collect());
        Plan { step, prefetch, left: left.unwrap_or_default(), dropped: Vec::new() }
    }

    /// The segments of a playlist as cuts, with implicit offsets worked out.
    fn segments(&self, media: &MediaPlaylist) -> Result<Vec<Segment>, Error> {
        let mut segments = Vec::with_capacity(media.segments.len());
        let mut map = None;
        let mut previous: Option<(&str, u64)> = None;
        for segment in &media.segments {
            if let Some(here) = &segment.map {
                let range = here.byte_range.as_ref().map(|range| absolute(range, 0)).transpose()?;
                map = self.locate(&here.uri).map(|path| Cut { path, range });
            }
            let range = match &segment.byte_range {
                Some(range) => {
                    let implied = previous.take().filter(|(uri, _)| *uri == segment.uri).map_or(0, |(_, end)| end);
                    let range = absolute(range, implied)?;
                    previous = Some((&segment.uri, range.end));
                    Some(range)
                }
                None => {
                    previous = None;
                    None
                }
            };
            let gap = segment.unknown_tags.iter().any(|tag| tag.tag == "X-GAP");
            let cut = if gap { None } else { self.locate(&segment.uri).map(|path| Cut { path, range }) };
            segments.push(Segment { map: map.clone().filter(|_| cut.is_some()), cut });
        }
        Ok(segments)
    }

    /// The object of the stream that a URI in the playlist means, if it means one.
    fn locate(&self, uri: &str) -> Option<ObjectPath> {
        let stand_in = Url::parse("http://stream.invalid/").expect("a constant");
        let base = self.base.as_ref().unwrap_or(&stand_in);
        let is_absolute = uri.starts_with('/') || uri.starts_with('\\') || Url::parse(uri).is_ok();
        if self.base.is_none() && is_absolute {
            return None;
        }
        let object = inside(base, &self.path.to_url(base)?.join(uri).ok()?)?;
        Some(object.with_parameters(&self.config.parameters))
    }
}

/// Which bytes of an object to read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The bytes; the object may end before them unless they are listed.
    pub range: Range<u64>,
    /// Whether a playlist lists them, so that they are complete even if the object still grows.
    pub listed: bool,
}

/// The same playlist with every absolute URI that leads into the stream turned into one below `/name/`, so that players ask the
/// gateway for it and not the origin; `None` if there is none.
pub fn localise(text: &[u8], playlist: &ObjectPath, base: &Url, name: &str) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let playlist = playlist.to_url(base)?;
    let local = |uri: &str| {
        let is_absolute = uri.starts_with('/') || Url::parse(uri).is_ok();
        let path = if is_absolute { inside(base, &playlist.join(uri).ok()?) } else { None };
        path.map(|path| format!("/{name}/{path}"))
    };
    let mut changed = false;
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\r', '\n']);
        let found = match content.starts_with('#') {
            true => content.find("URI=\"").and_then(|at| {
                let start = at + "URI=\"".len();
                let end = start + content[start..].find('"')?;
                Some((start..end, local(&content[start..end])?))
            }),
            false => local(content.trim()).map(|uri| (0..content.len(), uri)),
        };
        match found {
            Some((range, uri)) => {
                changed = true;
                out.push_str(&line[..range.start]);
                out.push_str(&uri);
                out.push_str(&line[range.end..]);
            }
            None => out.push_str(line),
        }
    }
    changed.then_some(out)
}

/// What is known of one playlist.
#[derive(Debug)]
struct Tracked {
    pinned: bool,
    /// Who asked for it first.
    by: Option<u128>,
    target: Duration,
    /// What it lists; `None` before the first media playlist.
    listing: Option<Arc<Listing>>,
    changed: Instant,
    asked: Instant,
    next: Option<Instant>,
}

/// What a media playlist lists. It never changes.
#[derive(Debug)]
struct Listing {
    /// Of its text.
    hash: [u8; 32],
    live: bool,
    target: Duration,
    /// Media sequence number of the first segment.
    sequence: u64,
    segments: Vec<Segment>,
    cuts: HashSet<Cut>,
    edge: HashSet<Cut>,
    edge_from: usize,
    parents: HashSet<String>,
    ranges: HashMap<ObjectPath, Ranges>,
    /// What all this takes, about.
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    map: Option<Cut>,
    /// `None` where it lies outside the stream.
    cut: Option<Cut>,
}

/// The ends of ranges by their starts.
type Ranges = BTreeMap<u64, u64>;

impl Segment {
    /// What it needs, in the order in which it needs it.
    fn cuts(&self) -> impl Iterator<Item = &Cut> {
        self.map.iter().chain(&self.cut)
    }
}

impl Listing {
    /// What a segment takes apart from the name of its object: here, in the set, as a range, and what allocators and tables add.
    const SEGMENT_BYTES: usize = size_of::<Segment>() + 2 * size_of::<Cut>() + 128;

    /// Every cut once.
    fn in_order(&self) -> Vec<Cut> {
        let mut seen = HashSet::new();
        self.segments.iter().flat_map(Segment::cuts).filter(|cut| seen.insert(*cut)).cloned().collect()
    }

    /// Whether two listings say the same.
    fn is_same(&self, other: &Self) -> bool {
        (self.sequence, self.live) == (other.sequence, other.live) && self.segments == other.segments
    }

    /// How one relates to this one, which came before.
    fn step(&self, next: &Self) -> Step {
        if self.segments.is_empty() {
            return Step::Forward;
        }
        let end = |first: u64, count: usize| first.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        fn at(listing: &Listing, number: u64) -> Option<&Segment> {
            listing.segments.get(usize::try_from(number.checked_sub(listing.sequence)?).ok()?)
        }
        let (ended, ends) = (end(self.sequence, self.segments.len()), end(next.sequence, next.segments.len()));
        let (from, to) = (self.sequence.max(next.sequence), ended.min(ends));
        let agrees = (from..to).all(|number| at(self, number) == at(next, number));
        let forward = ends > ended || (ends == ended && next.sequence >= self.sequence);
        match (agrees, forward, from < to) {
            (false, ..) => Step::Restarted,
            (true, true, _) => Step::Forward,
            (true, false, true) => Step::Lagging,
            (true, false, false) => Step::Restarted,
        }
    }
}

impl Tracked {
    fn new(by: Option<u128>, now: Instant) -> Self {
        Self { pinned: false, by, target: RELOAD_MIN, listing: None, changed: now, asked: now, next: None }
    }

    fn followed(&self) -> Followed {
        Followed { is_pinned: self.pinned, by: self.by }
    }

    fn is_live(&self) -> bool {
        self.listing.as_ref().is_some_and(|listing| listing.live)
    }

    /// Whether nobody has asked for it lately.
    fn is_idle(&self, now: Instant, interest: Duration) -> bool {
        now.saturating_duration_since(self.asked) > interest
    }

    fn bytes(&self) -> u64 {
        self.listing.as_ref().map_or(0, |listing| listing.bytes)
    }

    /// The ranges of an object that it lists.
    fn ranges(&self, path: &ObjectPath) -> Option<&Ranges> {
        self.listing.as_ref()?.ranges.get(path)
    }

    /// RFC 8216 section 6.3.4 lets clients look once a target duration, and after half of one when nothing was new. The edge is
    /// fetched ahead of clients, so the shorter one it is.
    fn reload(&self) -> Duration {
        (self.target / 2).clamp(RELOAD_MIN, RELOAD_MAX)
    }

    fn wanted(&mut self, now: Instant) {
        self.asked = now;
        if self.next.is_none() && self.is_live() {
            self.next = Some(now + self.reload());
        }
    }

    fn looked(&mut self, now: Instant) {
        if self.is_live() {
            self.next = Some(now + self.reload());
        } else if self.next.is_some() {
            self.next = Some(now + RELOAD_MAX);
        }
    }
}

/// A playlist reduced to what the parser needs to see.
struct Lines {
    text: String,
    uris: usize,
}

impl Lines {
    fn read(text: &[u8]) -> Result<Self, Error> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let text = std::str::from_utf8(text).map_err(|_| Error::NoPlaylist)?;
        let mut lines = text.lines().map(str::trim);
        if lines.next() != Some("#EXTM3U") {
            return Err(Error::NoPlaylist);
        }
        let mut kept = String::from("#EXTM3U\n");
        let mut uris = 0;
        for line in lines.filter(|line| !line.is_empty()) {
            if line.starts_with('#') {
                if !TAGS.iter().any(|tag| line.starts_with(tag)) {
                    continue;
                }
                if line.starts_with("#EXTINF:") {
                    // A title may hold anything, commas included, behind which the parser sees the next line.
                    kept.push_str(line.split(',').next().unwrap_or(line));
                    kept.push(',');
                } else if line.starts_with("#EXT-X-TARGETDURATION:") {
                    // Some packagers write a fraction, which the parser takes for the next line.
                    kept.push_str(line.split('.').next().unwrap_or(line));
                } else {
                    kept.push_str(line);
                }
                kept.push('\n');
            } else {
                uris += 1;
                kept.push_str(line);
                kept.push('\n');
            }
        }
        Ok(Self { text: kept, uris })
    }
}

/// A delta update (`EXT-X-SKIP`) or one of many blocking reloads of the same playlist says nothing about the window.
fn is_partial(path: &ObjectPath, text: &[u8]) -> bool {
    let skip = b"\n#EXT-X-SKIP:";
    path.query().is_some_and(|query| query.contains("_HLS_")) || text.windows(skip.len()).any(|window| window == skip)
}

fn absolute(range: &ByteRange, implied: u64) -> Result<Range<u64>, Error> {
    let start = range.offset.unwrap_or(implied);
    let end = start.checked_add(range.length).filter(|end| *end < 1 << 62).ok_or(Error::Unreadable)?;
    if range.length == 0 { Err(Error::Unreadable) } else { Ok(start..end) }
}

fn as_bytes(count: usize, each: usize) -> u64 {
    u64::try_from(count.saturating_mul(each)).unwrap_or(u64::MAX)
}

/// The object of the stream that a URL at its origin is, if it is one.
fn inside(base: &Url, url: &Url) -> Option<ObjectPath> {
    let same = (base.scheme(), base.host_str(), base.port_or_known_default())
        == (url.scheme(), url.host_str(), url.port_or_known_default());
    let path = if same { url.path().strip_prefix(base.path())? } else { return None };
    let text = url.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    ObjectPath::parse(&text).ok()
}

const PLAYLISTS_MAX: usize = 256;
/// Of those that are not pinned, what may be followed for all who are counted together.
const PLAYLISTS_OF_ONE_MAX: usize = PLAYLISTS_MAX / 4;
const RELOAD_MIN: Duration = Duration::from_millis(250);
const RELOAD_MAX: Duration = Duration::from_secs(30);
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The tags that planning needs; `EXT-X-MEDIA` covers the media sequence number too.
const TAGS: [&str; 11] = [
    "#EXTINF:",
    "#EXT-X-TARGETDURATION:",
    "#EXT-X-MEDIA",
    "#EXT-X-ENDLIST",
    "#EXT-X-PLAYLIST-TYPE:",
    "#EXT-X-BYTERANGE:",
    "#EXT-X-MAP:",
    "#EXT-X-GAP",
    "#EXT-X-STREAM-INF:",
    "#EXT-X-I-FRAME-STREAM-INF:",
    "#EXT-X-I-FRAMES-ONLY",
];

#[cfg(test)]
#[path = "planner/tests.rs"]
mod tests;
