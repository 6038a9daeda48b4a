//! What a process leaves to the one that takes its place: the objects of its streams.
//!
//! A [`Piece`] is a document or a part of an object, with all that the next process needs to serve
//! it as if it had fetched it itself. That one computes ids, hashes and signatures anew, and cuts
//! the bytes as its own configuration says. It takes only pieces of streams that have the same
//! place as before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::catalogue::{Description, Document, Known, ObjectPart};
use super::point::Point;
use super::{Library, Place};
use crate::ingest::{ObjectPath, Validators};
use crate::object::{Coding, SegmentId};
use crate::store::{Residency, Store};

/// The name of a document, or of a part of an object, that a process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Title {
    stream: String,
    path: ObjectPath,
    /// Where the part begins.
    offset: u64,
}

/// A document, or a part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub about: About,
    /// All of its bytes.
    pub bytes: Bytes,
}

/// What a [`Piece`] is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    stream: String,
    /// A hash of where and how the stream is fetched.
    place: String,
    path: String,
    kind: Kind,
    etag: Option<String>,
    last_modified: Option<String>,
    told: Option<u64>,
    version: u64,
    object_length: Option<u64>,
    content_type: String,
    issued_ms: u64,
    /// The milliseconds since the origin has confirmed it; none if it is known to have changed.
    age_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Kind {
    /// A document, which the origin has confirmed so many milliseconds ago.
    Document { confirmed_ms: u64 },
    /// A part that begins at `offset`.
    Part {
        offset: u64,
        /// Whether the device has it.
        is_resident: bool,
    },
}

impl Library {
    /// What is held, the last used first.
    pub fn titles(&self) -> Vec<Title> {
        let points = self.inner.points.load();
        let titles = |(stream, running): (&String, &super::Running)| {
            let catalogue = running.point.catalogue();
            let title = |(path, offset)| Title {
                stream: stream.clone(),
                path,
                offset,
            };
            catalogue.parts().map(title).collect::<Vec<_>>()
        };
        // All streams in turn: none of them is to come last as a whole.
        let mut streams: Vec<_> = points
            .iter()
            .map(titles)
            .map(IntoIterator::into_iter)
            .collect();
        let mut all = Vec::new();
        while !streams.is_empty() {
            streams.retain_mut(|titles| {
                let next = titles.next();
                let is_some = next.is_some();
                all.extend(next);
                is_some
            });
        }
        all
    }

    /// What has this name, if it is still held.
    pub async fn leave(&self, title: &Title) -> Option<Piece> {
        let point = self.point(&title.stream)?;
        let known = point.catalogue().known(&title.path)?;
        let place = point.settings().place.digest();
        let about = |description: &Description, age_ms, kind| About {
            stream: title.stream.clone(),
            place: place.clone(),
            path: title.path.as_str().to_owned(),
            kind,
            etag: description.validators.etag.clone(),
            last_modified: description.validators.last_modified.clone(),
            told: description.validators.told,
            version: description.version,
            object_length: description.length,
            content_type: description.content_type.clone(),
            issued_ms: description.issued_ms,
            age_ms,
        };
        let now = Instant::now();
        let ms = |at: Instant| {
            let passed = now.saturating_duration_since(at).as_millis();
            u64::try_from(passed).unwrap_or(u64::MAX)
        };
        match known {
            Known::Document(document) => {
                let kind = Kind::Document {
                    confirmed_ms: ms(document.confirmed),
                };
                Some(Piece {
                    about: about(&document.description, document.checked.map(ms), kind),
                    bytes: document.bytes,
                })
            }
            Known::Segments {
                description,
                checked,
                parts,
            } => {
                let part = parts.get(&title.offset)?;
                let (bytes, is_resident) = bytes_of(&self.inner.shared.store, part).await?;
                let kind = Kind::Part {
                    offset: part.offset,
                    is_resident,
                };
                let about = about(&description, Some(ms(checked)), kind);
                Some(Piece { about, bytes })
            }
        }
    }

