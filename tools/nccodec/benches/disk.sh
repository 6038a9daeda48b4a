#!/bin/bash
# How near nccodec comes to the pace of a disk: `disk.sh NCCODEC [DIRECTORY [ROUNDS]]`. Each round
# runs these in a random order, each with cold caches:
#
#   dd-encode   reads 1.6 GB and writes 2.4 GB at the same time, directly and 4 MiB at once
#   encode      nccodec encode --codec rs --k 4 --n 6 of a file of 1.6 GB
#   dd-decode   reads 1.6 GB and writes 1.6 GB at the same time
#   decode      nccodec decode of the six chunks without the first two
#
# Prints every time in seconds, and the medians. Takes 8 GB of the disk.
set -euo pipefail
nccodec=$(realpath "$1") directory=${2:-.} rounds=${3:-9}
work=$(mktemp -d "$directory/disk.XXXXXX") && trap 'rm -rf "$work"' EXIT
cd "$work"

# A cloud's disk lends a burst, and takes it back in the next run.
PAUSE=${PAUSE:-6}

copy() { # megabytes read and written
    dd if=film of=/dev/null bs=4M iflag=direct status=none &
    dd if=/dev/zero of=copy bs=4M count="$1" iflag=fullblock oflag=direct status=none &
    wait %1 && wait %2
}
dd-encode() { copy 572; }
dd-decode() { copy 381; }
encode() { "$nccodec" encode --codec rs --k 4 --n 6 -o made film >/dev/null 2>&1; }
decode() { "$nccodec" decode kept -o again >/dev/null 2>&1; }

head -c 1600000000 /dev/urandom >film
"$nccodec" encode --codec rs --k 4 --n 6 -o kept film >/dev/null 2>&1
rm kept/film.00[01]-native.ncc
for ((round = 0; round < rounds; round++)); do
    for run in $(shuf -e dd-encode encode dd-decode decode); do
        rm -rf copy made again
        sync
        for file in film kept/*; do dd if="$file" iflag=nocache count=0 status=none; done
        sleep "$PAUSE"
        start=$EPOCHREALTIME
        $run
        end=$EPOCHREALTIME
        echo "$run $(((${end/./} - ${start/./}) / 1000))" >>times
    done
done
"$nccodec" decode kept -o - 2>/dev/null | cmp - film
for run in dd-encode encode dd-decode decode; do
    awk -v run=$run '$1 == run { print $2 }' times | sort -n | awk -v run=$run '
        { times[NR] = $1 / 1000; all = all sprintf(" %.2f", $1 / 1000) }
        END { printf "%-10s median %.2f s of%s\n", run, times[int((NR + 1) / 2)], all }'
done
