"""fleet/compose.yaml: servers of a fleet, the nodes between them, and what they show each other."""

import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess

from .processes import PATIENCE, Processes, command_of, free_port, replaced, serve_files

HERE = pathlib.Path(__file__).resolve().parents[1] / "fleet"
SECRETS, STATE = "/etc/ncserverd-nats", "/var/lib/ncserverd"


def named(services, pattern):
    return {name: service for name, service in services.items() if re.fullmatch(pattern, name)}


def mounts(service):
    """Where what is mounted."""
    return {volume.split(":")[1]: volume.split(":")[0] for volume in service.get("volumes", [])}


def consistent(compose, scrapes, image):
    """One file says in many places who is there. They have to agree."""
    services, published = compose["services"], []
    servers, nodes = named(services, r"media-\d"), named(services, r"nats-\d")
    assert len(servers) == 3 and len(nodes) == 3
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to others"
            published.append(port.split(":")[1])
        for source in mounts(service).values():
            where = (HERE / source).exists() if source.startswith(".") else source in compose["volumes"]
            assert where, f"{name}: there is no {source}"
    assert len(set(published)) == len(published), "two services publish one port"
    used = {source for service in services.values() for source in mounts(service).values()}
    assert set(compose["volumes"]) <= used, "a volume is not mounted"

    secrets = services["secrets"]
    assert secrets["environment"]["SERVERS"].split() == list(servers), "servers without a password"
    assert secrets["environment"]["NODES"].split() == list(nodes), "nodes without a certificate"
    assert secrets["network_mode"] == "none"
    conf = (HERE / "nats.conf").read_text()
    assert re.findall(r"nats-route://(.*):6222", conf) == list(nodes), "routes"
    # Nobody else has what is one's own; the last has the key of the player's server.
    for volume, owners in [("authority", {"secrets"}), ("state-1", {"media-1", "pin"}), ("state-2", {"media-2"}),
                           ("state-3", {"media-3"}), *((name, {name, "secrets"}) for name in [*servers, *nodes])]:
        found = {name for name, service in services.items() if volume in mounts(service).values()}
        assert found == owners, f"{volume} is mounted by {found}"
    assert services["pin"]["network_mode"] == "none"

    for name, server in servers.items():
        environment = {**image, **server["environment"]}
        cluster = {key.removeprefix("NCSERVERD_CLUSTER__"): value for key, value in environment.items()}
        port = environment["NCSERVERD_ENDPOINT__LISTEN"].rsplit(":", 1)[1]
        assert server["ports"] == [f"127.0.0.1:{port}:{port}/udp"], f"{name}: ports"
        assert cluster["NAME"] == cluster["NATS__USER"] == name and cluster["ADVERTISE"] == f"{name}:{port}"
        assert cluster["NATS__URLS"].split(",") == [f"tls://{node}:4222" for node in nodes], f"{name}: urls"
        assert mounts(server)[SECRETS] == name and mounts(server)[STATE] == name.replace("media", "state")
    for name, node in nodes.items():
        assert node["environment"] == {"NODE": name} and mounts(node)["/etc/nats/secrets"] == name
    assert scrapes["scrape_configs"][0]["static_configs"][0]["targets"] == [f"{name}:9443" for name in servers]
    return servers, nodes


def make_secrets(service, folder):
    """Runs secrets.sh, and returns the users that nodes know."""
    environment = {**service["environment"], "PATH": os.environ["PATH"], "GROUP": str(os.getgid())}
    # As in its container: root that may give files away, and nothing else that root may.
    assert service.get("cap_add", ["CHOWN"]) == ["CHOWN"]
    rights = ["setpriv", "--no-new-privs", "--bounding-set=-all,+chown", "--inh-caps=-all"] if os.getuid() == 0 else []
    command = [*rights, "/bin/sh", HERE / "secrets.sh", folder]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert made.returncode == 0, made.stderr
    tables = {(folder / node / "users.conf").read_text() for node in environment["NODES"].split()}
    assert len(tables) == 1, "nodes know different users"
    user = r'\{ user: "([\w-]+)", password: "(\w+)", permissions: \{ publish: (\[.*?\]), subscribe: (\[.*?\]) \} \}'
    found = re.findall(user, tables.pop())
    for server, password, publish, subscribe in found:
        assert publish == f'[ "ncserverd.beat.{server}", "ncserverd.tell.{server}.*" ]', f"{server} may say {publish}"
        assert subscribe == f'[ "ncserverd.beat.*", "ncserverd.tell.*.{server}" ]', f"{server} may hear {subscribe}"
        assert (folder / server / "nats.password").read_text().strip() == password
    assert [server for server, *_ in found] == service["environment"]["SERVERS"].split()
    assert len({password for _, password, *_ in found}) == len(found)
    return found


def secrets(service, folder):
    """What is made at the first start stays, also when a server is added."""
    users = make_secrets(service, folder)
    content = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    readable = [path for path in content if path.stat().st_mode & 0o004 and b"CERTIFICATE" not in content[path]]
    assert not readable, f"everybody can read {readable}"
    assert make_secrets(service, folder) == users
    assert content == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    more = {**service["environment"], "SERVERS": service["environment"]["SERVERS"] + " media-4"}
    assert make_secrets({"environment": more}, folder)[:-1] == users
    assert make_secrets(service, folder) == users
    print("fleet: each server has a user of its own, and the right to its own subject alone")


def speaks(port, ca, user, password, subject):
    """What a node answers to a message of this user on this subject."""
    context = ssl.create_default_context(cafile=ca)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
        plain.recv(4096)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            hello = f'{{"verbose":false,"pedantic":false,"tls_required":true,"user":"{user}","pass":"{password}"}}'
            connection.sendall(f"CONNECT {hello}\r\nPUB {subject} 2\r\n{{}}\r\nPING\r\n".encode())
            answer = b""
            while b"PONG" not in answer and (more := connection.recv(4096)):
                answer += more
            return answer.decode()


