#!/usr/bin/env python3
"""Prints the lines of Rust that are longer than 100 columns, and exits with 1 if there are any.

    tools/lines.py [FILE…]     by default every file of Rust that git tracks

rustfmt leaves long lines in comments, strings and macros as they are. Allowed are lines with one
word that fits on no line, such as a URL or the name of a test.
"""

import subprocess
import sys

MAX = 100
MARKS = ("//", "///", "//!")


def is_too_long(line):
    """Whether a line without its end is longer than it has to be."""
    if len(line) <= MAX:
        return False
    indent, words = len(line) - len(line.lstrip()), line.split()
    if words[0] in MARKS:
        indent += len(words.pop(0)) + 1
    return all(indent + len(word) <= MAX for word in words)


def main():
    listed = subprocess.run(["git", "ls-files", "-z", "*.rs"], check=True, capture_output=True)
    files = sys.argv[1:] or listed.stdout.decode().rstrip("\0").split("\0")
    found = 0
    for name in files:
        with open(name, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if is_too_long(line.rstrip("\n")):
                    found += 1
                    print(f"{name}:{number}: {len(line) - 1} columns, at most {MAX}")
    sys.exit(found > 0)


main()
