#!/usr/bin/env python3
"""Checks that the package of each published crate contains every file that its code includes.

    tools/check-packages.py

Makes the packages without building them. Cargo refuses if a dependency within the workspace has no
version. Then reads the Rust files of each package, tests included: every file that they name with
`include_str!`, `include_bytes!`, `include!` or `#[path]` must be in the same package. A part of a
path that only a macro knows matches any text, and at least one file must match. To build every
crate from its package, which takes minutes, run `cargo package --workspace`.

CARGO names the program to call.
"""

import json
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import tarfile

CARGO = os.environ.get("CARGO", "cargo")
# A path in code: one text, or several that are joined.
INCLUDE = re.compile(
    r"\binclude(?:_str|_bytes)?!\s*\(\s*(concat!\s*\([^;]*?\)\s*\)|\"[^\"]*\"\s*,?\s*\))"
)
ATTRIBUTE = re.compile(r"#!?\[\s*path\s*=\s*\"([^\"]*)\"\s*\]")
ANY_INCLUDE = re.compile(r"\binclude(?:_str|_bytes)?!")
HERE = re.compile(r"env!\s*\(\s*\"CARGO_MANIFEST_DIR\"\s*\)")
PART = re.compile(r"\"([^\"]*)\"|\$\w+|(?P<here>@)")
COMMENT = re.compile(r"//[^\n]*")


def run(*arguments):
    return subprocess.run([CARGO, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def paths_in(name, text):
    """(path, line) of each path in the text of the file `name`, relative to the package's root.
    `*` stands for a part that only a macro knows. The path is None if this program cannot read it."""
    for found in ATTRIBUTE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield posixpath.join(posixpath.dirname(name), found[1]), line
    for start in ANY_INCLUDE.finditer(text):
        line = text.count("\n", 0, start.start()) + 1
        found = INCLUDE.match(text, start.start())
        if not found:
            yield None, line
            continue
        parts = list(PART.finditer(HERE.sub("@", found[1])))
        path = "".join("*" if part[1] is None else part[1] for part in parts if not part["here"])
        is_from_root = bool(parts) and parts[0]["here"]
        folder = "" if is_from_root else posixpath.dirname(name)
        yield posixpath.join(folder, path.lstrip("/") if is_from_root else path), line


def faults(files):
    """The paths in the code of a package that lead to no file of it. `files` has the texts of Rust
    files by name, without comments, and None for other files."""
    for name, text in sorted(files.items()):
        for path, line in paths_in(name, text) if text is not None else ():
            if path is None:
                yield f"{name}:{line}: cannot read the path of this file"
                continue
            path = posixpath.normpath(path)
            wanted = re.compile(".*".join(map(re.escape, path.split("*"))))
            if not any(wanted.fullmatch(other) for other in files):
                yield f"{name}:{line}: includes {path}, which is not in the package"


def contents(archive):
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            _, name = member.name.split("/", 1)
            text = None
            if name.endswith(".rs"):
                text = COMMENT.sub("", packed.extractfile(member).read().decode())
            yield name, text


def main():
    metadata = json.loads(run("metadata", "--no-deps", "--format-version", "1", "--locked"))
    members = [package for package in metadata["packages"] if package["publish"] != []]
    chosen = [word for package in members for word in ("--package", package["name"])]
    run("package", "--no-verify", "--allow-dirty", "--locked", "--quiet", *chosen)
    folder = pathlib.Path(metadata["target_directory"]) / "package"
    count, wrong = 0, []
    for package in members:
        files = dict(contents(folder / f"{package['name']}-{package['version']}.crate"))
        wrong += [f"{package['name']}: {fault}" for fault in faults(files)]
        paths = sum(len(list(paths_in(*file))) for file in files.items() if file[1] is not None)
        count += paths
        print(f"{package['name']}: {len(files)} files, {paths} paths in code")
    print("\n".join(wrong))
    if wrong or count == 0:
        sys.exit("packages are incomplete" if wrong else "no path was found: this program does not see them")


main()
