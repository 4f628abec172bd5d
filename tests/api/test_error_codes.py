#!/usr/bin/env python3
"""Every error code of the API has a test that expects it.

Reads the codes and their names out of src/router, and the expectations out of the tests: a name as
a literal in a test of the API, the router or the whole binary, or the enumerator in a line that
expects something. tests/e2e/error_cases.py has the codes that one request can reach, by surface.
--write makes ERROR_CODES.md, the table of codes and tests. The check is that each of its rows is
still true and that none is missing, so that another test needs no new page.
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
PAGE = ROOT / "tests/api/ERROR_CODES.md"
TESTS_OF_A_ROW = 3
TEST_OF_SURFACES = "tests/e2e/test_error_answers.py"
TEST_BEGINS = re.compile(r"^(?:TEST(?:_F|_P)?\((\w+),\s*(\w+)\)|def (test_\w+)\()")
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


def places(lines, enumerator, name):
    """The numbers of the lines that expect the code."""
    for number, line in enumerate(lines):
        if f'"{name}"' in line or f'\\"{name}\\"' in line:
            yield number
        elif re.search(rf"\bErrorCode::{enumerator}\b", line):
            if any(map(EXPECTS.search, lines[max(0, number - LINES_BEFORE) : number + 1])):
                yield number


def expects(lines, enumerator, name):
    """Whether a test with these lines expects the code."""
    return next(places(lines, enumerator, name), None) is not None


def test_at(lines, number):
    """The name of the test that the line is in; "" = it is above all tests."""
    for line in reversed(lines[: number + 1]):
        if found := TEST_BEGINS.match(line):
            suite, case, function = found.groups()
            return function or f"{suite}.{case}"
    return ""


@functools.cache
def reached():
    """{enumerator: {file: names of its tests that expect it}}."""
    found = {enumerator: {} for enumerator in codes()}
    for path in sources():
        text = path.read_text()
        lines = [code_only(line) for line in text.splitlines()]
        for enumerator, name in codes().items():
            if name not in text and enumerator not in text:
                continue
            tests = {test_at(lines, number) for number in places(lines, enumerator, name)}
            if tests:
                found[enumerator][str(path.relative_to(ROOT))] = tests
    return found


@functools.cache
def surfaces():
    """{name of a code: {path on which one request reaches it: the status that it expects}}."""
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import error_cases

    found = {}
    for code, path, status, _ in error_cases.cases():
        found.setdefault(code, {})[path] = status
    return found


@functools.cache
def statuses():
    """{name of a code: its HTTP statuses}: those that the cases expect, without a case the one of
    the closed list."""
    listed = dict(re.findall(r"\{ErrorCode::(k\w+), (\d+),", TABLE.read_text()))
    found = {}
    for enumerator, name in codes().items():
        expected = {str(status) for status in surfaces().get(name, {}).values()}
        found[name] = " ".join(sorted(expected or {listed[enumerator]}))
    return found


def rows():
    """(code, HTTP statuses, tests, surfaces) of the page."""
    for enumerator, name in codes().items():
        named = [
            (file, test)
            for file, tests in reached()[enumerator].items()
            for test in sorted(tests)
            if test and Path(file).name.startswith("test_") | file.endswith("_test.cc")
        ]
        yield name, statuses()[name], named[:TESTS_OF_A_ROW], surfaces().get(name, {})


def page():
    lines = [
        "# Error codes and their tests",
        "",
        "The closed list of [request_error.cc](../../src/router/request_error.cc), tests that",
        "expect each code (at most three), the HTTP statuses and surfaces with which",
        f"[{Path(TEST_OF_SURFACES).name}](../e2e/test_error_answers.py) reaches it on the built",
        "server. `test_error_codes.py --write` makes this page; a test checks its rows.",
        "",
        "| code | HTTP | tests | surfaces |",
        "|---|---|---|---|",
    ]
    for name, status, tests, paths in rows():
        cells = ", ".join(f"`{test}` ({file})" for file, test in tests)
        lines.append(f"| `{name}` | {status} | {cells} | {' '.join(paths)} |")
    return "\n".join(lines) + "\n"


ROW = re.compile(r"^\| `(\w+)` \| ([\d ]+) \| (.*) \| (.*) \|$", re.M)
TEST = re.compile(r"`([\w.]+)` \(([\w/.]+)\)")


def untrue(text):
    """Sentences about rows of the page that are not true any more, or missing."""
    by_name = {name: enumerator for enumerator, name in codes().items()}
    found = {}
    for name, status, tests, paths in ROW.findall(text):
        found[name] = TEST.findall(tests)
        if name not in by_name:
            yield f"{name} is no code"
            continue
        known = reached()[by_name[name]]
        for test, file in found[name]:
            if test not in known.get(file, ()):
                yield f"{name}: {test} of {file} does not expect it"
        if paths.split() != list(surfaces().get(name, {})):
            yield f"{name}: its surfaces are others"
        if status != statuses()[name]:
            yield f"{name}: the cases expect {statuses()[name]} and not {status}"
    for name in by_name:
        if not found.get(name):
            yield f"{name}: no row with a test"


class ErrorCodes(unittest.TestCase):
    def test_each_code_has_a_test_that_expects_it(self):
        missing = [enumerator for enumerator, tests in reached().items() if not tests]
        self.assertEqual(missing, [], "no test expects these codes")

    def test_the_page_is_true(self):
        self.assertEqual(list(untrue(PAGE.read_text())), [], "test_error_codes.py --write")

    def test_a_page_that_is_not_true_is_found(self):
        text = PAGE.read_text()
        row = ROW.search(text).group()
        self.assertTrue(list(untrue(text.replace(row + "\n", ""))))
        self.assertTrue(list(untrue(TEST.sub(r"`\1x` (\2)", text, count=1))))
        self.assertTrue(list(untrue(text.replace("| 417 |", "| 501 |"))))

    def test_a_mention_is_no_expectation(self):
        def is_expected(line):
            return expects([code_only(line)], "kInternal", "internal_error")

        self.assertFalse(is_expected("sink.Fail(ErrorCode::kInternal);"))
        self.assertFalse(is_expected('// "internal_error"'))
        self.assertTrue(is_expected("EXPECT_EQ(error.code, ErrorCode::kInternal);"))
        self.assertTrue(is_expected('    {500, "internal_error"},'))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
        sys.exit()
    unittest.main()
