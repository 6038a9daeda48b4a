#!/bin/bash
# Gets the nats-server of Debian 13 for the tests of fleets, without touching the host's sources,
# and prints where it is: `tools/nats.sh [FOLDER]`. That of Debian 12 lacks what later tests need.
set -euo pipefail

folder=$(realpath -m "${1:-${CARGO_TARGET_DIR:-target}/nats}")
program=$folder/usr/sbin/nats-server
if [ ! -x "$program" ]; then
    work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
    mkdir -p "$work"/{lists,cache/archives}/partial
    # The mirror of the host: the first address of one, in either form of source lists.
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
        grep -E '^(URIs:|deb )' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ') || true
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keyring] ${mirror:-http://deb.debian.org/debian} trixie main" >"$work/list"
    options=(-q -o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
    (
        apt-get "${options[@]}" update
        cd "$work" && apt-get "${options[@]}" download nats-server
        mkdir -p "$folder" && dpkg -x "$work"/nats-server_*.deb "$folder"
    ) >&2
fi
"$program" --version >&2
echo "$program"
