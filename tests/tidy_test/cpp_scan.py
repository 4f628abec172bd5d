"""An approximate C++ scanner: enough to find functions, types, nesting and parameters.

It does not resolve names or expand macros. It follows braces and classifies each by the tokens
before it, which is right for code in our style; where it is in doubt it reports nothing.
"""

import dataclasses
import functools
import re

BLANKED = re.compile(r"[/\"'#]")  # what may begin something that is blanked
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|::|->|\S")
CONTROL = {"if", "for", "while", "switch", "catch"}
TYPE_KEYWORDS = {"class", "struct", "union", "enum"}
TRAILERS = {"const", "noexcept", "override", "final", "mutable", "volatile", "try", "&", "requires"}


@dataclasses.dataclass
class Function:
    """A function definition or declaration."""

    name: str
    first_line: int
    last_line: int
    num_parameters: int
    max_nesting: int
    is_definition: bool


@dataclasses.dataclass
class Type:
    """A class, struct, union or enum with a body."""

    name: str
    line: int


@dataclasses.dataclass
class _Scope:
    kind: str  # namespace, type, function, lambda, block, init
    function: Function = None
    nesting: int = 0
    header: list = None


@functools.cache
def blank_comments_and_strings(text):
    """The text with comments, literals and preprocessor lines blanked; line numbers stay."""
    out = []
    i, size = 0, len(text)

    def keep_lines(piece):
        return "".join(c if c == "\n" else " " for c in piece)

    while i < size:
        two = text[i : i + 2]
        if two == "//":
            end = text.find("\n", i)
            end = size if end < 0 else end
        elif two == "/*":
            end = text.find("*/", i + 2)
            end = size if end < 0 else end + 2
        elif text[i] == '"' and re.search(r'(?:^|\W)(?:u8|[uUL])?R$', text[max(0, i - 4) : i]):
            match = re.match(r'"([^()\\ ]{0,16})\(', text[i:])
            closing = ")" + match.group(1) + '"' if match else '"'
            end = text.find(closing, i + 1)
            end = size if end < 0 else end + len(closing)
        elif text[i] in "\"'" and not (
            text[i] == "'" and i and text[i - 1].isalnum() and text[i + 1 : i + 2].isalnum()
        ):
            quote, end = text[i], i + 1
            while end < size and text[end] != quote and text[end] != "\n":
                end += 2 if text[end] == "\\" else 1
            end = min(size, end + 1)
            # A literal stays visible as a token, so that `f("a", 1)` has two arguments.
            out.append("0" + keep_lines(text[i + 1 : end]))
            i = end
            continue
        elif text[i] == "#" and not text[text.rfind("\n", 0, i) + 1 : i].strip():
            end = i
            while True:
                newline = text.find("\n", end)
                if newline < 0:
                    end = size
                    break
                end = newline
                if text[newline - 1] != "\\":
                    break
                end += 1
        else:
            following = BLANKED.search(text, i + 1)
            end = following.start() if following else size
            out.append(text[i:end])
            i = end
            continue
        out.append(keep_lines(text[i:end]))
        i = end
    return "".join(out)


def tokens_of(text):
    """[(token, line)] of text without comments, literals and directives."""
    result = []
    for number, line in enumerate(blank_comments_and_strings(text).split("\n"), 1):
        result += [(match.group(0), number) for match in TOKEN.finditer(line)]
    return result


def _match_back(words, close_idx, opening, closing):
    """Index of the `opening` that matches words[close_idx], or -1."""
    depth = 0
    for i in range(close_idx, -1, -1):
        if words[i] == closing:
            depth += 1
        elif words[i] == opening:
            depth -= 1
            if depth == 0:
                return i
    return -1


