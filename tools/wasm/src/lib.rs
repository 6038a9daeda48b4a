//! The protocol crate as WebAssembly: fetches between both machines, the examples of
//! `docs/protocol.md`, and a row operation that the caller times.
//!
//! `run.sh` builds this for `wasm32-unknown-unknown` and `run.mjs` calls it under node; `cargo test
//! -p ncs-wasm-check` does the same natively. A check panics if anything is wrong.

pub mod decode;
pub mod examples;
pub mod fetch;
pub mod read;
pub mod row;

/// What node calls, and what it is called with.
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
#[expect(
    unsafe_code,
    reason = "functions that are exported and imported by name"
)]
mod exports {
    use std::panic;

    #[link(wasm_import_module = "node")]
    unsafe extern "C" {
        /// Takes a line of text.
        fn say(text: *const u8, length: usize);
    }

    /// The number of instruction sets.
    #[unsafe(no_mangle)]
    extern "C" fn instruction_sets() -> usize {
        crate::row::each().len()
    }

    /// Tells the name of an instruction set.
    #[unsafe(no_mangle)]
    extern "C" fn name(index: usize) {
        tell(crate::row::each()[index].isa().name());
    }

    /// Runs the row operation `times` times; returns the bytes of all these rows.
    #[unsafe(no_mangle)]
    extern "C" fn add_rows(index: usize, times: usize) -> usize {
        crate::row::add(crate::row::each()[index], times)
    }

    /// Blocks to decode, of one of the codes. Never freed: it ends with its module.
    #[unsafe(no_mangle)]
    extern "C" fn work(code: usize) -> &'static crate::decode::Work {
        Box::leak(Box::new(crate::decode::Work::new(code)))
    }

    /// Decodes them, and compares the bytes on demand; returns their number.
    #[unsafe(no_mangle)]
    extern "C" fn decode(work: &crate::decode::Work, is_checked: bool) -> usize {
        work.decode(is_checked)
    }

    /// Reads a long object slowly; returns the bytes by which memory has grown for the peer.
    #[unsafe(no_mangle)]
    extern "C" fn read_slowly() -> usize {
        let peak = crate::read::read();
        tell(&format!("read {} bytes slowly", peak.read));
        peak.memory
    }

    fn tell(line: &str) {
        // SAFETY: node reads as many bytes as the line has, and keeps none of them.
        unsafe { say(line.as_ptr(), line.len()) }
    }

    /// Runs everything; traps, after it has told why, if something is wrong.
    #[unsafe(no_mangle)]
    extern "C" fn check() {
        panic::set_hook(Box::new(|panic| tell(&format!("{panic}"))));
        tell(&format!(
            "{} examples of docs/protocol.md are read and written alike",
            crate::examples::check()
        ));
        for (name, setup) in crate::fetch::setups() {
            tell(&format!(
                "fetched with {name}: {:?}",
                crate::fetch::fetch(setup)
            ));
        }
    }
}
