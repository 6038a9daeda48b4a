use ncs_codec::block::Vector;
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;

use super::queries::{PATIENCE, PIECES_MAX};
use super::*;
use crate::integrity::checks::{COLUMNS, project};
use crate::integrity::signing::SigningKey;
use crate::object::{SegmentId, Shape, row_key};
use crate::peer::config::Secret;
use crate::wire::message::{Checks, GetChecks, Message};

const FETCH: FetchId = FetchId(1);
const OTHER: SourceId = SourceId(1);
const THIRD: SourceId = SourceId(2);
const BYTES: [u8; 500] = [3; 500];

struct Bench {
    evidence: Evidence,
    key: SigningKey,
    order: Order,
    generation: Generation,
    now: Instant,
    number: u64,
}

impl Bench {
    fn new() -> Self {
        let key = SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes()).unwrap();
        let (shape, segment) = (Shape::new(500, 64, 8).unwrap(), SegmentId::of(&BYTES));
        let blocks = BlockHashes::of(&BYTES, &shape).digest();
        let proof = Some(Proof {
            key: key.public(),
            blocks,
        });
        let order = Order {
            segment,
            shape,
            proof,
            deadline: None,
            urgency: Urgency::Now,
        };
        let mut evidence = Evidence::new(Kernels::detect(), 10_000, Secret::new([1; 32]));
        evidence.open(FETCH, order, None, proof);
        Self {
            evidence,
            key,
            order,
            generation: shape.generation(0).unwrap(),
            now: Instant::now(),
            number: 0,
        }
    }

    fn block(&self, seed: u32) -> Block {
        let key = row_key(&self.order.segment, &self.generation);
        let encoder = Encoder::new(&self.generation, &BYTES, key, Kernels::detect()).unwrap();
        let mut payload = vec![0; 64];
        encoder.block(seed, &mut payload);
        Block {
            vector: Vector::Seed(seed),
            payload: payload.into(),
        }
    }

    fn wrong(&self, seed: u32) -> Block {
        Block {
            payload: vec![9; 64].into(),
            ..self.block(seed)
        }
    }

    fn keep(&mut self, source: SourceId, block: Block) {
        self.evidence.keep(
            FETCH,
            0,
            Row {
                source,
                block,
                is_right: false,
            },
        );
    }

    fn look(&mut self, source: SourceId, block: &Block) -> Look {
        self.evidence.look(FETCH, &self.generation, source, block)
    }

    /// What a source is asked, where these can be.
    fn asked(&mut self, source: SourceId, open: &[SourceId]) -> Option<Message> {
        self.number += 1;
        let number = self.number;
        self.evidence
            .next_question(self.now, source, &open.iter().copied().collect(), || number)
    }

    fn answer(&self, asked: &GetChecks) -> Checks {
        let seed = [5; 32];
        let projections = project(
            Kernels::detect(),
            &seed,
            &asked.segment,
            &self.generation,
            COLUMNS,
            &BYTES,
        )
        .into();
        let mut answer = Checks {
            request: asked.request,
            seed,
            columns: COLUMNS,
            projections,
            signature: None,
        };
        self.key.sign_checks(asked, &mut answer);
        answer
    }
}

#[test]
fn checksums_that_another_has_seen_are_for_rows_that_were_there_before() {
    let mut bench = Bench::new();
    bench.keep(OTHER, bench.block(1));
    bench.keep(OTHER, bench.wrong(2));
    let open = [OTHER, THIRD];
    bench.evidence.want_checks(FETCH, 0);
    assert!(
        bench.asked(OTHER, &open).is_none(),
        "for rows to come nobody but the trusted source is asked"
    );
    assert!(
        bench
            .evidence
            .begin_trial(bench.now, FETCH, &[0].into(), &open.into_iter().collect())
    );
    let Some(Message::GetChecks(asked)) = bench.asked(OTHER, &open) else {
        panic!()
    };
    // Came after the question: its sender may have been told.
    bench.keep(THIRD, bench.wrong(3));
    let answer = bench.answer(&asked);
    let findings = bench.evidence.checks(OTHER, &answer, true).unwrap();
    assert_eq!(
        findings
            .wrong
            .iter()
            .map(|row| row.block.clone())
            .collect::<Vec<_>>(),
        [bench.wrong(2)]
    );
    assert!(!findings.is_checked);
    assert_eq!(
        bench
            .evidence
            .rows(FETCH, 0)
            .iter()
            .map(|row| row.is_right)
            .collect::<Vec<_>>(),
        [true, false]
    );
    let next = bench.block(4);
    assert_eq!(
        bench.look(THIRD, &next),
        Look::Unproved,
        "not tested by what others have seen"
    );
    assert!(
        bench.evidence.checks(OTHER, &answer, true).is_none(),
        "it counts once"
    );
}

