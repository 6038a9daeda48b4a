#!/bin/bash
# Measures decoding as WebAssembly in node, whose engine is that of Chromium, beside the same code
# natively. The module is compiled as web/build.sh compiles that of pages, with the same profile.
# Takes what run.sh takes.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
"${CARGO:-cargo}" build --locked --release -p ncs-wasm-check --example decode

export CC=false CC_wasm32_unknown_unknown=false
options=(--locked --profile web --target wasm32-unknown-unknown -p ncs-wasm-check --lib --crate-type cdylib)
cargo=("${CARGO:-cargo}") flags=
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    export PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
    cargo=(/usr/bin/cargo)
    flags=' -C linker=wasm-ld-19 -Zunstable-options -C panic=immediate-abort -Zlocation-detail=none'
    options+=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
fi
RUSTFLAGS="-C target-feature=+simd128$flags" "${cargo[@]}" rustc "${options[@]}"
node tools/wasm/bench.mjs "$target/wasm32-unknown-unknown/web/ncs_wasm_check.wasm" \
    "$target/release/examples/decode"
