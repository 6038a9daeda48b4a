"""helm/ncserverd: the chart with several values, as Kubernetes would run each of its pods."""

import os
import pathlib
import re
import shutil
import subprocess

import yaml

from .place import KEYS
from .processes import PATIENCE, replaced

CHART = pathlib.Path(__file__).resolve().parents[1] / "helm/ncserverd"
NAMESPACE, RELEASE = "media", "east"

# What is chosen together.
SETS = {
    "default": {},
    "host": {"hostNetwork": True, "tlsSecret": "tls", "signingKeysSecret": "signing", "serviceMonitor": {"enabled": True},
             "fleet": {"zoneFromNode": True, "tokenSecret": "token", "nats": {"caSecret": "nats-ca"}},
             "config": '[stream.media]\norigin = "http://origin/"\nsigning_key = "/etc/ncserverd-signing/media.pem"\n'},
    "addresses": {"replicas": 2, "drainTimeout": 120, "port": 8443, "service": {"annotations": {"a": "b"}},
                  "fleet": {"advertise": "$(POD_NAME).media.example:8443", "zone": "east"}, "serviceMonitor": {"enabled": True},
                  "servicePerPod": {"enabled": True, "annotations": {"hostname": "{{ .podName }}.media.example"}}},
    "list": {"fleet": {"engine": "static", "static": {"secret": "fleet"}}, "podLabels": {"team": "a"}, "podAnnotations": {"c": "d"}},
    "alone": {"replicas": 1, "fleet": {"engine": "none"}, "admission": {"keysSecret": "", "insecure": True}, "gpus": 1,
              "service": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "affinity": {"nodeAffinity": {}},
              "env": [{"name": "NCSERVERD_TELEMETRY__LOG_FILTER", "value": "warn"}]},
}
# What is refused, with a part of the reason.
REFUSED = [
    ({"admission": {"keysSecret": ""}}, "admission.insecure=true"),
    ({"admission": {"insecure": True}}, "exclude each other"),
    ({"fleet": {"engine": "static"}}, "fleet.static.secret"),
    ({"fleet": {"nats": {"passwordsSecret": ""}}}, "fleet.nats.passwordsSecret"),
    ({"fleet": {"nats": {"urls": ["nats://elsewhere:4222"]}}}, "urls"),
    ({"replica": 3}, "replica"),
    ({"fleet": {"zone": "a b"}}, "zone"),
]


def rendered(helm, values, directory):
    file = pathlib.Path(directory) / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    at = [str(CHART), "--namespace", NAMESPACE, "--values", str(file)]
    run = lambda *words: subprocess.run([helm, *words], capture_output=True, text=True, timeout=PATIENCE)
    template = run("template", RELEASE, *at)
    if template.returncode != 0:
        return None, template.stderr
    lint = run("lint", "--strict", *at)
    assert lint.returncode == 0, lint.stdout + lint.stderr
    kinds = {}
    for part in yaml.safe_load_all(template.stdout):
        if part:
            kinds.setdefault(part["kind"], {})[part["metadata"]["name"]] = part
    return kinds, ""


def selects(selector, labels):
    return selector.items() <= labels.items()


def environment(container, pod_name):
    """As Kubernetes expands it, on a node with a zone."""
    fields = {"metadata.name": pod_name, "status.hostIP": "192.0.2.1", "metadata.labels['topology.kubernetes.io/zone']": "west"}
    known = {}
    for item in container["env"]:
        value = item["value"] if "value" in item else fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
        known[item["name"]] = re.sub(r"\$\((\w+)\)", lambda name: known[name.group(1)], value)
    return known


