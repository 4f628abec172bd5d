"""Project includes and using declarations of which a source file uses no name.

A name counts as used where its word stands in the source. So a finding is nearly sure, and some
includes that nobody needs are not found. An include that is needed without a name says
"// IWYU pragma: keep": a template or the next header finds names in it. Headers are not judged:
some include for their readers.
"""

import re

from cpp_scan import Scan, blank_comments_and_strings
from include_rules import INCLUDE
from tree import Finding

DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!include)(?:.*\\\n)*.*$", re.M)
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
EXPORT = re.compile(r'#include "([^"]+)".*IWYU pragma: export')
MEMBER_USE = re.compile(r"(?:\.|->|::)\s*(\w+)")
USING = re.compile(r"^using (?:\w+::)+(\w+);", re.M)
NO_NAMES = {"override", "const", "final", "noexcept", "default", "delete", "operator", "if", "for"}


class Names(Scan):
    """The names that a header declares: `outer` in namespaces, `members` in types."""

    def __init__(self, text):
        self.outer = {name for name in MACRO.findall(text) if not name.endswith("_H_")}
        self.members = set()
        super().__init__(text)
        self.outer.update(found.name for found in self.types)

    def _open(self, line):
        self._note("{")
        super()._open(line)

    def _close(self, line):
        self._note("}")  # the last name of an enum
        super()._close(line)

    def _end_statement(self):
        self._note(";")
        super()._end_statement()

    def _note(self, end):
        kind = self._scopes[-1].kind
        words = [word for word, _ in self._header]
        if kind not in ("namespace", "type") or "namespace" in words:
            return
        depth, found = 0, set()
        for word, after in zip(words, words[1:] + [end]):
            if depth == 0 and word.isidentifier() and after in ("(", "=", ";", "{", "}", "[", ","):
                found.add(word)
            depth += (word == "(") - (word == ")")
        found -= NO_NAMES
        (self.outer if kind == "namespace" else self.members).update(found)


def names_of(tree, header):
    """(outer, members) of a header and of the headers that it exports."""
    names = Names(tree.text(header))
    outer, members = names.outer, names.members
    for exported in EXPORT.findall(tree.text(header)):
        below = names_of(tree, exported)
        outer, members = outer | below[0], members | below[1]
    return outer, members


def check_unused_includes(tree):
    known, names = set(tree.paths), {}
    for path in tree.select({".cc", ".cu"}):
        text = tree.text(path)
        code = blank_comments_and_strings(text)
        words = set(re.findall(r"\w+", code + " ".join(DIRECTIVE.findall(text))))
        members = set(MEMBER_USE.findall(code))
        stem = path.rsplit(".", 1)[0].removesuffix("_test").rsplit("/", 1)[-1]
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            header = match.group(2) if match else ""
            skipped = "IWYU pragma" in line or header.endswith((f"/{stem}.h", "_body.h"))
            if skipped or header not in known:
                continue
            if header not in names:
                names[header] = names_of(tree, header)
            outer, inner = names[header]
            if outer and not outer & words and not inner & members:
                yield Finding("unused", path, header, number, f"uses no name of {header}")


def check_unused_usings(tree):
    for path in tree.select({".cc", ".cu"}):
        code = blank_comments_and_strings(tree.text(path))
        code += " ".join(DIRECTIVE.findall(tree.text(path)))
        for match in USING.finditer(code):
            name = match.group(1)
            if len(re.findall(rf"\b{name}\b", code)) == 1:
                line = code.count("\n", 0, match.start(1)) + 1
                yield Finding("unused", path, name, line, f"uses {name} nowhere")
