//! What a test needs and a machine may lack.

/// Says that a test does not run, or only in part, and why: for example `there is no nginx`.
///
/// # Panics
/// If `NCTEST_REQUIRE_ALL` is set, as in CI.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os("NCTEST_REQUIRE_ALL").is_none(),
        "everything was to run, and {reason}"
    );
    println!("SKIPPED: {reason}");
}
