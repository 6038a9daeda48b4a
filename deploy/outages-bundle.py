"""Packs the test `outages` and all that it starts for another Linux host, which needs no toolchain
and no packages: copies them to .outages/, and packs that folder into .outages.tar.xz.

    deploy/outages-bundle.py

Needs the programs of Debian (iproute2, nftables, nginx), cc, and NATS_SERVER or tools/nats.sh.
CONTRIBUTING.md says how to run it there.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from bundle import artifacts, pack

BUNDLE = pathlib.Path(".outages")
ARCHIVE = pathlib.Path(".outages.tar.xz")
# What the test starts; the host's own come first there.
PROGRAMS = ["ip", "tc", "nft", "nginx", "unshare", "kill"]
# The C library is that of the host.
OF_THE_HOST = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so")


def built():
    """The paths of the test and of the server."""
    command = ["cargo", "test", "--locked", "--release", "--test", "outages", "--no-run"]
    return {message["target"]["name"]: message["executable"] for message in artifacts(*command)}


def libraries(program):
    """The shared libraries of a program that the host may lack."""
    output = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest and not name.startswith(OF_THE_HOST):
            yield name, rest.split()[0]


def add(program, path):
    """A program, which finds its libraries beside it."""
    shutil.copy(path, BUNDLE / "tools" / f".{program}")
    for name, library in libraries(path):
        shutil.copy(library, BUNDLE / "lib" / name)
    wrapper = BUNDLE / "tools" / program
    wrapper.write_text(
        "#!/bin/sh\n"
        'here=$(dirname "$0")\n'
        f'LD_LIBRARY_PATH="$here/../lib" exec "$here/.{program}" "$@"\n'
    )
    wrapper.chmod(0o755)


shutil.rmtree(BUNDLE, ignore_errors=True)
for folder in ["bin", "lib", "tools"]:
    (BUNDLE / folder).mkdir(parents=True)
executables = built()
for name in ["outages", "ncserverd"]:
    subprocess.run(["strip", "-o", BUNDLE / "bin" / name, executables[name]], check=True)
for program in PROGRAMS:
    path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if path is None:
        sys.exit(f"there is no {program}")
    add(program, os.path.realpath(path))
nats = os.environ.get("NATS_SERVER") or subprocess.run(
    ["tools/nats.sh"], check=True, stdout=subprocess.PIPE, text=True
).stdout.strip()
add("nats-server", nats)
source = pathlib.Path("tests/outages/clock.c")
subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", BUNDLE / "bin/clock.so", source], check=True)
shutil.copy("deploy/outages.sh", BUNDLE / "run")
commit = subprocess.run(
    ["git", "describe", "--always", "--dirty"], check=True, capture_output=True, text=True
).stdout
(BUNDLE / "commit").write_text(commit)
pack(BUNDLE, ARCHIVE)
