#!/bin/bash
# Builds the npm package: crates/ncs-web as WebAssembly, and TypeScript around it. Takes rustup's
# target where it is installed, and Debian's rustc-web, cargo-web, rust-web-src and lld-19 otherwise,
# which build the standard library as well.
set -euo pipefail
cd "$(dirname "$0")/.."

export CC=false CC_wasm32_unknown_unknown=false
options=(--locked --profile web --target wasm32-unknown-unknown -p ncs-web)
cargo=("${CARGO:-cargo}") linker= path=$PATH
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
    export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
    path="/usr/bin:$PATH"
    cargo=(/usr/bin/cargo) linker=' -C linker=wasm-ld-19'
    options+=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
fi
RUSTFLAGS="-C target-feature=+simd128$linker" PATH=$path "${cargo[@]}" build "${options[@]}"

cd web
test -d node_modules || npm ci --no-audit --no-fund
npx prettier --check --log-level warn src 'test/*.mjs'
rm -rf dist
npx tsc
cp "${CARGO_TARGET_DIR:-../target}/wasm32-unknown-unknown/web/ncs_web.wasm" dist/
printf 'the module: %s bytes, %s compressed; the scripts: %s compressed\n' \
    "$(wc -c <dist/ncs_web.wasm)" "$(gzip -9c dist/ncs_web.wasm | wc -c)" \
    "$(cat dist/*.js | gzip -9c | wc -c)"
