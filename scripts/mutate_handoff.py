#!/usr/bin/env python3
"""Mutation test of the hand-off's state machines.

  scripts/mutate_handoff.py [--jobs N] [--only FILE] [--again] [--list] [--check]

Every guard of the transition code is deleted or inverted, one at a time, and the tests run:
  always, never    the condition of an `if` (or `?:`) is replaced by true, by false
  operand          an operand of && counts as true, of || as false (in conditions and judgements)
  row              a line of a transition table is deleted
Assertions of our own invariants (BATON_CHECK) are no guards and stay.

All mutants are compiled into one set of test programs; the environment variable BATON_MUTANT
chooses one. Prints a table, writes benchmarks/results/handoff_mutation.json (reasons given there
for survivors are kept) and exits 1 when fewer than 95 % are caught. --again runs only those that
survived by that file, after tests were added; --check only compares the list of mutants with it.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import machine  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "handoff_mutation.json"
BUILD = ROOT / "build" / "mutation"
MUTATED = [
    "kvcache/handoff_source.cc",
    "kvcache/handoff_dest.cc",
    "kvcache/handoff_request.cc",
    "kvcache/grant_park.cc",
]
# Test program: its sources, in the order in which they are run. Explorations first: what they
# catch is caught whatever the unit tests say.
TESTS = {
    "closure": [
        "handoff_closure_test",
        "closure",
        "cluster_world",
        "cluster_check",
        "cluster_router",
    ],
    "orders": ["handoff_explore_test", "handoff_world"],
    "unit": [
        "handoff_source_test",
        "handoff_retarget_test",
        "handoff_dest_test",
        "handoff_edges_test",
        "handoff_request_test",
    ],
}
LIMIT_S = 120
WANTED = 0.95
PREAMBLE = """#include <cstdlib>
namespace baton::mutant {
inline const int chosen = [] {
  const char* text = std::getenv("BATON_MUTANT");
  return text == nullptr ? -1 : std::atoi(text);
}();
inline bool Is(int id) { return chosen == id; }
template <typename T>
T Never(int id, T value) { return Is(id) ? T{} : value; }
}  // namespace baton::mutant
"""


class Mutants:
    """The list of mutants; each rewriting adds to it."""

    def __init__(self):
        self.all = []

    def add(self, file, line, kind, text):
        mutant = {"id": len(self.all), "file": file, "line": line, "kind": kind}
        mutant["guard"] = re.sub(r"\s+", " ", text).strip()
        self.all.append(mutant)
        return mutant["id"]


def closing(text, start):
    """The index of the bracket that closes the one at `start`."""
    depth = 0
    quote = None
    i = start
    while i < len(text):
        c = text[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = None
        elif c in "\"'" and not (c == "'" and text[i - 1].isdigit()):
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise ValueError(f"nothing closes {text[start:start + 40]}")


def split_top(text, operator):
    """(begin, end) of the parts of `text` between operators outside brackets."""
    parts, last, i = [], 0, 0
    while i < len(text):
        if text[i] in "([{":
            i = closing(text, i)
        elif text.startswith(operator, i):
            parts.append((last, i))
            i += len(operator)
            last = i
            continue
        i += 1
    return parts + [(last, len(text))]


def statement_end(text, begin):
    """The index of the semicolon that ends the statement around `begin`."""
    i = begin
    while text[i] != ";":
        i = closing(text, i) + 1 if text[i] in "([{" else i + 1
    return i


class Rewriter:
    """Writes one source with all its mutants, which only ever insert text."""

    def __init__(self, mutants, file):
        self.mutants = mutants
        self.file = file
        self.original = (ROOT / file).read_text()
        # Without its comments, at the same places.
        self.text = re.sub(r"//[^\n]*", lambda m: " " * len(m.group()), self.original)
        self.inserts = []  # (where, 0 = end or 1 = begin, order, text)
        self.first_row = 0

    def add(self, offset, kind, text):
        line = self.text.count("\n", 0, offset) + 1
        return self.mutants.add(self.file, line, kind, text)

    def wrap(self, begin, end, prefix, suffix):
        """Puts text around a part; the text that is put first is outermost."""
        order = len(self.inserts)
        self.inserts.append((begin, 1, order, prefix))
        self.inserts.append((end, 0, -order, suffix))

    def stripped(self, begin, end):
        text = self.text[begin:end]
        return begin + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())

    def operands(self, begin, end):
        """Each operand of && and || is a mutant."""
        begin, end = self.stripped(begin, end)
        text = self.text[begin:end]
        for operator in ("||", "&&"):
            parts = split_top(text, operator)
            if len(parts) == 1:
                continue
            for first, last in parts:
                first, last = self.stripped(begin + first, begin + last)
                id_ = self.add(first, "operand", self.text[first:last])
                either = f"mutant::Is({id_}) ||" if operator == "&&" else f"!mutant::Is({id_}) &&"
                self.wrap(first, last, f"({either} (", "))")
                self.operands(first, last)
            return
        if text.startswith("(") and closing(text, 0) == len(text) - 1:
            self.operands(begin + 1, end - 1)

    def condition(self, begin, end):
        """A whole condition: always and never, and its operands."""
        begin, end = self.stripped(begin, end)
        text = self.text[begin:end]
        always, never = (self.add(begin, kind, text) for kind in ("always", "never"))
        self.wrap(begin, end, f"(mutant::Is({always}) || (!mutant::Is({never}) && (", ")))")
        self.operands(begin, end)

    def ifs(self):
        for match in re.finditer(r"\b(if|while) \(", self.text):
            begin = match.end()
            end = closing(self.text, begin - 1)
            text = self.text[begin:end]
            declared = re.match(r"const auto\*? \w+ = ", text)
            if declared:
                id_ = self.add(begin, "never", text)
                self.wrap(begin + declared.end(), end, f"mutant::Never({id_}, ", ")")
            elif match.group(1) == "if":
                self.condition(begin, end)
            else:
                self.operands(begin, end)

    def judgements(self):
        """`const bool x = ...;`, `x_ = x_ || y;` and `return a && b;`."""
        for match in re.finditer(r"\bbool \w+ = |\b\w+_ = |\breturn ", self.text):
            end = statement_end(self.text, match.end())
            if " ? " not in self.text[match.end() : end]:
                self.operands(match.end(), end)

    def choices(self):
        """The conditions of `?:`."""
        for match in re.finditer(r"\s\? ", self.text):
            depth, begin = 0, match.start()
            while True:
                c = self.text[begin - 1]
                if c in ")]":
                    depth += 1
                elif c in "([" and depth == 0:
                    break
                elif c in "([":
                    depth -= 1
                elif depth == 0 and c in ",;{}":
                    break
                elif depth == 0 and re.search(r"( = |=\n\s*|return )$", self.text[:begin][-80:]):
                    break
                begin -= 1
            self.condition(begin, match.start())

    def rows(self):
        """Deletes lines of the table; FindRow is told which numbers they have."""
        self.first_row = len(self.mutants.all)
        found = re.search(r"Row kRows\[\] = \{", self.text)
        if found is None:
            return
        end = closing(self.text, found.end() - 1)
        at = found.end()
        while match := re.compile(r"\b(?:Go|Stay)\(").search(self.text, at, end):
            at = closing(self.text, match.end() - 1)
            self.add(match.start(), "row", self.text[match.start() : at + 1])

    def write(self):
        self.ifs()
        self.choices()
        self.judgements()
        self.rows()
        text, last = "", 0
        for where, _, _, inserted in sorted(self.inserts):
            text += self.original[last:where] + inserted
            last = where
        text += self.original[last:]
        call = f"handoff_internal::FindRowExcept({self.first_row}, "
        text = text.replace("handoff_internal::FindRow(", call)
        target = BUILD / "tree" / self.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text('#include "kvcache/mutant.h"\n' + text)


def write_table_header():
    text = (ROOT / "kvcache" / "handoff_table.h").read_text()
    at = text.index("// True when no (state, event) has two rows.")
    except_row = """template <typename RowType, typename State, typename Event>
