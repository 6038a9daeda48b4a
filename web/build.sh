#!/bin/bash
# Builds the npm package: crates/ncs-web as WebAssembly, and TypeScript around it.
#
# Fails if the module is larger than it was when this limit was set, by more than a few parts in a
# hundred: a page waits until it has come. Rustup's target alone, whose standard library prints
# panics, is not held to it.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/wasm/toolchain.sh
built=${CARGO_TARGET_DIR:-$PWD/target}/wasm32-unknown-unknown/web
# What all browsers with simd128 have, which the compiler uses.
features=(simd bulk-memory bulk-memory-opt nontrapping-float-to-int sign-ext mutable-globals
    reference-types multivalue)

# Builds the module of this name with these options, at most so many bytes compressed.
module() {
    local name=$1 compressed_max=$2 compressed
    shift 2
    RUSTFLAGS="-C target-feature=+simd128 $page_flags" \
        "${cargo[@]}" rustc "${page_options[@]}" -p ncs-web "$@"
    (cd web && npx wasm-opt -Oz "${features[@]/#/--enable-}" --strip-debug --strip-producers \
        -o "dist/$name" "$built/ncs_web.wasm")
    compressed=$(gzip -9c "web/dist/$name" | wc -c)
    printf '%s: %s bytes, %s compressed\n' "$name" "$(wc -c <"web/dist/$name")" "$compressed"
    if [[ $builds_std && $compressed -gt $compressed_max ]]; then
        echo "the module is larger than $compressed_max bytes compressed" >&2
        exit 1
    fi
}

cd web
test -d node_modules || npm ci --no-audit --no-fund
npx prettier --check --log-level warn --config .prettierrc src 'test/*.mjs' '../src/pages/*.js'
rm -rf dist
npx tsc
# What makes the modules the same, byte for byte.
{ "${cargo[@]}" --version; npx wasm-opt --version; } >dist/BUILT_BY
printf 'the scripts: %s bytes compressed\n' "$(cat dist/*.js | gzip -9c | wc -c)"
cd ..
module ncs_web.wasm 157000 --no-default-features
# Pages that serve each other load this one instead.
module ncs_web_share.wasm 225000
