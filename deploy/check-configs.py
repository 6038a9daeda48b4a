#!/usr/bin/env python3
"""Checks what a container engine or a cluster would get, without one.

- Every file of YAML and JSON below deploy/ can be parsed, and the image's labels and tags have the
  version of Cargo.toml.
- `ncserverd config check` accepts every configuration there: those of the image, compose.yaml and
  the manifests of k8s, with and without a GPU. The manifests admit nobody without a token, keep
  their state, and publish UDP.
- compose.yaml plays: its configuration and the commands of its gateway run here, on free ports of
  loopback. It publishes ports only to its own machine, and only the services that need the server's
  private key have the volume with it.

Usage: deploy/check-configs.py [NCSERVERD]

NCSERVERD is target/release/ncserverd by default; ncpeer lies beside it.
"""

import base64
import functools
import http.server
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
STATE = "/var/lib/ncserverd"
PATIENCE = 60

def dockerfile():
    """Instructions of the last stage: environment, labels, health check."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    last = text[text.rindex("\nFROM "):]
    pick = lambda word: re.findall(rf"^{word} (.*)$", last, re.M)
    environment = dict(line.split("=", 1) for line in pick("ENV"))
    labels = dict(line.split("=", 1) for line in pick("LABEL"))
    health = json.loads(pick("HEALTHCHECK")[0].split("CMD ", 1)[1])
    return environment, {key: value.strip('"') for key, value in labels.items()}, health


def version():
    return re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


def documents():
    """Everything that is YAML or JSON, by its path below deploy/."""
    found = {}
    for path in sorted(HERE.rglob("*")):
        if path.suffix in (".yaml", ".yml"):
            found[str(path.relative_to(HERE))] = [part for part in yaml.safe_load_all(path.read_text()) if part]
        elif path.suffix == ".json":
            found[str(path.relative_to(HERE))] = [json.loads(path.read_text())]
    return found


class Place:
    """A directory that stands for what would be mounted."""

    def __init__(self, directory, ncserverd):
        self.directory, self.ncserverd = pathlib.Path(directory), ncserverd
        self.keys = self.directory / "jwks.json"
        key = {"kty": "oct", "alg": "HS256", "kid": "1", "k": base64.urlsafe_b64encode(bytes(32)).rstrip(b"=").decode()}
        self.keys.write_text(json.dumps({"keys": [key]}))

    def state(self, name):
        path = self.directory / name
        path.mkdir()
        return path

    def check(self, name, text, environment):
        """`config check` of a configuration as it would be in the container."""
        environment = dict(environment, STATE_DIRECTORY=str(self.state(name)))
        for key, value in environment.items():
            environment[key] = value.replace("/etc/ncserverd-keys/jwks.json", str(self.keys))
        file = self.directory / f"{name}.toml"
        file.write_text(text.replace("/etc/ncserverd-keys/jwks.json", str(self.keys)))
        command = [self.ncserverd, "--config", str(file), "config", "check"]
        checked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        if checked.returncode != 0:
            sys.exit(f"{name}: config check ends with {checked.returncode}\n{checked.stdout}{checked.stderr}")
        print(f"{name}: config check takes it")


def variables(container):
    return {item["name"]: item["value"] for item in container.get("env", [])}


def kubernetes(found, image, place):
    kinds = {}
    for part in found["k8s/ncserverd.yaml"]:
        kinds.setdefault(part["kind"], []).append(part)
    text = kinds["ConfigMap"][0]["data"]["ncserverd.toml"]
    pod = kinds["Deployment"][0]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    place.check("k8s", text, {**image, **variables(container)})
    patch = found["k8s/gpu.yaml"][0]["spec"]["template"]["spec"]["containers"][0]
    place.check("k8s-gpu", text, {**image, **variables(container), **variables(patch)})

    assert "insecure" not in text and "keys = " in text, "the manifests serve everybody"
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claim = volumes[mounts[image["STATE_DIRECTORY"]]]["persistentVolumeClaim"]["claimName"]
    assert claim in [part["metadata"]["name"] for part in kinds["PersistentVolumeClaim"]], "the certificate goes with the pod"
    assert set(mounts.values()) == set(volumes), "a volume is not mounted"
    peers = [part["spec"] for part in kinds["Service"] if part["spec"]["ports"][0]["protocol"] == "UDP"]
    assert [spec["type"] for spec in peers] == ["LoadBalancer"] and peers[0]["externalTrafficPolicy"] == "Local"
    assert peers[0].get("publishNotReadyAddresses") is True, "an overloaded server would lose the peers that it has"
    ports = {port["name"]: port.get("protocol", "TCP") for port in container["ports"]}
    for part in kinds["Service"]:
        for port in part["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["protocol"], f"{part['metadata']['name']}: {port}"
    print("k8s: tokens, a kept certificate, a service for UDP")


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, attempt, processes):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for process in processes:
            if process.poll() is not None:
                sys.exit(f"compose.yaml: {what}: {process.args[0]} has ended with {process.returncode}")
        try:
            return attempt()
        except OSError:
            time.sleep(0.1)
    sys.exit(f"compose.yaml: {what}: nothing for {PATIENCE} s")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def plays(services, image, health, place):
    """Runs the commands of compose.yaml without containers, and fetches the clip as a player."""
    clip = ROOT / services["origin"]["volumes"][0].split(":")[0].removeprefix("../")
    origin = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(clip.parent)))
    threading.Thread(target=origin.serve_forever, daemon=True).start()

    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), f"{name} is open to others"
    with_key = {name for name, service in services.items() if any(v.startswith("state:") for v in service.get("volumes", []))}
    assert with_key == {"ncserverd", "pin"} and services["pin"]["network_mode"] == "none", f"{with_key} can read the private key"

    state, pin = place.state("compose-state"), place.state("compose-pin")
    udp, metrics, player = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    here = lambda text: (text.replace("http://origin/", f"http://127.0.0.1:{origin.server_port}/")
                         .replace("[::]:4443", f"127.0.0.1:{udp}").replace("[::]:9443", f"127.0.0.1:{metrics}")
                         .replace("ncserverd:4443", f"127.0.0.1:{udp}").replace("0.0.0.0:8080", f"127.0.0.1:{player}")
                         .replace("127.0.0.1/9443", f"127.0.0.1/{metrics}"))
    def mounted(service, text):
        """With what would be mounted, in the order in which one name is not a part of another."""
        for volume in sorted(service["volumes"], key=lambda volume: -len(volume.split(":")[1])):
            name, path = volume.split(":")[:2]
            text = text.replace(path, str({"state": state, "pin": pin}[name]))
        return here(text)

    server = services["ncserverd"]
    environment = {key: mounted(server, value) for key, value in {**image, **server["environment"]}.items()}
    path = f"{pathlib.Path(place.ncserverd).parent}:{os.environ['PATH']}"
    processes, logs = [], open(place.directory / "compose.log", "w+")
    try:
        command = [place.ncserverd, "--config", str(ROOT / "config/ncserverd.toml"), "serve"]
        processes.append(subprocess.Popen(command, env=environment, stdout=logs, stderr=logs))
        healthy = lambda: subprocess.run([here(word) for word in health], check=True, capture_output=True, timeout=PATIENCE)
        def is_healthy():
            try:
                return healthy()
            except subprocess.CalledProcessError as error:
                raise OSError from error
        until("the health check", is_healthy, processes)
        # Compose makes one dollar of two.
        command = lambda name: [mounted(services[name], word).replace("$$", "$")
                                for word in services[name]["entrypoint"] + services[name]["command"]]
        subprocess.run(command("pin"), env={"PATH": path}, stdout=logs, stderr=logs, check=True, timeout=PATIENCE)
        processes.append(subprocess.Popen(command("player"), env={"PATH": path}, stdout=logs, stderr=logs))
        for name in ["master.m3u8", "video.m3u8", "init.mp4", "segment0.m4s", "segment5.m4s"]:
            url = f"http://127.0.0.1:{player}/clip/{name}"
            got = until(f"GET /clip/{name}", lambda: urllib.request.urlopen(url, timeout=PATIENCE).read(), processes)
            assert got == (clip / name).read_bytes(), f"/clip/{name} is not the clip's"
        page = urllib.request.urlopen(f"http://127.0.0.1:{player}/?play=/clip/master.m3u8", timeout=PATIENCE)
        assert page.status == 200 and b"<video" in page.read(), "the gateway has no page that plays"
    except BaseException:
        logs.seek(0)
        sys.stderr.write(logs.read())
        raise
    finally:
        for process in processes:
            process.kill()
            process.wait()
        origin.shutdown()
    print("compose.yaml: the clip plays through its gateway")


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/ncserverd").resolve()
    if not program.is_file():
        sys.exit(f"there is no {program}: build it first, or name another one")
    found = documents()
    print(f"{len(found)} files can be parsed")
    image, labels, health = dockerfile()
    compose = found["compose.yaml"][0]["services"]
    assert labels["org.opencontainers.image.version"] == version(), "the image's version"
    for service in compose.values():
        assert not service["image"].startswith("ncserverd:") or service["image"] == f"ncserverd:{version()}"
    with tempfile.TemporaryDirectory() as directory:
        place = Place(directory, str(program))
        shipped = (ROOT / "config/ncserverd.toml").read_text()
        place.check("image", shipped, {**image, "NCSERVERD_ADMISSION__INSECURE": "true"})
        environment = {**image, **compose["ncserverd"]["environment"]}
        place.check("compose", shipped, environment)
        gpu = found["compose.gpu.yaml"][0]["services"]["ncserverd"]["environment"]
        place.check("compose-gpu", shipped, {**environment, **gpu})
        kubernetes(found, image, place)
        plays(compose, image, health, place)


if __name__ == "__main__":
    main()
