//! Decides what to fetch before the player requests it. No I/O: the gateway reports playlists and
//! requests, and prefetches what this returns.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use ncs_proto::wire::message::stream_of;

use crate::playlist::{Media, Upcoming, resolve};

/// A file or a part of one, by its path at the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) range: Option<Range<u64>>,
}

/// The media playlists in use, the most recently read at the back.
#[derive(Debug)]
pub(super) struct Ahead {
    depth: usize,
    playlists: VecDeque<Known>,
    /// The objects that players will request next, and since when, the newest at the back.
    next: VecDeque<(Wanted, Instant)>,
}

#[derive(Debug)]
struct Known {
    path: String,
    ended: bool,
    read_at: Instant,
    order: Vec<Wanted>,
    /// The first place of each segment: a playlist may repeat one, such as an advertisement.
    places: HashMap<Wanted, usize>,
    /// The place of the last requested segment.
    last: Option<usize>,
    /// Segments returned already, so that nothing is fetched twice; forgotten when they leave the
    /// window.
    answered: HashSet<Wanted>,
    /// Whether it is the manifest of a recording, whose segments may be numbered.
    is_numbered: bool,
    /// Names, without their numbers, that have no next segment.
    last_of: HashSet<String>,
}

impl Ahead {
    /// Prefetches up to `depth` segments.
    pub(super) fn new(depth: usize) -> Self {
        Self {
            depth,
            playlists: VecDeque::new(),
            next: VecDeque::new(),
        }
    }

    /// Learns a media playlist. Returns the segments with which a new player will start, and their
    /// initialisation; for a recording only one segment, because the player may choose another
    /// rendition after it. For a playlist read before, returns what is new at the live edge.
    pub(super) fn learn(&mut self, path: &str, media: &Media, now: Instant) -> Vec<Wanted> {
        let all = |list: &[Upcoming]| {
            list.iter()
                .filter_map(|upcoming| wanted(path, upcoming))
                .collect::<Vec<_>>()
        };
        let order = all(&media.segments);
        let mut places = HashMap::with_capacity(order.len());
        order
            .iter()
            .cloned()
            .zip(0..)
            .for_each(|(wanted, place)| _ = places.entry(wanted).or_insert(place));
        let known = self.forget(path);
        let (last, mut answered) = known
            .map(|known| (known.last, known.answered))
            .unwrap_or_default();
        answered.retain(|wanted| HashMap::contains_key(&places, wanted));
        let first_seen = answered.is_empty();
        let start = if media.ended {
            self.next_of_sibling(path, order.len())
        } else {
            order.len().saturating_sub(self.depth)
        };
        let mut answer = if first_seen {
            all(&media.maps)
        } else {
            Vec::new()
        };
        let known = Known {
            path: path.to_owned(),
            ended: media.ended,
            read_at: now,
            order,
            places,
            last,
            answered,
            is_numbered: false,
            last_of: HashSet::new(),
        };
        self.keep(known);
        // A recording read again, by a second player or after a seek, may start anywhere; its
        // requests will tell.
        if first_seen || !media.ended {
            answer.extend(
                self.playlists
                    .back_mut()
                    .into_iter()
                    .flat_map(|known| known.take(start, known.depth_at_once(self.depth))),
            );
        }
        answer
    }

    /// Learns a DASH manifest, which does not list its segments. Returns whether it is new.
    pub(super) fn learn_manifest(&mut self, path: &str, is_live: bool, now: Instant) -> bool {
        let known = self.forget(path);
        let is_new = known.is_none();
        let last_of = known.map(|known| known.last_of).unwrap_or_default();
        let (order, places, answered) = (Vec::new(), HashMap::new(), HashSet::new());
        let path = path.to_owned();
        self.keep(Known {
            path,
            ended: !is_live,
            read_at: now,
            order,
            places,
            last: None,
            answered,
            is_numbered: !is_live,
            last_of,
        });
        is_new
    }

    /// The next file after a requested one, if the manifest of a recording was read, whose segments
    /// may be numbered. Only one segment, because the player may change the rendition.
    pub(super) fn next_number(&self, path: &str) -> Option<String> {
        let (stream, stem) = (stream_of(path), stem(path));
        let mut of_stream = self
            .playlists
            .iter()
            .filter(|known| known.is_numbered && stream_of(&known.path) == stream);
        of_stream
            .any(|known| known.last_of.len() < LAST_OF_MAX && !known.last_of.contains(&stem))
            .then(|| incremented(path))?
    }

