"""Says which sources of one target are compiled as one file: usage unity_groups.py SOURCE.cc ...
Prints one group number a source, in the order given; -1 for a source that stands alone.

Two sources share a group only if neither one sees another meaning of a name that the other declares
for itself: a name in an anonymous namespace, an alias, a constant of the file or a macro. The check
reads words, not C++: it keeps too many sources apart rather than too few.
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_LINES = 2500  # of one group: about 20 s for the compiler, so that two processors end together

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"', re.S)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
WORD = re.compile(r"(?<![\w:.>])[A-Za-z_]\w*")  # a name that is not qualified
ANONYMOUS_END = "}  // namespace\n"
ALIAS = re.compile(r"(?:using|namespace) (\w+) = ")
USING = re.compile(r"using ([\w:]*::(\w+));")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class| struct)?) (?:\[\[\w+\]\] )?(\w+)")
DECLARED = re.compile(r"([A-Za-z_]\w*)\s*(?:[(=;{]|\[)")
MACRO = re.compile(r"^\s*#\s*define (\w+)", re.M)


def code_of(text):
    text = text.replace(ANONYMOUS_END, "#end\n")
    return COMMENT_OR_TEXT.sub(lambda m: '""' if m[0][0] in 'R"' else " ", text)


def statements(code):
    """Statements at namespace scope: (in an anonymous namespace, text up to its body)."""
    anonymous = False
    text = ""
    for line in code.split("\n"):
        if line.startswith(("namespace {", "#end")):
            anonymous = line.startswith("namespace")
        elif line.startswith("}"):
            text = ""
        elif text or (line[:1].isalpha() or line.startswith(("[[", "::"))):
            text = re.sub(r"^template <.*>\s*$", "", f"{text} {line.strip()}".strip())
            if re.search(r"[;{(=]", text):
                yield anonymous, re.sub(r"^template <.*?> (?=\w)", "", text)
                text = ""


def local_names(code):
    """Name -> what it stands for ('' where only this file knows)."""
    names = {name: "" for name in MACRO.findall(code)}
    for anonymous, text in statements(code):
        if match := ALIAS.match(text):
            names[match[1]] = text
        elif match := USING.match(text):
            names[match[2]] = match[1]
        elif anonymous or re.match(r"(static|constexpr|const|inline constexpr) ", text):
            match = TYPE.match(text) or DECLARED.search(text)
            if match and match[1] != "static_assert":
                names[match[1]] = ""
    for body in re.findall(r"^enum \w+[^{;]*\{([^}]*)\}", code, re.M):
        names.update({name: "" for name in WORD.findall(body)})
    return names


def namespace_of(code):
    """The namespace of a file, "" for none: a file has one (tests/tidy_test/namespace_rules.py)."""
    match = re.search(r"^namespace ([\w:]+) \{", code, re.M)
    return match[1] if match else ""


@functools.cache
def words_at_scope(path):
    """(Namespace, words on the lines at its scope): what a file declares, and some more."""
    code = code_of(path.read_text())
    lines = (line for line in code.split("\n") if line[:1].isalpha())
    words = {word for line in lines for word in WORD.findall(line)}
    return namespace_of(code), words | set(MACRO.findall(code))


@functools.cache
def included_by(path):
    files = (ROOT / name for name in INCLUDE.findall(path.read_text()))
    return tuple(file for file in files if file.is_file())


def headers_of(path):
    seen = {path}
    waiting = [path]
    while waiting:
        for file in included_by(waiting.pop()):
            if file not in seen:
                seen.add(file)
                waiting.append(file)
    return seen


class Source:
    def __init__(self, path):
        text = path.read_text()
        code = code_of(text)
        self.lines = text.count("\n")
        self.names = local_names(code)
        # Names without a qualifier are found in the source's own namespace and those around it.
        around = namespace_of(code)
        self.words = set()
        for namespace, words in map(words_at_scope, headers_of(path)):
            if not namespace or f"{around}::".startswith(f"{namespace}::"):
                self.words |= words

    def touches(self, other):
        """Whether a name of this source may mean something else in `other`."""
        for name, meaning in self.names.items():
            is_there = name in other.words or name in other.names
            if is_there and not (meaning and other.names.get(name) == meaning):
                return True
        return False


def groups_of(sources):
    groups = []  # lists of sources
    numbers = []
    for source in sources:
        for number, group in enumerate(groups):
            if sum(each.lines for each in group) + source.lines <= MAX_LINES and not any(
                source.touches(each) or each.touches(source) for each in group
            ):
                group.append(source)
                numbers.append(number)
                break
        else:
            groups.append([source])
            numbers.append(len(groups) - 1)
    return [number if len(groups[number]) > 1 else -1 for number in numbers]


if __name__ == "__main__":
    print(*groups_of([Source(pathlib.Path(path)) for path in sys.argv[1:]]), sep="\n")
