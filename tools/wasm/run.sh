#!/bin/bash
# Builds the fields, the codes and the protocol for wasm32-unknown-unknown, without a C compiler,
# and runs a fetch with each code and the protocol's examples under node. Uses rustup's target if it
# is installed, and otherwise Debian's rustc-web, cargo-web, rust-web-src and lld-19, which build
# the standard library as well.
set -euo pipefail
cd "$(dirname "$0")/../.."

export CC=false CC_wasm32_unknown_unknown=false
build=(build --locked --release --target wasm32-unknown-unknown -p ncs-gf -p ncs-codec -p ncs-proto -p ncs-wasm-check)
flags='-C target-feature=+simd128'
if rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    RUSTFLAGS="$flags" "${CARGO:-cargo}" "${build[@]}"
else
    PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS="$flags -C linker=wasm-ld-19" \
        /usr/bin/cargo "${build[@]}" -Zbuild-std=std,panic_abort
fi
node tools/wasm/run.mjs "${CARGO_TARGET_DIR:-target}/wasm32-unknown-unknown/release/ncs_wasm_check.wasm"
