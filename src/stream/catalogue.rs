//! What is known of a stream's paths. A plain value: `now` is an argument.
//!
//! A path leads to segments, or to a document (a mutable object, kept whole). The segments
//! themselves are in the store; the catalogue knows their ids, even of some that were evicted
//! since. All parts of an object belong to one version. If a part arrives with other validators or
//! another length than earlier parts, or a known part with other bytes, the earlier parts are
//! forgotten, and the version changes. Refusals are remembered separately, so that one bad part
//! does not hide the good ones.
//!
//! The number of paths, and the bytes of documents, small objects and paths, are bounded; the least
//! recently used go. Refusals have separate bounds; beyond these, none is remembered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::ingest::planner::Cut;
use crate::ingest::{ObjectPath, Validators};
use crate::object::{Coding, Refusal, SegmentId};

/// The paths of a stream.
#[derive(Debug)]
pub(super) struct Catalogue {
    entries: HashMap<ObjectPath, Entry>,
    by_use: BTreeMap<u64, ObjectPath>,
    missing: HashMap<ObjectPath, (Refusal, Instant)>,
    missing_bytes: u64,
    leaving: BTreeMap<(Instant, u64), (Cut, Vec<Name>)>,
    bytes: u64,
    uses: u64,
    limits: Limits,
}

/// The bounds of a catalogue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) objects_max: usize,
    pub(super) bytes_max: u64,
}

/// The properties of an object, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) validators: Validators,
    pub(super) version: u64,
    pub(super) length: Option<u64>,
    pub(super) content_type: String,
    /// When the origin last confirmed them, in milliseconds since 1970.
    pub(super) issued_ms: u64,
}

/// A segment, and its coding if it is coded.
pub(super) type Name = (SegmentId, Option<Coding>);

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectPart {
    pub(super) id: SegmentId,
    /// Its coding when it was stored. A new configuration may change the coding, and the held
    /// segment stays useful.
    pub(super) coding: Option<Coding>,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The bytes, if they are few.
    pub(super) inline: Option<Bytes>,
}

/// A mutable object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) description: Description,
    pub(super) id: SegmentId,
    pub(super) bytes: Bytes,
    /// When the origin last confirmed the object; `None` once it is known to have changed.
    pub(super) checked: Option<Instant>,
    /// The same, but kept after the object has changed.
    pub(super) confirmed: Instant,
}

/// The answer for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Unknown or missing.
    Nothing,
    /// A part, and when the origin last confirmed its object.
    Part(Description, ObjectPart, Instant),
    /// A document.
    Document(Document),
    /// The object ends before the offset.
    Beyond(u64),
}

/// The effects of admitting a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The version of the part.
    pub(super) version: u64,
    /// The size of the whole object, as far as any part tells.
    pub(super) length: Option<u64>,
    /// Segments of another version, to which no path leads any more.
    pub(super) dropped: Vec<Name>,
    /// Whether there was another version.
    pub(super) changed: bool,
}

#[derive(Debug)]
struct Entry {
    used: u64,
    known: Known,
}

/// What is known of a path.
#[derive(Debug, Clone)]
pub(super) enum Known {
    Segments {
        description: Description,
        checked: Instant,
        parts: BTreeMap<u64, ObjectPart>,
    },
    Document(Document),
}

