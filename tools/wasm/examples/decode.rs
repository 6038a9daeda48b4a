//! The native side of `bench.mjs`: for each line of the input, the number of a code, decodes once
//! and prints the bytes and the milliseconds.

use std::io::{self, BufRead, Write};
use std::time::Instant;

use ncs_wasm_check::decode::{CODES, Work};

fn main() -> io::Result<()> {
    let work: Vec<Work> = (0..CODES.len()).map(Work::new).collect();
    for line in io::stdin().lock().lines() {
        let Ok(code) = line?.trim().parse::<usize>() else {
            break;
        };
        let begun = Instant::now();
        let bytes = work[code].decode(false);
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        println!("{bytes} {ms}");
        io::stdout().flush()?;
    }
    Ok(())
}
