#!/usr/bin/env python3
"""Compiles each CUDA source for several GPUs and keeps what ptxas gave its kernels; needs no GPU.

  benchmarks/kernels/nvcc_summary.py [--nvcc FILE] [--limit SECONDS] [--json FILE] ARCH ...
  ARCH: sm_80, sm_90a, sm_100f, ...   scripts/readme_tables.py makes the table of benchmarks/GPU.md

Each source is compiled for each architecture by itself, and its row is written at once. A later
call goes on where an earlier one was ended: it compiles what is missing or has changed since.
No compilation begins after --limit seconds. Exit 1 when a source does not compile or a kernel
spills, 0 otherwise, also when pairs are left over: their number is printed.
"""

import argparse
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kernels" / "cuda"))
import cuda_resources  # noqa: E402

WHEELS = "build/cuda-venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc"
INCLUDE = re.compile(r'^#include "(.+)"', re.M)
VERSION = re.compile(r"V(\d+\.\d+\.\d+)")
COLUMNS = [field.name for field in dataclasses.fields(cuda_resources.Resources)]


def files_of(path, found):
    """A source and the headers of ours that it includes, these too, by path."""
    if path.exists() and path not in found:
        found[path] = path.read_bytes()
        for name in INCLUDE.findall(found[path].decode()):
            files_of(ROOT / name, found)
    return found


def digest_of(source):
    """What a source's kernels are made of."""
    hashed = hashlib.sha256(" ".join(cuda_resources.FLAGS).encode())
    for path, text in sorted(files_of(source, {}).items()):
        hashed.update(f"{path.relative_to(ROOT)}\n".encode() + text)
    return hashed.hexdigest()[:16]


def version_of(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return VERSION.search(said).group(1)


def commit_here():
    said = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(
        said, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()


def read_rows(path, digests):
    """The rows so far, by key, without those whose sources were others."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {key_of(row): row for row in rows if row["digest"] == digests.get(row["source"])}


def key_of(row):
    return row["toolkit"], row["arch"], row["source"]


def compile_row(nvcc, source, arch):
    """One row of the results; exits with the compiler's words when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{source.stem}.o"
        said = cuda_resources.compile_source(nvcc, source, arch, cuda_resources.COUNTED, target)
        size = target.stat().st_size
    kernels = cuda_resources.parse(said)
    return {
        "arch": arch,
        "source": source.name,
        "object_bytes": size,
        "kernels": {name: list(dataclasses.astuple(kernels[name])) for name in sorted(kernels)},
    }


def spilled(row):
    """The kernels of a row that spill, with how many bytes."""
    at = COLUMNS.index("spills")
    return {name: numbers[at] for name, numbers in row["kernels"].items() if numbers[at]}


def write(path, commit, rows):
    result = {
        "benchmark": "nvcc_summary",
        "commit": commit,
        "columns": COLUMNS,
        "rows": [rows[key] for key in sorted(rows)],
    }
    part = path.with_suffix(".part")
    text = json.dumps(result, separators=(",", ":"))
    part.write_text(text.replace('{"arch"', '\n{"arch"') + "\n")
    part.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvcc")
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--json", default=str(ROOT / "benchmarks/results/nvcc_summary.json"))
    parser.add_argument("archs", nargs="+", metavar="ARCH")
    args = parser.parse_args()
    nvcc = args.nvcc or next((str(path) for path in ROOT.glob(WHEELS)), "nvcc")
    path, version, commit = Path(args.json), version_of(nvcc), commit_here()
    sources = sorted(cuda_resources.KERNELS.glob("*.cu"))
    digests = {source.name: digest_of(source) for source in sources}
    rows = read_rows(path, digests)
    wanted = [(version, arch, source) for arch in args.archs for source in sources]
    begin, spills, left = time.monotonic(), 0, 0
    for version, arch, source in wanted:
        row = rows.get((version, arch, source.name))
        if row is None and time.monotonic() - begin > args.limit:
            left += 1
            continue
        if row is None:
            row = compile_row(nvcc, source, arch)
            row |= {"toolkit": version, "digest": digests[source.name]}
            rows[key_of(row)] = row
            write(path, commit, rows)
        words = ", ".join(f"{name} {count} bytes" for name, count in spilled(row).items())
        spills += bool(words)
        print(f"{version} {arch} {source.name}: {len(row['kernels'])} kernels,"
              f" spilled: {words or 'nothing'}", flush=True)  # fmt: skip
    print(f"{len(wanted) - left} of {len(wanted)} compiled, {spills} with spills, {left} left over")
    return 1 if spills else 0


if __name__ == "__main__":
    sys.exit(main())