impl Catalogue {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            missing: HashMap::new(),
            missing_bytes: 0,
            leaving: BTreeMap::new(),
            bytes: 0,
            uses: 0,
            limits,
        }
    }

    /// The entry at `offset` of a path.
    pub(super) fn find(&mut self, path: &ObjectPath, offset: u64) -> Found {
        self.touch(path);
        match self.entries.get(path).map(|entry| &entry.known) {
            None => Found::Nothing,
            Some(Known::Document(document)) => Found::Document(document.clone()),
            Some(Known::Segments {
                description,
                checked,
                parts,
            }) => {
                let part = parts.range(..=offset).next_back().map(|(_, part)| part);
                match part.filter(|part| {
                    offset < part.offset + part.length || (offset == 0 && part.length == 0)
                }) {
                    Some(part) => Found::Part(description.clone(), part.clone(), *checked),
                    None => description
                        .length
                        .filter(|length| offset >= *length && offset > 0)
                        .map_or(Found::Nothing, Found::Beyond),
                }
            }
        }
    }

    /// The document at a path.
    pub(super) fn document(&self, path: &ObjectPath) -> Option<&Document> {
        match self.entries.get(path).map(|entry| &entry.known) {
            Some(Known::Document(document)) => Some(document),
            _ => None,
        }
    }

    /// All paths with the offsets of their known parts, the last used first. A document is one
    /// part.
    pub(super) fn parts(&self) -> impl Iterator<Item = (ObjectPath, u64)> {
        self.by_use.values().rev().flat_map(|path| {
            let offsets = match self.entries.get(path).map(|entry| &entry.known) {
                Some(Known::Segments { parts, .. }) => parts.keys().copied().collect(),
                Some(Known::Document(_)) => vec![0],
                None => Vec::new(),
            };
            offsets.into_iter().map(|offset| (path.clone(), offset))
        })
    }

    /// What is known of a path. This is no use of it.
    pub(super) fn known(&self, path: &ObjectPath) -> Option<Known> {
        self.entries.get(path).map(|entry| entry.known.clone())
    }

    /// The validators of an object's known parts.
    pub(super) fn validators(&self, path: &ObjectPath) -> Option<Validators> {
        match &self.entries.get(path)?.known {
            Known::Segments {
                description, parts, ..
            } if !parts.is_empty() => Some(description.validators.clone()),
            Known::Segments { .. } | Known::Document(_) => None,
        }
    }

    /// The remembered refusal of a path.
    pub(super) fn refusal(&self, path: &ObjectPath, now: Instant) -> Option<Refusal> {
        self.missing
            .get(path)
            .filter(|(_, until)| now < *until)
            .map(|(refusal, _)| refusal.clone())
    }

    /// Remembers a refusal until `until`.
    pub(super) fn refuse(&mut self, path: &ObjectPath, refusal: Refusal, until: Instant) {
        self.welcome(path);
        let bytes = refused_bytes(path, &refusal);
        if self.missing.len() < self.limits.objects_max
            && self.missing_bytes + bytes <= self.limits.bytes_max / MISSING_PART
        {
            self.missing_bytes += bytes;
            self.missing.insert(path.clone(), (refusal, until));
        }
    }

    /// Forgets the refusal of a path.
    pub(super) fn welcome(&mut self, path: &ObjectPath) {
        if let Some((refusal, _)) = self.missing.remove(path) {
            self.missing_bytes -= refused_bytes(path, &refusal);
        }
    }

    /// Admits a part: compares its object with the known one, and drops parts of another version.
    pub(super) fn admit(
        &mut self,
        path: &ObjectPath,
        mut description: Description,
        part: ObjectPart,
        now: Instant,
    ) -> Admitted {
        self.welcome(path);
        let mut admitted = Admitted {
            length: description.length,
            ..Admitted::default()
        };
        let is_same = match self.entries.get(path).map(|entry| &entry.known) {
            Some(Known::Segments {
                description: before,
                parts,
                ..
            }) => {
                let mut is_same = before.is_same(&description);
                if is_same
                    && parts
                        .get(&part.offset)
                        .is_some_and(|known| known.length == part.length && known.id != part.id)
                {
                    // Other bytes, which the origin claims to be the same: the version must change.
                    is_same = false;
                    description.version = mixed(before.version, &part.id);
                }
                admitted.changed = !is_same && !parts.is_empty();
                is_same
            }
            _ => false,
        };
        if !is_same {
            admitted.dropped = self.forget(path);
            admitted.dropped.retain(|name| *name != part.name());
            let known = Known::Segments {
                description: description.clone(),
                checked: now,
                parts: BTreeMap::new(),
            };
            self.put(path, known);
        }
        admitted.version = description.version;
        let inline = part.inline.as_ref().map_or(0, length_of);
        if let Some(Entry {
            known:
                Known::Segments {
                    description: known,
                    checked,
                    parts,
                },
            ..
        }) = self.entries.get_mut(path)
        {
            known.length = known.length.or(description.length);
            admitted.version = known.version;
            admitted.length = known.length;
            known.issued_ms = known.issued_ms.max(description.issued_ms);
            *checked = now;
            let before = parts
                .insert(part.offset, part)
                .and_then(|part| part.inline)
                .as_ref()
                .map_or(0, length_of);
            self.bytes = self.bytes + inline - before;
        }
        self.touch(path);
        self.shrink();
        admitted
    }

    /// Notes the origin's confirmation of an object.
    pub(super) fn confirm(&mut self, path: &ObjectPath, now: Instant, issued_ms: u64) {
        match self.entries.get_mut(path).map(|entry| &mut entry.known) {
            Some(Known::Segments {
                checked,
                description,
                ..
            }) => {
                *checked = now;
                description.issued_ms = issued_ms;
            }
            Some(Known::Document(document)) => {
                document.checked = Some(now);
                document.confirmed = now;
                document.description.issued_ms = issued_ms;
            }
            None => {}
        }
    }

    /// Stores a document, and replaces any earlier entry.
    pub(super) fn put_document(&mut self, path: &ObjectPath, document: Document) {
        self.welcome(path);
        self.forget(path);
        self.put(path, Known::Document(document));
        self.shrink();
    }

    /// Makes the next use of a document ask the origin first.
    pub(super) fn doubt(&mut self, path: &ObjectPath) {
        self.welcome(path);
        if let Some(Entry {
            known: Known::Document(document),
            ..
        }) = self.entries.get_mut(path)
        {
            document.checked = None;
        }
    }

    /// The same, without validators, because these may not show the change: a file written twice
    /// within one tick of the file system's clock looks the same.
    pub(super) fn distrust(&mut self, path: &ObjectPath) {
        self.doubt(path);
        if let Some(Entry {
            known: Known::Document(document),
            ..
        }) = self.entries.get_mut(path)
        {
            document.description.validators = Validators::default();
        }
    }

    /// Forgets a path. Returns its segments.
    pub(super) fn forget(&mut self, path: &ObjectPath) -> Vec<Name> {
        self.welcome(path);
        let Some(entry) = self.entries.remove(path) else {
            return Vec::new();
        };
        self.by_use.remove(&entry.used);
        self.bytes -= entry.bytes(path);
        entry.known.names(None)
    }

    /// Forgets all objects in these folders. Returns their segments.
    pub(super) fn forget_in(&mut self, parents: &HashSet<&str>) -> Vec<Name> {
        let is_segments = |entry: &Entry| matches!(entry.known, Known::Segments { .. });
        let inside = self
            .entries
            .iter()
            .filter(|(path, entry)| is_segments(entry) && parents.contains(path.parent()));
        let inside: Vec<ObjectPath> = inside.map(|(path, _)| path.clone()).collect();
        inside.iter().flat_map(|path| self.forget(path)).collect()
    }

    /// Forgets an object, or its parts in a range. Returns their segments.
    pub(super) fn forget_cut(&mut self, cut: &Cut) -> Vec<Name> {
        let Some(range) = &cut.range else {
            return self.forget(&cut.path);
        };
        let Some(Entry {
            known: Known::Segments { parts, .. },
            ..
        }) = self.entries.get_mut(&cut.path)
        else {
            return Vec::new();
        };
        let inside: Vec<u64> = parts
            .range(range.clone())
            .map(|(offset, _)| *offset)
            .collect();
        let gone: Vec<ObjectPart> = inside
            .iter()
            .filter_map(|offset| parts.remove(offset))
            .collect();
        if parts.is_empty() {
            self.forget(&cut.path);
        }
        self.bytes -= gone
            .iter()
            .filter_map(|part| part.inline.as_ref())
            .map(length_of)
            .sum::<u64>();
        gone.iter().map(ObjectPart::name).collect()
    }

    /// Schedules a cut, as it is now, to be forgotten at `at`. Returns its segments.
    pub(super) fn leave(&mut self, cut: Cut, at: Instant) -> Vec<Name> {
        let Some(entry) = self.entries.get(&cut.path) else {
            return Vec::new();
        };
        let names = entry.known.names(cut.range.as_ref());
        if !names.is_empty() {
            self.uses += 1;
            self.leaving.insert((at, self.uses), (cut, names.clone()));
        }
        names
    }

    /// Forgets cuts whose time has come, and expired refusals.
    pub(super) fn sweep(&mut self, now: Instant) {
        while let Some(first) = self
            .leaving
            .first_entry()
            .filter(|first| first.key().0 <= now)
        {
            let (cut, names) = first.remove();
            // A newer part under the same name stays.
            let known = self
                .entries
                .get(&cut.path)
                .map(|entry| entry.known.names(cut.range.as_ref()));
            if known.is_some_and(|known| known.iter().all(|name| names.contains(name))) {
                self.forget_cut(&cut);
            }
        }
        let bytes = &mut self.missing_bytes;
        self.missing.retain(|path, (refusal, until)| {
            let stays = now < *until;
            *bytes -= if stays {
                0
            } else {
                refused_bytes(path, refusal)
            };
            stays
        });
    }

    fn put(&mut self, path: &ObjectPath, known: Known) {
        self.uses += 1;
        let entry = Entry {
            used: self.uses,
            known,
        };
        self.bytes += entry.bytes(path);
        self.by_use.insert(self.uses, path.clone());
        self.entries.insert(path.clone(), entry);
    }

    /// Makes this path the last used one.
    pub(super) fn touch(&mut self, path: &ObjectPath) {
        if let Some(entry) = self.entries.get_mut(path) {
            self.uses += 1;
            if let Some(path) = self.by_use.remove(&entry.used) {
                self.by_use.insert(self.uses, path);
            }
            entry.used = self.uses;
        }
    }

    fn shrink(&mut self) {
        while self.entries.len() > self.limits.objects_max || self.bytes > self.limits.bytes_max {
            let Some((_, path)) = self.by_use.first_key_value() else {
                return;
            };
            let path = path.clone();
            self.forget(&path);
        }
    }
}

