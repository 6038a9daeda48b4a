#!/bin/bash
# The tests of the arithmetic and of what sits on it, under something that sees what a plain run
# does not. On x86-64 Linux.
#
#   sanitize   AddressSanitizer, with every instruction set of this machine
#   valgrind   valgrind, which also sees what depends on memory that nobody has written; up to AVX2,
#              the last that it knows
#   masked     emulated processors: one without SSSE3, one without AVX2, one without AVX-512.
#              Detection must find the lesser instruction set, and an instruction beyond it ends the
#              test. AVX-512 without GFNI, or without IFMA, cannot be had in this way, as Debian's
#              emulator knows none of them; it is tested by name
#
# A finding is a failure. `short` as the second argument runs what CI has time for. `sanitize` then
# leaves out the packages that compile the daemon or its network. The others run the tests that
# `chosen` lists, from what `make test` has built.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
host=x86_64-unknown-linux-gnu
# The packages of the arithmetic and of devices.
small=(--package ncs-gf --package ncs-codec --package ncs-device --features ncs-device/cuda --lib --test backends)

# Options of cargo, and after `--` those of tests: the crate's own tests of the arithmetic, then the
# lists of cases for all of it.
tests() {
    local options=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1") && shift; done
    "$cargo" test --locked --release "${options[@]}" "${small[@]}" "$@"
    "$cargo" test --locked --release "${options[@]}" --package nccodec --lib -- crew:: "${@:2}"
    "$cargo" test --locked --release "${options[@]}" --package ncserverd --test codecs "$@"
}

# The command that starts each test, for tools in which instructions take tens of times as long. The
# largest generations, the counting of failures, proofs of large primes and the properties of hashes
# are left out; the computation of hashes is tested.
whole() {
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$1 NCTEST_ISAS=$2 NCTEST_BYTES_MAX=$3
    printf '\n--- %s: %s\n' "$1" "$2"
    tests -- --skip round_trips_up_to_the_largest_generation --skip failures_are_as_rare_as_the_rfc_demands \
        --skip parameters_are --skip changes_of_one_bit_are_found --skip right_blocks_pass --skip have_room_for_the_largest_terms \
        --skip the_wrong_blocks_alone_are_named --skip hashes_from_outside_of_the_group --skip coefficients_do_not_grow
}

# The tests of the short form: an executable, and a test or the module of tests. Unsafe code that
# runs on a processor, and all that depends on instruction sets, is in ncs-gf. So all of that crate
# is here, and of the others the tests that call each instruction set and each way into that crate.
# Left out are tests that need more than ten seconds under valgrind, and those of plain logic.
chosen() {
    grep -v '^ *#' <<'END'
    # Row operations, matrices, panels, both fields, large numbers.
    ncs_gf dense
    ncs_gf gf256
    ncs_gf gfq
    ncs_gf matrix
    ncs_gf montgomery
    ncs_gf panel
    ncs_gf rows
    ncs_gf solve
    ncs_gf sums
    # Detection of instruction sets. Each of them, by name, beside the definition: all coefficients,
    # lengths and misalignments, then generations up to 5,000 bytes on each back end, with one and
    # several threads.
    backends instruction_sets_are_those_of_the_processor
    backends large_numbers_are_multiplied_by_what_the_processor_has
    backends row_operations
    backends combinations
    backends back_ends_agree
    backends back_ends_decode_what_was_encoded
    # Encoders and decoders of each code with each instruction set, and the known answers.
    codecs rows_are_the_known_ones
    codecs small_blocks_are_the_known_ones
    codecs large_blocks_are_the_known_ones
    codecs round_trips_on_every_instruction_set
    codecs blocks_with_numbers_rebuild_the_source_in_any_order
    codecs recoding_through_relays
    ncs_codec raptor10::tests::every_instruction_set_makes_the_same
    ncs_codec raptorq::tests::every_instruction_set_makes_the_same
    ncs_codec rs::tests::every_instruction_set_makes_the_chunks_of_the_definition
    # Elimination as blocks arrive, which works on rows in place.
    ncs_codec elimination
    ncs_codec rlnc
    # Threads that share one output.
    ncs_codec rs::tests::threads_change_nothing
    ncs_codec gfq::tests::many_tasks_at_a_time_are_the_same_as_one_by_one
    # Blocks over the prime field, with hashes, on every kind of processor.
    ncs_codec gfq::tests::words_have_one_order_and_what_is_missing_is_zeros
    # The CPU as a device: slots that threads fill, generations of all sizes in one call.
    ncs_device cpu
    ncs_device tests::a_batch_over_many_generations_is_written_into_its_slots
    ncs_device tests::a_few_blocks_are_the_same_however_they_are_cut
    ncs_device tests::generations_of_all_sizes_are_decoded_in_one_call
    ncs_device tests::few_generations_are_decoded_by_all_threads
END
}

