#!/usr/bin/env python3
"""Every error code of the API has a test that expects it.

Reads the codes and their names out of src/router, and the expectations out of the tests: a name as
a literal in a test of the API, the router or the whole binary, or the enumerator in a line that
expects something. With --list: the table of codes and the tests that reach them.
"""

import functools
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "src/router/request_error.h"
TABLE = ROOT / "src/router/request_error.cc"
FOLDERS = ("api", "router", "e2e")
EXPECTS = re.compile(r"\b(EXPECT_|ASSERT_|assert\b|ElementsAre|Field\()")
# An expectation of three lines names the enumerator on its last.
LINES_BEFORE = 2


@functools.cache
def codes():
    """{enumerator: name} of the closed list."""
    body = HEADER.read_text().split("enum class ErrorCode : uint8_t {", 1)[1].split("};", 1)[0]
    enumerators = re.findall(r"^\s*(k\w+),", body, re.M)
    row = re.compile(r'\{ErrorCode::(k\w+), \d+, \w+, \w+,\s*"(\w+)",')
    names = dict(row.findall(TABLE.read_text()))
    assert enumerators and set(enumerators) == set(names), (enumerators, names)
    return names


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).iterdir()):
            if path.suffix in (".cc", ".py") and path != Path(__file__).resolve():
                yield path


def code_only(line):
    return re.sub(r"^\s*(//|#).*$", "", line)


def expects(lines, enumerator, name):
    """Whether a test with these lines expects the code."""
    for number, line in enumerate(lines):
        if f'"{name}"' in line or f'\\"{name}\\"' in line:
            return True
        if re.search(rf"\bErrorCode::{enumerator}\b", line):
            if any(map(EXPECTS.search, lines[max(0, number - LINES_BEFORE) : number + 1])):
                return True
    return False


def reached():
    """{enumerator: tests that expect it}."""
    found = {enumerator: [] for enumerator in codes()}
    for path in sources():
        text = path.read_text()
        lines = [code_only(line) for line in text.splitlines()]
        for enumerator, name in codes().items():
            is_named = name in text or enumerator in text
            if is_named and expects(lines, enumerator, name):
                found[enumerator].append(str(path.relative_to(ROOT)))
    return found


class ErrorCodes(unittest.TestCase):
    def test_each_code_has_a_test_that_expects_it(self):
        missing = [enumerator for enumerator, tests in reached().items() if not tests]
        self.assertEqual(missing, [], "no test expects these codes")

    def test_a_mention_is_no_expectation(self):
        def is_expected(line):
            return expects([code_only(line)], "kInternal", "internal_error")

        self.assertFalse(is_expected("sink.Fail(ErrorCode::kInternal);"))
        self.assertFalse(is_expected('// "internal_error"'))
        self.assertTrue(is_expected("EXPECT_EQ(error.code, ErrorCode::kInternal);"))
        self.assertTrue(is_expected('    {500, "internal_error"},'))


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for enumerator, tests in reached().items():
            print(f"{enumerator}: {', '.join(tests) or 'none'}")
        sys.exit()
    unittest.main()
