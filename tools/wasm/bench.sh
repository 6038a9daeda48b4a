#!/bin/bash
# Measures decoding as WebAssembly in node, whose engine is that of Chromium, beside the same code
# natively. The module is compiled as web/build.sh compiles that of pages, with the same profile.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
"${CARGO:-cargo}" build --locked --release -p ncs-wasm-check --example decode

source tools/wasm/toolchain.sh
RUSTFLAGS="-C target-feature=+simd128 $page_flags" "${cargo[@]}" rustc "${page_options[@]}" -p ncs-wasm-check
node tools/wasm/bench.mjs "$target/wasm32-unknown-unknown/web/ncs_wasm_check.wasm" \
    "$target/release/examples/decode"
