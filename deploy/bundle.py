"""What the scripts share that pack tests and programs for another host."""

import json
import lzma
import subprocess
import sys
import tarfile

# More than this is refused by places that files have to pass.
ARCHIVE_BYTES_MAX = 60_000_000
# Most of an executable's bytes are common to all, but further back than the usual window reaches.
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 256 << 20}]


def artifacts(*command):
    """What cargo says of each executable that it has built with this command."""
    with subprocess.Popen([*command, "--message-format=json"], stdout=subprocess.PIPE, text=True) as cargo:
        messages = [json.loads(line) for line in cargo.stdout]
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    for message in messages:
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            yield message


def pack(folder, archive, advice=""):
    """Packs a folder, and ends the script if the archive is too large. `advice` says what to do then."""
    with lzma.open(archive, "wb", filters=XZ) as packed, tarfile.open(fileobj=packed, mode="w") as files:
        files.add(folder)
    size = archive.stat().st_size
    print(f"{size / 1e6:6.1f} MB  {archive}")
    if size > ARCHIVE_BYTES_MAX:
        sys.exit(f"{archive} is larger than {ARCHIVE_BYTES_MAX / 1e6:.0f} MB{advice}")
