#!/usr/bin/env python3
"""Records the metrics of a real server while it idles, with ten viewers, and while overloaded.

    deploy/prometheus/record.py NCSERVERD [idle|viewers|overload ...]

Each recording takes four minutes: `/metrics` is read once a second. `check-alerts.py` repeats it
until it makes an hour.

`ncpeer` lies beside NCSERVERD and makes the viewers. The origin is live: a segment per second of a
stream of half a megabit per second. The server has one core, which the viewers of `overload`
exhaust. While idle it follows the playlist, so segments arrive that nobody requests; now and then
somebody fetches one that has been there for half a minute.
"""

import hashlib
import http.server
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = int(os.environ.get("SECONDS", 240))
SEGMENT = 64 * 1024
WINDOW = 6
# Kept small: they are in the tree. Others are not what alerts look at.
LEFT_OUT = re.compile(r"(?<!first_block_seconds)(_bucket\{|_sum[{ ])|^ncserverd_(ingest_responses|store_homomorphic)")
VISIT_EVERY, VISIT_BEHIND = 2, 30
VIEWERS = {"idle": 0, "viewers": 10, "overload": 1500}


class Live(http.server.BaseHTTPRequestHandler):
    """A live playlist with a segment a second."""

    protocol_version = "HTTP/1.1"
    begun = time.time()

    def do_GET(self):
        newest = int(time.time() - self.begun) + WINDOW
        if self.path == "/live.m3u8":
            first = newest - WINDOW
            lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:1", f"#EXT-X-MEDIA-SEQUENCE:{first}"]
            for number in range(first, newest):
                lines += ["#EXTINF:1.0,", f"{number}.ts"]
            body, kind = "\n".join(lines).encode() + b"\n", "application/vnd.apple.mpegurl"
        else:
            body, kind = hashlib.shake_256(self.path.encode()).digest(SEGMENT), "video/mp2t"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def scrape(port):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    for line in text.splitlines():
        if line.startswith(("ncserverd_", "process_")) and not LEFT_OUT.search(line):
            series, value = line.rsplit(" ", 1)
            yield series, float(value)


def notation(values):
    """As promtool writes a series: `_` where there is none, `vxN` for N more of the same."""
    words, index = [], 0
    while index < len(values):
        end = index
        while end + 1 < len(values) and values[end + 1] == values[index]:
            end += 1
        value = values[index]
        word = "_" if value is None else f"{value:.15g}" if value == int(value) else f"{value:.5g}"
        words.append(word if end == index else f"{word}x{end - index}")
        index = end + 1
    return " ".join(words)


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def record(ncserverd, viewers):
    origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Live)
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    udp, metrics = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
    samples, processes = {}, []
    with tempfile.TemporaryDirectory() as state:
        try:
            command = ["taskset", "--cpu-list", "0", ncserverd, "serve", "--listen", f"127.0.0.1:{udp}", "--metrics",
                       f"127.0.0.1:{metrics}", "--origin", f"live=http://127.0.0.1:{origin.server_port}/", "--set",
                       "stream.live.playlists=live.m3u8", "--set", "stream.live.retention=10m"]
            log = open(pathlib.Path(state) / "log", "w+")
            server = subprocess.Popen(command, env={"STATE_DIRECTORY": state, "PATH": os.environ["PATH"]}, stderr=log)
            processes.append(server)
            pin = None
            while pin is None:
                time.sleep(0.2)
                log.seek(0)
                pin = re.search(r"--fingerprint ([0-9a-f]{64})", log.read())
            ncpeer, address = str(pathlib.Path(ncserverd).parent / "ncpeer"), [f"ncs://127.0.0.1:{udp}", "--fingerprint", pin[1]]
            if viewers:
                command = [ncpeer, "swarm", *address, "/live/live.m3u8", "--viewers", str(viewers), "--join-rate", "50",
                           "--time", f"{2 * SECONDS}s"]
                processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            begun = time.monotonic()
            for second in range(SECONDS + 1):
                time.sleep(max(0, begun + second - time.monotonic()))
                if not viewers and second % VISIT_EVERY == 0 and second > VISIT_BEHIND:
                    number = int(time.time() - Live.begun) + WINDOW - VISIT_BEHIND
                    subprocess.run([ncpeer, "fetch", *address, f"/live/{number}.ts", "-o", "/dev/null"], check=True, timeout=10)
                try:
                    for series, value in scrape(metrics):
                        samples.setdefault(series, [None] * second).append(value)
                except OSError as error:
                    print(f"second {second}: {error}", file=sys.stderr)
                for values in samples.values():
                    values.extend([None] * (second + 1 - len(values)))
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                process.wait(30)
    origin.shutdown()
    return samples


def main():
    ncserverd = str(pathlib.Path(sys.argv[1]).resolve())
    for name in sys.argv[2:] or VIEWERS:
        samples = record(ncserverd, VIEWERS[name])
        version = subprocess.run([ncserverd, "--version"], capture_output=True, text=True).stdout.strip()
        lines = [f"# {name}: {VIEWERS[name]} viewers, {version}, one core, {SECONDS} s at a scrape a second (record.py)"]
        lines += [f"{series} {notation(values)}" for series, values in sorted(samples.items())]
        (HERE / "recordings").mkdir(exist_ok=True)
        (HERE / "recordings" / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print(f"{name}: {len(samples)} series")


if __name__ == "__main__":
    main()