impl Description {
    /// Whether two parts belong to one version, as far as the origin tells.
    fn is_same(&self, other: &Self) -> bool {
        let lengths = self
            .length
            .zip(other.length)
            .is_none_or(|(one, two)| one == two);
        // Other servers tell the version alone.
        let is_told = self.validators.told.or(other.validators.told).is_some();
        let versions = match is_told {
            true => self.version == other.version,
            false => self.validators == other.validators,
        };
        versions && lengths
    }
}

impl ObjectPart {
    fn name(&self) -> Name {
        (self.id, self.coding)
    }
}

impl Document {
    /// How long it may still be used before the origin is asked.
    pub(super) fn fresh_for(&self, age: Duration, now: Instant) -> Option<Duration> {
        age.checked_sub(now.saturating_duration_since(self.checked?))
            .filter(|left| !left.is_zero())
    }
}

impl Entry {
    fn bytes(&self, path: &ObjectPath) -> u64 {
        text_bytes(path) + self.known.bytes()
    }
}

impl Known {
    fn bytes(&self) -> u64 {
        match self {
            Self::Segments { parts, .. } => parts
                .values()
                .filter_map(|part| part.inline.as_ref())
                .map(length_of)
                .sum(),
            Self::Document(document) => length_of(&document.bytes),
        }
    }

