#!/bin/bash
# Gets the nats-server of Debian 13 for the tests of fleets, and prints where it is:
# `tools/nats.sh [FOLDER]`. That of Debian 12 lacks what later tests need.
set -euo pipefail

folder=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/nats}")
program=$folder/usr/sbin/nats-server
test -x "$program" || "$(dirname "$0")/trixie.sh" "$folder" nats-server >&2
"$program" --version >&2
echo "$program"