    /// A file that [`Ahead::next_number`] returned is missing: the recording is at its end, or the
    /// number has another meaning.
    pub(super) fn missed(&mut self, path: &str) {
        let stream = stream_of(path);
        let of_stream = self
            .playlists
            .iter_mut()
            .filter(|known| known.is_numbered && stream_of(&known.path) == stream);
        for known in of_stream.filter(|known| known.last_of.len() < LAST_OF_MAX) {
            known.last_of.insert(stem(path));
        }
    }

    /// The next file or range in a recording whose playlist was read.
    pub(super) fn next_listed(&self, asked: &Wanted) -> Option<Wanted> {
        let ended = self.playlists.iter().rev().filter(|known| known.ended);
        ended
            .filter_map(|known| known.order.get(known.place(asked)? + 1))
            .next()
            .cloned()
    }

    /// Notes the object that a player will request next. Of each rendition the newest counts.
    pub(super) fn note_next(&mut self, next: Wanted, now: Instant) {
        let of = unnumbered(&next.path);
        self.next.retain(|(other, _)| unnumbered(&other.path) != of);
        self.next.push_back((next, now));
        if self.next.len() > NEXT_MAX {
            self.next.pop_front();
        }
    }

    /// The objects that players will request next, each once, without those known to be missing: up
    /// to `depth` segments of a playlist, one of a manifest. Nothing if prefetching is off.
    pub(super) fn take_next(&mut self, now: Instant) -> Vec<Wanted> {
        let (depth, next) = (self.depth, std::mem::take(&mut self.next).into_iter());
        // A player that has not gone on for longer plays another rendition now.
        let new =
            next.filter(|(_, since)| depth > 0 && now.saturating_duration_since(*since) < NEXT_FOR);
        let mut taken = Vec::new();
        for (next, _) in new {
            let is_missing = self
                .playlists
                .iter()
                .any(|known| known.last_of.contains(&stem(&next.path)));
            let mut ended = self.playlists.iter_mut().rev().filter(|known| known.ended);
            match ended.find_map(|known| Some((known.place(&next)?, known))) {
                Some((place, known)) => taken.extend(known.take(place, depth)),
                None if is_missing => {}
                None => taken.push(next),
            }
        }
        taken
    }

    /// Handles a request. Returns what to fetch at once: of a recording the next segment; more
    /// follow when the player pauses ([`Ahead::take_next`]).
    pub(super) fn after(&mut self, asked: &Wanted) -> Vec<Wanted> {
        let depth = self.depth;
        let found = self
            .playlists
            .iter_mut()
            .rev()
            .find_map(|known| Some((known.place(asked)?, known)));
        found.map_or_else(Vec::new, |(place, known)| {
            known.answered.insert(asked.clone());
            known.last = Some(place);
            known.take(place + 1, known.depth_at_once(depth))
        })
    }

    /// Whether a live playlist of this stream was read lately.
    pub(super) fn plays_live(&self, stream: &str, now: Instant) -> bool {
        self.live(now).any(|known| stream_of(&known.path) == stream)
    }

    /// Whether a player will request an announced segment: the names in a recently read live
    /// playlist must match except for their numbers, so that other renditions are not fetched.
    pub(super) fn announced(&mut self, announced: &Wanted, now: Instant) -> bool {
        let alike = |known: &&mut Known| {
            known
                .order
                .last()
                .is_some_and(|last| stem(&last.path) == stem(&announced.path))
        };
        let live = self.playlists.iter_mut().filter(|known| known.is_live(now));
        live.rev()
            .find(alike)
            .is_some_and(|known| known.answered.insert(announced.clone()))
    }

    /// The position of a player in another rendition of this recording, with as many segments.
    fn next_of_sibling(&self, path: &str, segments: usize) -> usize {
        let alike = |known: &&Known| {
            known.ended
                && known.order.len() == segments
                && stream_of(&known.path) == stream_of(path)
        };
        self.playlists
            .iter()
            .rev()
            .filter(alike)
            .find_map(|known| known.last)
            .map_or(0, |last| last + 1)
    }

    fn live(&self, now: Instant) -> impl Iterator<Item = &Known> {
        self.playlists
            .iter()
            .filter(move |known| known.is_live(now))
    }

