#!/bin/bash
# Builds the fields, the codes and the protocol for wasm32-unknown-unknown without a C compiler:
# first without vector instructions (simd128), then with them. Each time runs a fetch with each code,
# the protocol's examples and a timed row operation under node, and at last the tests of the fields.
set -euo pipefail
cd "$(dirname "$0")/../.."

source tools/wasm/toolchain.sh
options+=(--release)
built=${CARGO_TARGET_DIR:-target}/wasm32-unknown-unknown/release/ncs_wasm_check.wasm

for feature in -simd128 +simd128; do
    echo "with $feature:"
    export RUSTFLAGS="-C target-feature=$feature $flags"
    "${cargo[@]}" build "${options[@]}" -p ncs-gf -p ncs-codec -p ncs-proto -p ncs-wasm-check -p ncs-web
    node tools/wasm/run.mjs "$built"
done
tests=$("${cargo[@]}" test "${options[@]}" -p ncs-gf --lib --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\.wasm\)".*/\1/p')
node tools/wasm/run.mjs "$tests"
