#!/usr/bin/env python3
"""Checks that what the documents link to in this repository is there: files, and headings."""

import os
import re
import subprocess
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:")


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.S)


def anchors(path):
    """The fragments of a document's headings, as code hosts make them."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(read(path)), flags=re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def faults(document):
    for link in LINK.findall(without_code(read(document))):
        if ELSEWHERE.match(link):
            continue
        place, _, fragment = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(document), place)) if place else document
        if not os.path.exists(target):
            yield f"{document}: {link}: there is no such file"
        elif fragment and target.endswith(".md") and fragment not in anchors(target):
            yield f"{document}: {link}: there is no such heading"


def main():
    listed = subprocess.run(["git", "ls-files", "*.md"], check=True, capture_output=True, text=True)
    found = [fault for document in listed.stdout.split() for fault in faults(document)]
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
