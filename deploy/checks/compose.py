"""compose.yaml: one server."""

import os
import pathlib
import socket
import urllib.request

from .processes import PATIENCE, Processes, command_of, free_port, replaced, serve_files

ROOT = pathlib.Path(__file__).resolve().parents[2]


def plays(services, image, health, place):
    """Runs the commands of compose.yaml without containers, and fetches the clip as a player."""
    clip = ROOT / services["origin"]["volumes"][0].split(":")[0].removeprefix("../")
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), f"{name} is open to others"
    with_key = {name for name, service in services.items() if any(v.startswith("state:") for v in service.get("volumes", []))}
    assert with_key == {"ncserverd", "pin"} and services["pin"]["network_mode"] == "none", f"{with_key} can read the private key"

    state, pin = place.state("compose-state"), place.state("compose-pin")
    udp, metrics, player = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    origin = serve_files(clip.parent)
    places = {"http://origin/": f"http://127.0.0.1:{origin.server_port}/", "[::]:4443": f"127.0.0.1:{udp}",
              "[::]:9443": f"127.0.0.1:{metrics}", "ncserverd:4443": f"127.0.0.1:{udp}",
              "0.0.0.0:8080": f"127.0.0.1:{player}", "127.0.0.1/9443": f"127.0.0.1/{metrics}"}

    def here(service, words):
        mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
        mounts = {path: {"state": state, "pin": pin}[volume] for path, volume in mounts.items()}
        return [replaced(replaced(word, mounts), places) for word in words]

    server = services["ncserverd"]
    environment = {**image, **server["environment"]}
    environment = dict(zip(environment, here(server, environment.values())))
    path = {"PATH": f"{pathlib.Path(place.ncserverd).parent}:{os.environ['PATH']}"}
    with Processes("compose.yaml", place.directory) as processes:
        command = [place.ncserverd, "--config", str(ROOT / "config/ncserverd.toml"), "serve"]
        processes.start("ncserverd", command, environment)
        processes.until("the health check", lambda: processes.run([replaced(word, places) for word in health], None))
        processes.run(here(services["pin"], command_of(services["pin"])), path)
        processes.start("player", here(services["player"], command_of(services["player"])), path)
        for name in ["master.m3u8", "video.m3u8", "init.mp4", "segment0.m4s", "segment5.m4s"]:
            got = processes.fetch(f"http://127.0.0.1:{player}/clip/{name}")
            assert got == (clip / name).read_bytes(), f"/clip/{name} is not the clip's"
        page = urllib.request.urlopen(f"http://127.0.0.1:{player}/?play=/clip/master.m3u8", timeout=PATIENCE)
        assert page.status == 200 and b"<video" in page.read(), "the gateway has no page that plays"
    origin.shutdown()
    print("compose.yaml: the clip plays through its gateway")
