//! ISA-L, as it is linked (Debian: libisal-dev).

use std::ffi::c_int;

#[link(name = "isal")]
unsafe extern "C" {
    /// 32 bytes for each of `rows` * `sources` coefficients.
    pub(crate) fn ec_init_tables(
        sources: c_int,
        rows: c_int,
        coefficients: *const u8,
        tables: *mut u8,
    );
    /// `rows` outs of `length` bytes from as many sources as the tables are for.
    pub(crate) fn ec_encode_data(
        length: c_int,
        sources: c_int,
        rows: c_int,
        tables: *const u8,
        data: *const *const u8,
        coded: *const *mut u8,
    );
}

/// The file of the library that is loaded, whose name has its version: `libisal.so.2.0.31` is
/// 2.31.
pub(crate) fn file() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().find_map(|line| {
        let path = line.split(' ').next_back()?;
        path.contains("/libisal.so").then_some(path)
    });
    let name = path.and_then(|path| path.rsplit('/').next());
    name.unwrap_or("an unknown ISA-L").to_owned()
}

/// A number as the library takes it.
pub(crate) fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("a small shape")
}
