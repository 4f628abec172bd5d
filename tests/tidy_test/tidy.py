"""Checks the tree against the rules of the README files. Usage: tidy.py [ROOT]; exit 1 on findings.

An exception is one line in allow_list.txt: `rule path[:name] -- reason`. A line that excuses
nothing is an error too, so that the list only shrinks.
"""

import sys
from pathlib import Path

import include_rules
import limit_rules
import namespace_rules
import path_rules
import size_rules
import text_rules
import unused_rules
from tree import Finding, Tree

RULES = (
    include_rules.check_includes,
    include_rules.check_cycles,
    include_rules.check_guards,
    limit_rules.check_limits,
    namespace_rules.check_namespaces,
    size_rules.check_file_sizes,
    size_rules.check_columns,
    size_rules.check_functions,
    size_rules.check_documented_types,
    size_rules.check_test_share,
    text_rules.check_names,
    text_rules.check_threads,
    text_rules.check_mutexes,
    text_rules.check_text,
    text_rules.check_openings,
    text_rules.check_libm,
    text_rules.check_cpu_features,
    text_rules.check_readmes,
    unused_rules.check_unused_includes,
    unused_rules.check_unused_usings,
    path_rules.check_paths,
    path_rules.check_page_sizes,
)


def read_allow_list(text, path="tests/tidy_test/allow_list.txt"):
    """({key: reason}, findings about the list itself)."""
    allowed, findings = {}, []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, dash, reason = line.partition(" -- ")
        if not dash or len(reason.split()) < 3:
            findings.append(Finding("allow_list", path, key, number, f"no reason is given: {line}"))
        allowed[key.strip()] = reason
    return allowed, findings


def run(root, allow_text):
    """All findings that are not allowed."""
    tree = Tree(root)
    allowed, findings = read_allow_list(allow_text)
    used = set()
    for rule in RULES:
        for finding in rule(tree):
            if finding.key in allowed:
                used.add(finding.key)
            else:
                findings.append(finding)
    for key in sorted(set(allowed) - used):
        findings.append(
            Finding(
                "allow_list",
                "tests/tidy_test/allow_list.txt",
                key,
                0,
                f"excuses nothing any more: {key}",
            )
        )
    return tree, findings


def main():
    here = Path(__file__).resolve().parent
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else here.parents[1]
    tree, findings = run(root, (here / "allow_list.txt").read_text())
    for lines, path in size_rules.large_sources(tree):
        print(f"note: {path} has {lines} lines; the aim is {size_rules.AIM_SOURCE_LINES}")
    tests, total = size_rules.line_counts(tree)
    types, missing = size_rules.undocumented_types(tree)
    print(
        f"note: tests are {tests} of {total} lines ({100 * tests / max(1, total):.1f} %); "
        f"{types - len(missing)} of {types} types have a sentence"
    )
    for finding in findings:
        print(finding)
    print(f"tidy: {len(tree.paths)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