    fn keep(&mut self, known: Known) {
        self.playlists.push_back(known);
        if self.playlists.len() > PLAYLISTS_MAX {
            self.playlists.pop_front();
        }
    }

    fn forget(&mut self, path: &str) -> Option<Known> {
        let place = self.playlists.iter().position(|known| known.path == path)?;
        self.playlists.remove(place)
    }
}

impl Known {
    fn is_live(&self, now: Instant) -> bool {
        !self.ended && now.saturating_duration_since(self.read_at) < PLAYING_FOR
    }

    /// How many segments to prefetch although the player may choose another rendition: one of a
    /// recording.
    fn depth_at_once(&self, depth: usize) -> usize {
        if self.ended { depth.min(1) } else { depth }
    }

    /// The place of a segment. Of a repeated one, the place where the player is, or the next one;
    /// elsewhere the first.
    fn place(&self, wanted: &Wanted) -> Option<usize> {
        let first = *self.places.get(wanted)?;
        let Some(last) = self.last else {
            return Some(first);
        };
        Some(
            (last..=last + 1)
                .find(|place| self.order.get(*place) == Some(wanted))
                .unwrap_or(first),
        )
    }

    /// Segments from `start` on that were not returned before, each once.
    fn take(&mut self, start: usize, depth: usize) -> Vec<Wanted> {
        let coming = self.order.iter().skip(start).take(depth);
        coming
            .filter(|wanted| self.answered.insert((*wanted).clone()))
            .cloned()
            .collect()
    }
}

/// The object of a playlist's entry, relative to `base`; `None` if it leads elsewhere.
fn wanted(base: &str, upcoming: &Upcoming) -> Option<Wanted> {
    Some(Wanted {
        path: resolve(base, &upcoming.uri)?,
        range: upcoming.range.clone(),
    })
}

/// The position of the number in a path's file name: the last one before the last dot.
fn number(path: &str) -> Option<Range<usize>> {
    let name = path.rfind('/')? + 1;
    let end = path[name..].rfind('.').map_or(path.len(), |dot| name + dot);
    let end = path[..end].rfind(|character: char| character.is_ascii_digit())? + 1;
    let start = path[..end].rfind(|character: char| !character.is_ascii_digit())? + 1;
    (start >= name && !path.contains('?')).then_some(start..end)
}

/// The path with the next number. Leading zeros are kept.
fn incremented(path: &str) -> Option<String> {
    let at = number(path)?;
    let (next, width) = (
        path[at.clone()].parse::<u64>().ok()?.checked_add(1)?,
        at.len(),
    );
    Some(format!(
        "{}{next:0width$}{}",
        &path[..at.start],
        &path[at.end..]
    ))
}

/// A path without the number of its file name.
fn unnumbered(path: &str) -> (&str, &str) {
    number(path).map_or((path, ""), |at| (&path[..at.start], &path[at.end..]))
}

/// A path without digits, which a rendition's segments have in common.
fn stem(path: &str) -> String {
    path.chars()
        .filter(|character| !character.is_ascii_digit())
        .collect()
}

/// How long after its last read a live playlist counts as being played.
const PLAYING_FOR: Duration = Duration::from_secs(30);

/// Renditions whose next segments are remembered: audio, video and text of a few players.
const NEXT_MAX: usize = 8;
/// A player requests the next segment before this one has been played, and segments last a few
/// seconds.
const NEXT_FOR: Duration = Duration::from_secs(5);

/// With this many names without a next segment, the recording is numbered differently.
const LAST_OF_MAX: usize = 32;

