//! Compares RaptorQ by this crate and by the crate `raptorq`, in turn, on one thread.
//!
//!     cargo bench --bench raptorq                 every case
//!     cargo bench --bench raptorq -- 802x1024     the cases with K = 802, T = 1024
//!
//! A case has K source symbols of T bytes and loses a share of them, at least one. `encode` takes
//! the block and makes as many repair symbols as are lost, each into its own memory; both have the
//! plan for K ready. `decode` takes the remaining symbols and as many repair symbols, K in all, and
//! returns the block; nothing is kept from one block to the next, and the plan is made each time.
//! Our decoder copies the symbols; the other crate gets them in memory of their own, which is
//! filled outside the timer. `replay` is our decoder with the plan kept, and has no counterpart.
//!
//! Both must give the same symbols and the source before they are measured. They run in turn, round
//! after round, so that a slow phase of the machine slows both. The clock is the thread's processor
//! time, figures are medians of rounds.

use std::time::Duration;

use ncserverd::codec::raptorq::{Decoder, DecodingPlan, Encoder, EncodingPlan, Method, deficit};
use ncserverd::gf::Kernels;
use nctest::turns::{ROUNDS, calls, median, time};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use raptorq::{
    EncodingPacket, ObjectTransmissionInformation, PayloadId, SourceBlockDecoder,
    SourceBlockEncoder, SourceBlockEncodingPlan,
};

const SYMBOLS: [u16; 7] = [10, 101, 511, 802, 1002, 1502, 1979];
const SYMBOL_BYTES: [u16; 2] = [512, 1024];
/// Per cent of the source symbols.
const LOSSES: [u32; 3] = [1, 10, 20];

/// A block, and which of its symbols arrive.
struct Case {
    k: u16,
    symbol_bytes: u16,
    source: Vec<u8>,
    lost: u32,
    /// Encoding symbol ids in the order of arrival.
    arrive: Vec<u32>,
    symbols: Vec<Vec<u8>>,
    kernels: Kernels,
    plan: EncodingPlan,
    decoding: DecodingPlan,
    their_plan: SourceBlockEncodingPlan,
    oti: ObjectTransmissionInformation,
}

impl Case {
    fn new(k: u16, symbol_bytes: u16, loss: u32) -> Self {
        let (mut rng, k_wide) = (
            SmallRng::seed_from_u64(u64::from(k) + u64::from(loss)),
            u32::from(k),
        );
        let mut source = vec![0; usize::from(k) * usize::from(symbol_bytes)];
        rng.fill_bytes(&mut source);
        let lost = (k_wide * loss + 50).div_euclid(100).max(1);
        let arrive = loop {
            let mut arrive: Vec<u32> = (0..k_wide).collect();
            arrive.shuffle(&mut rng);
            arrive.truncate((k_wide - lost) as usize);
            arrive.sort_unstable();
            arrive.extend(k_wide..k_wide + lost);
            if deficit(k_wide, &arrive) == Ok(0) {
                break arrive;
            }
        };
        let kernels = Kernels::detect();
        let plan = EncodingPlan::new(k_wide).expect("K is in the table's range");
        let encoder = Encoder::new(source.clone(), symbol_bytes.into(), &plan, kernels)
            .expect("whole symbols");
        let symbol = |&esi: &u32| {
            let mut symbol = vec![0; symbol_bytes.into()];
            encoder.symbol(esi, &mut symbol).expect("a valid id");
            symbol
        };
        let symbols = arrive.iter().map(symbol).collect();
        let decoding = DecodingPlan::new(k_wide, &arrive).expect("a regular system");
        let oti = ObjectTransmissionInformation::new(source.len() as u64, symbol_bytes, 1, 1, 1);
        let their_plan = SourceBlockEncodingPlan::generate(k);
        let case = Self {
            k,
            symbol_bytes,
            source,
            lost,
            arrive,
            symbols,
            kernels,
            plan,
            decoding,
            their_plan,
            oti,
        };
        case.check();
        case
    }

    /// That both make the same repair symbols, and find the source.
    fn check(&self) {
        assert!(
            self.encode()
                == self
                    .encode_theirs()
                    .iter()
                    .map(|packet| packet.data().to_vec())
                    .collect::<Vec<_>>()
        );
        assert!(self.decode() == self.source && self.replay() == self.source);
        assert!(self.decode_theirs(self.packets()) == self.source);
    }

