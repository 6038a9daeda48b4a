#!/usr/bin/env python3
"""Compiles kernels/*.cu into crates/ncs-device/kernels, and tools/kernels/*.cu into the folder bin beside them, or checks that those
in the tree are what the sources make.

    kernels/build.py            compile what has changed
    kernels/build.py --check    compile everything into a folder of its own and compare; exit 1 if anything differs

The compiler is that of CUDA 13.0.88, from NVIDIA's own packages on PyPI, kept under target/cuda. It needs Python with pip, g++ for
the preprocessor, and neither GPU nor driver. The same sources give the same bytes in every folder and on every machine, so a
difference means that somebody forgot to compile. Another release of the compiler is refused: drivers refuse PTX that is newer than
they are.
"""

import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent
# What the daemon loads, and what only measurements do: folders of sources, and where the compiled files are. The crate that embeds
# compiled files has them within it, because the package of a crate contains nothing from outside of it.
DEVICE = ROOT.parent / "crates" / "ncs-device" / "kernels"
LABORATORY = ROOT.parent / "tools" / "kernels"
FOLDERS = {ROOT: DEVICE, LABORATORY: LABORATORY / "bin"}
TOOLKIT = ROOT.parent / "target" / "cuda" / "13.0.88"
PACKAGES = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
]
FLAGS = ["-O3", "-std=c++17", "-fatbin", "--compress-mode=size"]
HOPPER = ["-gencode", "arch=compute_90a,code=sm_90a"]
PORTABLE = ["-gencode", "arch=compute_80,code=compute_80"]
# What needs instructions that only Hopper has. Everything else brings PTX for every card from sm_80 on beside Hopper's own code.
HOPPER_ONLY = {"tensor"}
# The first is the crate's: it reads numbers from it while it is compiled.
HEADERS = [DEVICE / "nc_abi.h", *(ROOT / name for name in ["nc_common.cuh", "nc_bits.cuh", "nc_carry.cuh", "nc_mp.cuh"])]
# A line of nvcc's plan that sets a variable.
SETTING = re.compile(r"(\w+)=(.*)")


def toolkit():
    """The folder with bin/nvcc of the pinned release, fetched once."""
    ready = TOOLKIT / "nvidia" / "cu13"
    if (ready / "bin" / "nvcc").exists():
        return ready
    print("fetching the compiler", flush=True)
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, *PACKAGES]
        subprocess.run(command, check=True)
        partial = TOOLKIT.with_name(TOOLKIT.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for wheel in sorted(pathlib.Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(partial)
        for program in [*(partial / "nvidia/cu13/bin").glob("*"), *(partial / "nvidia/cu13/nvvm/bin").glob("*")]:
            if program.is_file():
                program.chmod(0o755)
        shutil.rmtree(TOOLKIT, ignore_errors=True)
        partial.rename(TOOLKIT)
    return ready


def compile_one(source, target, home):
    """Has nvcc say what it would run, and runs that.

    It names what is internal to a file after the folder that the file is in, which would make the result another one in every
    checkout; the folder is taken out of what it hands on.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TMPDIR": folder}
        arch = HOPPER if source.stem in HOPPER_ONLY else HOPPER + PORTABLE
        headers = ["-I", str(DEVICE)] if source.parent == ROOT else ["-I", str(ROOT), "-I", str(DEVICE)]
        command = [str(home / "bin" / "nvcc"), "--dryrun", *FLAGS, *arch, *headers, "-o", str(target), source.name]
        plan = subprocess.run(command, check=True, cwd=source.parent, env=environment, stderr=subprocess.PIPE, text=True).stderr
        lines = [line.removeprefix("#$ ") for line in plan.splitlines() if line.startswith("#$ ")]
        settings = dict(match.groups() for match in map(SETTING.fullmatch, lines) if match)
        environment |= {name: settings[name] for name in ["CICC_PATH", "NVVMIR_LIBRARY_DIR", "LD_LIBRARY_PATH", "PATH"]}
        steps = [line.replace(f'"{source}"', f'"{source.name}"') for line in lines if not SETTING.fullmatch(line)]
        if not any("orig_src_path_name \"" + source.name in step for step in steps):
            sys.exit(f"nvcc hands {source.name} on in a way that this program does not know:\n{plan}")
        subprocess.run(["sh", "-e", "-c", "\n".join(steps)], check=True, cwd=source.parent, env=environment)


def fingerprint(source):
    """What the compiled file depends on: its source, the headers, how it is compiled."""
    digest = hashlib.sha256()
    for path in [*HEADERS, source]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def head():
    """The comment in SOURCES. It changes with how files are compiled, and then all are compiled anew."""
    recipe = hashlib.sha256(repr([PACKAGES, FLAGS, HOPPER, PORTABLE, sorted(HOPPER_ONLY), "without folder"]).encode())
    return [
        f"# SHA-256 of {', '.join(path.name for path in HEADERS)} and the source, in this order, from which the file of the same name was compiled.",
        f"# How they were compiled, in short: {recipe.hexdigest()[:16]}",
    ]


def recorded(bin):
    record = bin / "SOURCES"
    lines = record.read_text().splitlines() if record.exists() else []
    if lines[:2] != head():
        return {}
    return {name: value for value, name in (line.split() for line in lines[2:])}


def sources_of(folder):
    return sorted(folder.glob("*.cu"))


def build(folder, bin, everything):
    home, known, sources = toolkit(), recorded(bin), sources_of(folder)
    bin.mkdir(exist_ok=True)
    for source in sources:
        target = bin / f"{source.stem}.fatbin"
        if everything or not target.exists() or known.get(source.name) != fingerprint(source):
            print(f"compiling {source.name}", flush=True)
            compile_one(source, target, home)
            # The compiler is not the same twice where two ways look equal to it, mostly in how it joins neighbouring loads.
            once = target.read_bytes()
            compile_one(source, target, home)
            if target.read_bytes() != once:
                target.unlink()
                sys.exit(f"{source.name} comes out differently each time; compare PTX, and say more in the source")
    lines = head() + [f"{fingerprint(source)} {source.name}" for source in sources]
    (bin / "SOURCES").write_text("\n".join(lines) + "\n")


def check(folder, bin):
    """The names of what differs, and of files without a source."""
    home, wrong, sources = toolkit(), [], sources_of(folder)
    with tempfile.TemporaryDirectory() as made, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        targets = [pathlib.Path(made) / f"{source.stem}.fatbin" for source in sources]
        # The compiler uses one core. An error of one source is raised here, and ends the check.
        compiled = pool.map(compile_one, sources, targets, [home] * len(sources))
        for source, target, _ in zip(sources, targets, compiled):
            kept = bin / target.name
            same = kept.exists() and kept.read_bytes() == target.read_bytes()
            print(f"{'same' if same else 'DIFFERS'}  {source.name}", flush=True)
            if not same:
                wrong.append(source.name)
    strays = {path.stem for path in bin.glob("*.fatbin")} - {source.stem for source in sources}
    for stray in sorted(strays):
        print(f"STRAY  {stray}.fatbin")
    return [*wrong, *strays]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of compiling in place")
    parser.add_argument("--all", action="store_true", help="compile even what has not changed")
    arguments = parser.parse_args()
    if not arguments.check:
        for folder, bin in FOLDERS.items():
            build(folder, bin, arguments.all)
    elif any([check(folder, bin) for folder, bin in FOLDERS.items()]):
        sys.exit("compiled kernels are not what the sources make; run kernels/build.py and commit")


main()