def _strip_attributes(words):
    """Drops `template <...>` and `[[...]]` prefixes."""
    while words:
        if words[0] == "template" and len(words) > 1 and words[1] == "<":
            depth = 0
            for i, word in enumerate(words[1:], 1):
                depth += (word == "<") - (word == ">")
                if depth == 0:
                    words = words[i + 1 :]
                    break
            else:
                return words
        elif words[:2] == ["[", "["] and "]" in words:
            words = words[words.index("]") + 2 :]
        else:
            return words
    return words


def _parameter_list(words):
    """(open index, close index) of the parameters of a function header, or None."""
    depth = 0
    for i, word in enumerate(words):
        if word == "<" and i and (words[i - 1].isidentifier()) and words[i - 1] != "operator":
            depth += 1
        elif word == ">" and depth:
            depth -= 1
        elif word == "(" and depth == 0:
            if i and words[i - 1] == "operator" and words[i + 1 : i + 3] == [")", "("]:
                continue
            if i and words[i - 1] == ")" and i >= 3 and words[i - 3] == "operator":
                pass
            if i and words[i - 1] in (
                "decltype",
                "noexcept",
                "alignas",
                "__attribute__",
                "requires",
            ):
                return None
            level = 0
            for j in range(i, len(words)):
                level += (words[j] == "(") - (words[j] == ")")
                if level == 0:
                    return i, j
            return None
    return None


def count_parameters(words):
    """Number of parameters between the parentheses of a list."""
    if not words or words == ["void"]:
        return 0
    count, parens, angles = 1, 0, 0
    for i, word in enumerate(words):
        if word in "([{" and word:
            parens += 1
        elif word in ")]}":
            parens -= 1
        elif word == "<" and i and words[i - 1].isidentifier():
            angles += 1
        elif word == ">" and angles:
            angles -= 1
        elif word == "," and parens == 0 and angles == 0:
            count += 1
    return count


def _function_of(header, is_definition):
    """The Function that a header [(token, line)] at namespace or type scope declares, or None."""
    words = _strip_attributes([word for word, _ in header])
    lines = [line for _, line in header][len(header) - len(words) :]
    found = _parameter_list(words)
    if found is None or found[0] == 0:
        return None
    open_idx, close_idx = found
    before = words[:open_idx]
    if "=" in before and "operator" not in before:
        return None
    if before[0] in ("using", "typedef", "friend", "return", "static_assert"):
        return None
    name = before[-1]
    if "operator" in before:
        name = "".join(before[before.index("operator") :])
    elif not name.isidentifier():
        return None
    rest = words[close_idx + 1 :]
    if not is_definition and rest and rest[0] not in TRAILERS | {"->", "=", "["}:
        return None
    return Function(
        name,
        lines[0],
        lines[-1],
        count_parameters(words[open_idx + 1 : close_idx]),
        0,
        is_definition,
    )


def _is_initialiser(words):
    """True if `{` after a header at namespace or type scope begins a value, not a body."""
    if not words or words[-1] in ("=", ",", "return", "("):
        return True
    found = _parameter_list(words)
    if found is None:
        return True
    # Foo::Foo(int a) : a_{a}, b_(a) {  -- the brace after a member's name is its initialiser.
    rest = words[found[1] + 1 :]
    in_init_list = ":" in rest
    return in_init_list and words[-1] not in (")", "}")


def _kind_in_function(words):
    """Kind of the scope that `{` opens inside a function body."""
    if not words:
        return "block"
    last = words[-1]
    if last in ("else", "do", "try", ":", "{", "}", ";"):
        return "block"
    if last == "]":
        return "lambda"
    body = list(words)
    # Skip what may stand between a lambda's parameters and its body.
    for i in range(len(body) - 1, -1, -1):
        if body[i] == "->" and ")" in body[:i]:
            body = body[:i]
            break
        if body[i] in ("(", ")", "]", ";", "=", ","):
            break
    while body and body[-1] in TRAILERS:
        body.pop()
    if body and body[-1] == ")":
        open_idx = _match_back(body, len(body) - 1, "(", ")")
        before = body[open_idx - 1] if open_idx > 0 else ""
        if before == "constexpr" and open_idx > 1:
            before = body[open_idx - 2]
        if before in CONTROL:
            return "block"
        if before == "]":
            return "lambda"
        if before == ">":  # [] <typename T> (T x) {
            return "lambda" if "]" in body[:open_idx] else "init"
    if body and body[-1] == "]":
        return "lambda"
    return "type" if words[0] in TYPE_KEYWORDS else "init"