    pub(super) fn names(&self, range: Option<&std::ops::Range<u64>>) -> Vec<Name> {
        let all = 0..u64::MAX;
        match self {
            Self::Segments { parts, .. } => parts
                .range(range.unwrap_or(&all).clone())
                .map(|(_, part)| part.name())
                .collect(),
            Self::Document(_) => Vec::new(),
        }
    }
}

/// The number of a new version that the origin has not indicated; below 2^62.
fn mixed(version: u64, id: &SegmentId) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&version.to_le_bytes()).update(id.as_bytes());
    let mut low = [0; 8];
    low.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(low) >> 2
}

fn length_of(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn text_bytes(path: &ObjectPath) -> u64 {
    u64::try_from(path.as_str().len()).unwrap_or(u64::MAX)
}

fn refused_bytes(path: &ObjectPath, refusal: &Refusal) -> u64 {
    text_bytes(path) + u64::try_from(refusal.reason.len()).unwrap_or(u64::MAX)
}

/// The limit on refusals, as a part of the limit on bytes (one in this many).
const MISSING_PART: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::RefusalCode;
    use proptest::prelude::*;

    fn catalogue() -> Catalogue {
        Catalogue::new(Limits {
            objects_max: 8,
            bytes_max: 1000,
        })
    }

    fn path(text: &str) -> ObjectPath {
        ObjectPath::parse(text).unwrap()
    }

    fn description(etag: &str, length: Option<u64>) -> Description {
        let validators = Validators {
            etag: Some(etag.into()),
            last_modified: None,
            told: None,
        };
        Description {
            version: validators.version(length),
            validators,
            length,
            content_type: String::new(),
            issued_ms: 0,
        }
    }

    fn part(offset: u64, length: u64) -> ObjectPart {
        ObjectPart {
            id: SegmentId::of(&offset.to_le_bytes()),
            coding: None,
            offset,
            length,
            inline: None,
        }
    }

    fn small(name: &str, bytes: usize) -> ObjectPart {
        ObjectPart {
            id: SegmentId::of(name.as_bytes()),
            coding: None,
            offset: 0,
            length: 10,
            inline: Some(vec![0; bytes].into()),
        }
    }

    #[test]
    fn parts_are_found_by_what_they_cover() {
        let (mut catalogue, now) = (catalogue(), Instant::now());
        catalogue.admit(&path("a"), description("1", Some(250)), part(100, 100), now);
        for (offset, expected) in [(99, None), (100, Some(100)), (199, Some(100)), (200, None)] {
            let found = match catalogue.find(&path("a"), offset) {
                Found::Part(_, part, _) => Some(part.offset),
                _ => None,
            };
            assert_eq!(found, expected, "{offset}");
        }
        assert_eq!(catalogue.find(&path("a"), 250), Found::Beyond(250));
        assert_eq!(catalogue.find(&path("b"), 0), Found::Nothing);
    }

    #[test]
    fn another_version_drops_all_parts() {
        let (mut catalogue, now) = (catalogue(), Instant::now());
        let first = catalogue.admit(&path("a"), description("1", None), part(0, 100), now);
        let second = catalogue.admit(&path("a"), description("1", Some(300)), part(100, 100), now);
        assert_eq!(
            (second.version, second.changed),
            (first.version, false),
            "a length that becomes known is no change"
        );
        let third = catalogue.admit(&path("a"), description("2", Some(300)), part(200, 100), now);
        assert!(third.changed && third.version != first.version);
        assert_eq!(third.dropped, [part(0, 1).name(), part(100, 1).name()]);
        assert_eq!(catalogue.find(&path("a"), 0), Found::Nothing);
        assert!(
            catalogue
                .admit(&path("a"), description("2", Some(301)), part(0, 100), now)
                .changed
        );
    }

    #[test]
    fn other_bytes_under_the_same_tag_are_another_version() {
        let (mut catalogue, now) = (catalogue(), Instant::now());
        let admit = |catalogue: &mut Catalogue, offset, name: &str| {
            let part = ObjectPart {
                id: SegmentId::of(name.as_bytes()),
                ..part(offset, 100)
            };
            catalogue.admit(&path("a"), description("1", Some(300)), part, now)
        };
        let first = admit(&mut catalogue, 0, "x");
        assert!(!admit(&mut catalogue, 100, "y").changed);
        let again = admit(&mut catalogue, 0, "x");
        assert_eq!(
            (again.changed, again.version),
            (false, first.version),
            "an evicted part that comes again"
        );
        let other = admit(&mut catalogue, 0, "z");
        assert!(other.changed && other.version != first.version && other.version < 1 << 62);
        assert_eq!(
            other.dropped,
            [(SegmentId::of(b"x"), None), (SegmentId::of(b"y"), None)]
        );
        assert_eq!(catalogue.find(&path("a"), 100), Found::Nothing);
        assert_eq!(
            admit(&mut catalogue, 100, "w").version,
            other.version,
            "parts of the new bytes belong together"
        );
    }

    #[test]
    fn what_has_left_goes_later_unless_it_has_come_again() {
        let (mut catalogue, now) = (catalogue(), Instant::now());
        let later = now + Duration::from_secs(10);
        let cut = |name: &str| Cut {
            path: path(name),
            range: None,
        };
        for name in ["a", "b"] {
            catalogue.admit(&path(name), description("1", None), part(7, 100), now);
            assert_eq!(catalogue.leave(cut(name), later), [part(7, 1).name()]);
        }
        catalogue.admit(&path("b"), description("2", None), part(8, 100), now);
        catalogue.sweep(now);
        assert!(matches!(catalogue.find(&path("a"), 7), Found::Part(..)));
        catalogue.sweep(later);
        assert_eq!(catalogue.find(&path("a"), 7), Found::Nothing);
        assert!(matches!(catalogue.find(&path("b"), 8), Found::Part(..)));
        assert!(catalogue.leave(cut("c"), later).is_empty());
    }

    #[test]
    fn refusals_are_remembered_for_a_while() {
        let (mut catalogue, now) = (catalogue(), Instant::now());
        let refusal = Refusal {
            code: RefusalCode::Unknown,
            retry_after: None,
            reason: "no".into(),
        };
        catalogue.refuse(&path("a"), refusal.clone(), now + Duration::from_secs(1));
        assert_eq!(catalogue.refusal(&path("a"), now), Some(refusal));
        assert_eq!(
            catalogue.refusal(&path("a"), now + Duration::from_secs(1)),
            None
        );
        catalogue.sweep(now + Duration::from_secs(1));
        assert!(catalogue.missing.is_empty());
    }

    #[test]
    fn long_names_count_too() {
        let (mut catalogue, now) = (
            Catalogue::new(Limits {
                objects_max: 65_536,
                bytes_max: 100_000,
            }),
            Instant::now(),
        );
        let long = |number: u32| path(&format!("a.ts?{}{number}", "x".repeat(2000)));
        let refusal = Refusal {
            code: RefusalCode::Unknown,
            retry_after: None,
            reason: "no".into(),
        };
        for number in 0..200 {
            catalogue.admit(&long(number), description("1", None), part(0, 100), now);
            catalogue.refuse(
                &long(1000 + number),
                refusal.clone(),
                now + Duration::from_secs(1),
            );
        }
        assert!(catalogue.entries.len() < 50 && catalogue.missing.len() < 7);
        assert!(
            matches!(catalogue.find(&long(199), 0), Found::Part(..)),
            "the newest are there"
        );
        catalogue.refuse(&long(1000), refusal, now + Duration::from_secs(1));
        catalogue.sweep(now + Duration::from_secs(1));
        assert_eq!((catalogue.missing.len(), catalogue.missing_bytes), (0, 0));
    }

    #[test]
    fn documents_age() {
        let (mut catalogue, now) = (catalogue(), Instant::now());
        let age = Duration::from_secs(1);
        let document = Document {
            description: description("1", Some(3)),
            id: SegmentId::of(b"abc"),
            bytes: Bytes::from_static(b"abc"),
            checked: Some(now),
            confirmed: now,
        };
        catalogue.put_document(&path("a"), document);
        let fresh = |catalogue: &Catalogue, now| {
            catalogue.document(&path("a")).unwrap().fresh_for(age, now)
        };
        assert_eq!(fresh(&catalogue, now), Some(age));
        assert_eq!(fresh(&catalogue, now + age), None);
        catalogue.confirm(&path("a"), now + age, 7);
        assert_eq!(fresh(&catalogue, now + age), Some(age));
        catalogue.doubt(&path("a"));
        assert_eq!(fresh(&catalogue, now + age), None);
    }

    proptest! {
        #[test]
        fn it_stays_within_its_limits(
            steps in proptest::collection::vec((0..12_u8, 0..6_u8, 0..400_usize), 0..100),
        ) {
            let (mut catalogue, now) = (catalogue(), Instant::now());
            for (name, step, bytes) in steps {
                let path = path(&format!("x{name}"));
                match step {
                    0 => drop(catalogue.forget(&path)),
                    1 => drop(catalogue.forget_cut(&Cut { path, range: Some(0..5) })),
                    2 => catalogue.put_document(&path, Document {
                        description: description("d", None),
                        id: SegmentId::of(b""),
                        bytes: vec![0; bytes].into(),
                        checked: Some(now),
                        confirmed: now,
                    }),
                    3 => drop(catalogue.find(&path, 0)),
                    _ => drop(catalogue.admit(
                        &path,
                        description(&bytes.to_string(), None),
                        small("s", bytes),
                        now,
                    )),
                }
                prop_assert!(catalogue.entries.len() <= 8 && catalogue.bytes <= 1000);
                prop_assert_eq!(
                    catalogue.bytes,
                    catalogue
                        .entries
                        .iter()
                        .map(|(path, entry)| entry.bytes(path))
                        .sum::<u64>()
                );
                let mut uses: Vec<u64> =
                    catalogue.entries.values().map(|entry| entry.used).collect();
                uses.sort_unstable();
                prop_assert_eq!(uses, catalogue.by_use.keys().copied().collect::<Vec<_>>());
            }
        }
    }
}
