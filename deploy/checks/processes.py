"""Programs and an origin that run on loopback for the time of a check."""

import functools
import http.server
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.request

PATIENCE = 60


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Processes:
    """Ends what it has started, and prints its logs if the check fails."""

    def __init__(self, name, directory):
        self.name, self.running = name, {}
        self.logs = open(pathlib.Path(directory) / f"{name.replace('/', '-')}.log", "w+")

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error:
            self.logs.seek(0)
            sys.stderr.write(self.logs.read())
        for name in list(self.running):
            self.kill(name)
        self.logs.close()

    def start(self, name, command, environment):
        self.running[name] = subprocess.Popen(command, env=environment, stdout=self.logs, stderr=self.logs)

    def kill(self, name):
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def run(self, command, environment):
        """Runs a command to its end, and returns what it prints."""
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=self.logs, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise OSError(f"{command[0]} has ended with {done.returncode}")
        return done.stdout

    def until(self, what, attempt):
        """Tries until there is no OSError."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for name, process in self.running.items():
                assert process.poll() is None, f"{self.name}: {what}: {name} has ended with {process.returncode}"
            try:
                return attempt()
            except OSError as error:
                last = error
                time.sleep(0.1)
        raise AssertionError(f"{self.name}: {what}: nothing for {PATIENCE} s: {last}")

    def fetch(self, url):
        return self.until(f"GET {url}", lambda: urllib.request.urlopen(url, timeout=PATIENCE).read())


def serve_files(directory):
    """An origin. Its `server_port` says where."""
    origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(directory)))
    threading.Thread(target=origin.serve_forever, daemon=True).start()
    return origin


def command_of(service):
    """What a service of compose.yaml runs. Compose makes one dollar of two."""
    return [word.replace("$$", "$") for word in service["entrypoint"] + service["command"]]


def replaced(text, places):
    """With other places, in the order in which one name is not a part of another."""
    for name in sorted(places, key=len, reverse=True):
        text = text.replace(name, str(places[name]))
    return text