#[test]
fn checksums_of_the_trusted_source_are_for_rows_to_come_too() {
    let mut bench = Bench::new();
    bench.keep(OTHER, bench.wrong(1));
    bench.evidence.want_checks(FETCH, 0);
    assert!(bench.asked(OTHER, &[FIRST, OTHER]).is_none());
    let Some(Message::GetChecks(asked)) = bench.asked(FIRST, &[FIRST, OTHER]) else {
        panic!()
    };
    bench.keep(OTHER, bench.wrong(2));
    let findings = bench
        .evidence
        .checks(FIRST, &bench.answer(&asked), true)
        .unwrap();
    assert_eq!(
        (
            findings.wrong.len(),
            findings.is_checked,
            bench.evidence.bytes()
        ),
        (2, true, 0)
    );
    for (block, is_right) in [(bench.block(3), true), (bench.wrong(4), false)] {
        assert_eq!(bench.look(OTHER, &block), Look::Later);
        let tested = bench.evidence.test_waiting();
        assert_eq!((tested.len(), tested[0].2[0].is_right), (1, is_right));
    }
}

#[test]
fn what_is_not_signed_counts_for_nothing_and_the_next_is_asked() {
    let mut bench = Bench::new();
    bench.keep(OTHER, bench.wrong(1));
    let open = [FIRST, OTHER];
    assert!(
        bench
            .evidence
            .begin_trial(bench.now, FETCH, &[0].into(), &open.into_iter().collect())
    );
    let Some(Message::GetChecks(asked)) = bench.asked(FIRST, &open) else {
        panic!()
    };
    assert!(bench.asked(OTHER, &open).is_none(), "one at a time");
    let unsigned = Checks {
        signature: None,
        ..bench.answer(&asked)
    };
    assert!(bench.evidence.checks(FIRST, &unsigned, false).is_none());
    assert!(bench.asked(FIRST, &open).is_none());
    let Some(Message::GetChecks(asked)) = bench.asked(OTHER, &open) else {
        panic!()
    };
    assert!(
        bench
            .evidence
            .refused(bench.now, asked.request, OTHER, None)
    );
    // Nobody is left.
    assert!(bench.evidence.next_concluded().is_none());
    bench
        .evidence
        .expire(bench.now, &open.into_iter().collect());
    assert_eq!(
        bench.evidence.next_concluded(),
        Some((FETCH, [0].into(), false))
    );
    assert!(!bench.evidence.begin_trial(
        bench.now,
        FETCH,
        &[0].into(),
        &open.into_iter().collect()
    ));
    assert!(bench.evidence.begin_anew(FETCH, &[0].into()));
    assert!(!bench.evidence.begin_anew(FETCH, &[0].into()), "once");
}

#[test]
fn source_blocks_are_known_by_their_hashes() {
    let mut bench = Bench::new();
    let source = |byte: u8| Block {
        vector: Vector::Source(1),
        payload: vec![byte; 64].into(),
    };
    bench.keep(OTHER, source(4));
    bench.evidence.want_hashes(FETCH);
    let Some(Message::GetHashes { request, .. }) = bench.asked(OTHER, &[OTHER]) else {
        panic!()
    };
    assert_eq!(bench.look(OTHER, &source(3)), Look::Unproved);
    let hashes = BlockHashes::of(&BYTES, &bench.order.shape)
        .as_bytes()
        .clone();
    assert_eq!(
        bench
            .evidence
            .hash_bytes(bench.now, request, THIRD, &hashes),
        Ok(false),
        "that one was not asked"
    );
    assert_eq!(
        bench
            .evidence
            .hash_bytes(bench.now, request, OTHER, &hashes),
        Ok(true)
    );
    assert!(
        bench
            .evidence
            .hash_bytes(bench.now, request, OTHER, &[0])
            .is_err(),
        "longer than the segment's"
    );
    let findings = bench.evidence.hashes_finished(request, OTHER).unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (bench.look(OTHER, &source(3)), bench.look(OTHER, &source(4))),
        (Look::Right, Look::Wrong)
    );
}

