#!/usr/bin/env python3
"""Every metric that the sources register has a row in the table of deploy/operations.md.

A metric is a family of the registry ({"baton_...", "help"}), or a line "# TYPE baton_... counter"
of an exposition that is written by hand. A row may name further metrics by their ends: after
`baton_requests_running` the name `_waiting` is `baton_requests_waiting`.
"""

import functools
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "deploy/operations.md"
FOLDERS = ("src", "kvcache", "scheduler", "kernels")
FAMILY = re.compile(r'\{\s*"(baton_\w+)",|# TYPE (baton_\w+) (?:counter|gauge|histogram)\b')


@functools.cache
def registered():
    """{metric: a source that registers it}."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".cc", ".h"):
                continue
            for names in FAMILY.findall(path.read_text(encoding="utf-8")):
                found.setdefault("".join(names), str(path.relative_to(ROOT)))
    return found


def beginnings(name):
    """`baton_a_b` begins with "baton", "baton_a" and itself."""
    parts = name.split("_")
    return ["_".join(parts[:end]) for end in range(1, len(parts) + 1)]


def named(text):
    """The metrics that the first cells of the page's tables name."""
    names = set()
    for row in re.findall(r"^\| (`baton_[^|]*) \|", text, re.M):
        full = None
        for name in re.findall(r"`(\w+)", row):
            if name.startswith("baton_"):
                full = name
                names.add(name)
            elif full is not None:
                names |= {begin + name for begin in beginnings(full)}
    return names


class MetricsPageTest(unittest.TestCase):
    maxDiff = None

    def test_every_metric_has_a_row(self):
        metrics, page = registered(), named(PAGE.read_text(encoding="utf-8"))
        self.assertGreater(len(metrics), 70, "the sources register them in another way")
        missing = {name: path for name, path in metrics.items() if name not in page}
        self.assertEqual(missing, {}, f"give each a row in {PAGE.relative_to(ROOT)}")

    def test_every_row_is_of_a_metric(self):
        text = PAGE.read_text(encoding="utf-8")
        rows = re.findall(r"^\| `(baton_\w+)", text, re.M)
        self.assertEqual([name for name in rows if name not in registered()], [])

    def test_ends_of_names_are_read(self):
        row = "| `baton_a_b_total{x}`, `_c`, `baton_d` | router | .. |\n"
        self.assertLessEqual({"baton_a_b_total", "baton_a_c", "baton_d"}, named(row))
        self.assertEqual(named("| `other` | `baton_a` |\n"), set())


if __name__ == "__main__":
    unittest.main()
