"""Builds and packs the test executables and the two programs for a host without a toolchain: copies
them stripped to .gpu-tests/, and packs that folder into .gpu-tests.tar.xz.

    deploy/gpu-bundle.py [NAME…]     only the tests of these names, such as `backends` or
                                     `end_to_end`, and the programs; the benchmark `viewers` is
                                     packed only by name
"""

import pathlib
import shutil
import subprocess
import sys

from bundle import artifacts, pack

# Benchmarks that start the programs.
BENCHES = ["viewers", "overload"]
BUNDLE = pathlib.Path(".gpu-tests")
ARCHIVE = pathlib.Path(".gpu-tests.tar.xz")


def built(*arguments):
    """What cargo built, as (name, path): tests by kind and name, programs by name. Tests of a tool
    have the tool's name in front, because two of them may be called alike."""
    for message in artifacts("cargo", *arguments, "--locked", "--profile", "release"):
        target = message["target"]
        kind, name = target["kind"][0], target["name"]
        tool = pathlib.Path(message["manifest_path"]).parent
        if kind == "test" and tool.parent.name == "tools":
            name = f"{tool.name}-{name}"
        yield f"{kind}-{name}" if message["profile"]["test"] else f"bin/{name}", message["executable"]


def wanted(name):
    """Tests that were asked for, or all; the programs always."""
    return len(sys.argv) < 2 or name.startswith("bin/") or name.split("-", 1)[1] in sys.argv[1:]


shutil.rmtree(BUNDLE, ignore_errors=True)
(BUNDLE / "bin").mkdir(parents=True)
executables = [*built("test", "--no-run"), *built("build", "--bins")]
for bench in BENCHES:
    if bench in sys.argv[1:]:
        executables += built("bench", "--no-run", "--bench", bench)
for name, path in executables:
    if wanted(name):
        subprocess.run(["strip", "-o", BUNDLE / name, path], check=True)
for path in sorted(BUNDLE.rglob("*")):
    if path.is_file():
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}", flush=True)
pack(BUNDLE, ARCHIVE, "; name the tests that are to travel")
