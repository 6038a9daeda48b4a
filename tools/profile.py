#!/usr/bin/env python3
"""Says where a server's processor time goes, from samples with call chains.

    perf script -F comm,period,ip,sym,dso | tools/profile.py --segments N

prints a table in Markdown: microseconds a segment, and the share of the time, by part. N is how
many segments were delivered while perf recorded (`tools/profile.sh` works it out). A sample belongs
to the first part that matches one of its frames, from the innermost outwards; memory that is copied
or allocated counts as such, wherever it happens.
"""

import argparse
import collections
import re
import sys

# A part, and what the symbol of a user frame has to contain.
USER = [
    ("encryption", r"ring_core|^ring::|aes_gcm|chacha20|rustls::crypto|rustls::quic"),
    ("TLS handshakes", r"^rustls|<rustls"),
    ("congestion control", r"ncs_net::endpoint::congestion"),
    ("coding: rows, devices, batches", r"ncs_device|ncs_codec|ncs_gf|^cu[A-Z]|ncs_serve::planner"),
    ("blocks: claims, slots, queues", r"ncs_serve::ring|ncs_proto::ring|ncs_serve::turns"),
    ("sessions and the protocol", r"ncs_serve|ncs_proto|ncs_net::telemetry|prometheus"),
    ("packet trains, receiving threads", r"ncs_net::endpoint"),
    ("QUIC (quinn)", r"quinn"),
    ("plain streams", r"ncbench::swarm"),
    ("tasks and timers (tokio)", r"tokio|futures"),
]
USER = [(part, re.compile(pattern)) for part, pattern in USER]
COPY = re.compile(r"^(__)?mem(move|cpy|set|cmp)|^__(mem|str)\w+(avx|evex|sse)")
ALLOCATION = re.compile(
    r"^(__libc_)?(malloc|free|cfree|calloc|realloc|memalign|posix_memalign)|^_int_(malloc|free)"
    r"|^_?mi_|je_|ncserverd::allocator|malloc_consolidate|unlink_chunk|tcache|sysmalloc|^alloc_perturb|^__rust_alloc|^__rdl_"
)
# A part of the kernel, and a function that is in its chains.
KERNEL = [
    ("kernel: delivery to the receiver on loopback", r"__netif_receive_skb|process_backlog"),
    ("kernel: send", r"sendmsg"),
    ("kernel: receive", r"recvm?msg"),
    ("kernel: wait for packets and timers", r"epoll|clock_nanosleep|nanosleep"),
    ("kernel: wake and block threads", r"futex|sched_yield"),
    ("kernel: page faults", r"page_fault|do_user_addr_fault"),
]
KERNEL = [(part, re.compile(pattern)) for part, pattern in KERNEL]
FRAME = re.compile(r"^\s+([0-9a-f]+)\s+(.*?)(?:\+0x[0-9a-f]+)?\s+\((.*)\)$")
HEAD = re.compile(r"^(\S.*?)\s+(\d+)\s*:?\s*$")
# Symbols of a C library without names: by what its sections hold (glibc 2.36 to 2.41).
STRINGS_FROM = 0x160000


def nameless(address, mapped):
    """The part of a frame of a C library that has no name."""
    return "memory: copies" if address - mapped >= STRINGS_FROM else "memory: allocation"


def part_of(frames, bases):
    """The part of a sample: its frames from the innermost outwards, as (address, symbol, dso)."""
    if not frames:
        return "unknown"
    address, symbol, dso = frames[0]
    if "kernel" in dso or dso.endswith(".ko"):
        inside = [name for _, name, where in frames if "kernel" in where]
        for part, pattern in KERNEL:
            if any(pattern.search(name) for name in inside):
                return part
        return "kernel: the rest"
    if "vdso" in dso:
        return "reading the clock"
    if COPY.search(symbol):
        return "memory: copies"
    if ALLOCATION.search(symbol):
        return "memory: allocation"
    if "libc.so" in dso and symbol in ("[unknown]", ""):
        return nameless(address, bases[dso])
    for _, name, where in frames:
        if "libcuda" in where:
            return "coding: rows, devices, batches"
        for part, pattern in USER:
            if pattern.search(name):
                return part
    return "the rest"


def samples(lines):
    """Yields the period and the frames of each sample."""
    period, frames = None, []
    for line in lines:
        frame = FRAME.match(line)
        if frame:
            frames.append((int(frame[1], 16), frame[2], frame[3]))
            continue
        if period is not None and not line.strip():
            yield period, frames
            period, frames = None, []
            continue
        head = HEAD.match(line)
        if head:
            period, frames = int(head[2]), []
    if period is not None:
        yield period, frames


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("--segments", type=float, required=True, help="segments delivered")
    arguments.add_argument("--libc", type=lambda text: int(text, 16), default=0,
                           help="where the C library is mapped, for frames without names")
    asked = arguments.parse_args()
    bases = collections.defaultdict(lambda: asked.libc)
    times = collections.Counter()
    for period, frames in samples(sys.stdin):
        times[part_of(frames, bases)] += period
    whole = sum(times.values())
    if not whole:
        sys.exit("no samples")
    print("| part | µs a segment | % |\n|---|---:|---:|")
    for part, time in times.most_common():
        print(f"| {part} | {time / asked.segments / 1e3:.1f} | {time / whole * 100:.1f} |")
    print(f"| all | {whole / asked.segments / 1e3:.1f} | 100 |")


main()
