#!/bin/bash
# Builds the npm package: crates/ncs-web as WebAssembly, and TypeScript around it.
#
# Fails if the module is larger than it was when this limit was set, by more than a few parts in a
# hundred: a page waits until it has come. Rustup's target alone, whose standard library prints
# panics, is not held to it.
set -euo pipefail
cd "$(dirname "$0")/.."
compressed_max=143000

source tools/wasm/toolchain.sh
RUSTFLAGS="-C target-feature=+simd128 $page_flags" "${cargo[@]}" rustc "${page_options[@]}" -p ncs-web

cd web
test -d node_modules || npm ci --no-audit --no-fund
npx prettier --check --log-level warn --config .prettierrc src 'test/*.mjs' '../src/pages/*.js'
rm -rf dist
npx tsc
# What all browsers with simd128 have, which the compiler uses.
features=(simd bulk-memory bulk-memory-opt nontrapping-float-to-int sign-ext mutable-globals
    reference-types multivalue)
npx wasm-opt -Oz "${features[@]/#/--enable-}" --strip-debug --strip-producers -o dist/ncs_web.wasm \
    "${CARGO_TARGET_DIR:-../target}/wasm32-unknown-unknown/web/ncs_web.wasm"
# What makes the module the same, byte for byte.
{ "${cargo[@]}" --version; npx wasm-opt --version; } >dist/BUILT_BY
compressed=$(gzip -9c dist/ncs_web.wasm | wc -c)
printf 'the module: %s bytes, %s compressed; the scripts: %s compressed\n' \
    "$(wc -c <dist/ncs_web.wasm)" "$compressed" "$(cat dist/*.js | gzip -9c | wc -c)"
if [[ $builds_std && $compressed -gt $compressed_max ]]; then
    echo "the module is larger than $compressed_max bytes compressed" >&2
    exit 1
fi
