//! What HLS playlists imply for a stream's objects: which to prefetch, which have left the window,
//! where a large object is cut, when to look again, and whether the playlist is stale. A plain
//! value: texts and `now` go in, plans come out.
//!
//! The text is reduced to the relevant tags before parsing. The parser stops silently at a line
//! that it cannot read, and segments behind that line would appear to have left. So if it finds
//! fewer segments than the text has URI lines, that is [`Error::Unreadable`], and changes nothing.
//!
//! A playlist may go back for two reasons. If its entries agree with earlier ones, a replica of the
//! origin lags behind: the newer text stays. Otherwise the encoder has restarted, and may use old
//! names for other bytes: everything listed before is dropped at once.
//!
//! Reading a long playlist, and comparing it with the last one, takes long, so neither happens
//! within the planner. [`Planner::reader`] hands out the data to compare with, [`Reader::read`]
//! makes a [`Reading`] on any thread, and [`Planner::take`] installs it. Listings are made once and
//! shared. Their total size is limited; when there are too many playlists, the large ones are no
//! longer followed first.
//!
//! An origin may ignore queries, and a peer may send any query. So only a few queries of a path are
//! followed at once ([`Config::queries_max`]); for others, playlists are served like any file,
//! without planning. Playlists that are configured, or requested without a query, go before those
//! with one, and those not requested lately make room.
//!
//! Peers may also invent names, and request them as often as they like. So a playlist that is not
//! configured is charged to the account that requested it first ([`Followed::by`]). Each account
//! has a limit, and the account with the most playlists, or bytes of them, makes room for accounts
//! with fewer.

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
    /// The number of segments at the live edge to prefetch; 0 for none.
    pub prefetch: usize,
    /// The time after which an unchanged live playlist counts as stale.
    pub stale_after: Duration,
    /// How long a playlist is followed after its last request.
    pub interest: Duration,
    /// The number of playlists of one path, with different queries, that are followed at once; at
    /// least one.
    pub queries_max: usize,
    /// Query parameters that select another object.
    pub parameters: Parameters,
    /// Memory for the listings of all playlists, in bytes.
    pub bytes_max: u64,
}

/// How a playlist is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Followed {
    /// Whether it is followed without requests.
    pub is_pinned: bool,
    /// The account that requested it first, if any.
    pub by: Option<u128>,
}

/// The playlists of a stream.
#[derive(Debug)]
pub struct Planner {
    config: Config,
    base: Option<Url>,
    playlists: HashMap<ObjectPath, Tracked>,
    pinned: HashSet<ObjectPath>,
    /// The size of all listings.
    bytes: u64,
}

/// An object, or a byte range of it, that a playlist lists.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The object.
    pub path: ObjectPath,
    /// The range; `None` for the whole object.
    pub range: Option<Range<u64>>,
}

/// The consequences of a playlist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The kind of step.
    pub step: Step,
    /// Cuts to fetch now and announce, in playlist order.
    pub prefetch: Vec<Cut>,
    /// Cuts that are no longer listed, and may be evicted when unused.
    pub left: Vec<Cut>,
    /// Cuts that must not be used any more, because their names now mean other bytes.
    pub dropped: Vec<Cut>,
}

/// The relation of a playlist to the last one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Step {
    /// The first one, a newer one, or the same again.
    #[default]
    Forward,
    /// An older one: the newer one stays valid.
    Lagging,
    /// The encoder has restarted.
    Restarted,
}

/// Why a playlist cannot be used for planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It does not begin with `#EXTM3U`.
    #[error("the text is not an HLS playlist")]
    NoPlaylist,
    /// The parser stopped early, or a number is impossible.
    #[error("the playlist is malformed")]
    Unreadable,
    /// Its listing exceeds the memory limit.
    #[error("the playlist lists too many segments to follow")]
    TooLong,
}

impl Planner {
    /// A planner without playlists. `base` is the URL of the stream's top, if it has one.
    pub fn new(config: Config, base: Option<Url>) -> Self {
        Self {
            config,
            base,
            playlists: HashMap::new(),
            pinned: HashSet::new(),
            bytes: 0,
        }
    }

