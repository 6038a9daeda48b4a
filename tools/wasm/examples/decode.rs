//! The native side of `bench.mjs`: for each line of the input, the number of a code, decodes once
//! and prints the bytes and the milliseconds of
//! processor time.

use std::io::{self, BufRead, Write};

use ncs_wasm_check::decode::{CODES, Work};
use rustix::time::{ClockId, clock_gettime};

fn main() -> io::Result<()> {
    let work: Vec<Work> = (0..CODES.len()).map(Work::new).collect();
    for line in io::stdin().lock().lines() {
        let Ok(code) = line?.trim().parse::<usize>() else {
            break;
        };
        let begun = clock_gettime(ClockId::ThreadCPUTime);
        let bytes = work[code].decode(false);
        let took = clock_gettime(ClockId::ThreadCPUTime) - begun;
        #[expect(clippy::cast_precision_loss, reason = "no number here reaches 2^53")]
        let ms = took.tv_sec as f64 * 1e3 + took.tv_nsec as f64 / 1e6;
        println!("{bytes} {ms}");
        io::stdout().flush()?;
    }
    Ok(())
}