def secrets(directory):
    """What the secrets of all sets contain, by the names of volumes."""
    made = {name: directory / f"chart-{name}" for name in ["keys", "tls", "signing", "token", "nats", "nats-ca", "fleet"]}
    for path in made.values():
        path.mkdir()
    openssl = lambda *words: subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=PATIENCE)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 365, "-subj", "/CN=media.example",
            "-addext", "subjectAltName=DNS:media.example", "-keyout", made["tls"] / "tls.key", "-out", made["tls"] / "tls.crt")
    openssl("genpkey", "-algorithm", "ed25519", "-out", made["signing"] / "media.pem")
    shutil.copy(made["tls"] / "tls.crt", made["nats-ca"] / "ca.crt")
    (made["token"] / "token").write_text("a.b.c\n")
    for number in range(3):
        (made["nats"] / f"{RELEASE}-ncserverd-{number}").write_text(f"password {number}\n")
    members = "".join(f'[[member]]\nname = "{RELEASE}-ncserverd-{n}"\naddress = "media-{n}.example:4443"\n' for n in range(3))
    (made["fleet"] / "members.toml").write_text(members)
    (made["fleet"] / "fleet.secret").write_text("0123456789abcdef\n")
    return made


def check_set(name, values, kinds, manifests, image, made, place):
    (stateful_name, stateful), = kinds["StatefulSet"].items()
    spec, template = stateful["spec"], stateful["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    container, = pod["containers"]
    services = {name: service["spec"] for name, service in kinds["Service"].items()}
    assert selects(spec["selector"]["matchLabels"], labels)

    # What the manifests without Helm have decided holds here.
    before = manifests["Deployment"]["spec"]["template"]["spec"]
    for key in ["securityContext", "readinessProbe", "livenessProbe"]:
        assert container[key] == before["containers"][0][key], f"{name}: {key}"
    assert pod["securityContext"] == before["securityContext"] and not pod["automountServiceAccountToken"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz" and container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    limits = dict(container["resources"]["limits"])
    assert limits.pop("nvidia.com/gpu", 0) == values.get("gpus", 0)
    assert {**container["resources"], "limits": limits} == before["containers"][0]["resources"]

    # Services: their pods, their ports.
    ports = {port["name"]: port.get("protocol", "TCP") for port in container["ports"]}
    for service_name, service in services.items():
        number = service["selector"].pop("statefulset.kubernetes.io/pod-name", None)
        assert number in (None, service_name) and selects(service["selector"], labels), service_name
        assert all(ports[port["targetPort"]] == port["protocol"] for port in service["ports"]), service_name
        assert service["publishNotReadyAddresses"], "an overloaded server would lose the peers that it has"
        if service.get("clusterIP") != "None":
            assert service["externalTrafficPolicy"] == "Local" and [port["name"] for port in service["ports"]] == ["ncs"], service_name
    assert services[spec["serviceName"]]["clusterIP"] == "None"
    wanted = {spec["serviceName"]} | ({stateful_name} if values.get("service", {}).get("enabled", True) else set())
    if values.get("servicePerPod"):
        wanted |= {f"{stateful_name}-{number}" for number in range(spec["replicas"])}
        assert kinds["Service"][f"{stateful_name}-1"]["metadata"]["annotations"] == {"hostname": f"{stateful_name}-1.media.example"}
    assert services.keys() == wanted, f"{name}: {services.keys()}"
    if stateful_name in services:
        entry, known = services[stateful_name], manifests["Service"]["spec"]
        for key in ["type", "externalTrafficPolicy", "sessionAffinity", "publishNotReadyAddresses"]:
            assert entry[key] == known[key], f"{name}: {key}"

    # One at a time, and only for a reason.
    budgets = kinds.get("PodDisruptionBudget", {}).values()
    assert len(budgets) == values.get("podDisruptionBudget", {}).get("enabled", True)
    assert all(part["spec"]["maxUnavailable"] == 1 and selects(part["spec"]["selector"]["matchLabels"], labels) for part in budgets)
    for part in kinds.get("ServiceMonitor", {}).values():
        endpoint, = part["spec"]["endpoints"]
        found = [service["metadata"]["name"] for service in kinds["Service"].values()
                 if selects(part["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
                 and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]]
        assert found == [spec["serviceName"]], f"{name}: {found} are scraped"
        assert {"targetLabel": "job", "replacement": "ncserverd"} in endpoint["relabelings"]
    assert ("ServiceMonitor" in kinds) == bool(values.get("serviceMonitor"))

    # Volumes: all are mounted, each is there, the state is kept.
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]]
    assert mounts[image["STATE_DIRECTORY"]]["name"] in claims, f"{name}: the certificate goes with the pod"
    assert {mount["name"] for mount in mounts.values()} == {*volumes, *claims}, f"{name}: a volume is not mounted"
    text = kinds["ConfigMap"][volumes["config"]["configMap"]["name"]]["data"]["ncserverd.toml"]
    assert yaml.safe_load((CHART / "values.yaml").read_text())["config"].strip() in text or "config" in values

    for number in range(spec["replicas"]):
        pod_name = f"{stateful_name}-{number}"
        own = environment(container, pod_name)
        places = {path: made[mount["name"]] for path, mount in mounts.items() if mount["name"] in made}
        for path, mount in mounts.items():
            if "subPathExpr" in mount:
                places[path] /= mount["subPathExpr"].replace("$(POD_NAME)", pod_name)
        own = {key: value if value == KEYS else replaced(value, places) for key, value in own.items()}
        missing = [value for value in own.values() if value.startswith("/etc/") and value != KEYS]
        assert not missing, f"{name}: {missing} are not mounted"
        files = [value for value in own.values() if value.startswith(str(place.directory))]
        assert all(pathlib.Path(file).is_file() for file in files), f"{name}: not all of {files} are files"
        place.check(f"chart-{name}-{number}", replaced(text, places), {**image, **own})
        drain = int(own["NCSERVERD_SERVER__DRAIN_TIMEOUT"].removesuffix("s"))
        assert drain + 10 < pod["terminationGracePeriodSeconds"], f"{name}: killed while it drains"
        if "NCSERVERD_CLUSTER__NAME" not in own:
            continue
        assert own["NCSERVERD_CLUSTER__NAME"] == own.get("NCSERVERD_CLUSTER__NATS__USER", pod_name) == pod_name
        port = container["ports"][0]["containerPort"]
        advertised = {"default": f"{pod_name}.{spec['serviceName']}.{NAMESPACE}.svc:{port}", "host": f"192.0.2.1:{port}",
                      "addresses": f"{pod_name}.media.example:8443"}
        assert own["NCSERVERD_CLUSTER__ADVERTISE"] == advertised.get(name, advertised["default"])
        assert own["NCSERVERD_CLUSTER__ZONE"] == {"host": "west", "addresses": "east"}.get(name, "default")
    insecure = "NCSERVERD_ADMISSION__INSECURE" in own
    assert insecure == (name == "alone") and insecure != ("NCSERVERD_ADMISSION__KEYS" in own), f"{name}: who is served"
    assert (pod.get("hostNetwork"), own["NCSERVERD_TELEMETRY__LISTEN"]) == ((True, "192.0.2.1:9443") if name == "host" else (None, "[::]:9443"))


def check(found, version, image, place):
    about = found["helm/ncserverd/Chart.yaml"][0]
    assert about["version"] == about["appVersion"] == version, "the chart's version"
    helm = os.environ.get("HELM") or shutil.which("helm")
    if not helm:
        assert "NCTEST_REQUIRE_ALL" not in os.environ, "helm is not installed: see tools/helm.sh"
        return print("helm: the chart is not rendered, because helm is not installed (tools/helm.sh)")
    parts = found["k8s/ncserverd.yaml"]
    manifests = {part["kind"]: part for part in reversed(parts)}
    made = secrets(place.directory)
    for name, values in SETS.items():
        kinds, refusal = rendered(helm, values, place.directory)
        assert kinds, f"{name}: {refusal}"
        check_set(name, values, kinds, manifests, image, made, place)
    for values, reason in REFUSED:
        kinds, refusal = rendered(helm, values, place.directory)
        assert not kinds and reason in refusal, f"{values}: {refusal}"
    print(f"helm: the chart holds with {len(SETS)} sets of values, and refuses {len(REFUSED)}")
