//! Compares Raptor10 by this crate and by the crate `raptor-code`, and RaptorQ by this crate, in
//! turn, on one thread.
//!
//!     cargo bench --bench raptor10                 every case
//!     cargo bench --bench raptor10 -- 1002x1024    the case K = 1002, T = 1024
//!
//! A case has K source symbols of T bytes, of which a tenth is lost, at least one. `encode` takes
//! the block and makes as many repair symbols as are lost; ours has the plan for K ready, the other
//! crate computes the intermediate symbols each time, as it keeps nothing. `plan` is the cost of
//! that for ours: making the plan as well. `decode` takes the remaining symbols and as many repair
//! symbols as the system needs, and returns the block; nothing is kept from one block to the next,
//! and the plan is made each time. The columns of `RaptorQ` show the same for as many source
//! symbols, with as many repair symbols as RaptorQ needs.
//!
//! Both must give the same symbols and the source before they are measured. They run in turn, round
//! after round. The clock is the thread's processor time, figures are medians of rounds: three
//! where the other crate takes more than a second.

use std::time::Duration;

use ncserverd::codec::raptorq::Method;
use ncserverd::codec::{raptor10, raptorq};
use ncserverd::gf::Kernels;
use nctest::turns::{ROUNDS, calls, median, time};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const SYMBOLS: [u32; 4] = [10, 101, 1002, 8192];
const SYMBOL_BYTES: [usize; 2] = [512, 1024];

/// A block, and which of its symbols arrive.
struct Case {
    k: u32,
    symbol_bytes: usize,
    source: Vec<u8>,
    lost: u32,
    kernels: Kernels,
    ten: Arrived,
    q: Arrived,
    ten_plan: raptor10::EncodingPlan,
    q_plan: raptorq::EncodingPlan,
}

/// Symbols with their ids, in the order of arrival.
type Arrived = Vec<(u32, Vec<u8>)>;

impl Case {
    fn new(k: u32, symbol_bytes: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(k.into());
        let mut source = vec![0; k as usize * symbol_bytes];
        rng.fill_bytes(&mut source);
        let lost = ((k + 5) / 10).max(1);
        let mut left: Vec<u32> = (0..k).collect();
        left.shuffle(&mut rng);
        left.truncate((k - lost) as usize);
        left.sort_unstable();
        let kernels = Kernels::detect();
        let ten_plan = raptor10::EncodingPlan::new(k).expect("K is in range");
        let q_plan = raptorq::EncodingPlan::new(k).expect("K is in range");
        let encoder = raptor10::Encoder::new(source.clone(), symbol_bytes, &ten_plan, kernels)
            .expect("whole symbols");
        let ten = arrived(
            &left,
            k,
            |esis| raptor10::deficit(k, esis) == Ok(0),
            |esi, out| encoder.symbol(esi, out).expect("an id"),
            symbol_bytes,
        );
        let encoder = raptorq::Encoder::new(source.clone(), symbol_bytes, &q_plan, kernels)
            .expect("whole symbols");
        let q = arrived(
            &left,
            k,
            |esis| raptorq::deficit(k, esis) == Ok(0),
            |esi, out| encoder.symbol(esi, out).expect("an id"),
            symbol_bytes,
        );
        let case = Self {
            k,
            symbol_bytes,
            source,
            lost,
            kernels,
            ten,
            q,
            ten_plan,
            q_plan,
        };
        case.check();
        case
    }

    /// That both make the same repair symbols, and all find the source.
    fn check(&self) {
        assert!(self.encode(&self.ten_plan) == self.encode_theirs());
        assert!(
            self.decode() == self.source
                && self.decode_theirs() == self.source
                && self.decode_q() == self.source
        );
    }

    fn repair(&self, symbol: impl Fn(u32, &mut [u8])) -> Vec<Vec<u8>> {
        let repair = |esi| {
            let mut out = vec![0; self.symbol_bytes];
            symbol(esi, &mut out);
            out
        };
        (self.k..self.k + self.lost).map(repair).collect()
    }

    fn encode(&self, plan: &raptor10::EncodingPlan) -> Vec<Vec<u8>> {
        let encoder =
            raptor10::Encoder::new(self.source.clone(), self.symbol_bytes, plan, self.kernels)
                .expect("whole symbols");
        self.repair(|esi, out| encoder.symbol(esi, out).expect("an id"))
    }

    fn encode_q(&self) -> Vec<Vec<u8>> {
        let encoder = raptorq::Encoder::new(
            self.source.clone(),
            self.symbol_bytes,
            &self.q_plan,
            self.kernels,
        )
        .expect("whole symbols");
        self.repair(|esi, out| encoder.symbol(esi, out).expect("an id"))
    }