/// Playlists remembered: a player switches between the renditions of a few streams.
const PLAYLISTS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn media(segments: Range<u32>, ended: bool) -> Media {
        let upcoming = |uri: String| Upcoming { uri, range: None };
        Media {
            maps: vec![upcoming("init.mp4".into())],
            segments: segments
                .map(|number| upcoming(format!("s{number}.m4s?t=1")))
                .collect(),
            ended,
            ..Media::default()
        }
    }

    fn paths(wanted: Vec<Wanted>) -> Vec<String> {
        wanted.into_iter().map(|wanted| wanted.path).collect()
    }

    fn segment(number: u32) -> Wanted {
        Wanted {
            path: format!("/live/a/s{number}.m4s?t=1"),
            range: None,
        }
    }

    #[test]
    fn a_recording_is_fetched_from_its_start_and_then_ahead_of_the_player() {
        let mut ahead = Ahead::new(2);
        let first = ahead.learn("/live/a/v.m3u8", &media(0..9, true), Instant::now());
        assert_eq!(paths(first), ["/live/a/init.mp4", "/live/a/s0.m4s?t=1"]);
        assert_eq!(ahead.after(&segment(0)), [segment(1)]);
        assert_eq!(ahead.next_listed(&segment(0)), Some(segment(1)));
        // The player's buffer is full.
        ahead.note_next(segment(1), Instant::now());
        assert_eq!(
            ahead.take_next(Instant::now()),
            [segment(2)],
            "the first is on its way"
        );
        assert_eq!(ahead.after(&segment(6)), [segment(7)]);
        ahead.note_next(segment(7), Instant::now());
        assert_eq!(ahead.take_next(Instant::now()), [segment(8)]);
        assert_eq!(
            (ahead.after(&segment(8)), ahead.next_listed(&segment(8))),
            (vec![], None)
        );
        assert_eq!(
            ahead.learn("/live/a/v.m3u8", &media(0..9, true), Instant::now()),
            []
        );
    }

    #[test]
    fn another_rendition_of_a_recording_is_fetched_from_where_the_player_is() {
        let mut ahead = Ahead::new(2);
        ahead.learn("/live/a/v.m3u8", &media(0..9, true), Instant::now());
        ahead.after(&segment(4));
        let other = ahead.learn("/live/b/v.m3u8", &media(0..9, true), Instant::now());
        assert_eq!(paths(other), ["/live/b/init.mp4", "/live/b/s5.m4s?t=1"]);
        let another = ahead.learn("/film/b/v.m3u8", &media(0..9, true), Instant::now());
        assert_eq!(
            paths(another),
            ["/film/b/init.mp4", "/film/b/s0.m4s?t=1"],
            "of another stream"
        );
    }

    #[test]
    fn a_live_stream_is_fetched_at_its_edge() {
        let mut ahead = Ahead::new(2);
        let first = ahead.learn("/live/a/v.m3u8", &media(10..16, false), Instant::now());
        assert_eq!(
            paths(first),
            [
                "/live/a/init.mp4",
                "/live/a/s14.m4s?t=1",
                "/live/a/s15.m4s?t=1"
            ]
        );
        assert_eq!(
            ahead.learn("/live/a/v.m3u8", &media(11..17, false), Instant::now()),
            [segment(16)]
        );
        assert_eq!(ahead.after(&segment(13)), []);
    }

    /// Such as an advertisement, or silence.
    #[test]
    fn a_segment_that_is_listed_twice_is_fetched_once() {
        let listed = |order: &[u32], ended| {
            let one = |number: &u32| Upcoming {
                uri: format!("s{number}.m4s?t=1"),
                range: None,
            };
            Media {
                segments: order.iter().map(one).collect(),
                ended,
                ..Media::default()
            }
        };
        let (mut ahead, now) = (Ahead::new(3), Instant::now());
        assert_eq!(
            ahead.learn("/live/a/v.m3u8", &listed(&[1, 2, 2, 2], false), now),
            [segment(2)]
        );
        assert_eq!(
            ahead.learn("/live/a/v.m3u8", &listed(&[2, 2, 2, 3], false), now),
            [segment(3)]
        );
        // The player goes on behind each place of the segment in turn.
        let mut ahead = Ahead::new(1);
        ahead.learn("/live/a/v.m3u8", &listed(&[1, 9, 2, 9, 3], true), now);
        for (asked, next) in [(1, 9), (9, 2), (2, 9), (9, 3)] {
            let new = ahead.after(&segment(asked));
            assert!(new.is_empty() || new == [segment(next)], "{asked}: {new:?}");
            assert_eq!(
                ahead.next_listed(&segment(asked)),
                Some(segment(next)),
                "{asked}"
            );
        }
    }

    #[test]
    fn announced_segments_are_fetched_while_their_playlist_is_played() {
        let (mut ahead, now) = (Ahead::new(2), Instant::now());
        ahead.learn("/live/a/v.m3u8", &media(10..16, false), now);
        assert!(ahead.plays_live("live", now) && !ahead.plays_live("other", now));
        assert!(ahead.announced(&segment(16), now));
        assert!(!ahead.announced(&segment(16), now), "once");
        assert!(
            !ahead.announced(
                &Wanted {
                    path: "/live/b/s16.m4s?t=1".into(),
                    range: None
                },
                now
            ),
            "another rendition"
        );
        assert!(
            !ahead.announced(&segment(17), now + PLAYING_FOR),
            "nobody plays it any more"
        );
        assert_eq!(
            ahead.learn("/live/a/v.m3u8", &media(11..17, false), now),
            []
        );
    }

    #[test]
    fn segments_of_a_manifest_are_counted_on_until_one_is_missing() {
        let (mut ahead, now) = (Ahead::new(2), Instant::now());
        assert_eq!(
            ahead.next_number("/film/v1-00009.m4s"),
            None,
            "no manifest was read"
        );
        assert!(ahead.learn_manifest("/film/manifest.mpd", false, now));
        assert_eq!(
            ahead.next_number("/film/v1-00009.m4s").as_deref(),
            Some("/film/v1-00010.m4s")
        );
        assert_eq!(
            ahead.next_number("/film/a/99").as_deref(),
            Some("/film/a/100")
        );
        for path in [
            "/film/init.mp4",
            "/film/2/init.mp4",
            "/film/1.m4s?t=1",
            "/film/99999999999999999999.m4s",
            "/other/1.m4s",
        ] {
            assert_eq!(ahead.next_number(path), None, "{path}");
        }
        ahead.missed("/film/v1-00010.m4s");
        assert!(
            !ahead.learn_manifest("/film/manifest.mpd", false, now),
            "read again"
        );
        assert_eq!(
            ahead.next_number("/film/v2-00011.m4s"),
            None,
            "another rendition of it"
        );
        assert_eq!(
            ahead.next_number("/film/a/99").as_deref(),
            Some("/film/a/100")
        );
        ahead.learn_manifest("/live/manifest.mpd", true, now);
        assert_eq!(
            ahead.next_number("/live/v1-00009.m4s"),
            None,
            "the next one is not there yet"
        );
        assert!(ahead.plays_live("live", now) && !ahead.plays_live("film", now));
    }

    #[test]
    fn of_each_rendition_the_newest_segment_comes_next() {
        let (mut ahead, now) = (Ahead::new(1), Instant::now());
        let whole = |path: &str| Wanted {
            path: path.to_owned(),
            range: None,
        };
        ahead.learn_manifest("/film/manifest.mpd", false, now);
        for path in ["/film/v1-01.m4s", "/film/v2-01.m4s", "/film/v1-02.m4s"] {
            ahead.note_next(whole(path), now);
        }
        assert_eq!(
            paths(ahead.take_next(now)),
            ["/film/v2-01.m4s", "/film/v1-02.m4s"]
        );
        assert_eq!(ahead.take_next(now), []);
        ahead.note_next(whole("/film/v1-03.m4s"), now);
        assert_eq!(
            ahead.take_next(now + NEXT_FOR),
            [],
            "another rendition is played since"
        );
        ahead.note_next(whole("/film/v1-04.m4s"), now);
        ahead.missed("/film/v1-04.m4s");
        assert_eq!(ahead.take_next(now), [], "the end");
        (0..100).for_each(|number| ahead.note_next(whole(&format!("/film/v{number}-1.m4v")), now));
        assert_eq!(ahead.take_next(now).len(), NEXT_MAX);
        let mut none = Ahead::new(0);
        none.note_next(whole("/film/v1-1.m4s"), now);
        assert_eq!(none.take_next(now), [], "nothing is fetched ahead");
    }

    #[test]
    fn what_leads_elsewhere_is_left_alone() {
        let upcoming = |uri: &str| Upcoming {
            uri: uri.into(),
            range: None,
        };
        assert_eq!(wanted("/live/v.m3u8", &upcoming("https://cdn/x.ts")), None);
        assert_eq!(
            wanted("/live/v.m3u8", &upcoming("/live/x.ts"))
                .unwrap()
                .path,
            "/live/x.ts"
        );
        assert_eq!(
            wanted("/live/v.m3u8?a=b", &upcoming("x%20y.ts?c=d"))
                .unwrap()
                .path,
            "/live/x%20y.ts?c=d"
        );
    }

    #[test]
    fn few_playlists_are_remembered() {
        let mut ahead = Ahead::new(1);
        for number in 0..100 {
            ahead.learn(
                &format!("/live/{number}.m3u8"),
                &media(0..1, true),
                Instant::now(),
            );
        }
        assert_eq!(ahead.playlists.len(), PLAYLISTS_MAX);
    }
}
