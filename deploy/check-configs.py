#!/usr/bin/env python3
"""Checks what a container engine or a cluster would get, without one.

- Every file of YAML and JSON below deploy/ can be parsed, and the image's labels and tags have the
  version of Cargo.toml.
- `ncserverd config check` accepts every configuration there: those of the image, compose.yaml and
  the manifests of k8s, with and without a GPU. The manifests admit nobody without a token, keep
  their state, and publish UDP.
- The chart of helm/ is rendered with several values, if there is Helm (HELM, or in PATH). What the
  manifests of k8s have decided holds for it, and every server of it has a configuration.
- compose.yaml plays: its configuration and the commands of its gateway run here, on free ports of
  loopback. It publishes ports only to its own machine, and only the services that need the server's
  private key have the volume with it.
- So does fleet/compose.yaml, with three servers and three nodes of NATS, if there is a nats-server
  (NATS_SERVER, or in PATH). Each server may speak for itself alone.

Usage: deploy/check-configs.py [NCSERVERD]

NCSERVERD is target/release/ncserverd by default; ncpeer lies beside it.
"""

import json
import pathlib
import re
import sys
import tempfile

import yaml

sys.dont_write_bytecode = True
from checks import chart, compose, fleet
from checks.place import Place, variables

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


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
        # Templates are none before Helm has filled them in.
        if "templates" in path.parts:
            continue
        if path.suffix in (".yaml", ".yml"):
            found[str(path.relative_to(HERE))] = [part for part in yaml.safe_load_all(path.read_text()) if part]
        elif path.suffix == ".json":
            found[str(path.relative_to(HERE))] = [json.loads(path.read_text())]
    return found


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


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/ncserverd").resolve()
    if not program.is_file():
        sys.exit(f"there is no {program}: build it first, or name another one")
    found = documents()
    print(f"{len(found)} files can be parsed")
    image, labels, health = dockerfile()
    services = found["compose.yaml"][0]["services"]
    assert labels["org.opencontainers.image.version"] == version(), "the image's version"
    for service in [*services.values(), *found["fleet/compose.yaml"][0]["services"].values()]:
        assert not service["image"].startswith("ncserverd:") or service["image"] == f"ncserverd:{version()}"
    with tempfile.TemporaryDirectory() as directory:
        place = Place(directory, str(program))
        shipped = (ROOT / "config/ncserverd.toml").read_text()
        place.check("image", shipped, {**image, "NCSERVERD_ADMISSION__INSECURE": "true"})
        environment = {**image, **services["ncserverd"]["environment"]}
        place.check("compose", shipped, environment)
        gpu = found["compose.gpu.yaml"][0]["services"]["ncserverd"]["environment"]
        place.check("compose-gpu", shipped, {**environment, **gpu})
        kubernetes(found, image, place)
        chart.check(found, version(), image, place)
        compose.plays(services, image, health, place)
        fleet.check(found, image, place)


if __name__ == "__main__":
    main()