def nats_server():
    found = os.environ.get("NATS_SERVER") or shutil.which("nats-server")
    assert found or "NCTEST_REQUIRE_ALL" not in os.environ, "nats-server is not installed: see tools/nats.sh"
    return found


def plays(services, servers, nodes, image, place, folder):
    """Runs the nodes and the servers without containers: who knows whom, and a viewer of one that dies."""
    nats, root = nats_server(), HERE.parents[1]
    if not nats:
        return print("fleet: skipped, because nats-server is not installed (tools/nats.sh)")
    clip = root / "assets/clip"
    origin, player = serve_files(clip.parent), free_port(socket.SOCK_STREAM)
    places = {"http://origin/": f"http://127.0.0.1:{origin.server_port}/", "0.0.0.0:8080": f"127.0.0.1:{player}"}
    metrics, ports = {}, {}
    for node in nodes:
        ports[node] = [free_port(socket.SOCK_STREAM) for _ in "cr"]
        places |= {f"{node}:4222": f"127.0.0.1:{ports[node][0]}", f"{node}:6222": f"127.0.0.1:{ports[node][1]}"}
    for name, server in servers.items():
        address = f"127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
        environment = server["environment"]
        places |= {environment["NCSERVERD_ENDPOINT__LISTEN"]: address, environment["NCSERVERD_CLUSTER__ADVERTISE"]: address}
        metrics[name] = free_port(socket.SOCK_STREAM)
    path = {"PATH": f"{pathlib.Path(place.ncserverd).parent}:{os.environ['PATH']}"}
    pin = place.state("fleet-pin")

    with Processes("fleet", place.directory) as processes:
        for node, service in nodes.items():
            conf = place.state(f"fleet-{node}") / "nats.conf"
            (conf.parent / "secrets").symlink_to(folder / node)
            own = {"/etc/nats/secrets": folder / node, "0.0.0.0:4222": f"127.0.0.1:{ports[node][0]}",
                   "0.0.0.0:6222": f"127.0.0.1:{ports[node][1]}", **places}
            conf.write_text(replaced((HERE / "nats.conf").read_text(), own))
            command = [replaced(word, {"/etc/nats/nats.conf": conf}) for word in service["command"]]
            processes.start(node, [nats, *command], service["environment"])
        configured = {}
        for name, server in servers.items():
            own = {SECRETS: folder / name, STATE: place.state(f"fleet-{name}"), "[::]:9443": f"127.0.0.1:{metrics[name]}", **places}
            environment = {key: replaced(value, own) for key, value in {**image, **server["environment"]}.items()}
            configured[name] = environment
            processes.start(name, [place.ncserverd, "--config", str(root / "config/ncserverd.toml"), "serve"], environment)

        def know(count):
            for name in processes.running.keys() & metrics.keys():
                text = processes.fetch(f"http://127.0.0.1:{metrics[name]}/metrics").decode()
                if f"\nncserverd_cluster_members {count}\n" not in text:
                    raise OSError(f"{name} does not know {count} servers")
        processes.until("three servers that know each other", lambda: know(3))
        shown = processes.run([place.ncserverd, "cluster", "status", "--once"], configured["media-2"])
        assert all(name in shown for name in servers) and "3 servers" in shown, shown

        ca, password = folder / "nats-1/ca.pem", (folder / "media-1/nats.password").read_text().strip()
        rights = [("ncserverd.beat.media-1", True), ("ncserverd.beat.media-2", False), ("other", False)]
        rights += [("ncserverd.tell.media-1.media-2", True), ("ncserverd.tell.media-2.media-1", False)]
        for subject, is_right in rights:
            answer = speaks(ports["nats-1"][0], ca, "media-1", password, subject)
            assert ("Permissions Violation" not in answer) == is_right and "PONG" in answer, f"{subject}: {answer}"
        assert "Authorization Violation" in speaks(ports["nats-1"][0], ca, "media-1", "another", "ncserverd.beat.media-1")

        own = {"/state": configured["media-1"]["STATE_DIRECTORY"], STATE: pin, **places}
        here = lambda name: [replaced(word, own) for word in command_of(services[name])]
        processes.run(here("pin"), path)
        processes.start("player", here("player"), path)
        for name in ["master.m3u8", "video.m3u8", "init.mp4", "segment0.m4s"]:
            assert processes.fetch(f"http://127.0.0.1:{player}/clip/{name}") == (clip / name).read_bytes(), name
        processes.kill("media-1")
        processes.kill("nats-1")
        assert processes.fetch(f"http://127.0.0.1:{player}/clip/segment5.m4s") == (clip / "segment5.m4s").read_bytes()
        processes.until("the others forget a dead server", lambda: know(2))
    origin.shutdown()
    print("fleet: three servers know each other through three nodes, and a viewer survives the end of a server and a node")


def check(found, image, place):
    compose = found["fleet/compose.yaml"][0]
    servers, nodes = consistent(compose, found["prometheus/fleet.yml"][0], image)
    folder = place.state("fleet-secrets")
    secrets(compose["services"]["secrets"], folder)
    shipped = (HERE.parents[1] / "config/ncserverd.toml").read_text()
    for name, server in servers.items():
        environment = {**image, **server["environment"]}
        environment = {key: value.replace(SECRETS, str(folder / name)) for key, value in environment.items()}
        place.check(f"fleet-config-{name}", shipped, environment)
    plays(compose["services"], servers, nodes, image, place, folder)
