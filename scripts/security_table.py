#!/usr/bin/env python3
"""Writes the table of advisories in SECURITY.md from tests/advisories.json.

  scripts/security_table.py            rewrites it
  scripts/security_table.py --check    exit 1 when it is not what the file says, or when a row is
                                       wrong: a test that does not exist, a kind that stands twice

A row is one published kind of one request, file or peer that stopped a server of language models,
held it up, or made it tell or do too much. It says what went wrong there, never by which input.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "SECURITY.md"
DATA = ROOT / "tests" / "advisories.json"
MARKED = re.compile(r"<!-- table advisories -->.*?<!-- end -->", re.S)
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
        return bool(re.search(rf"^\s*def {re.escape(test['name'])}\(", text, re.M))
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


def table(rows):
    """The rows in Markdown."""
    lines = [
        "| advisory | kind | what went wrong there | what answers it here | its test |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        tests = ", ".join(f"[`{test['name']}`]({test['file']})" for test in row["tests"])
        cells = (
            f"{row['advisory']} ({row['program']})",
            row["kind"],
            row["what"],
            row["guard"],
            tests,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    rows = json.loads(DATA.read_text())
    wrong = faults(rows)
    if wrong:
        raise SystemExit("\n".join(f"{DATA.name}: {fault}" for fault in wrong))
    text = PAGE.read_text()
    begin, end = "<!-- table advisories -->", "<!-- end -->"
    wanted = MARKED.sub(lambda _: f"{begin}\n{table(rows)}\n{end}", text)
    if begin not in text:
        raise SystemExit(f"{PAGE.name} has no place for the table: {begin} {end}")
    if not check:
        PAGE.write_text(wanted)
    elif wanted != text:
        raise SystemExit(f"{PAGE.name} differs from {DATA.name}: scripts/security_table.py")


if __name__ == "__main__":
    main()
