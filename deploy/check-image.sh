#!/bin/bash
# Runs the steps of the Dockerfile without a container engine and without an image registry: each
# stage gets a fresh Debian root from debootstrap, RUN steps run in it, and at the end the entry
# point is started there until /readyz answers.
#
#     deploy/check-image.sh [DIRECTORY]     makes the roots below DIRECTORY
#                                           (default: a temporary one, removed at the end)
#
# Needs root, debootstrap, curl and a Rust toolchain: this machine's toolchain and gcc stand for
# what an image named rust:* adds to Debian. The steps themselves are read from the Dockerfile; an
# instruction that this script does not know is an error.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -gt 0 ]; then work=$(mkdir -p "$1" && cd "$1" && pwd); keep=yes; else work=$(mktemp -d); keep=no; fi
server=

say() { printf 'check-image: %s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

clean_up() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    for mount in "$work"/*/proc "$work"/*/dev; do
        if mountpoint -q "$mount"; then umount "$mount" || umount --lazy "$mount"; fi
    done
    if [ "$keep" = no ]; then rm -rf --one-file-system "$work"; fi
}
trap clean_up EXIT

# --- the base of a stage --------------------------------------------------------------------------

mirror() { awk '/^URIs:/ { print $2; exit } $1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^http/) { print $i; exit } }' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1; }

base() { # image root
    local image=$1 root=$2 extra=
    case $image in
        debian:bookworm*) ;;
        rust:*-bookworm) extra=--include=gcc,libc6-dev,ca-certificates ;;
        *) fail "no root stands for the image $image" ;;
    esac
    say "root for $image"
    debootstrap --variant=minbase $extra bookworm "$root" $(mirror) >"$root.log" 2>&1 || { tail -20 "$root.log"; fail debootstrap; }
    mount -t proc proc "$root/proc"
    mount --bind /dev "$root/dev"
    # How this machine reaches its package registries is its own affair, not the Dockerfile's.
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    mkdir -p "$root/etc/ssl/certs"
    if [ -r /etc/ssl/certs/ca-certificates.crt ]; then cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/host.crt"; fi
    case $image in rust:*) toolchain "$image" "$root" ;; esac
}

toolchain() { # image root
    local wanted=${1#rust:} sysroot
    wanted=${wanted%%-*}
    sysroot=$(cd "$here" && rustc --print sysroot)
    rustc --version | grep -q "^rustc $wanted\." || fail "the Dockerfile builds with Rust $wanted, this machine has $(rustc --version)"
    mkdir -p "$2/usr/local/rust"
    cp -a "$sysroot/bin" "$sysroot/lib" "$2/usr/local/rust/"
    echo /usr/local/rust/bin >"$2.path"
}

# --- one step -------------------------------------------------------------------------------------

enter() { # command of the step, run by a shell in the root with the environment of the stage
    local root=$1 path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin variables=()
    shift
    if [ -e "$root.path" ]; then path=$(cat "$root.path"):$path; fi
    if [ -e "$root.env" ]; then mapfile -t variables <"$root.env"; fi
    env -i PATH="$path" HOME=/root SSL_CERT_FILE=/etc/ssl/certs/host.crt CARGO_HTTP_CAINFO=/etc/ssl/certs/host.crt \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} "${variables[@]}" \
        chroot "$root" "$@"
}

copy() { # root, from, words of the step
    local root=$1 from=$2 to paths=() path
    shift 2
    to=${*: -1}
    paths=("${@:1:$#-1}")
    case $to in /*) to=$root$to ;; *) to=$root$(cat "$root.dir")/$to ;; esac
    if [ ${#paths[@]} -gt 1 ] || [ "${to%/}" != "$to" ]; then mkdir -p "$to"; else mkdir -p "$(dirname "$to")"; fi
    for path in "${paths[@]}"; do
        # As Docker does: of a folder, what is in it.
        if [ -d "$from/$path" ]; then mkdir -p "$to" && cp -a "$from/$path/." "$to/"; else cp -a "$from/$path" "$to"; fi
    done
}

words() { # a JSON list as lines
    python3 -c 'import json,sys; print("\n".join(json.loads(sys.argv[1])))' "$1"
}

declare -A stages=()
count=0
root=
step() {
    local instruction=$1 rest=$2
    case $instruction in
        FROM)
            local image name
            read -r image _ name <<<"$rest"
            root=$work/stage$count
            count=$((count + 1))
            stages[${name:-last}]=$root
            [ ! -e "$root" ] || fail "$root exists already"
            mkdir -p "$root"
            base "$image" "$root"
            echo / >"$root.dir"
            ;;
        WORKDIR) mkdir -p "$root$rest" && echo "$rest" >"$root.dir" ;;
        ENV) echo "$rest" >>"$root.env" ;;
        COPY)
            local from=$here
            if [[ $rest == --from=* ]]; then
                from=${rest#--from=}; from=${stages[${from%% *}]}; rest=${rest#* }
            fi
            # shellcheck disable=SC2086
            copy "$root" "$from" $rest
            ;;
        RUN) enter "$root" /bin/sh -c "cd '$(cat "$root.dir")' && $rest" ;;
        USER) echo "$rest" >"$root.user" ;;
        ENTRYPOINT) words "$rest" >"$root.entry" ;;
        CMD) words "$rest" >"$root.cmd" ;;
        HEALTHCHECK) words "${rest#*CMD }" >"$root.health" ;;
        VOLUME | EXPOSE | STOPSIGNAL | LABEL) ;;
        *) fail "unknown instruction $instruction" ;;
    esac
}

# --- all of them, then the entry point ------------------------------------------------------------

while IFS= read -r line; do
    say "$line"
    step "${line%% *}" "${line#* }"
done < <(sed -e '/^[[:space:]]*#/d' "$here/Dockerfile" | sed -e ':join' -e '/\\$/ { N; s/\\\n[[:space:]]*//; b join }' -e '/^[[:space:]]*$/d')

user=$(cat "$root.user")
owner=$(chroot "$root" id -u "$user"):$(chroot "$root" id -g "$user")
mapfile -t command < <(cat "$root.entry" "$root.cmd")
say "starting ${command[*]} as $user"
# A network of its own where the kernel allows it, so that the ports of the image are free.
isolate=()
if unshare --net true 2>/dev/null; then isolate=(unshare --net); fi
"${isolate[@]}" bash -c 'ip link set lo up 2>/dev/null; exec "$@"' server \
    env -i PATH=/usr/sbin:/usr/bin:/bin $(cat "$root.env") NCSERVERD_ADMISSION__INSECURE=true chroot --userspec="$owner" "$root" "${command[@]}" >"$root.server.log" 2>&1 &
server=$!

inside() { if [ ${#isolate[@]} -gt 0 ]; then nsenter --target "$server" --net "$@"; else "$@"; fi; }
answer=
for _ in $(seq 100); do
    kill -0 "$server" 2>/dev/null || { cat "$root.server.log"; fail "the server ended"; }
    answer=$(inside curl --silent --max-time 5 --write-out ' (%{http_code})' http://127.0.0.1:9443/readyz) && break
    sleep 0.2
done
say "/readyz: $answer"
case $answer in
    *'"ready":true'*'(200)' | *'no streams'*'(503)') ;;
    *) cat "$root.server.log"; fail "/readyz did not answer as it should" ;;
esac

mapfile -t health <"$root.health"
inside chroot "$root" "${health[@]}" || fail "the health check says that the server is not well"

kill -TERM "$server"
code=0
wait "$server" || code=$?
server=
[ "$code" = 0 ] || { cat "$root.server.log"; fail "SIGTERM ended the server with $code"; }
say "passed"