#[test]
fn hashes_that_are_not_those_that_were_signed_are_asked_of_others() {
    let mut bench = Bench::new();
    bench.evidence.want_hashes(FETCH);
    let open = [OTHER, THIRD];
    let Some(Message::GetHashes { request, .. }) = bench.asked(OTHER, &open) else {
        panic!()
    };
    bench
        .evidence
        .hash_bytes(bench.now, request, OTHER, &[7; 8 * 16])
        .unwrap();
    assert!(
        bench
            .evidence
            .hashes_finished(request, OTHER)
            .unwrap()
            .is_empty()
    );
    assert!(bench.asked(OTHER, &open).is_none());
    let Some(Message::GetHashes { request, .. }) = bench.asked(THIRD, &open) else {
        panic!()
    };
    assert!(
        bench.evidence.hashes_finished(request, THIRD).is_err(),
        "cut short"
    );
}

/// Many hashes take their time, as long as some come; not for ever.
#[test]
fn hashes_that_come_in_pieces_have_the_time_that_they_take() {
    let mut bench = Bench::new();
    bench.evidence.want_hashes(FETCH);
    let open = [OTHER, THIRD];
    let (begun, everybody) = (bench.now, open.into_iter().collect());
    let Some(Message::GetHashes { request, .. }) = bench.asked(OTHER, &open) else {
        panic!()
    };
    while bench.now - begun + PATIENCE < PIECES_MAX {
        bench.now += PATIENCE - Duration::from_millis(1);
        bench.evidence.expire(bench.now, &everybody);
        assert_eq!(
            bench.evidence.hash_bytes(bench.now, request, OTHER, &[7]),
            Ok(true),
            "{:?}",
            bench.now - begun
        );
    }
    assert_eq!(bench.evidence.due(), Some(begun + PIECES_MAX));
    bench.evidence.expire(begun + PIECES_MAX, &everybody);
    assert_eq!(
        bench.evidence.hash_bytes(bench.now, request, OTHER, &[7]),
        Ok(false)
    );
    assert!(matches!(
        bench.asked(THIRD, &open),
        Some(Message::GetHashes { .. })
    ));
}

#[test]
fn rows_take_no_more_than_there_is_room_for() {
    let mut bench = Bench::new();
    (0..1000).for_each(|seed| bench.keep(OTHER, bench.block(seed)));
    let kept = bench.evidence.bytes();
    assert!((9_000..=10_000).contains(&kept), "{kept}");
    bench.evidence.close(FETCH);
    assert_eq!(bench.evidence.bytes(), 0);
}

/// Who asks for patience without end gets a little, and a trial has an end of its own.
#[test]
fn a_trial_ends_whatever_others_say() {
    let mut bench = Bench::new();
    bench.keep(OTHER, bench.block(1));
    let open = [OTHER, THIRD];
    assert!(
        bench
            .evidence
            .begin_trial(bench.now, FETCH, &[0].into(), &open.into_iter().collect())
    );
    let Some(Message::GetChecks(asked)) = bench.asked(OTHER, &open) else {
        panic!("a question")
    };
    assert!(bench.evidence.refused(
        bench.now,
        asked.request,
        OTHER,
        Some(Duration::from_secs(1 << 40))
    ));
    let again = bench.evidence.due().unwrap();
    assert_eq!(again, bench.now + PATIENCE);
    bench.now = again;
    bench.evidence.expire(again, &open.into_iter().collect());
    assert!(
        bench.evidence.due().is_some_and(|due| due > again),
        "what waits for its turn is not due"
    );
    assert!(bench.evidence.next_concluded().is_none());
    let end = bench.now - PATIENCE + TRIAL_MAX;
    bench.evidence.expire(end, &open.into_iter().collect());
    assert_eq!(
        bench.evidence.next_concluded(),
        Some((FETCH, [0].into(), false))
    );
}

/// The rows that there were when it was asked are gone.
#[test]
fn an_answer_to_an_older_question_says_nothing_of_rows_that_came_anew() {
    let mut bench = Bench::new();
    bench.keep(OTHER, bench.block(1));
    let open = [OTHER, THIRD];
    assert!(
        bench
            .evidence
            .begin_trial(bench.now, FETCH, &[0].into(), &open.into_iter().collect())
    );
    let Some(Message::GetChecks(asked)) = bench.asked(OTHER, &open) else {
        panic!("a question")
    };
    assert!(bench.evidence.begin_anew(FETCH, &[0].into()));
    bench.keep(OTHER, bench.wrong(2));
    let answer = bench.answer(&asked);
    let findings = bench.evidence.checks(OTHER, &answer, true).unwrap();
    assert!(findings.wrong.is_empty() && !findings.is_checked);
    assert!(
        bench
            .evidence
            .rows(FETCH, 0)
            .iter()
            .all(|row| !row.is_right)
    );
}
