#!/bin/bash
# Runs outages of a fleet on a host that has nothing but this folder, which deploy/outages-bundle.py
# has made: `run SCENARIO…`, or `run` for all, one after the other. The variables of the test set
# sizes (CONTRIBUTING.md); NCTEST_OUT is the folder for reports and logs. First it says what the
# kernel has. Needs root.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# What the host has comes first.
export PATH=$PATH:/usr/sbin:/sbin:$here/tools
export NCTEST_BIN_DIR=$here/bin NATS_SERVER=$here/tools/nats-server NCTEST_REQUIRE_ALL=1
export NCTEST_COMMIT=${NCTEST_COMMIT:-$(cat "$here/commit")}
if [ -n "${NCTEST_OUT:-}" ]; then
    mkdir -p "$NCTEST_OUT"
    NCTEST_OUT=$(cd "$NCTEST_OUT" && pwd)
    export NCTEST_OUT
fi

# What, command: says whether the command works in a namespace of its own, and if not, why.
has() {
    local what=$1 said
    shift
    if said=$(unshare --net bash -c "$*" 2>&1); then echo "has     $what"; else echo "LACKS   $what: ${said//$'\n'/ }"; fi
}

echo "$(nproc) processors, Linux $(uname -r), user $(id -u)"
for program in ip tc nft nginx unshare kill nats-server; do
    command -v "$program" >/dev/null || echo "LACKS   $program"
done
has 'network namespaces' true
has 'veth pairs' ip link add va type veth peer name vb
has 'veth pairs into another namespace' \
    'coproc unshare --net sh -c "echo inside; cat"; read -r <&"${COPROC[0]}"; ip link add va type veth peer name vb netns $COPROC_PID'
has 'bridges' ip link add br0 type bridge
has 'nftables at bridges' "nft 'add table bridge x'"
has 'routes into a black hole' 'ip link set lo up && ip route add blackhole 10.78.0.0/18'
has 'netem' 'ip link add va type veth peer name vb && tc qdisc replace dev va root netem delay 1ms'
has 'tbf' 'ip link add va type veth peer name vb && tc qdisc replace dev va root tbf rate 16kbit burst 2000 latency 4s'

# One at a time: two large fleets would measure each other.
[ $# = 0 ] || set -- --exact "${@/#/scenarios::}"
exec "$here/bin/outages" --nocapture --test-threads 1 --include-ignored "$@"