@functools.cache
def scan(text):
    """The Scan of one file, which several rules read."""
    return Scan(text)


class Scan:
    """Functions and types of one C++ file."""

    def __init__(self, text):
        self.functions = []
        self.types = []
        self._scopes = [_Scope("namespace")]
        self._header = []
        self._parens = 0
        for token, line in tokens_of(text):
            self._step(token, line)

    def _step(self, token, line):
        if token == "{":
            self._open(line)
        elif token == "}":
            self._close(line)
        elif token == ";" and self._parens == 0:
            self._end_statement()
        else:
            if token in "()":
                self._parens += 1 if token == "(" else -1
            self._header.append((token, line))
            outer = self._scopes[-1].kind
            if token == ":" and outer == "type" and len(self._header) == 2:
                self._header = []  # public:
            elif (
                token == ":"
                and outer in ("function", "lambda", "block")
                and self._header[0][0] in ("case", "default")
            ):
                self._header = []

    def _open(self, line):
        scope = self._scopes[-1]
        words = [word for word, _ in self._header]
        plain = _strip_attributes(words)
        if scope.kind in ("namespace", "type"):
            kind = self._kind_outside(plain)
        elif scope.kind == "init":
            kind = "lambda" if _kind_in_function(words) == "lambda" else "init"
        else:
            kind = _kind_in_function(words)
        opened = _Scope(kind, header=(self._header, self._parens))
        if kind == "type":
            self._add_type(plain, line)
        if kind == "function":
            opened.function = _function_of(self._header, True)
            if opened.function is None:
                opened.function = Function("?", line, line, 0, 0, True)
        elif kind in ("block", "lambda", "init"):
            opened.function = scope.function
            opened.nesting = 0 if kind == "lambda" else scope.nesting + (kind == "block")
            if opened.function is not None:
                opened.function.max_nesting = max(opened.function.max_nesting, opened.nesting)
        self._scopes.append(opened)
        self._header = []
        self._parens = 0

    @staticmethod
    def _kind_outside(words):
        if "namespace" in words or words[:1] == ["extern"] and "(" not in words:
            return "namespace"
        is_type = (
            bool(words)
            and words[0] in TYPE_KEYWORDS
            and ("(" not in words or words[1:2] == ["alignas"])
        )
        if is_type and "=" not in words:
            return "type"
        if not words:
            return "init"
        return "init" if _is_initialiser(words) else "function"

    def _add_type(self, words, line):
        names = [w for w in words[1:] if w not in ("class", "struct", "final")]
        if names[:1] == ["alignas"]:
            names = names[names.index(")") + 1 :]
        if names and names[0].isidentifier():
            first_line = self._header[0][1] if self._header else line
            self.types.append(Type(names[0], first_line))

    def _close(self, line):
        if len(self._scopes) == 1:
            return  # unbalanced through a macro; nothing is known from here
        scope = self._scopes.pop()
        if scope.kind == "function":
            scope.function.last_line = line
            self.functions.append(scope.function)
        self._header = []
        self._parens = 0
        if scope.kind in ("init", "lambda"):
            # The expression goes on after its braces.
            header, parens = scope.header
            self._header = header + [("}", line)]
            self._parens = parens

    def _end_statement(self):
        if self._scopes[-1].kind in ("namespace", "type") and self._header:
            function = _function_of(self._header, False)
            if function is not None:
                self.functions.append(function)
        self._header = []
        self._parens = 0
