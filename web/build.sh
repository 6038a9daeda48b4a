#!/bin/bash
# Builds the npm package: crates/ncs-web as WebAssembly, and TypeScript around it. Takes rustup's
# target where it is installed, and Debian's rustc-web, cargo-web, rust-web-src and lld-19 otherwise,
# which build the standard library as well.
#
# Fails if the module is larger than it was when this limit was set, by more than a few parts in a
# hundred: a page waits until it has come. Rustup's target alone, whose standard library prints
# panics, is not held to it.
set -euo pipefail
cd "$(dirname "$0")/.."
compressed_max=143000

export CC=false CC_wasm32_unknown_unknown=false
# This crate type alone: with another beside it nothing is optimised across crates.
options=(--locked --profile web --target wasm32-unknown-unknown -p ncs-web --lib --crate-type cdylib)
cargo=("${CARGO:-cargo}") flags= path=$PATH is_least=
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
    path="/usr/bin:$PATH"
    cargo=(/usr/bin/cargo) is_least=yes
    # A panic is a trap, without a text: a page can do no more with one than with the other.
    flags=' -C linker=wasm-ld-19 -Zunstable-options -C panic=immediate-abort -Zlocation-detail=none'
    options+=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
fi
RUSTFLAGS="-C target-feature=+simd128$flags" PATH=$path "${cargo[@]}" rustc "${options[@]}"

cd web
test -d node_modules || npm ci --no-audit --no-fund
npx prettier --check --log-level warn src 'test/*.mjs'
rm -rf dist
npx tsc
# What all browsers with simd128 have, which the compiler uses.
features=(simd bulk-memory bulk-memory-opt nontrapping-float-to-int sign-ext mutable-globals
    reference-types multivalue)
npx wasm-opt -Oz "${features[@]/#/--enable-}" --strip-debug --strip-producers -o dist/ncs_web.wasm \
    "${CARGO_TARGET_DIR:-../target}/wasm32-unknown-unknown/web/ncs_web.wasm"
compressed=$(gzip -9c dist/ncs_web.wasm | wc -c)
printf 'the module: %s bytes, %s compressed; the scripts: %s compressed\n' \
    "$(wc -c <dist/ncs_web.wasm)" "$compressed" "$(cat dist/*.js | gzip -9c | wc -c)"
if [[ $is_least && $compressed -gt $compressed_max ]]; then
    echo "the module is larger than $compressed_max bytes compressed" >&2
    exit 1
fi
