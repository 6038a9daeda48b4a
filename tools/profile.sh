#!/bin/bash
# Profiles a server of coded blocks, and one of plain QUIC streams, under the same viewers:
# tools/profile.py says where the processor time of one segment goes.
#
#     tools/profile.sh PROGRAMS BACKEND SERVER_CORES VIEWER_CORES VIEWERS JOINS_A_SECOND
#
# PROGRAMS is a directory with ncserverd and ncbench, built with call chains:
#     RUSTFLAGS="-C force-frame-pointers=yes" CARGO_PROFILE_RELEASE_DEBUG=line-tables-only \
#         cargo build --release --bins
# BACKEND is cuda or cpu; the cores are lists such as 0-7. Viewers play 768 kbit/s in segments of
# 512 KiB. Needs perf (or its path in $PERF) and openssl, and takes a minute and a half.
set -euo pipefail
programs=$1 backend=$2 server_cores=$3 viewer_cores=$4 viewers=$5 joins=$6
here=$(cd "$(dirname "$0")" && pwd)
perf=${PERF:-perf}
bitrate=768000 segment=$((512 << 10)) record_s=8
place=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$place"' EXIT
mkdir "$place/media"
head -c 50M /dev/urandom > "$place/media/movie.bin"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" \
    -keyout "$place/key.pem" -out "$place/cert.pem" 2> "$place/openssl.log"
pin=$(openssl x509 -in "$place/cert.pem" -outform der | sha256sum | cut -d' ' -f1)
port=4471
cat > "$place/server.toml" <<X
[endpoint]
listen = ["127.0.0.1:$port"]
connections_max = $((viewers * 2))
retry_above = $((viewers * 2))
[telemetry]
listen = "127.0.0.1:0"
[tls]
cert = "$place/cert.pem"
key = "$place/key.pem"
directory = "$place/state"
[ring]
bytes = "1GiB"
max_reuse = 1
[ingest]
segment_max_bytes = "512KiB"
[device]
backend = "$backend"
[stream.live]
directory = "$place/media"
first_pass = "coded"
n_max = 128
generations_min = 1
X

# Starts viewers of $url with these options, and profiles the server $server once they play.
profile() {
    taskset -c "$viewer_cores" "$programs/ncbench" swarm "$url" "$@" --viewers "$viewers" \
        --join-rate "$joins" --bitrate $bitrate --sockets 4 --time 30s > "$place/swarm.log" &
    local swarm=$!
    sleep $((viewers / joins + 15))
    local libc
    libc=$(awk '/libc\.so/ { sub(/-.*/, "", $1); print $1; exit }' "/proc/$server/maps")
    $perf record -q -e cpu-clock -F 499 -g -p "$server" -o "$place/data" -- sleep $record_s \
        > /dev/null 2>&1
    wait $swarm
    grep -E "^(segments|put out|blocks)" "$place/swarm.log" || true
    $perf script -i "$place/data" -F comm,period,ip,sym,dso 2> /dev/null |
        python3 "$here/profile.py" --libc "${libc:-0}" \
            --segments "$(python3 -c "print($viewers * $bitrate * $record_s / ($segment * 8))")"
}

echo "coded blocks, $backend: $viewers viewers"
taskset -c "$server_cores" "$programs/ncserverd" --config "$place/server.toml" serve \
    > "$place/server.log" 2>&1 &
server=$!
sleep 4
url="ncs://127.0.0.1:$port#$pin"
profile /live/movie.bin --from-start
kill $server
wait $server || true

echo
echo "plain QUIC streams: $viewers viewers"
taskset -c "$server_cores" "$programs/ncbench" plain --listen 127.0.0.1:$port \
    2> "$place/plain.log" &
server=$!
sleep 2
url=$(grep -o "ncs://[^ ]*" "$place/plain.log" | head -1)
profile --against plain --plain-segment 512KiB
kill $server
wait $server || true
