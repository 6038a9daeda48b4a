#!/usr/bin/env python3
"""Prints the circles of imports: modules, or files of one module, that need each other.

    tools/circles.py [--files] [ROOT…]

ROOT is a folder with a `lib.rs`, by default `src` and each `crates/*/src` and `tools/*/src`.
Without --files the nodes are a crate's top-level modules; with it they are files. Tests do not
count: neither `tests.rs` nor items after `#[cfg(test)]`. Exits with 1 if there is a circle.

An import is a path that starts at `crate`, `self`, `super` or a child module, in a `use` or in
place; it leads to the deepest module that it names. Paths through a re-export lead to where the
re-export is.
"""

import pathlib
import re
import sys

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|r#+".*?"#+', re.S)
TEST_ITEM = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?(mod\s+\w+\s*;|mod\s+\w+\s*\{|use[^;]*;)")
CHILD = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:])((?:crate|self|super|[a-z_]\w*)(?:::\w+)+)")


def block_end(text, start):
    """The place behind the block whose `{` is at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)


def product_text(text):
    """Returns a file's text without comments, strings and test items; and its test modules."""
    text = COMMENT_OR_TEXT.sub(" ", text)
    tests = set()
    while found := TEST_ITEM.search(text):
        item, end = found[1], found.end()
        if name := re.match(r"mod\s+(\w+)\s*;", item):
            tests.add(name[1])
        if item.endswith("{"):
            end = block_end(text, end - 1)
        text = text[: found.start()] + text[end:]
    return text, tests


def use_paths(tree):
    """Each path of a `use` tree."""
    tree = tree.strip()
    group = tree.find("{")
    if group < 0:
        return [re.sub(r"\s+as\s+\w+$", "", tree)]
    head, inner, parts, depth, part = tree[:group], tree[group + 1 : tree.rindex("}")], [], 0, ""
    for char in inner + ",":
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
            continue
        depth += {"{": 1, "}": -1}.get(char, 0)
        part += char
    return [head + path for part in parts if part.strip() for path in use_paths(part)]


def module_name(root, path):
    parts = path.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("lib", "main") else parts


class Crate:
    """The modules of a crate, by name, and what each imports."""

    def __init__(self, root):
        self.texts, tests = {}, set()
        for path in sorted(root.rglob("*.rs")):
            name = module_name(root, path)
            if name[:1] == ("bin",) or path.name == "main.rs":
                continue
            self.texts[name], of_tests = product_text(path.read_text())
            tests |= {(*name, test) for test in of_tests}
        is_test = lambda name: any(name[: len(test)] == test for test in tests)
        self.texts = {name: text for name, text in self.texts.items() if not is_test(name)}

    def deepest(self, name):
        while name not in self.texts:
            name = name[:-1]
        return name

    def imports(self, name):
        """The modules that one names."""
        text = self.texts[name]
        children = set(CHILD.findall(text))
        uses = [path.replace(" ", "").replace("\n", "") for tree in USE.findall(text) for path in use_paths(tree)]
        for path in uses + PATH.findall(USE.sub(" ", text)):
            parts, base = path.split("::"), name
            if parts[0] == "crate":
                base, parts = (), parts[1:]
            elif parts[0] in ("self", "super"):
                while parts and parts[0] == "super":
                    base, parts = base[:-1], parts[1:]
                parts = parts[1:] if parts[:1] == ["self"] else parts
            elif parts[0] not in children:
                continue
            target = self.deepest((*base, *parts))
            # What lies in the crate's root alone is a re-export or a module of this name.
            if target and target != name:
                yield target


def circles(edges):
    """The strongly connected components of more than one node (Tarjan 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def main():
    sys.setrecursionlimit(10_000)
    arguments = sys.argv[1:]
    by_file = "--files" in arguments
    roots = [pathlib.Path(root) for root in arguments if root != "--files"]
    roots = roots or [pathlib.Path("src"), *sorted(pathlib.Path().glob("crates/*/src")), *sorted(pathlib.Path().glob("tools/*/src"))]
    is_clean = True
    for root in roots:
        crate = Crate(root)
        edges = {}
        for name in crate.texts:
            if not name:
                continue
            node = name if by_file else name[:1]
            targets = edges.setdefault(node, set())
            for target in crate.imports(name):
                other = target if by_file else target[:1]
                if other != node:
                    targets.add(other)
                    edges.setdefault(other, set())
        for circle in circles(edges):
            is_clean = False
            print(f"{root}: {' '.join('::'.join(name) for name in circle)}")
            for name in circle:
                for other in sorted(edges[name] & set(circle)):
                    print(f"    {'::'.join(name)} needs {'::'.join(other)}")
    return 0 if is_clean else 1


sys.exit(main())
