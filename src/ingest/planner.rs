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
//! An origin may answer a path whatever its query says, and a peer may ask with any query. So of the queries of a path few are
//! followed at once ([`Config::queries_max`]); the others are answered like any file, and nothing is planned by them. A playlist
//! that is configured or asked for without a query goes before those that are asked for with one, and those that nobody has
//! asked for lately make room.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
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
}

/// The playlists of a stream.
#[derive(Debug)]
pub struct Planner {
    config: Config,
    base: Option<Url>,
    playlists: HashMap<ObjectPath, Tracked>,
    pinned: HashSet<ObjectPath>,
    ranges: HashMap<ObjectPath, Ranges>,
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
pub enum Error {
    /// Does not begin with `#EXTM3U`.
    #[error("the text is no playlist")]
    NoPlaylist,
    /// The parser stopped before the end, or a number is impossible.
    #[error("the playlist cannot be read to its end")]
    Unreadable,
    /// More segments than eleven days of four seconds each.
    #[error("the playlist lists too many segments")]
    TooLong,
}

impl Planner {
    /// A planner without playlists. `base` is the URL of the stream's top, where it has one.
    pub fn new(config: Config, base: Option<Url>) -> Self {
        Self { config, base, playlists: HashMap::new(), pinned: HashSet::new(), ranges: HashMap::new() }
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

    /// Takes the text of a playlist.
    pub fn update(&mut self, path: &ObjectPath, text: &[u8], now: Instant) -> Result<Plan, Error> {
        if is_partial(path, text) {
            return Ok(Plan::default());
        }
        let lines = Lines::read(text)?;
        if !self.is_followed(path, now) {
            return Ok(Plan::default());
        }
        match m3u8_rs::parse_playlist_res(lines.text.as_bytes()) {
            Ok(Playlist::MasterPlaylist(master)) => {
                let named = |variant: &&m3u8_rs::VariantStream| !variant.is_i_frame && !variant.uri.is_empty();
                if master.variants.iter().filter(named).count() != lines.uris {
                    return Err(Error::Unreadable);
                }
                self.update_master(path, &master, now);
                Ok(Plan::default())
            }
            Ok(Playlist::MediaPlaylist(media)) if media.segments.len() == lines.uris => self.update_media(path, media, now),
            Ok(Playlist::MediaPlaylist(_)) | Err(_) => Err(Error::Unreadable),
        }
    }

    /// Notes that a playlist was looked at and is the same.
    pub fn unchanged(&mut self, path: &ObjectPath, now: Instant) {
        if let Some(tracked) = self.playlists.get_mut(path) {
            tracked.looked(now);
        }
    }

    /// Forgets a playlist that is gone.
    pub fn forget(&mut self, path: &ObjectPath, now: Instant) -> Plan {
        let Some(tracked) = self.playlists.remove(path) else { return Plan::default() };
        if tracked.pinned {
            let kept = self.pinned_at(path, now);
            kept.next = Some(now + RELOAD_MAX);
        }
        Plan { left: self.replace_cuts(&tracked.cuts, &[]), ..Plan::default() }
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
        let tracked = self.playlists.get(path).filter(|tracked| tracked.live)?;
        let still = now.saturating_duration_since(tracked.changed);
        (still > self.config.stale_after.max(tracked.target * 3)).then_some(still)
    }

    /// How often a playlist changes, as far as it says.
    pub fn target_duration(&self, path: &ObjectPath) -> Option<Duration> {
        self.playlists.get(path).map(|tracked| tracked.target)
    }

    /// Whether segments of this directory are announced by a live playlist rather than by themselves.
    pub fn governs(&self, parent: &str) -> bool {
        self.playlists.values().any(|tracked| tracked.live && tracked.parents.contains(parent))
    }

    /// Whether a live playlist lists this cut near its end.
    pub fn is_edge(&self, cut: &Cut) -> bool {
        self.playlists.values().any(|tracked| tracked.live && tracked.edge.contains(cut))
    }

    /// The bytes to read for `offset` of an object: the range that a playlist lists there, or the part between such ranges, in
    /// steps of `part_bytes_max`.
    pub fn part(&self, path: &ObjectPath, offset: u64, part_bytes_max: u64) -> Part {
        let step = part_bytes_max.max(1);
        let Some(ranges) = self.ranges.get(path).filter(|ranges| !ranges.is_empty()) else {
            let start = offset / step * step;
            return Part { range: start..start.saturating_add(step), listed: false };
        };
        let before = ranges.range(..=offset).next_back().map(|(start, (end, _))| *start..*end);
        let next = ranges.range(offset.saturating_add(1)..).next().map_or(u64::MAX, |(start, _)| *start);
        let (whole, listed) = match before {
            Some(range) if range.end > offset => (range, true),
            Some(range) => (range.end..next, false),
            None => (0..next, false),
        };
        let start = whole.start + (offset - whole.start) / step * step;
        Part { range: start..start.saturating_add(step).min(whole.end), listed }
    }

    fn update_master(&mut self, path: &ObjectPath, master: &MasterPlaylist, now: Instant) {
        let pinned = self.pinned.contains(path);
        let uris = master.variants.iter().filter(|variant| !variant.is_i_frame).map(|variant| Some(&variant.uri));
        let uris = uris.chain(master.alternatives.iter().map(|alternative| alternative.uri.as_ref())).flatten();
        let variants: Vec<ObjectPath> = uris.filter_map(|uri| self.locate(path, uri)).take(PLAYLISTS_MAX / 2).collect();
        let tracked = self.track(path, now);
        tracked.live = false;
        tracked.next = pinned.then(|| now + RELOAD_MAX);
        if !pinned {
            return;
        }
        for variant in variants {
            if !self.playlists.get(&variant).is_some_and(|known| known.pinned) {
                self.pinned_at(&variant, now).next.get_or_insert(now);
            }
        }
    }

    fn update_media(&mut self, path: &ObjectPath, media: MediaPlaylist, now: Instant) -> Result<Plan, Error> {
        if media.segments.len() > SEGMENTS_MAX {
            return Err(Error::TooLong);
        }
        let live = !media.end_list && media.playlist_type != Some(MediaPlaylistType::Vod);
        let listed = self.list(path, &media)?;
        let depth = self.config.prefetch;
        self.track(path, now);
        let tracked = self.playlists.get_mut(path).expect("it was tracked a line ago");
        let step = tracked.step(media.media_sequence, &listed);
        tracked.looked(now);
        if step == Step::Lagging {
            return Ok(Plan { step, ..Plan::default() });
        }
        let target = Duration::from_secs(media.target_duration).clamp(RELOAD_MIN, RELOAD_MAX);
        let edge_from = if live { listed.len().saturating_sub(depth) } else { listed.len() };
        let mut prefetch = Vec::new();
        let mut edge = HashSet::new();
        for segment in &listed[edge_from..] {
            for cut in segment.map.iter().chain(&segment.cut) {
                if edge.insert(cut.clone()) && (step == Step::Restarted || !tracked.edge.contains(cut)) {
                    prefetch.push(cut.clone());
                }
            }
        }
        // What was fetched ahead once, and is still listed, is not new again when the window grows backwards.
        if step == Step::Forward && tracked.sequence.is_some() {
            let known: HashSet<&Cut> = tracked.cuts.iter().collect();
            prefetch.retain(|cut| !known.contains(cut) || !tracked.live);
        }
        if tracked.sequence != Some(media.media_sequence) || tracked.segments != listed || tracked.live != live {
            tracked.changed = now;
        }
        tracked.parents =
            listed.iter().filter_map(|segment| segment.cut.as_ref()).map(|cut| cut.path.parent().to_owned()).collect();
        let mut seen = HashSet::new();
        let cuts: Vec<Cut> = listed
            .iter()
            .flat_map(|segment| segment.map.iter().chain(&segment.cut))
            .filter(|cut| seen.insert(*cut))
            .cloned()
            .collect();
        tracked.sequence = Some(media.media_sequence);
        tracked.segments = listed;
        tracked.edge = edge;
        tracked.target = target;
        tracked.live = live;
        tracked.next = live.then(|| now + tracked.reload());
        let old = std::mem::replace(&mut tracked.cuts, cuts.clone());
        let gone = self.replace_cuts(&old, &cuts);
        Ok(match step {
            Step::Restarted => Plan { step, prefetch, left: Vec::new(), dropped: old },
            Step::Forward | Step::Lagging => Plan { step, prefetch, left: gone, dropped: Vec::new() },
        })
    }

    /// The segments of a playlist as cuts, with implicit offsets worked out.
    fn list(&self, path: &ObjectPath, media: &MediaPlaylist) -> Result<Vec<Segment>, Error> {
        let mut segments = Vec::with_capacity(media.segments.len());
        let mut map = None;
        let mut previous: Option<(String, u64)> = None;
        for segment in &media.segments {
            if let Some(here) = &segment.map {
                let range = here.byte_range.as_ref().map(|range| absolute(range, 0)).transpose()?;
                map = self.locate(path, &here.uri).map(|path| Cut { path, range });
            }
            let range = match &segment.byte_range {
                Some(range) => {
                    let implied = previous.take().filter(|(uri, _)| *uri == segment.uri).map_or(0, |(_, end)| end);
                    let range = absolute(range, implied)?;
                    previous = Some((segment.uri.clone(), range.end));
                    Some(range)
                }
                None => {
                    previous = None;
                    None
                }
            };
            let gap = segment.unknown_tags.iter().any(|tag| tag.tag == "X-GAP");
            let cut = if gap { None } else { self.locate(path, &segment.uri).map(|path| Cut { path, range }) };
            segments.push(Segment { map: map.clone().filter(|_| cut.is_some()), cut });
        }
        Ok(segments)
    }

    /// The object of the stream that a URI in a playlist means, if it means one.
    fn locate(&self, playlist: &ObjectPath, uri: &str) -> Option<ObjectPath> {
        let stand_in = Url::parse("http://stream.invalid/").expect("a constant");
        let base = self.base.as_ref().unwrap_or(&stand_in);
        let is_absolute = uri.starts_with('/') || uri.starts_with('\\') || Url::parse(uri).is_ok();
        if self.base.is_none() && is_absolute {
            return None;
        }
        let object = inside(base, &playlist.to_url(base)?.join(uri).ok()?)?;
        Some(object.with_parameters(&self.config.parameters))
    }

    /// Whether a playlist is one to follow. Of those with the same path others make room for it, where it goes before them.
    fn is_followed(&mut self, path: &ObjectPath, now: Instant) -> bool {
        if self.playlists.contains_key(path) {
            return true;
        }
        let same_path = self.playlists.iter().filter(|(other, _)| other.path() == path.path());
        let same_path: Vec<(&ObjectPath, &Tracked)> = same_path.collect();
        if same_path.len() < self.config.queries_max.max(1) {
            return true;
        }
        let idle = |tracked: &Tracked| now.saturating_duration_since(tracked.asked) > self.config.interest;
        let makes_room = |(other, tracked): &&(&ObjectPath, &Tracked)| {
            !tracked.pinned && (idle(tracked) || (path.query().is_none() && other.query().is_some()))
        };
        let Some((other, _)) = same_path.iter().filter(makes_room).min_by_key(|(_, tracked)| tracked.asked) else { return false };
        let other = (*other).clone();
        self.let_go(&other);
        true
    }

    /// Follows a playlist whether anybody asks for it or not.
    fn pinned_at(&mut self, path: &ObjectPath, now: Instant) -> &mut Tracked {
        let tracked = self.track(path, now);
        tracked.pinned = true;
        tracked
    }

    /// Follows a playlist no more.
    fn let_go(&mut self, path: &ObjectPath) {
        if let Some(tracked) = self.playlists.remove(path) {
            self.replace_cuts(&tracked.cuts, &[]);
        }
    }

    fn track(&mut self, path: &ObjectPath, now: Instant) -> &mut Tracked {
        if self.playlists.len() >= PLAYLISTS_MAX && !self.playlists.contains_key(path) {
            let idle = self.playlists.iter().filter(|(_, tracked)| !tracked.pinned).min_by_key(|(_, tracked)| tracked.asked);
            if let Some(path) = idle.map(|(path, _)| path.clone()) {
                self.let_go(&path);
            }
        }
        self.playlists.entry(path.clone()).or_insert_with(|| Tracked::new(now))
    }

    /// Moves the ranges of one playlist from its old list to its new one. Returns what no playlist lists any more.
    fn replace_cuts(&mut self, old: &[Cut], new: &[Cut]) -> Vec<Cut> {
        for Cut { path, range } in new {
            if let Some(range) = range {
                let (end, users) = self.ranges.entry(path.clone()).or_default().entry(range.start).or_insert((range.end, 0));
                *end = range.end;
                *users += 1;
            }
        }
        for Cut { path, range } in old {
            let Some((range, ranges)) = range.as_ref().zip(self.ranges.get_mut(path)) else { continue };
            if let Some((_, users)) = ranges.get_mut(&range.start) {
                *users -= 1;
                if *users == 0 {
                    ranges.remove(&range.start);
                }
            }
            if ranges.is_empty() {
                self.ranges.remove(path);
            }
        }
        let gone: HashSet<&Cut> = old.iter().collect::<HashSet<_>>().difference(&new.iter().collect()).copied().collect();
        if gone.is_empty() {
            return Vec::new();
        }
        let listed: HashSet<&Cut> = self.playlists.values().flat_map(|tracked| &tracked.cuts).collect();
        old.iter().filter(|cut| gone.contains(cut) && !listed.contains(cut)).cloned().collect()
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
    live: bool,
    target: Duration,
    /// Media sequence number of the first segment; `None` before the first media playlist.
    sequence: Option<u64>,
    segments: Vec<Segment>,
    cuts: Vec<Cut>,
    edge: HashSet<Cut>,
    parents: HashSet<String>,
    changed: Instant,
    asked: Instant,
    next: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    map: Option<Cut>,
    /// `None` where it lies outside the stream.
    cut: Option<Cut>,
}

type Ranges = BTreeMap<u64, (u64, u32)>;

impl Tracked {
    fn new(now: Instant) -> Self {
        Self {
            pinned: false,
            live: false,
            target: RELOAD_MIN,
            sequence: None,
            segments: Vec::new(),
            cuts: Vec::new(),
            edge: HashSet::new(),
            parents: HashSet::new(),
            changed: now,
            asked: now,
            next: None,
        }
    }

    /// RFC 8216 section 6.3.4 lets clients look once a target duration, and after half of one when nothing was new. The edge is
    /// fetched ahead of clients, so the shorter one it is.
    fn reload(&self) -> Duration {
        (self.target / 2).clamp(RELOAD_MIN, RELOAD_MAX)
    }

    fn wanted(&mut self, now: Instant) {
        self.asked = now;
        if self.next.is_none() && self.live {
            self.next = Some(now + self.reload());
        }
    }

    fn looked(&mut self, now: Instant) {
        if self.live {
            self.next = Some(now + self.reload());
        } else if self.next.is_some() {
            self.next = Some(now + RELOAD_MAX);
        }
    }

    fn step(&self, sequence: u64, listed: &[Segment]) -> Step {
        let Some(before) = self.sequence.filter(|_| !self.segments.is_empty()) else { return Step::Forward };
        let end = |first: u64, count: usize| first.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        let at = |number: u64, first: u64, list: &[Segment]| {
            number.checked_sub(first).and_then(|at| list.get(usize::try_from(at).ok()?)).cloned()
        };
        let (from, to) = (before.max(sequence), end(before, self.segments.len()).min(end(sequence, listed.len())));
        let agrees = (from..to).all(|number| at(number, before, &self.segments) == at(number, sequence, listed));
        let (ends, ended) = (end(sequence, listed.len()), end(before, self.segments.len()));
        let forward = ends > ended || (ends == ended && sequence >= before);
        match (agrees, forward, from < to) {
            (false, ..) => Step::Restarted,
            (true, true, _) => Step::Forward,
            (true, false, true) => Step::Lagging,
            (true, false, false) => Step::Restarted,
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

/// The object of the stream that a URL at its origin is, if it is one.
fn inside(base: &Url, url: &Url) -> Option<ObjectPath> {
    let same = (base.scheme(), base.host_str(), base.port_or_known_default())
        == (url.scheme(), url.host_str(), url.port_or_known_default());
    let path = if same { url.path().strip_prefix(base.path())? } else { return None };
    let text = url.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    ObjectPath::parse(&text).ok()
}

const SEGMENTS_MAX: usize = 250_000;
const PLAYLISTS_MAX: usize = 256;
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
