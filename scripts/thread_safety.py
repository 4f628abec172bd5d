#!/usr/bin/env python3
"""Checks the locks of the product by clang's -Wthread-safety: thread_safety.py BUILD [SOURCE ...].

BUILD is a configured build folder, whose compile_commands.json names the flags of each source; a
SOURCE is a path from the repository's root, and none means all of the product. The sources are
read, not compiled. Exit 1 on a finding. Before that a planted fault must be found, so that
attributes that mean nothing any more do not pass as locks that are right.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/", "kernels/", "kvcache/", "scheduler/", "benchmarks/")
CHECK = ["-Wthread-safety", "-Werror=thread-safety", "-fsyntax-only"]
# Flags that only gcc knows, and warnings that other tiers judge.
DROPPED = ("-W", "-fpch", "-fcondition", "-fno-semantic", "-MD", "-MT", "-MF")
PLANTED = """
#include "src/base/mutex.h"
struct Planted {
  baton::Mutex mutex;
  int number BATON_GUARDED_BY(mutex) = 0;
  void Right() { baton::MutexLock lock(mutex); ++number; }
  void Wrong() { WRONG }
};
"""


def find_clang():
    for name in ("clang++-14", "clang++"):
        if path := shutil.which(name):
            return path
    sys.exit("thread_safety.py: clang++ is missing (apt-get install clang-14)")


def command_of(clang, entry):
    """The command of a compiler of any kind, as clang's to read the source."""
    words = shlex.split(entry["command"])
    while not Path(words[0]).name.startswith(("c++", "g++", "clang++")):
        words = words[1:]  # ccache and its settings
    kept, skip = [], 0
    for position, word in enumerate(words[1:-1], 1):
        if skip:
            skip -= 1
        elif word in ("-o", "-MT", "-MF"):
            skip = 1
        elif word == "-include" and words[position + 1].endswith("cmake_pch.hxx"):
            kept += ["-include", str(ROOT / "scripts/cmake/common_headers.h")]
            skip = 1
        elif word != "-c" and not word.startswith(DROPPED):
            kept.append(word)
    return [clang, *kept, *CHECK, words[-1]]


def find_planted_fault(clang):
    """True when the fault is found and its right twin is not."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "planted.cc"
        codes = []
        for wrong in ("", "++number;"):
            source.write_text(PLANTED.replace("WRONG", wrong))
            command = [clang, "-std=c++20", f"-I{ROOT}", *CHECK, str(source)]
            codes.append(subprocess.run(command, capture_output=True, check=False).returncode)
    return codes[0] == 0 and codes[1] != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    flags = parser.parse_args()
    clang = find_clang()
    if not find_planted_fault(clang):
        sys.exit("thread_safety.py: a planted fault was not found; does clang know the attributes?")
    known = {}
    for entry in json.loads((flags.build / "compile_commands.json").read_text()):
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
        known.setdefault(path, entry)
    for source in flags.sources:
        if source not in known:
            sys.exit(f"thread_safety.py: {flags.build} knows no command for {source}")
    wanted = flags.sources or [path for path in known if path.startswith(FOLDERS)]

    def check(path):
        entry = known[path]
        run = subprocess.run(
            command_of(clang, entry),
            cwd=entry["directory"],
            capture_output=True,
            text=True,
            check=False,
        )
        return path, run

    num_bad = 0
    with ThreadPoolExecutor(flags.jobs) as pool:
        for path, run in pool.map(check, sorted(wanted)):
            if run.returncode != 0:
                num_bad += 1
                print(f"== {path}\n{run.stderr}", flush=True)
    print(f"thread_safety: {len(wanted)} sources, {num_bad} with findings")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
