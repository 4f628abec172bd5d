"""Sizes: files, functions, parameters, nesting, columns, and the share of tests."""

from pathlib import Path

from cpp_scan import scan
from tree import CODE_SUFFIXES, Finding, is_test

MAX_HEADER_LINES = 250
MAX_OPS_HEADER_LINES = 500
AIM_SOURCE_LINES = 500
MAX_SOURCE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_KERNEL_FUNCTION_LINES = 120
MAX_PARAMETERS = 5
MAX_NESTING = 3
MAX_KERNEL_NESTING = 4
MAX_COLUMNS = 100
MIN_TEST_SHARE = 0.30
MIN_DOCUMENTED_TYPES = 0.90


def check_file_sizes(tree):
    for path in tree.select(CODE_SUFFIXES):
        count = len(tree.lines(path))
        limit = MAX_SOURCE_LINES
        if path.endswith((".h", ".cuh")):
            limit = MAX_OPS_HEADER_LINES if path == "kernels/ops.h" else MAX_HEADER_LINES
        if count > limit:
            yield Finding("file_size", path, "", count, f"{count} lines, the limit is {limit}")


def large_sources(tree):
    """[(lines, path)] of sources above the aim, which is no error."""
    sizes = [(len(tree.lines(p)), p) for p in tree.select(CODE_SUFFIXES - {".h", ".cuh"})]
    return sorted((s for s in sizes if s[0] > AIM_SOURCE_LINES), reverse=True)


def check_columns(tree):
    for path in tree.code():
        for number, line in enumerate(tree.lines(path), 1):
            if len(line) > MAX_COLUMNS:
                yield Finding(
                    "columns", path, "", number, f"{len(line)} columns, the limit is {MAX_COLUMNS}"
                )


def check_functions(tree):
    for path in tree.cpp():
        kernel = path.startswith("kernels/")
        max_lines = MAX_KERNEL_FUNCTION_LINES if kernel else MAX_FUNCTION_LINES
        max_nesting = MAX_KERNEL_NESTING if kernel else MAX_NESTING
        for function in scan(tree.text(path)).functions:
            name, line = function.name, function.first_line
            lines = function.last_line - function.first_line + 1
            if lines > max_lines:
                yield Finding(
                    "function_size",
                    path,
                    name,
                    line,
                    f"{name} has {lines} lines, the limit is {max_lines}",
                )
            if function.num_parameters > MAX_PARAMETERS:
                yield Finding(
                    "parameters",
                    path,
                    name,
                    line,
                    f"{name} has {function.num_parameters} parameters, the limit is "
                    f"{MAX_PARAMETERS}: make a struct",
                )
            if function.max_nesting > max_nesting:
                yield Finding(
                    "nesting",
                    path,
                    name,
                    line,
                    f"{name} nests {function.max_nesting} levels, the limit is {max_nesting}",
                )


def is_documented(lines, line):
    """True if a comment ends right above `line` (template lines between do not matter)."""
    above = line - 2
    while above >= 0 and lines[above].lstrip().startswith(("template", "requires", "[[")):
        above -= 1
    return above >= 0 and lines[above].lstrip().startswith(("//", "*/", "*"))


def undocumented_types(tree):
    """(number of types, [(path, line, name) without a sentence]) of product code."""
    total, missing = 0, []
    for path in tree.cpp():
        if is_test(path):
            continue
        lines = tree.lines(path)
        for found in scan(tree.text(path)).types:
            total += 1
            if not is_documented(lines, found.line):
                missing.append((path, found.line, found.name))
    return total, missing


def check_documented_types(tree):
    total, missing = undocumented_types(tree)
    if total and 1 - len(missing) / total < MIN_DOCUMENTED_TYPES:
        for path, line, name in missing:
            yield Finding(
                "type_sentence",
                path,
                name,
                line,
                f"{name} has no sentence of purpose "
                f"({total - len(missing)} of {total} types have one; 90 % must)",
            )


def line_counts(tree):
    """(lines of tests, lines of all code)."""
    tests = total = 0
    for path in tree.select({".cc", ".h", ".cu", ".cuh", ".py", ".rs"}):
        count = len(tree.lines(path))
        total += count
        tests += count if is_test(path) or Path(path).name.startswith("test_") else 0
    return tests, total


def check_test_share(tree):
    tests, total = line_counts(tree)
    if total and tests / total < MIN_TEST_SHARE:
        yield Finding(
            "test_share",
            "tests",
            "",
            0,
            f"tests are {tests} of {total} lines ({100 * tests / total:.1f} %); at least "
            f"{100 * MIN_TEST_SHARE:.0f} % must be",
        )
