#!/bin/bash
# Unpacks packages of Debian 13 into a folder, without touching the host's sources:
# `tools/trixie.sh FOLDER PACKAGE…`.
set -euo pipefail

folder=$(realpath -m "$1")
shift
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache/archives}/partial "$folder"
# The mirror of the host: the first address of one, in either form of source lists. A host without
# one takes Debian's own.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    grep -E '^(URIs:|deb )' | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ') || true
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] ${mirror:-http://deb.debian.org/debian} trixie main" >"$work/list"
options=(-q -o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
cd "$work"
apt-get "${options[@]}" download "$@"
for package in *.deb; do dpkg -x "$package" "$folder"; done
