#!/bin/bash
# Checks the fields, the codes and the protocol for aarch64-unknown-linux-gnu. Uses rustup's target
# if it is installed, and otherwise Debian's rustc-web, cargo-web and rust-web-src, which check the
# standard library as well. A dependency compiles C, with Debian's gcc-aarch64-linux-gnu and
# libc6-dev-arm64-cross.
set -euo pipefail
cd "$(dirname "$0")/.."

check=(check --locked --release --target aarch64-unknown-linux-gnu -p ncs-gf -p ncs-codec -p ncs-proto)
if rustup target list --installed 2>/dev/null | grep -qx aarch64-unknown-linux-gnu; then
    "${CARGO:-cargo}" "${check[@]}"
else
    PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 /usr/bin/cargo "${check[@]}" -Zbuild-std
fi
