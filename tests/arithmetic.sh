#!/bin/bash
# The tests of the arithmetic and of what sits on it, under something that sees what a plain run does not. On x86-64 Linux.
#
#   sanitize   AddressSanitizer, with every instruction set of this machine
#   valgrind   valgrind, which also sees what depends on memory that nobody has written; up to AVX2, the last that it knows
#   masked     emulated processors: one without SSSE3, one without AVX2, one without AVX-512. Detection must find the lesser
#              instruction set, and an instruction beyond it ends the test. AVX-512 without GFNI, or without IFMA, cannot be had in
#              this way, as Debian's emulator knows none of them; it is tested by name
#
# A finding is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
host=x86_64-unknown-linux-gnu

# Options of cargo, and behind `--` those of tests: what the crate tests at the place, then the lists of cases for all of it.
tests() {
    local options=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1") && shift; done
    "$cargo" test --locked --release "${options[@]}" --package ncs-gf --package ncs-codec --package ncs-device \
        --features ncs-device/cuda --lib --test backends "$@"
    "$cargo" test --locked --release "${options[@]}" --package nccodec --lib -- crew:: "${@:2}"
    "$cargo" test --locked --release "${options[@]}" --package ncserverd --test codecs "$@"
}

# What starts each test, in which instructions take tens of times as long; so the larger generations are left out, the
# counting of failures, proofs of large primes, and what hashes are good for: how they are computed is tested.
under() {
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$1 NCTEST_ISAS=$2 NCTEST_BYTES_MAX=$3
    printf '\n--- %s: %s\n' "$1" "$2"
    tests -- --skip round_trips_up_to_the_largest_generation --skip failures_are_as_rare_as_the_rfc_demands \
        --skip parameters_are --skip changes_of_one_bit_are_found --skip right_blocks_pass --skip have_room_for_the_largest_terms \
        --skip the_wrong_blocks_alone_are_named --skip hashes_from_outside_of_the_group --skip coefficients_do_not_grow
}

case ${1-} in
sanitize)
    # The flag is unstable, but the stable toolchain has all that it takes, and RUSTC_BOOTSTRAP lets it be used: so the compiler that
    # is checked is the one that releases are built with. A nightly toolchain works as well. With --target, so that procedural macros
    # and build scripts, which run within and under cargo, are left as they are.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address NCTEST_REQUIRE_ALL=1
    tests --target "$host" --target-dir target/asan
    ;;
valgrind)
    under 'valgrind --quiet --error-exitcode=9 --fair-sched=yes' scalar,ssse3,avx2 40000
    ;;
masked)
    under 'qemu-x86_64 -cpu qemu64' scalar 100000
    under 'qemu-x86_64 -cpu Nehalem' scalar,ssse3 100000
    under 'qemu-x86_64 -cpu Haswell' scalar,ssse3,avx2 100000
    ;;
*)
    echo "usage: $0 sanitize|valgrind|masked" >&2
    exit 2
    ;;
esac
