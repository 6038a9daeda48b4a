#!/bin/bash
# Builds the fields, the codes and the protocol for wasm32-unknown-unknown without a C compiler:
# first without vector instructions (simd128), then with them. Each time runs a fetch with each code,
# the protocol's examples and a timed row operation under node, and at last the tests of the fields.
# Takes rustup's target where it is installed, and Debian's rustc-web, cargo-web, rust-web-src and
# lld-19 otherwise, which build the standard library as well.
set -euo pipefail
cd "$(dirname "$0")/../.."

export CC=false CC_wasm32_unknown_unknown=false
options=(--locked --release --target wasm32-unknown-unknown)
cargo=("${CARGO:-cargo}") linker=
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    export PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
    cargo=(/usr/bin/cargo) linker=' -C linker=wasm-ld-19'
    options+=(-Zbuild-std=std,panic_abort)
fi
built=${CARGO_TARGET_DIR:-target}/wasm32-unknown-unknown/release/ncs_wasm_check.wasm

for feature in -simd128 +simd128; do
    echo "with $feature:"
    export RUSTFLAGS="-C target-feature=$feature$linker"
    "${cargo[@]}" build "${options[@]}" -p ncs-gf -p ncs-codec -p ncs-proto -p ncs-wasm-check -p ncs-web
    node tools/wasm/run.mjs "$built"
done
tests=$("${cargo[@]}" test "${options[@]}" -p ncs-gf --lib --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\.wasm\)".*/\1/p')
node tools/wasm/run.mjs "$tests"
