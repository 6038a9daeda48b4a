#!/usr/bin/env python3
"""Takes the pictures in docs/screenshots: pages of a server and a gateway that have something to do.

    tools/screenshots.py [--programs DIRECTORY] [--seconds N]

Starts ncserverd and ncpeer on loopback with three streams of random bytes and one whose origin is
away, keeps some viewers fetching for N seconds (70 by default, so that the graphs have a line), and
lets Chromium draw the pages, light and dark. The demo's page is drawn when half of its clip has been
played. Needs chromium and the programs, built.
"""

import argparse
import base64
import collections
import json
import os
import random
import re
import struct
import subprocess
import tempfile
import threading
import time
import urllib.request
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "screenshots"
STREAMS = {"live": 2, "news": 1, "sport": 3}  # and their viewers
WIDTH, HEIGHT = 1100, 1100


class Browser:
    """Chromium, by its protocol for developers over two pipes: JSON that ends with a zero byte."""

    def __init__(self, profile):
        (self.theirs_in, self.ours_out), (self.ours_in, self.theirs_out) = os.pipe(), os.pipe()
        for end in (self.theirs_in, self.theirs_out):
            os.set_inheritable(end, True)
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
                   f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        line = f'exec chromium "$@" 3<&{self.theirs_in} 4>&{self.theirs_out}'
        self.process = subprocess.Popen(["bash", "-c", line, "chromium", *options], close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(self.theirs_in)
        os.close(self.theirs_out)
        self.answers, self.number, self.rest = {}, 0, b""

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.ours_out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                piece = os.read(self.ours_in, 1 << 20)
                if not piece:
                    raise RuntimeError("chromium has ended")
                self.rest += piece
            text, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", session, width=WIDTH, height=HEIGHT,
                  deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", session, url=url)
        return session

    def take(self, session, scheme):
        self.call("Emulation.setEmulatedMedia", session,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])
        time.sleep(1.5)
        height = self.call("Runtime.evaluate", session,
                           expression="Math.ceil(document.body.getBoundingClientRect().bottom)")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height["result"]["value"], "scale": 1}
        answer = self.call("Page.captureScreenshot", session, format="png", clip=clip,
                           captureBeyondViewport=True)
        return base64.b64decode(answer["data"])


def with_palette(png):
    """The same picture with its 256 most frequent colours, which is less than half the size."""
    data, place = b"", 8
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place:place + 8])
        body = png[place + 8:place + 8 + length]
        place += 12 + length
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            data += body
    pixel = {2: 3, 6: 4}[colour]
    rows = unfiltered(zlib.decompress(data), width * pixel, pixel)
    rows = [[row[at:at + 3] for at in range(0, len(row), pixel)] for row in rows]
    counts = collections.Counter(colour for row in rows for colour in row)
    palette = [colour for colour, _ in counts.most_common(256)]
    index = {colour: number for number, colour in enumerate(palette)}
    for colour in counts.keys() - index.keys():
        distances = [sum((one - other) ** 2 for one, other in zip(colour, known))
                     for known in palette]
        index[colour] = distances.index(min(distances))
    pixels = b"".join(b"\0" + bytes(index[colour] for colour in row) for row in rows)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
             (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b"")]
    return png[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts)


