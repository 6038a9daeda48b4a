//! The stream: segments of random bytes, with what servers make of them.

use bytes::Bytes;
use ncserverd::codec::rlnc::Encoder;
use ncserverd::gf::Kernels;
use ncserverd::integrity::checks::{self, COLUMNS};
use ncserverd::object::row_key;
use ncserverd::object::{Generation, SegmentId, Shape};
use ncserverd::wire::message::{Checks, Delivery, GetChecks, Message, Meta};
use rand::Rng;
use rand::rngs::StdRng;

use crate::setup::{GENERATIONS, N, PAYLOAD};

/// A segment.
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) shape: Shape,
    pub(crate) path: String,
    pub(crate) encoders: Vec<Encoder>,
    bytes: Bytes,
}

impl Segment {
    pub(crate) fn new(index: usize, rng: &mut StdRng) -> Self {
        let mut bytes = vec![0; GENERATIONS * usize::from(N) * PAYLOAD as usize];
        rng.fill_bytes(&mut bytes);
        let bytes = Bytes::from(bytes);
        let id = SegmentId::of(&bytes);
        let shape = Shape::local(bytes.len() as u64, PAYLOAD, N).expect("a shape that can be");
        let encoder = |generation: Generation| {
            let own = part(&bytes, &generation);
            Encoder::new(
                &generation,
                own,
                row_key(&id, &generation),
                Kernels::detect(),
            )
            .expect("its own bytes")
        };
        let encoders = shape.iter().map(encoder).collect();
        Self {
            id,
            shape,
            path: format!("/live/{index}.m4s"),
            encoders,
            bytes,
        }
    }

    pub(crate) fn generation(&self, index: u32) -> Generation {
        self.shape
            .generation(index)
            .expect("nobody asks for what is not there")
    }

    /// Whether these are the bytes of a generation.
    pub(crate) fn is(&self, generation: &Generation, bytes: &[u8]) -> bool {
        part(&self.bytes, generation) == bytes
    }

    /// What is announced of it.
    pub(crate) fn meta(&self) -> Message {
        Message::Meta(Meta {
            request: 1,
            path: self.path.clone(),
            id: self.id,
            offset: 0,
            length: self.shape.length(),
            object_length: Some(self.shape.length()),
            version: 1,
            max_age_ms: 60_000,
            content_type: "video/mp4".to_owned(),
            delivery: Delivery::Coded(self.shape),
            signature: None,
            tree: None,
        })
    }

    /// Checksums of a generation, for who asked for them.
    pub(crate) fn checks(&self, asked: &GetChecks, rng: &mut StdRng) -> Message {
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        let generation = self.generation(asked.generation);
        let own = part(&self.bytes, &generation);
        let projections = checks::project(
            Kernels::detect(),
            &seed,
            &self.id,
            &generation,
            COLUMNS,
            own,
        )
        .into();
        // As long as one that is signed.
        let signature = Some([0; 64]);
        Message::Checks(Checks {
            request: asked.request,
            seed,
            columns: COLUMNS,
            projections,
            signature,
        })
    }
}

fn part<'a>(bytes: &'a Bytes, generation: &Generation) -> &'a [u8] {
    let start = usize::try_from(generation.offset).expect("it is in memory");
    &bytes[start..start + usize::try_from(generation.length).expect("it is in memory")]
}