    fn encode_theirs(&self) -> Vec<Vec<u8>> {
        let mut encoder = raptor_code::SourceBlockEncoder::new(&self.source, self.k as usize)
            .expect("a regular system");
        (self.k..self.k + self.lost)
            .map(|esi| encoder.fountain(esi))
            .collect()
    }

    fn decode(&self) -> Vec<u8> {
        let mut decoder =
            raptor10::Decoder::new(self.k, self.symbol_bytes, self.kernels).expect("K is in range");
        self.ten.iter().for_each(|(esi, symbol)| {
            _ = decoder.push(*esi, symbol).expect("a symbol of this block")
        });
        decoder.decode().expect("enough symbols")
    }

    fn decode_q(&self) -> Vec<u8> {
        let mut decoder = raptorq::Decoder::new(
            self.k,
            self.symbol_bytes,
            Method::Inactivation,
            self.kernels,
        )
        .expect("K is in range");
        self.q.iter().for_each(|(esi, symbol)| {
            _ = decoder.push(*esi, symbol).expect("a symbol of this block")
        });
        decoder.decode().expect("enough symbols")
    }

    fn decode_theirs(&self) -> Vec<u8> {
        let mut decoder = raptor_code::SourceBlockDecoder::new(self.k as usize);
        self.ten
            .iter()
            .for_each(|(esi, symbol)| decoder.push_encoding_symbol(symbol, *esi));
        decoder.decode(self.source.len()).expect("enough symbols")
    }
}

/// What is left of the source, and repair symbols until they suffice.
fn arrived(
    left: &[u32],
    k: u32,
    suffice: impl Fn(&[u32]) -> bool,
    symbol: impl Fn(u32, &mut [u8]),
    symbol_bytes: usize,
) -> Arrived {
    let mut esis = left.to_vec();
    for esi in k.. {
        esis.push(esi);
        if esis.len() >= k as usize && suffice(&esis) {
            break;
        }
    }
    let with_symbol = |esi| {
        let mut out = vec![0; symbol_bytes];
        symbol(esi, &mut out);
        (esi, out)
    };
    esis.into_iter().map(with_symbol).collect()
}

/// Medians of each, which take turns.
fn medians<const N: usize>(contenders: [&dyn Fn() -> Vec<u8>; N]) -> [Duration; N] {
    let once = contenders.map(|run| time(|| (), |()| run(), 1));
    let rounds = if once.iter().any(|once| *once > Duration::from_secs(1)) {
        3
    } else {
        ROUNDS
    };
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for ((times, run), once) in times.iter_mut().zip(contenders).zip(once) {
            times.push(time(|| (), |()| run(), calls(once)));
        }
    }
    times.map(median)
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    println!(
        "{:8} {:>5} {:>5} {:>12} {:>14} {:>7} {:>12} {:>7} {:>9}",
        "", "K", "T", "ours µs", "raptor-code µs", "ratio", "RaptorQ µs", "ratio", "ours MB/s"
    );
    for (k, symbol_bytes) in SYMBOLS
        .into_iter()
        .flat_map(|k| SYMBOL_BYTES.map(|symbol_bytes| (k, symbol_bytes)))
    {
        if !wanted.is_empty() && !wanted.contains(&format!("{k}x{symbol_bytes}")) {
            continue;
        }
        let case = Case::new(k, symbol_bytes);
        let first = |mut symbols: Vec<Vec<u8>>| symbols.swap_remove(0);
        let fresh = || case.encode(&raptor10::EncodingPlan::new(k).expect("K is in range"));
        let encode = medians([
            &|| first(case.encode(&case.ten_plan)),
            &|| first(case.encode_theirs()),
            &|| first(case.encode_q()),
        ]);
        let plan = medians([&|| first(fresh()), &|| first(case.encode_theirs())]);
        let decode = medians([&|| case.decode(), &|| case.decode_theirs(), &|| {
            case.decode_q()
        }]);
        for (name, [ours, theirs, q]) in [
            ("encode", encode),
            ("plan", [plan[0], plan[1], Duration::ZERO]),
            ("decode", decode),
        ]
        .map(|(name, times)| (name, times.map(|time| time.as_secs_f64() * 1e6)))
        {
            print!(
                "{name:8} {k:5} {symbol_bytes:5} {ours:12.1} {theirs:14.1} {:7.2}",
                theirs / ours
            );
            match name {
                "plan" => print!(" {:>12} {:>7}", "", ""),
                _ => print!(" {q:12.1} {:7.2}", q / ours),
            }
            println!(" {:9.0}", case.source.len() as f64 / ours);
        }
        println!(
            "{:8} {k:5} {symbol_bytes:5} symbols that decode took: {} Raptor10, {} RaptorQ",
            "",
            case.ten.len(),
            case.q.len()
        );
    }
}
