#!/bin/sh
# Checks the systemd units, alone and with the drop-in for GPUs: systemd understands every line, and
# the sandbox is no weaker than it was.
set -eu
cd "$(dirname "$0")/systemd"
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
mkdir -p "$draft/plain" "$draft/gpu/ncserverd.service.d" "$draft/instances"
# The program need not be installed where the unit is checked.
sed 's#^ExecStart=/usr/bin/ncserverd#ExecStart=/bin/true#' ncserverd.service >"$draft/plain/ncserverd.service"
cp "$draft/plain/ncserverd.service" "$draft/gpu/"
sed 's#^ExecStart=/usr/bin/ncserverd#ExecStart=/bin/true#' ncserverd@.service >"$draft/instances/ncserverd@.service"
# The template is the unit, but for what two instances need. grep fails where it counts none.
differ=$(diff ncserverd.service ncserverd@.service | grep '^[<>] [^#]' | grep -vcE '^[<>] (Description|User|RuntimeDirectory[A-Za-z]*)=' || true)
if [ "$differ" != 0 ]; then echo "ncserverd@.service is not ncserverd.service"; exit 1; fi
cp gpu.conf "$draft/gpu/ncserverd.service.d/"

# Name, most that it may be open: the scale is systemd's own, in tenths, from 0, closed, to 100.
check() {
    unit=${3:-ncserverd.service}
    said=$(systemd-analyze verify "$draft/$1/$unit" 2>&1) || { echo "$said"; exit 1; }
    # Of a line that it does not know systemd says so, and is content.
    if [ -n "$said" ]; then echo "$1: $said"; exit 1; fi
    echo "$1: $(systemd-analyze security --offline=true --no-pager --threshold="$2" "$draft/$1/$unit" | tail -n 1)"
}
check plain 15
check gpu 15
check instances 15 ncserverd@.service