# The chosen tests: what starts them, instruction sets. An entry that names no test is a failure.
short() {
    local name folder path all tests test
    export NCTEST_ISAS=$2 NCTEST_BYTES_MAX=5000
    printf '\n--- %s: %s\n' "$1" "$2"
    for name in $(chosen | awk '{ print $1 }' | uniq); do
        read -r folder path < <(sed -n "s/^$name //p" <<<"$built") || { echo "there are no tests $name" >&2 && return 1; }
        all=$("$path" --list --format=terse) tests=()
        for test in $(chosen | awk -v name="$name" '$1 == name { print $2 }'); do
            mapfile -t -O ${#tests[@]} tests < <(sed -nE "s/^($test(::.*)?): test$/\1/p" <<<"$all")
            [[ ${tests[*]: -1} == "$test"* ]] || { echo "$name has no test $test" >&2 && return 1; }
        done
        # The first argument is a program with its options.
        (cd "$folder" && $1 "$path" --exact "${tests[@]}")
    done
}

# A line for each executable of tests: name, folder of the package, path. Without a choice of
# packages, because that would change the features of dependencies, and build them again.
executables() {
    "$cargo" test --locked --release --lib --test backends --test codecs --no-run --message-format=json | python3 -c '
import json, pathlib, sys
for message in map(json.loads, sys.stdin):
    if message.get("executable") and message["profile"]["test"]:
        print(message["target"]["name"], pathlib.Path(message["manifest_path"]).parent, message["executable"])'
}

way=whole
case "${1-} ${2-whole}" in
'sanitize whole' | 'sanitize short')
    # The flag is unstable, but the stable toolchain has everything for it, and RUSTC_BOOTSTRAP
    # allows it: so the checked compiler is the one that builds releases. A nightly toolchain works
    # as well. --target leaves procedural macros and build scripts, which run within and under
    # cargo, as they are.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address NCTEST_REQUIRE_ALL=1
    options=(--target "$host" --target-dir "${CARGO_TARGET_DIR:-target}/asan")
    if [ "${2-}" = short ]; then
        "$cargo" test --locked --release "${options[@]}" "${small[@]}"
    else
        tests "${options[@]}"
    fi
    ;;
'valgrind whole' | 'valgrind short' | 'masked whole' | 'masked short')
    if [ "${2-}" = short ]; then
        way=short
        built=$(executables)
    fi
    if [ "$1" = valgrind ]; then
        "$way" 'valgrind --quiet --error-exitcode=9 --fair-sched=yes' scalar,ssse3,avx2 40000
    else
        "$way" 'qemu-x86_64 -cpu qemu64' scalar 100000
        "$way" 'qemu-x86_64 -cpu Nehalem' scalar,ssse3 100000
        "$way" 'qemu-x86_64 -cpu Haswell' scalar,ssse3,avx2 100000
    fi
    ;;
*)
    echo "usage: $0 sanitize|valgrind|masked [short]" >&2
    exit 2
    ;;
esac
