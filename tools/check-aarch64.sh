#!/bin/bash
# Checks the fields, the codes and the protocol for aarch64-unknown-linux-gnu. Takes rustup's target where it is installed, and
# Debian's rustc-web, cargo-web and rust-web-src otherwise, which check the standard library as well. A dependency compiles C: Debian's
# gcc-aarch64-linux-gnu and libc6-dev-arm64-cross have what that takes.
set -euo pipefail
cd "$(dirname "$0")/.."

check=(check --locked --release --target aarch64-unknown-linux-gnu -p ncs-gf -p ncs-codec -p ncs-proto)
if rustup target list --installed 2>/dev/null | grep -qx aarch64-unknown-linux-gnu; then
    "${CARGO:-cargo}" "${check[@]}"
else
    PATH="/usr/bin:$PATH" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 /usr/bin/cargo "${check[@]}" -Zbuild-std
fi
