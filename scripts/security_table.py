#!/usr/bin/env python3
"""Writes the tables of SECURITY.md: advisories from tests/advisories.json, and what each route
answers to each caller from tests/e2e/route_cases.py.

  scripts/security_table.py            rewrites them
  scripts/security_table.py --check    exit 1 when one is not what its file says, or when a row is
                                       wrong: a test that does not exist, a kind that stands twice
  scripts/security_table.py --run DIR  runs each named test of the build in DIR (build/release) and
                                       prints the advisories with a verdict; exit 1 when one failed

A row is one published kind of one request, file or peer that stopped a server of language models,
held it up, or made it tell or do too much. It says what went wrong there, never by which input.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "SECURITY.md"
DATA = ROOT / "tests" / "advisories.json"
PYTHON = ROOT / "build" / "venv" / "bin" / "python"
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import route_cases  # noqa: E402

ID = re.compile(r"CVE-20\d\d-\d{4,}|GHSA(-[0-9a-z]{4}){3}|PYSEC-20\d\d-\d+|GO-20\d\d-\d+")
FIELDS = {"advisory", "program", "published", "kind", "what", "guard", "tests"}
MIN_ROWS = 20
MAX_WORDS = 30  # of what went wrong: enough for a kind, too few for a way to do it


def has_test(test):
    """Whether a file has a test of this name: Suite.Name of GoogleTest, or a function of pytest."""
    path = ROOT / test["file"]
    if not path.is_file():
        return False
    text = path.read_text()
    if path.suffix == ".py":
        function = test["name"].split("[")[0]  # without the parameter
        return bool(re.search(rf"^\s*def {re.escape(function)}\(", text, re.M))
    suite, _, name = test["name"].partition(".")
    return bool(re.search(rf"^TEST(_F|_P)?\({suite},\s*{name}\)", text, re.M))


def faults(rows):
    """Sentences about what is wrong with the rows."""
    found = []
    if len(rows) < MIN_ROWS:
        found.append(f"{len(rows)} rows; there are at least {MIN_ROWS}")
    for field in ("advisory", "kind"):
        values = [row.get(field) for row in rows]
        found += [f"{field} {v!r} stands twice" for v in sorted(set(values)) if values.count(v) > 1]
    for row in rows:
        name = row.get("advisory", "?")
        if set(row) != FIELDS:
            found.append(f"{name}: its fields are {', '.join(sorted(FIELDS))}")
            continue
        if not ID.fullmatch(name):
            found.append(f"{name}: no id of an advisory")
        if row["published"] not in (2025, 2026):
            found.append(f"{name}: published in {row['published']}")
        if len(row["what"].split()) > MAX_WORDS:
            found.append(f"{name}: more than {MAX_WORDS} words about what went wrong")
        if not row["tests"]:
            found.append(f"{name}: no test")
        found += [
            f"{name}: there is no test {test['name']} in {test['file']}"
            for test in row["tests"]
            if not has_test(test)
        ]
    return found


def table(rows, verdicts=None):
    """The rows in Markdown; `verdicts`: of the advisories, a column more."""
    heads = ["advisory", "kind", "what went wrong there", "what answers it here", "its test"]
    heads += ["verdict"] * (verdicts is not None)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        # A parameter is the kind of the row.
        names = [(test["name"].split("[")[0], test["file"]) for test in row["tests"]]
        tests = ", ".join(f"[`{name}`]({file})" for name, file in names)
        cells = [
            f"{row['advisory']} ({row['program']})",
            row["kind"],
            row["what"],
            row["guard"],
            tests,
        ]
        cells += [verdicts[row["advisory"]]] if verdicts is not None else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def program_of(file):
    """The name of the test program that has a source, by the CMakeLists.txt beside it."""
    path = ROOT / file
    text = (path.parent / "CMakeLists.txt").read_text()
    for call in re.findall(r"baton_test\((.*?)\)", text, re.S):
        if path.name in call.split():
            return re.search(r"NAME\s+(\w+)", call).group(1)
    raise SystemExit(f"{file} stands in no baton_test of {path.parent / 'CMakeLists.txt'}")


def passed_tests(build, file, names):
    """Those of the names that ran and passed, with all their parameters; one run for the file."""
    if file.endswith(".py"):
        command = [PYTHON, "-B", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
        command += [f"{file}::{name}" for name in names]
        passed, failed = (rf"^{how} {re.escape(file)}::(.+?)(?: - .*)?$"
                          for how in ("PASSED", "(?:FAILED|ERROR)"))  # fmt: skip
    else:
        program = build / Path(file).parent / program_of(file)
        # Typed and parametrised tests have a name before or after it.
        filters = [f"{name}:*/{name}/*:{name}/*" for name in names]
        command = [program, f"--gtest_filter={':'.join(filters)}"]
        test = r"(?:\w+/)?(\w+(?:/\d+)?\.\w+)"  # a typed one is Suite/0.Name
        passed, failed = rf"^\[       OK \] {test}", rf"^\[  FAILED  \] {test}"
    env = {**os.environ, "BATON_BIN": str(build / "baton"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1800
    )
    print(f"{file}: exit {done.returncode}", file=sys.stderr, flush=True)
    if done.returncode != 0:
        print(done.stdout[-3000:] + done.stderr[-1000:], file=sys.stderr)

    def found(how):
        """The names as they were told, and without parameters and types."""
        told = re.findall(how, done.stdout, re.M)
        return {*told, *(re.sub(r"/\d+\.", ".", name.split("[")[0]) for name in told)}

    return found(passed) - found(failed)


def run(rows, build):
    """Prints the table with verdicts; 1 when a test failed."""
    named = {}
    for test in (test for row in rows for test in row["tests"]):
        named.setdefault(test["file"], set()).add(test["name"])
    passed = {
        (file, name)
        for file, names in sorted(named.items())
        for name in passed_tests(build, file, sorted(names))
    }
    verdicts = {}
    for row in rows:
        failed = [t["name"] for t in row["tests"] if (t["file"], t["name"]) not in passed]
        verdicts[row["advisory"]] = f"FAILED: {', '.join(failed)}" if failed else "passed"
    print(table(rows, verdicts))
    num_passed = sum(verdict == "passed" for verdict in verdicts.values())
    print(f"\n{num_passed} of {len(rows)} rows passed.")
    return 0 if num_passed == len(rows) else 1


def with_table(text, name, wanted):
    begin, end = f"<!-- table {name} -->", "<!-- end -->"
    if begin not in text:
        raise SystemExit(f"{PAGE.name} has no place for the table: {begin} {end}")
    marked = re.compile(f"{begin}.*?{end}", re.S)
    return marked.sub(lambda _: f"{begin}\n{wanted}\n{end}", text)


def main():
    check, runs = sys.argv[1:] == ["--check"], sys.argv[1:2] == ["--run"] and len(sys.argv) == 3
    if sys.argv[1:] and not check and not runs:
        raise SystemExit(__doc__)
    rows = json.loads(DATA.read_text())
    wrong = faults(rows)
    if wrong:
        raise SystemExit("\n".join(f"{DATA.name}: {fault}" for fault in wrong))
    if runs:
        raise SystemExit(run(rows, Path(sys.argv[2]).resolve()))
    text = PAGE.read_text()
    wanted = with_table(text, "advisories", table(rows))
    wanted = with_table(wanted, "routes", route_cases.table())
    if not check:
        PAGE.write_text(wanted)
    elif wanted != text:
        raise SystemExit(f"{PAGE.name} differs from its data: scripts/security_table.py")


if __name__ == "__main__":
    main()