    /// Sets the configuration, from the next playlist on.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
    }

    /// Sets the playlists to be followed without requests.
    pub fn pin(&mut self, paths: impl IntoIterator<Item = ObjectPath>, now: Instant) {
        self.pinned = paths.into_iter().collect();
        for path in self.pinned.clone() {
            self.pinned_at(&path, now).next.get_or_insert(now);
        }
        for (path, tracked) in &mut self.playlists {
            tracked.pinned = self.pinned.contains(path);
        }
    }

    /// Prepares reading a playlist that account `by` requested first, if any.
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

    /// Installs a reading of a playlist. A reading that was compared with an outdated listing is
    /// ignored: another reading was faster, and the next look decides. Drop the reading outside of
    /// any lock, because the old listing may go with it.
    pub fn take(&mut self, reading: &mut Reading, now: Instant) -> Result<Plan, Error> {
        let Reading {
            reader: Reader {
                path, by, before, ..
            },
            found,
        } = reading;
        let by = *by;
        let is_followed = self.makes_room(path, now);
        let (Ok(other), false) = (is_followed, matches!(found, What::Nothing)) else {
            return Ok(Plan::default());
        };
        let at = self
            .playlists
            .get(&*path)
            .and_then(|tracked| tracked.listing.as_ref());
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
            What::Media {
                listing,
                plan,
                is_other,
            } => self.update_media((&*path, by), listing, plan, is_other, now),
        }
    }

    /// How a playlist is followed, if it is.
    pub fn followed(&self, path: &ObjectPath) -> Option<Followed> {
        self.playlists.get(path).map(Tracked::followed)
    }

    /// The number of segments in the listing of a playlist.
    pub fn listed(&self, path: &ObjectPath) -> usize {
        self.playlists
            .get(path)
            .and_then(|tracked| tracked.listing.as_ref())
            .map_or(0, |listing| listing.segments.len())
    }

    /// The size of all listings in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that a playlist was looked at and has not changed.
    pub fn unchanged(&mut self, path: &ObjectPath, now: Instant) {
        if let Some(tracked) = self.playlists.get_mut(path) {
            tracked.looked(now);
        }
    }

    /// Forgets a removed playlist.
    pub fn forget(&mut self, path: &ObjectPath, now: Instant) -> Forgotten {
        let Some(tracked) = self.let_go(path) else {
            return Forgotten {
                listing: None,
                others: Vec::new(),
            };
        };
        if tracked.pinned {
            let kept = self.pinned_at(path, now);
            kept.next = Some(now + RELOAD_MAX);
        }
        let others = self
            .playlists
            .values()
            .filter_map(|tracked| tracked.listing.clone())
            .collect();
        Forgotten {
            listing: tracked.listing,
            others,
        }
    }

    /// Notes a request for a playlist, so that it is followed for a while.
    pub fn asked(&mut self, path: &ObjectPath, now: Instant) {
        if let Some(tracked) = self.playlists.get_mut(path) {
            tracked.wanted(now);
        } else if path.query().is_some() {
            // It is not followed, but one of the same path is; if the origin ignores the query,
            // that lists the same.
            let same_path = self
                .playlists
                .iter_mut()
                .filter(|(other, _)| other.path() == path.path());
            same_path.for_each(|(_, tracked)| tracked.wanted(now));
        }
    }

    /// The playlists to look at now. Call again at [`Planner::next_look`], or after any other call.
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

    /// When [`Planner::due`] next has something to return.
    pub fn next_look(&self) -> Option<Instant> {
        self.playlists
            .values()
            .filter_map(|tracked| tracked.next)
            .min()
    }

    /// How long a live playlist has been unchanged, if that is too long.
    pub fn stale(&self, path: &ObjectPath, now: Instant) -> Option<Duration> {
        let tracked = self
            .playlists
            .get(path)
            .filter(|tracked| tracked.is_live())?;
        let still = now.saturating_duration_since(tracked.changed);
        (still > self.config.stale_after.max(tracked.target * 3)).then_some(still)
    }

    /// The target duration of a playlist.
    pub fn target_duration(&self, path: &ObjectPath) -> Option<Duration> {
        self.playlists.get(path).map(|tracked| tracked.target)
    }

    /// Whether a live playlist, rather than a folder's events, announces segments of this
    /// folder.
    pub fn governs(&self, parent: &str) -> bool {
        self.listings()
            .any(|listing| listing.live && listing.parents.contains(parent))
    }

    /// Whether a live playlist lists this cut near its end.
    pub fn is_edge(&self, cut: &Cut) -> bool {
        self.edge(cut).is_some()
    }

    /// How the live playlist that lists this cut near its end is followed; a pinned one is
    /// preferred.
    pub fn edge(&self, cut: &Cut) -> Option<Followed> {
        let lists = |tracked: &&Tracked| {
            tracked
                .listing
                .as_ref()
                .is_some_and(|listing| listing.live && listing.edge.contains(cut))
        };
        self.playlists
            .values()
            .filter(lists)
            .map(Tracked::followed)
            .max()
    }

    /// The bytes to read for `offset` of an object: the range that a playlist lists there, or the
    /// part between such ranges, in steps of `part_bytes_max`.
    pub fn part(&self, path: &ObjectPath, offset: u64, part_bytes_max: u64) -> ReadRange {
        let step = part_bytes_max.max(1);
        let ranges = self
            .playlists
            .values()
            .filter_map(|tracked| Some((tracked.changed, tracked.ranges(path)?)));
        let mut before: Option<(u64, Instant, u64)> = None;
        let mut next = None;
        for (changed, ranges) in ranges {
            // If two playlists list different ranges from one offset, the newer one counts.
            before = before.max(
                ranges
                    .range(..=offset)
                    .next_back()
                    .map(|(start, end)| (*start, changed, *end)),
            );
            let after = ranges
                .range(offset.saturating_add(1)..)
                .next()
                .map_or(u64::MAX, |(start, _)| *start);
            next = Some(next.unwrap_or(u64::MAX).min(after));
        }
        let Some(next) = next else {
            let start = offset / step * step;
            return ReadRange {
                range: start..start.saturating_add(step),
                listed: false,
            };
        };
        let before = before.map(|(start, _, end)| start..end);
        let (whole, listed) = match before {
            Some(range) if range.end > offset => (range, true),
            Some(range) => (range.end..next, false),
            None => (0..next, false),
        };
        let start = whole.start + (offset - whole.start) / step * step;
        ReadRange {
            range: start..start.saturating_add(step).min(whole.end),
            listed,
        }
    }

    fn update_master(
        &mut self,
        path: &ObjectPath,
        by: Option<u128>,
        variants: Vec<ObjectPath>,
        now: Instant,
    ) {
        let pinned = self.pinned.contains(path);
        let tracked = self.track(path, by, now);
        tracked.next = pinned.then(|| now + RELOAD_MAX);
        let before = tracked.listing.take();
        self.bytes -= before.map_or(0, |listing| listing.bytes);
        if !pinned {
            return;
        }
        for variant in variants {
            if !self
                .playlists
                .get(&variant)
                .is_some_and(|known| known.pinned)
            {
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

    /// Makes room for this many bytes of a playlist. Drops playlists without recent requests first,
    /// then those of accounts with more bytes, then larger ones of the same account.
    fn has_room(
        &mut self,
        (path, by): (&ObjectPath, Option<u128>),
        bytes: u64,
        now: Instant,
    ) -> bool {
        let own = self.playlists.get(path);
        let by = own.map_or(by, |tracked| tracked.by);
        let (is_pinned, own) = (
            self.pinned.contains(path) || own.is_some_and(|own| own.pinned),
            own.map_or(0, Tracked::bytes),
        );
        while (self.bytes - own).saturating_add(bytes) > self.config.bytes_max {
            let may_go = |other: &ObjectPath, tracked: &Tracked| {
                other != path && !tracked.pinned && tracked.bytes() > 0
            };
            let others = || {
                self.playlists
                    .iter()
                    .filter(|(other, tracked)| may_go(other, tracked))
            };
            let mut totals: HashMap<Option<u128>, u64> = HashMap::new();
            others()
                .for_each(|(_, tracked)| *totals.entry(tracked.by).or_default() += tracked.bytes());
            let with_it = totals
                .get(&by)
                .copied()
                .unwrap_or_default()
                .saturating_add(bytes);
            let most = totals
                .into_iter()
                .max_by_key(|(other, total)| (*total, *other));
            let most = most
                .filter(|(_, total)| is_pinned || *total > with_it)
                .map(|(other, _)| other);
            let goes = |tracked: &Tracked| match most {
                Some(account) => tracked.by == account,
                None => tracked.by == by && tracked.bytes() > bytes,
            };
            let is_idle = |tracked: &Tracked| tracked.is_idle(now, self.config.interest);
            let others = others().filter(|(_, tracked)| is_idle(tracked) || goes(tracked));
            let first = others.max_by_key(|(_, tracked)| (is_idle(tracked), tracked.bytes()));
            let Some(other) = first.map(|(other, _)| other.clone()) else {
                return false;
            };
            self.let_go(&other);
        }
        true
    }

    /// Whether to follow a playlist, and if so, which one of the same path has to make room.
    fn makes_room(
        &self,
        path: &ObjectPath,
        now: Instant,
    ) -> Result<Option<ObjectPath>, NotFollowed> {
        if self.playlists.contains_key(path) {
            return Ok(None);
        }
        let same_path = self
            .playlists
            .iter()
            .filter(|(other, _)| other.path() == path.path());
        let same_path: Vec<(&ObjectPath, &Tracked)> = same_path.collect();
        if same_path.len() < self.config.queries_max.max(1) {
            return Ok(None);
        }
        let goes = |(other, tracked): &&(&ObjectPath, &Tracked)| {
            let is_odd = path.query().is_none() && other.query().is_some();
            !tracked.pinned && (is_odd || tracked.is_idle(now, self.config.interest))
        };
        let other = same_path
            .iter()
            .filter(goes)
            .min_by_key(|(_, tracked)| tracked.asked);
        other
            .map(|(other, _)| Some((*other).clone()))
            .ok_or(NotFollowed)
    }

    /// Follows a playlist without requests.
    fn pinned_at(&mut self, path: &ObjectPath, now: Instant) -> &mut Tracked {
        let tracked = self.track(path, None, now);
        tracked.pinned = true;
        tracked
    }

    /// Stops following a playlist.
    fn let_go(&mut self, path: &ObjectPath) -> Option<Tracked> {
        let tracked = self.playlists.remove(path)?;
        self.bytes -= tracked.bytes();
        Some(tracked)
    }

    fn listings(&self) -> impl Iterator<Item = &Arc<Listing>> {
        self.playlists
            .values()
            .filter_map(|tracked| tracked.listing.as_ref())
    }

    fn track(&mut self, path: &ObjectPath, by: Option<u128>, now: Instant) -> &mut Tracked {
        if !self.playlists.contains_key(path)
            && let Some(other) = self.over(by, now)
        {
            self.let_go(&other);
        }
        self.playlists
            .entry(path.clone())
            .or_insert_with(|| Tracked::new(by, now))
    }

    /// The playlist to drop if account `by` follows one more, if necessary: of an account's, the
    /// one with the oldest request.
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
        let most = counts
            .into_iter()
            .max_by_key(|(account, count)| (*count, *account != by, *account))?
            .0;
        let account = if is_own { by } else { most };
        let is_idle = |tracked: &Tracked| !is_own && tracked.is_idle(now, self.config.interest);
        let others = others().filter(|(_, tracked)| tracked.by == account || is_idle(tracked));
        others
            .min_by_key(|(_, tracked)| (!is_idle(tracked), tracked.asked))
            .map(|(other, _)| other.clone())
    }
}

/// The playlist is not followed, because others of its path are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NotFollowed;

/// The data needed to read the text of a playlist.
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

/// The content of a playlist.
#[derive(Debug)]
pub struct Reading {
    reader: Reader,
    found: What,
}

#[derive(Debug)]
enum What {
    /// Nothing to plan with.
    Nothing,
    /// The same as before.
    Same,
    /// The playlists that a master playlist lists.
    Master(Vec<ObjectPath>),
    /// The listing of a media playlist, its plan, and whether it differs from the last.
    Media {
        listing: Arc<Listing>,
        plan: Plan,
        is_other: bool,
    },
}

/// A playlist that is no longer followed.
#[derive(Debug)]
pub struct Forgotten {
    listing: Option<Arc<Listing>>,
    others: Vec<Arc<Listing>>,
}

impl Forgotten {
    /// The number of segments it listed.
    pub fn len(&self) -> usize {
        self.listing
            .as_ref()
            .map_or(0, |listing| listing.segments.len())
    }

    /// Whether it listed none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The plan: cuts that no other playlist lists may go.
    pub fn plan(&self) -> Plan {
        let listed = |cut: &Cut| self.others.iter().any(|other| other.cuts.contains(cut));
        let left = self
            .listing
            .iter()
            .flat_map(|listing| listing.in_order())
            .filter(|cut| !listed(cut))
            .collect();
        Plan {
            left,
            ..Plan::default()
        }
    }
}

impl Reader {
    /// Parses the text of the playlist, and compares it with the last. May take long for a long
    /// playlist.
    pub fn read(self, text: &[u8]) -> Result<Reading, Error> {
        let found = self.look(text)?;
        Ok(Reading {
            reader: self,
            found,
        })
    }

    fn look(&self, text: &[u8]) -> Result<What, Error> {
        if is_partial(&self.path, text) {
            return Ok(What::Nothing);
        }
        let hash = *blake3::hash(text).as_bytes();
        if self
            .before
            .as_ref()
            .is_some_and(|before| before.hash == hash)
        {
            return Ok(What::Same);
        }
        let lines = Lines::read(text)?;
        if !self.is_followed {
            return Ok(What::Nothing);
        }
        // Checked before memory is allocated.
        if as_bytes(lines.uris, Listing::SEGMENT_BYTES) > self.config.bytes_max {
            return Err(Error::TooLong);
        }
        match m3u8_rs::parse_playlist_res(lines.text.as_bytes()) {
            Ok(Playlist::MasterPlaylist(master)) => {
                let named = |variant: &&m3u8_rs::VariantStream| {
                    !variant.is_i_frame && !variant.uri.is_empty()
                };
                if master.variants.iter().filter(named).count() != lines.uris {
                    return Err(Error::Unreadable);
                }
                Ok(What::Master(self.variants(&master)))
            }
            Ok(Playlist::MediaPlaylist(media)) if media.segments.len() == lines.uris => {
                let listing = self.listing(&media, hash)?;
                let plan = self.plan(&listing);
                let is_other = self
                    .before
                    .as_ref()
                    .is_none_or(|before| !before.is_same(&listing));
                Ok(What::Media {
                    listing: Arc::new(listing),
                    plan,
                    is_other,
                })
            }
            Ok(Playlist::MediaPlaylist(_)) | Err(_) => Err(Error::Unreadable),
        }
    }

    fn variants(&self, master: &MasterPlaylist) -> Vec<ObjectPath> {
        let uris = master
            .variants
            .iter()
            .filter(|variant| !variant.is_i_frame)
            .map(|variant| Some(&variant.uri));
        let uris = uris
            .chain(
                master
                    .alternatives
                    .iter()
                    .map(|alternative| alternative.uri.as_ref()),
            )
            .flatten();
        uris.filter_map(|uri| self.locate(uri))
            .take(PLAYLISTS_MAX / 2)
            .collect()
    }

    fn listing(&self, media: &MediaPlaylist, hash: [u8; 32]) -> Result<Listing, Error> {
        let segments = self.segments(media)?;
        let live = !media.end_list && media.playlist_type != Some(MediaPlaylistType::Vod);
        let edge_from = if live {
            segments.len().saturating_sub(self.config.prefetch)
        } else {
            segments.len()
        };
        let all = |segments: &[Segment]| {
            segments
                .iter()
                .flat_map(Segment::cuts)
                .cloned()
                .collect::<HashSet<Cut>>()
        };
        let (cuts, edge) = (all(&segments), all(&segments[edge_from..]));
        let mut ranges: HashMap<ObjectPath, Ranges> = HashMap::new();
        for Cut { path, range } in segments.iter().flat_map(Segment::cuts) {
            if let Some(range) = range {
                ranges
                    .entry(path.clone())
                    .or_default()
                    .insert(range.start, range.end);
            }
        }
        let parents = segments
            .iter()
            .filter_map(|segment| segment.cut.as_ref())
            .map(|cut| cut.path.parent().to_owned())
            .collect();
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

    /// The plan for a listing after the last one.
    fn plan(&self, listing: &Listing) -> Plan {
        let before = self.before.as_deref();
        let step = before.map_or(Step::Forward, |before| before.step(listing));
        if step == Step::Lagging {
            return Plan {
                step,
                ..Plan::default()
            };
        }
        let is_known = |cut: &Cut| match before.filter(|_| step == Step::Forward) {
            // A cut that was prefetched once, and is still listed, is not new again when the window
            // grows backwards.
            Some(before) => before.edge.contains(cut) || (before.live && before.cuts.contains(cut)),
            None => false,
        };
        let mut seen = HashSet::new();
        let edge = listing.segments[listing.edge_from..]
            .iter()
            .flat_map(Segment::cuts);
        let prefetch = edge
            .filter(|cut| seen.insert(*cut) && !is_known(cut))
            .cloned()
            .collect();
        if step == Step::Restarted {
            return Plan {
                step,
                prefetch,
                left: Vec::new(),
                dropped: before.map(Listing::in_order).unwrap_or_default(),
            };
        }
        let is_listed = |cut: &Cut| {
            listing.cuts.contains(cut) || self.others.iter().any(|other| other.cuts.contains(cut))
        };
        let left = before.map(|before| {
            before
                .in_order()
                .into_iter()
                .filter(|cut| !is_listed(cut))
                .collect()
        });
        Plan {
            step,
            prefetch,
            left: left.unwrap_or_default(),
            dropped: Vec::new(),
        }
    }

    /// The segments of a playlist as cuts, with implicit offsets computed.
    fn segments(&self, media: &MediaPlaylist) -> Result<Vec<Segment>, Error> {
        let mut segments = Vec::with_capacity(media.segments.len());
        let mut map = None;
        let mut previous: Option<(&str, u64)> = None;
        for segment in &media.segments {
            if let Some(here) = &segment.map {
                let range = here
                    .byte_range
                    .as_ref()
                    .map(|range| absolute(range, 0))
                    .transpose()?;
                map = self.locate(&here.uri).map(|path| Cut { path, range });
            }
            let range = match &segment.byte_range {
                Some(range) => {
                    let implied = previous
                        .take()
                        .filter(|(uri, _)| *uri == segment.uri)
                        .map_or(0, |(_, end)| end);
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
            let cut = if gap {
                None
            } else {
                self.locate(&segment.uri).map(|path| Cut { path, range })
            };
            segments.push(Segment {
                map: map.clone().filter(|_| cut.is_some()),
                cut,
            });
        }
        Ok(segments)
    }

    /// The stream's object for a URI in the playlist, if there is one.
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

/// Bytes of an object to be read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRange {
    /// The range; the object may end before it, unless it is listed.
    pub range: Range<u64>,
    /// Whether a playlist lists them, so that they are complete even if the object still grows.
    pub listed: bool,
}

/// Rewrites every absolute URI that leads into the stream to one below `/name/`, so that players
/// ask the gateway and not the origin; `None` if there is none.
pub fn localise(text: &[u8], playlist: &ObjectPath, base: &Url, name: &str) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let playlist = playlist.to_url(base)?;
    let local = |uri: &str| {
        let is_absolute = uri.starts_with('/') || Url::parse(uri).is_ok();
        let path = if is_absolute {
            inside(base, &playlist.join(uri).ok()?)
        } else {
            None
        };
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

/// The state of one playlist.
#[derive(Debug)]
struct Tracked {
    pinned: bool,
    /// The account that requested it first.
    by: Option<u128>,
    target: Duration,
    /// Its listing; `None` before the first media playlist.
    listing: Option<Arc<Listing>>,
    changed: Instant,
    asked: Instant,
    next: Option<Instant>,
}

/// The listing of a media playlist. It is immutable.
#[derive(Debug)]
struct Listing {
    /// The hash of its text.
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
    /// The approximate size of all this.
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    map: Option<Cut>,
    /// `None` if it is outside of the stream.
    cut: Option<Cut>,
}

/// The ends of ranges by their starts.
type Ranges = BTreeMap<u64, u64>;

impl Segment {
    /// The cuts it needs, in order.
    fn cuts(&self) -> impl Iterator<Item = &Cut> {
        self.map.iter().chain(&self.cut)
    }
}

impl Listing {
    /// The size of a segment apart from its object's name: here, in the set, as a range, and the
    /// overhead of allocators and tables.
    const SEGMENT_BYTES: usize = size_of::<Segment>() + 2 * size_of::<Cut>() + 128;

    /// Every cut once.
    fn in_order(&self) -> Vec<Cut> {
        let mut seen = HashSet::new();
        self.segments
            .iter()
            .flat_map(Segment::cuts)
            .filter(|cut| seen.insert(*cut))
            .cloned()
            .collect()
    }

    /// Whether two listings are equal.
    fn is_same(&self, other: &Self) -> bool {
        (self.sequence, self.live) == (other.sequence, other.live)
            && self.segments == other.segments
    }

    /// The relation of `next` to this earlier listing.
    fn step(&self, next: &Self) -> Step {
        if self.segments.is_empty() {
            return Step::Forward;
        }
        let end = |first: u64, count: usize| {
            first.saturating_add(u64::try_from(count).unwrap_or(u64::MAX))
        };
        fn at(listing: &Listing, number: u64) -> Option<&Segment> {
            listing
                .segments
                .get(usize::try_from(number.checked_sub(listing.sequence)?).ok()?)
        }
        let (ended, ends) = (
            end(self.sequence, self.segments.len()),
            end(next.sequence, next.segments.len()),
        );
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
        Self {
            pinned: false,
            by,
            target: RELOAD_MIN,
            listing: None,
            changed: now,
            asked: now,
            next: None,
        }
    }

    fn followed(&self) -> Followed {
        Followed {
            is_pinned: self.pinned,
            by: self.by,
        }
    }

    fn is_live(&self) -> bool {
        self.listing.as_ref().is_some_and(|listing| listing.live)
    }

    /// Whether it has not been requested lately.
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

    /// RFC 8216, section 6.3.4, lets clients look once per target duration, or after half of one if
    /// nothing was new. The edge is prefetched before clients ask, so the shorter interval applies.
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

/// A playlist reduced to the lines that the parser needs.
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
                    // A title may contain anything, including commas, after which the parser would
                    // see the next line.
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

/// Whether the text is a delta update (`EXT-X-SKIP`) or a blocking reload, neither of which tells
/// the window.
fn is_partial(path: &ObjectPath, text: &[u8]) -> bool {
    let skip = b"\n#EXT-X-SKIP:";
    path.query().is_some_and(|query| query.contains("_HLS_"))
        || text.windows(skip.len()).any(|window| window == skip)
}

fn absolute(range: &ByteRange, implied: u64) -> Result<Range<u64>, Error> {
    let start = range.offset.unwrap_or(implied);
    let end = start
        .checked_add(range.length)
        .filter(|end| *end < 1 << 62)
        .ok_or(Error::Unreadable)?;
    if range.length == 0 {
        Err(Error::Unreadable)
    } else {
        Ok(start..end)
    }
}

fn as_bytes(count: usize, each: usize) -> u64 {
    u64::try_from(count.saturating_mul(each)).unwrap_or(u64::MAX)
}

/// The stream's object for a URL at its origin, if there is one.
fn inside(base: &Url, url: &Url) -> Option<ObjectPath> {
    let same = (base.scheme(), base.host_str(), base.port_or_known_default())
        == (url.scheme(), url.host_str(), url.port_or_known_default());
    let path = if same {
        url.path().strip_prefix(base.path())?
    } else {
        return None;
    };
    let text = url
        .query()
        .map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    ObjectPath::parse(&text).ok()
}

const PLAYLISTS_MAX: usize = 256;
/// Playlists, not pinned, that are followed for one account.
const PLAYLISTS_OF_ONE_MAX: usize = PLAYLISTS_MAX / 4;
const RELOAD_MIN: Duration = Duration::from_millis(250);
const RELOAD_MAX: Duration = Duration::from_secs(30);
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The tags needed for planning; `EXT-X-MEDIA` includes the media sequence number.
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