def unfiltered(data, stride, pixel):
    """The rows of a PNG (its section 9)."""
    rows, above = [], bytes(stride)
    for start in range(0, len(data), stride + 1):
        kind, row = data[start], bytearray(data[start + 1:start + 1 + stride])
        for at in range(stride if kind else 0):
            left = row[at - pixel] if at >= pixel else 0
            corner = above[at - pixel] if at >= pixel else 0
            guess = left + above[at] - corner
            paeth = min((left, above[at], corner), key=lambda value: abs(guess - value))
            row[at] = (row[at] + (0, left, above[at], (left + above[at]) // 2, paeth)[kind]) & 255
        rows.append(bytes(row))
        above = row
    return rows


def started(command, *patterns):
    """Starts a program, and returns it with what its log says for each pattern."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    found = {}
    for line in process.stderr:
        for pattern in patterns:
            match = re.search(pattern, line)
            if match:
                found[pattern] = match.group(1)
        if len(found) == len(patterns):
            break
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process, [found[pattern] for pattern in patterns]


def demo(programs, browser):
    """Pictures of the demo's page."""
    # Twice the default, so that a clip of twelve seconds shows what losses do.
    command = [programs / "ncserverd", "demo", "--web", "--listen", "127.0.0.1:0", "--loss", "20",
               "--delay", "40ms"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = next(line.strip() for line in process.stdout if line.strip().startswith("http://"))
        taken = {}
        for scheme in ("light", "dark"):
            session = browser.open(url)
            time.sleep(7)
            taken[f"demo-{scheme}.png"] = browser.take(session, scheme)
        return taken
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--programs", type=Path, default=target / "release")
    parser.add_argument("--seconds", type=int, default=70)
    options = parser.parse_args()
    programs = options.programs.resolve()
    processes, ends = [], threading.Event()
    random.seed(4)
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        config = ["[telemetry]", 'listen = "127.0.0.1:0"', "[endpoint]", 'listen = "127.0.0.1:0"',
                  "[ring]", 'bytes = "64MiB"', "[store]", 'bytes = "256MiB"']
        for stream in STREAMS:
            media = place / stream
            media.mkdir()
            config += [f"[stream.{stream}]", f'directory = "{media}"']
        config += ["[stream.archive]", 'origin = "http://127.0.0.1:9/archive/"']
        file = place / "ncserverd.toml"
        file.write_text("\n".join(config) + "\n")
        os.environ["STATE_DIRECTORY"] = str(place / "state")
        try:
            server, (metrics, url, fingerprint) = started(
                [programs / "ncserverd", "--config", file, "serve"],
                r"metrics on (\S+)/metrics", r"(ncs://\S+)", r"--fingerprint (\S+)")
            processes.append(server)
            players = []
            for stream in [name for name, number in STREAMS.items() for _ in range(number)]:
                gateway, (player,) = started(
                    [programs / "ncpeer", "gateway", url, "--fingerprint", fingerprint, "--listen",
                     "127.0.0.1:0"], r"at (http://\S+)/ ")
                processes.append(gateway)
                players.append((stream, player))

            def play(viewer, stream, player):
                number = 0
                while not ends.is_set():
                    # Another one each time, so that nobody has it already.
                    name = f"{stream}/{viewer}-{number}.ts"
                    (place / name).write_bytes(random.randbytes(random.randint(900_000, 1_500_000)))
                    with urllib.request.urlopen(f"{player}/{name}") as answer:
                        answer.read()
                    number += 1
                    ends.wait(random.uniform(0.5, 1.5))

            for viewer, (stream, player) in enumerate(players):
                threading.Thread(target=play, args=(viewer, stream, player), daemon=True).start()
            subprocess.run([programs / "ncpeer", "fetch", url, "/archive/a.ts", "--fingerprint",
                            fingerprint, "-o", "/dev/null"], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

            browser = Browser(place / "profile")
            processes.append(browser.process)
            pages = {"operator": browser.open(metrics + "/"),
                     "gateway": browser.open(players[0][1] + "/status")}
            time.sleep(options.seconds)
            taken = {}
            for name, session in pages.items():
                browser.call("Target.activateTarget", targetId=browser.call(
                    "Target.getTargetInfo", session)["targetInfo"]["targetId"])
                for scheme in ("light", "dark"):
                    taken[f"{name}-{scheme}.png"] = browser.take(session, scheme)
            ends.set()
            taken |= demo(programs, browser)
        finally:
            ends.set()
            for process in reversed(processes):
                process.terminate()
                process.wait()
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, png in taken.items():
        picture = PICTURES / name
        picture.write_bytes(with_palette(png))
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