    /// Takes a piece that another process has left. False if it is of no use here: its stream is
    /// not published from the same place, or there is no room.
    pub async fn inherit(&self, piece: Piece) -> bool {
        let Piece { about, bytes } = piece;
        let Some(point) = self.point(&about.stream) else {
            return false;
        };
        let Ok(path) = ObjectPath::parse(&about.path) else {
            return false;
        };
        if point.settings().place.digest() != about.place {
            return false;
        }
        let now = Instant::now();
        // What is older than this machine is as old as it.
        let at = |ms: u64| now.checked_sub(Duration::from_millis(ms));
        let description = Description {
            validators: Validators {
                etag: about.etag,
                last_modified: about.last_modified,
                told: about.told,
            },
            version: about.version,
            length: about.object_length,
            content_type: about.content_type,
            issued_ms: about.issued_ms,
        };
        match about.kind {
            Kind::Document { confirmed_ms } => {
                let Some(confirmed) = at(confirmed_ms) else {
                    return false;
                };
                let document = Document {
                    description,
                    id: SegmentId::of(&bytes),
                    bytes,
                    checked: about.age_ms.and_then(at),
                    confirmed,
                };
                point.inherit_document(&path, document);
                true
            }
            Kind::Part {
                offset,
                is_resident,
            } => {
                let Some(checked) = about.age_ms.and_then(at) else {
                    return false;
                };
                let store = &self.inner.shared.store;
                if !store.has_room(bytes.len() as u64) {
                    return false;
                }
                let part = (offset, bytes);
                let held = point.inherit_part(&path, description, part, checked).await;
                if let Some((id, coding)) = held.filter(|_| is_resident) {
                    bring(store, &id, coding).await;
                }
                true
            }
        }
    }

    /// Notes that these were used last, the first of them the last.
    pub fn touch(&self, titles: &[Title]) {
        for title in titles.iter().rev() {
            if let Some(point) = self.point(&title.stream) {
                point.touch(&title.path);
            }
        }
    }

    fn point(&self, stream: &str) -> Option<Arc<Point>> {
        let points = self.inner.points.load();
        points.get(stream).map(|running| Arc::clone(&running.point))
    }
}

impl Piece {
    /// Its name; none if its path is none.
    pub fn title(&self) -> Option<Title> {
        Some(Title {
            stream: self.about.stream.clone(),
            path: ObjectPath::parse(&self.about.path).ok()?,
            offset: match self.about.kind {
                Kind::Document { .. } => 0,
                Kind::Part { offset, .. } => offset,
            },
        })
    }
}

impl Place {
    /// A hash by which two processes know that they fetch from the same place.
    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        match self {
            Self::Http(origin) => {
                add("http");
                add(origin.base.expose().as_str());
                add(origin.host.as_deref().unwrap_or_default());
                for (name, value) in &origin.headers {
                    add(name);
                    add(value.expose());
                }
            }
            Self::Folder(root, names) => {
                add("folder");
                add(&format!("{root:?} {names:?}"));
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// The bytes of a part, and whether the device has them; none if they were evicted.
async fn bytes_of(store: &Store, part: &ObjectPart) -> Option<(Bytes, bool)> {
    if let Some(bytes) = &part.inline {
        return Some((bytes.clone(), false));
    }
    let held = store.lookup(&part.id, Some(part.coding?))?;
    let is_resident = store.is_resident(held.lease.key);
    let shape = held.lease.shape;
    let mut bytes = bytes::BytesMut::new();
    for index in 0..shape.generations() {
        let generation = shape.generation(index)?;
        bytes.extend_from_slice(&store.generation(&held.lease, &generation).await.ok()??);
    }
    // Without the padding of the last block.
    bytes.truncate(usize::try_from(shape.length()).ok()?);
    Some((bytes.freeze(), is_resident))
}

/// Has the device take a segment, and waits until it has, or cannot.
async fn bring(store: &Store, id: &SegmentId, coding: Coding) {
    let Some(held) = store.lookup(id, Some(coding)) else {
        return;
    };
    let mut loads = store.loads();
    let ready = async {
        while matches!(store.resident(held.lease.key), Residency::Loading) {
            if let Err(tokio::sync::broadcast::error::RecvError::Closed) = loads.recv().await {
                return;
            }
        }
    };
    // A device that has no room for it is no reason to wait.
    let _ = tokio::time::timeout(LOADS_WITHIN, ready).await;
}

/// How long the device may take for a segment.
const LOADS_WITHIN: Duration = Duration::from_secs(2);
