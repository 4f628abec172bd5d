"""Compiles the CUDA kernels with nvcc and compares what ptxas gave them with the baseline.

Usage: cuda_resources.py NVCC CUOBJDUMP [--arch sm_90a] [--update | --no-baseline].
Exit 1 on a difference, a spill, a warning of ptxas, or a missing compiler. Exit 1 also on a wgmma
that waits for the one before, or an instruction that should be there and is not
(cuda_instructions.py). The baseline is kernels/cuda/resources_ARCH.txt; --update writes its columns
from this compiler (the dynamic columns stay: the kernels' test on the runner checks them). With
--no-baseline, for other architectures than the tests' own, only spills and warnings are errors.
"""

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cuda_instructions

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "kernels" / "cuda"
FLAGS = [
    "-std=c++20",
    "--expt-relaxed-constexpr",
    "-fmad=false",
]
STRICT = "-Xptxas=-v,-warn-spills,-warn-lmem-usage,-Werror"
COUNTED = "-Xptxas=-v,-Werror"  # for those who count spills (benchmarks/kernels)
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
NAME = re.compile(r"\d([A-Z][A-Za-z0-9]*Kernel)E")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
# ptxas only remarks that it waits for each wgmma before the next one.
SERIALIZED = re.compile(r"wgmma\S* instructions are serialized")
HEADER = """\
# Each kernel's share of an SM, by ptxas of CUDA 13.0. cuda_resources_test checks registers, stack,
# spilled bytes and static shared memory; cuda_kernels_test dynamic shared memory and threads.
# kernel registers stack spills static_shared dynamic_shared max_threads
"""


@dataclasses.dataclass
class Resources:
    """The numbers that ptxas reported for one kernel."""

    registers: int = 0
    stack: int = 0
    spills: int = 0
    static_shared: int = 0


def parse(output):
    """{kernel: Resources} of ptxas -v."""
    found, current = {}, None
    for line in output.splitlines():
        entry = ENTRY.search(line)
        if entry:
            name = NAME.search(entry.group(1))
            current = found.setdefault(name.group(1) if name else entry.group(1), Resources())
        elif current is not None:
            if stack := STACK.search(line):
                current.stack = int(stack.group(1))
                current.spills = int(stack.group(2)) + int(stack.group(3))
            if used := USED.search(line):
                current.registers = int(used.group(1))
                shared = SHARED.search(line)
                current.static_shared = int(shared.group(1)) if shared else 0
    return found


def compile_source(nvcc, source, arch, ptxas, target):
    """What nvcc says of one source, which becomes the file `target`; exits with its words when it
    fails."""
    virtual = arch.replace("sm_", "compute_")
    # ccache, which knows -c alone, keeps what ptxas said beside the object. Each clone has a nvcc
    # of its own, so its bytes are what must be the same.
    ccache = shutil.which("ccache")
    cached = {
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_COMPILERCHECK": "content",
    }
    command = [nvcc, *FLAGS, ptxas, f"-gencode=arch={virtual},code={arch}", f"-I{ROOT}"]
    done = subprocess.run(
        [*([ccache] if ccache else []), *command, "-c", "-o", str(target), str(source)],
        capture_output=True,
        text=True,
        env={**os.environ, **cached},
    )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"{source.name} does not compile for {arch}:\n{said}")
    if SERIALIZED.search(said):
        sys.exit(f"{source.name}: ptxas waits for each wgmma:\n{said}")
    return said


def compile_all(nvcc, cuobjdump, arch):
    """({kernel: Resources}, {kernel: instructions}) of all sources; exits with the compiler's words
    when one fails."""
    found, instructions = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(KERNELS.glob("*.cu")):
            target = Path(folder) / (source.stem + ".o")
            found.update(parse(compile_source(nvcc, source, arch, STRICT, target)))
            instructions.update(cuda_instructions.read(cuobjdump, target))
    return found, instructions


def read_baseline(path):
    """{kernel: [six numbers]}."""
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if line and not line.startswith("#"):
            name, *numbers = line.split()
            rows[name] = [int(number) for number in numbers]
    return rows


def differences(found, baseline):
    """Lines that say what does not agree."""
    lines = []
    for name in sorted(set(found) | set(baseline)):
        if name not in baseline:
            lines.append(f"{name}: not in the baseline")
        elif name not in found:
            lines.append(f"{name}: in the baseline, but no such kernel")
        elif baseline[name][:4] != list(dataclasses.astuple(found[name])):
            lines.append(f"{name}: {found[name]}, the baseline says {baseline[name][:4]}")
        if name in found and found[name].spills:
            lines.append(f"{name}: {found[name].spills} bytes are spilled")
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nvcc")
    parser.add_argument("cuobjdump")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--no-baseline", action="store_true")
    arguments = parser.parse_args()
    for tool in (arguments.nvcc, arguments.cuobjdump):
        if not Path(tool).exists():
            sys.exit(f"{tool} is missing; run scripts/deps.sh --cuda and configure again")
    path = KERNELS / f"resources_{arguments.arch}.txt"
    found, instructions = compile_all(arguments.nvcc, arguments.cuobjdump, arguments.arch)
    baseline = read_baseline(path)
    if arguments.update:
        rows = [
            [name, *dataclasses.astuple(found[name]), *baseline.get(name, [0] * 6)[4:]]
            for name in sorted(found)
        ]
        path.write_text(HEADER + "".join(" ".join(map(str, row)) + "\n" for row in rows))
        return 0
    lines = [
        f"{name}: {resources.spills} bytes spilled"
        for name, resources in sorted(found.items())
        if resources.spills
    ]
    if not arguments.no_baseline:
        lines = differences(found, baseline) + cuda_instructions.differences(instructions)
    print("\n".join(lines))
    spilled = sum(resources.spills for resources in found.values())
    print(f"{len(found)} kernels for {arguments.arch}, {spilled} bytes spilled")
    for name in sorted(found):
        spilled = f", {found[name].spills} bytes spilled" if found[name].spills else ""
        print(f"  {name}: {found[name].registers} registers{spilled}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
