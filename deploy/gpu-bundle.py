"""Builds the test executables and the two programs, and copies them stripped to .gpu-tests/ for a host without a toolchain."""

import json
import pathlib
import shutil
import subprocess
import sys

BUNDLE = pathlib.Path(".gpu-tests")


def built(*arguments):
    """What cargo built, as (name, path): tests by kind and name, programs by name."""
    command = ["cargo", *arguments, "--locked", "--release", "--message-format=json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cargo:
        messages = [json.loads(line) for line in cargo.stdout]
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    for message in messages:
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            target = message["target"]
            is_test = message["profile"]["test"]
            name = f"{target['kind'][0]}-{target['name']}" if is_test else f"bin/{target['name']}"
            yield name, message["executable"]


shutil.rmtree(BUNDLE, ignore_errors=True)
(BUNDLE / "bin").mkdir(parents=True)
for name, path in [*built("test", "--no-run"), *built("build", "--bins")]:
    subprocess.run(["strip", "-o", BUNDLE / name, path], check=True)
for path in sorted(BUNDLE.rglob("*")):
    if path.is_file():
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")
