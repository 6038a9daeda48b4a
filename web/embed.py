#!/usr/bin/env python3
"""Puts the package, as web/build.sh has built it, and hls.js into assets/web, for the pages of
`web.listen` and of the demo. With --check, says whether they are the same there.

Modules of another compiler or another wasm-opt have other bytes, so --check only tells where a
module differs. A script that differs is an error.
"""

import gzip
import io
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ASSETS = HERE.parent / "assets" / "web"
PLAYER = HERE / "node_modules" / "hls.js"


def built():
    """The files by their paths in a page."""
    files = {"/hls.js": PLAYER / "dist" / "hls.min.mjs"}
    for path in sorted((HERE / "dist").iterdir()):
        if path.suffix in (".js", ".wasm"):
            files[f"/peer/{path.name}"] = path
    return {name: content(path) for name, path in files.items()}


def content(path):
    """A file without the name of a map of its source, which is not there."""
    if path.suffix == ".wasm":
        return path.read_bytes()
    lines = path.read_bytes().split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(b"//# sourceMappingURL="))


def asset(name):
    return name.strip("/").replace("/", "-") + ".gz"


def table(names):
    rows = "".join(f'    ("{name}", include_bytes!("{asset(name)}")),\n' for name in names)
    return f"// Written by web/embed.py.\n&[\n{rows}]\n"


def compressed(content):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as file:
        file.write(content)
    return out.getvalue()


def kept(path):
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError):
        return None


def main():
    files, tools = built(), (HERE / "dist" / "BUILT_BY").read_text()
    if "--check" in sys.argv[1:]:
        others = [name for name in files if kept(ASSETS / asset(name)) != files[name]]
        known = {asset(name) for name in files} | {"files.rs", "BUILT_BY", "LICENSE-hls.js"}
        modules = [name for name in others if name.endswith(".wasm")]
        if modules:
            tools_of_it = (ASSETS / "BUILT_BY").read_text()
            print(f"other modules in assets/web: {modules}, built by:\n{tools_of_it}here:\n{tools}")
        others = [name for name in others if name not in modules]
        if others or (ASSETS / "files.rs").read_text() != table(files):
            sys.exit(
                "assets/web is not what web/build.sh has built; run web/embed.py: "
                + ", ".join(others or ["files.rs"])
            )
        return
    ASSETS.mkdir(parents=True, exist_ok=True)
    for path in ASSETS.iterdir():
        path.unlink()
    for name, content in files.items():
        (ASSETS / asset(name)).write_bytes(compressed(content))
    (ASSETS / "LICENSE-hls.js").write_bytes((PLAYER / "LICENSE").read_bytes())
    (ASSETS / "BUILT_BY").write_text(tools)
    (ASSETS / "files.rs").write_text(table(files))


main()
