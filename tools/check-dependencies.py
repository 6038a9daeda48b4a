#!/usr/bin/env python3
"""Checks dependencies against deny.toml without cargo-deny.

    tools/check-dependencies.py

Checks what needs no database: licences, banned crates, wildcard versions, and sources of all that
is built for the platforms in deny.toml, as `cargo deny check licenses bans sources` does. Refuses
settings that it does not know. Advisories and yanked versions need cargo-deny: `make deny`. Prints
the crates that are present in several versions.

CARGO names the program to call.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tomllib

CARGO = os.environ.get("CARGO", "cargo")
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
# The settings that this program applies, or leaves to cargo-deny.
KNOWN = {
    "graph": {"targets", "all-features"},
    "advisories": {"version", "unmaintained", "yanked", "ignore"},
    "licenses": {"version", "allow", "confidence-threshold"},
    "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths", "deny"},
    "sources": {"unknown-registry", "unknown-git"},
}


def is_allowed(expression, allowed):
    """Whether the allowed licences satisfy an SPDX expression. `A/B` means `A OR B`."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either():
        result = both()
        while words and words[0] == "OR":
            words.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while words and words[0] == "AND":
            words.pop(0)
            result = one() and result
        return result

    def one():
        word = words.pop(0)
        if word == "(":
            result = either()
            words.pop(0)
            return result
        if words and words[0] == "WITH":
            word = f"{word} WITH {words[1]}"
            del words[:2]
        return word in allowed

    return either() and not words


def numbers(version):
    return tuple(int(number) for number in re.split(r"[-+]", version)[0].split("."))


def is_banned(package, rule):
    name, _, below = rule["crate"].partition(":<")
    return package["name"] == name and (not below or numbers(package["version"]) < numbers(below))


def metadata(target):
    """What cargo knows of the packages for a platform. It fetches those that are not there yet."""
    command = [CARGO, "metadata", "--format-version", "1", "--locked", "--all-features"]
    command += ["--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    with open("deny.toml", "rb") as file:
        rules = tomllib.load(file)
    wrong = {
        f"deny.toml: {part}.{key} is unknown here"
        for part in rules
        for key in set(rules[part]) - KNOWN.get(part, set())
    }
    found = {}
    for target in rules["graph"]["targets"]:
        graph = metadata(target)
        used = {node["id"] for node in graph["resolve"]["nodes"]}
        found |= {package["id"]: package for package in graph["packages"] if package["id"] in used}
    allowed = set(rules["licenses"]["allow"])
    for package in found.values():
        name = f"{package['name']} {package['version']}"
        if not is_allowed(package["license"] or "none", allowed):
            wrong.add(f"{name}: licence {package['license']}")
        if any(is_banned(package, rule) for rule in rules["bans"]["deny"]):
            wrong.add(f"{name} is banned")
        if package["source"] not in (None, CRATES_IO):
            wrong.add(f"{name}: source {package['source']}")
        for needed in package["dependencies"] if package["source"] is None else ():
            if needed["req"] == "*" and needed["source"] is not None:
                wrong.add(f"{name}: any version of {needed['name']}")
    versions = collections.defaultdict(set)
    for package in found.values():
        versions[package["name"]].add(package["version"])
    for name, several in sorted(versions.items()):
        if len(several) > 1:
            print(f"{name}: {', '.join(sorted(several, key=numbers))}")
    print(f"{len(found)} packages, {len(wrong)} faults")
    if wrong:
        sys.exit("\n".join(sorted(wrong)))


main()
