#!/bin/bash
# Builds `ncserverd` and `ncpeer` as they were at a tag or commit, and prints the folder that has
# them: `tools/programs-of.sh v0.1.0`. Everything is below mixed/ in cargo's target folder. A commit
# is built once.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(git rev-parse --verify --quiet "${1:?which tag or commit}^{commit}") || {
    echo "$1 is no tag or commit of this repository" >&2
    exit 1
}
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/mixed
programs=$folder/$(git rev-parse --short=12 "$commit")
if [ ! -x "$programs/ncserverd" ] || [ ! -x "$programs/ncpeer" ]; then
    # Files get the time of now: cargo takes those that are older than its last build for built.
    rm -rf "$folder/source"
    mkdir -p "$folder/source" "$programs"
    git archive "$commit" | tar -x --touch -C "$folder/source"
    CARGO_TARGET_DIR=$folder/build ${CARGO:-cargo} build --locked --release --package ncserverd --bins \
        --manifest-path "$folder/source/Cargo.toml" >&2
    install "$folder/build/release/ncpeer" "$folder/build/release/ncserverd" "$programs"
fi
echo "$programs"