const RowType* FindRowExcept(int first, std::span<const RowType> rows, State state, Event event) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (baton::mutant::Is(first + static_cast<int>(i))) continue;
    const RowType& row = rows[i];
    if (row.on == event && (row.in >> static_cast<uint32_t>(state) & 1) != 0) return &row;
  }
  return nullptr;
}

"""
    folder = BUILD / "tree" / "kvcache"
    folder.mkdir(parents=True, exist_ok=True)
    text = text[:at] + except_row + text[at:]
    (folder / "handoff_table.h").write_text('#include "kvcache/mutant.h"\n' + text)
    (folder / "mutant.h").write_text("#pragma once\n" + PREAMBLE)


def make_mutants():
    mutants = Mutants()
    write_table_header()
    for file in MUTATED:
        Rewriter(mutants, file).write()
    return mutants.all


def compile_one(source):
    target = BUILD / (source.replace("/", "_") + ".o")
    path = source if source not in MUTATED else BUILD / "tree" / source
    flags = "-std=c++20 -O2 -DNDEBUG -DFMT_HEADER_ONLY=1 -DSPDLOG_FMT_EXTERNAL=1 -w".split()
    ccache = ["ccache"] if subprocess.run(["which", "ccache"], capture_output=True).stdout else []
    includes = ["-I", BUILD / "tree", "-I", ROOT]
    command = [*ccache, "g++", *flags, *includes, "-c", path, "-o", target]
    subprocess.run(command, cwd=ROOT, check=True)
    return target


def build(jobs):
    product = [str(p.relative_to(ROOT)) for p in ROOT.glob("kvcache/handoff_*.cc")]
    product += ["kvcache/grant_park.cc", "kvcache/hash_chain.cc"]
    base = ("check", "ids", "xxh3", "hex", "instruction_sets")
    product += [f"src/base/{n}.cc" for n in base]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        tests = {
            name: list(pool.map(compile_one, [f"tests/kvcache/{s}.cc" for s in sources]))
            for name, sources in TESTS.items()
        }
        objects = list(pool.map(compile_one, sorted(set(product))))
    avx2 = BUILD / "xxh3_avx2.o"
    subprocess.run(
        f"g++ -std=c++20 -O2 -w -mavx2 -mfma -mf16c -mbmi -mbmi2 -DFMT_HEADER_ONLY=1 -I {ROOT}"
        f" -c {ROOT}/src/base/xxh3_avx2.cc -o {avx2}".split(),
        check=True,
    )
    packages = "absl_status absl_statusor absl_hash absl_raw_hash_set absl_strings libxxhash"
    libraries = subprocess.run(
        ["pkg-config", "--libs", *packages.split()], capture_output=True, text=True, check=True
    ).stdout.split()
    for name, own in tests.items():
        link = ["g++", *own, *objects, avx2, "-lgmock", "-lgtest", "-lgtest_main", *libraries]
        subprocess.run([*link, "-lpthread", "-o", BUILD / name], check=True)


def run_test(name, mutant_id):
    """"", or how the test noticed the mutant."""
    environment = dict(os.environ, BATON_SOURCE_DIR=str(ROOT))
    environment["BATON_CLOSURE"] = "short"
    environment["BATON_MUTANT"] = str(mutant_id)
    try:
        done = subprocess.run(
            [BUILD / name, "--gtest_fail_fast", "--gtest_brief=1"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return "no end within the limit"
    if done.returncode == 0:
        return ""
    failed = re.search(r"\[  FAILED  \] (\S+?)[,\s]", done.stdout)
    crashed = re.search(r"check failed.*", done.stderr)
    return failed.group(1) if failed else crashed.group(0)[:120] if crashed else "crashed"


def judge(mutant):
    caught = {}
    for name in TESTS:
        how = run_test(name, mutant["id"])
        if how:
            caught[name] = how
    return {**mutant, "caught_by": caught}


def kept_reasons():
    if not RESULTS.is_file():
        return {}
    rows = json.loads(RESULTS.read_text())["survivors"]
    return {(r["file"], r["kind"], r["guard"]): r.get("why", "") for r in rows}


def same_mutants(mutants):
    """The mutants of the last run, which must be the present ones."""
    known = json.loads(RESULTS.read_text())["mutants"]
    names = [[(m["file"], m["kind"], m["guard"]) for m in some] for some in (mutants, known)]
    if names[0] != names[1]:
        raise SystemExit(f"{RESULTS.name} is of other sources: run scripts/mutate_handoff.py")
    return known


def report(mutants, seconds):
    reasons = kept_reasons()
    survivors = [m for m in mutants if not m["caught_by"]]
    for survivor in survivors:
        key = (survivor["file"], survivor["kind"], survivor["guard"])
        survivor["why"] = reasons.get(key, "")
    files = {}
    for file in MUTATED:
        mine = [m for m in mutants if m["file"] == file]
        files[file] = {
            "mutants": len(mine),
            "caught": sum(bool(m["caught_by"]) for m in mine),
            "by_exploration": sum(bool({"closure", "orders"} & set(m["caught_by"])) for m in mine),
        }
    result = machine.record("handoff_mutation", os.cpu_count())
    result.update(seconds=round(seconds), files=files)
    result["survivors"] = [{k: v for k, v in s.items() if k != "caught_by"} for s in survivors]
    result["mutants"] = mutants
    return result


def print_mutant(m):
    how = ", ".join(f"{test}: {name}" for test, name in m["caught_by"].items()) or "SURVIVED"
    print(f"{m['file']}:{m['line']} {m['kind']:8} {m['guard'][:60]:60} {how}", flush=True)


def print_table(result):
    print("| source | mutants | caught | of them by exploration |\n|---|---:|---:|---:|")
    for file, row in result["files"].items():
        print(f"| `{file}` | {row['mutants']} | {row['caught']} | {row['by_exploration']} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", help="sources whose name contains this; nothing is written")
    parser.add_argument("--again", action="store_true", help="only the survivors of the last run")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--check", action="store_true", help="is the written list the present one?")
    options = parser.parse_args()
    mutants = make_mutants()
    if options.list:
        for m in mutants:
            print(f"{m['id']:4} {m['file']}:{m['line']} {m['kind']:8} {m['guard']}")
        return
    known = same_mutants(mutants) if options.check or options.again else []
    if options.check:
        return
    begin = time.monotonic()
    build(options.jobs)
    for name in TESTS:
        if how := run_test(name, -1):
            raise SystemExit(f"without any mutant {name} fails: {how}")
    if options.only:
        mutants = [m for m in mutants if options.only in m["file"]]
    if options.again:
        mutants = [m for m, before in zip(mutants, known) if not before["caught_by"]]
    judged = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for mutant in pool.map(judge, mutants):
            print_mutant(mutant)
            judged.append(mutant)
    if options.again:
        fresh = {m["id"]: m for m in judged}
        judged = [fresh.get(m["id"], m) for m in known]
        begin -= json.loads(RESULTS.read_text())["seconds"]
    result = report(judged, time.monotonic() - begin)
    print_table(result)
    caught = sum(row["caught"] for row in result["files"].values())
    print(f"{caught} of {len(judged)} caught in {result['seconds']} s")
    if not options.only:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    if caught < WANTED * len(judged):
        raise SystemExit(f"fewer than {WANTED:.0%} are caught")


if __name__ == "__main__":
    main()
