"""A place to try configurations in, as they would be in a container."""

import base64
import json
import pathlib
import subprocess
import sys

PATIENCE = 60
KEYS = "/etc/ncserverd-keys/jwks.json"


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
            environment[key] = value.replace(KEYS, str(self.keys))
        file = self.directory / f"{name}.toml"
        file.write_text(text.replace(KEYS, str(self.keys)))
        command = [self.ncserverd, "--config", str(file), "config", "check"]
        checked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        if checked.returncode != 0:
            sys.exit(f"{name}: config check ends with {checked.returncode}\n{checked.stdout}{checked.stderr}")
        print(f"{name}: config check takes it")


def variables(container):
    """The environment that a manifest gives a container, where it is known before it runs."""
    return {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