    fn encode(&self) -> Vec<Vec<u8>> {
        let encoder = Encoder::new(
            self.source.clone(),
            self.symbol_bytes.into(),
            &self.plan,
            self.kernels,
        )
        .expect("whole symbols");
        let repair = |esi| {
            let mut symbol = vec![0; self.symbol_bytes.into()];
            encoder.symbol(esi, &mut symbol).expect("a valid id");
            symbol
        };
        (self.k.into()..u32::from(self.k) + self.lost)
            .map(repair)
            .collect()
    }

    fn encode_theirs(&self) -> Vec<EncodingPacket> {
        let encoder =
            SourceBlockEncoder::with_encoding_plan(0, &self.oti, &self.source, &self.their_plan);
        encoder.repair_packets(0, self.lost)
    }

    fn decoder(&self) -> Decoder {
        let mut decoder = Decoder::new(
            self.k.into(),
            self.symbol_bytes.into(),
            Method::Inactivation,
            self.kernels,
        )
        .expect("K is in range");
        for (&esi, symbol) in self.arrive.iter().zip(&self.symbols) {
            decoder.push(esi, symbol).expect("a symbol of this block");
        }
        decoder
    }

    fn decode(&self) -> Vec<u8> {
        self.decoder().decode().expect("enough symbols")
    }

    fn replay(&self) -> Vec<u8> {
        self.decoder()
            .decode_by(&self.decoding)
            .expect("the same ids")
    }

    fn packets(&self) -> Vec<EncodingPacket> {
        let symbols = self.arrive.iter().zip(&self.symbols);
        symbols
            .map(|(&esi, symbol)| EncodingPacket::new(PayloadId::new(0, esi), symbol.clone()))
            .collect()
    }

    fn decode_theirs(&self, packets: Vec<EncodingPacket>) -> Vec<u8> {
        SourceBlockDecoder::new(0, &self.oti, self.source.len() as u64)
            .decode(packets)
            .expect("enough symbols")
    }
}

/// Medians of ours and theirs.
fn compare<I, O, P, Q>(
    (our_input, ours): (impl Fn() -> I, impl Fn(I) -> O),
    (their_input, theirs): (impl Fn() -> P, impl Fn(P) -> Q),
) -> (Duration, Duration) {
    let calls = (
        calls(time(&our_input, &ours, 3)),
        calls(time(&their_input, &theirs, 3)),
    );
    let turns = (0..ROUNDS).map(|_| {
        (
            time(&our_input, &ours, calls.0),
            time(&their_input, &theirs, calls.1),
        )
    });
    let (ours, theirs) = turns.unzip();
    (median(ours), median(theirs))
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    println!(
        "{:8} {:>5} {:>5} {:>4} {:>12} {:>12} {:>7} {:>9}",
        "", "K", "T", "loss", "ours µs", "raptorq µs", "ratio", "ours MB/s"
    );
    let mut ratios = Vec::new();
    for (k, symbol_bytes) in SYMBOLS
        .into_iter()
        .flat_map(|k| SYMBOL_BYTES.map(|symbol_bytes| (k, symbol_bytes)))
    {
        if !wanted.is_empty() && !wanted.contains(&format!("{k}x{symbol_bytes}")) {
            continue;
        }
        for loss in LOSSES {
            let case = Case::new(k, symbol_bytes, loss);
            let encode = compare(
                (|| (), |()| case.encode()),
                (|| (), |()| case.encode_theirs()),
            );
            let decode = compare(
                (|| (), |()| case.decode()),
                (|| case.packets(), |packets| case.decode_theirs(packets)),
            );
            let replay = compare((|| (), |()| case.replay()), (|| (), |()| ()));
            for (name, (ours, theirs)) in [
                ("encode", encode),
                ("decode", decode),
                ("replay", (replay.0, Duration::ZERO)),
            ] {
                let [ours, theirs] = [ours, theirs].map(|time| time.as_secs_f64() * 1e6);
                let speed = case.source.len() as f64 / ours;
                print!("{name:8} {k:5} {symbol_bytes:5} {loss:3}% {ours:12.1} ");
                if name == "replay" {
                    println!("{:>12} {:>7} {speed:9.0}", "", "");
                } else {
                    println!("{theirs:12.1} {:7.2} {speed:9.0}", theirs / ours);
                    ratios.push(theirs / ours);
                }
            }
        }
    }
    ratios.sort_by(f64::total_cmp);
    let ahead = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    if let (Some(lowest), Some(median)) = (ratios.first(), ratios.get(ratios.len() / 2)) {
        println!(
            "ahead in {ahead} of {} cases; lowest ratio {lowest:.2}, median {median:.2}",
            ratios.len()
        );
    }
}
