"""Paths of this repository that pages and comments name must exist, and sections of links too."""

import dataclasses
import fnmatch
import re
from pathlib import Path, PurePosixPath

from tree import CPP_SUFFIXES, Finding

SLASHES = CPP_SUFFIXES | {".proto", ".rs"}
HASHES = {".sh", ".cmake", ".yaml", ".yml", ".toml", ".txt"}
# Names without a folder are checked for pages in capitals only: gguf.md and others are not ours.
SUFFIX = r"\.(?:md|h|cc|cu|cuh|sh|py|rs|proto)"
TOKEN = re.compile(r"(?<![\w./:~$}>@-])(?:\.\./)*[\w*][\w.*+-]*(?:/[\w.*+-]+)*/?(?![\w{$<])")
PAGE = re.compile(r"[A-Z]{2,}\.md")
# A word that stands for others, as in benchmarks/results/gpu_check_STAGE.json.
PLACEHOLDER = re.compile(r"(?<![a-zA-Z])[A-Z]{3,}(?![a-zA-Z])")
BACKTICKS = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
# `PAGE, "Section"` and `PAGE ("Section")`: the page must have these words.
CITATION = re.compile(r"([\w./]*[A-Z]{2,}\.md)[,:]? \(?\"([^\"\n]{3,60})\"")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.M)
LINE_COMMENT = {
    "//": re.compile(r"(?:^|[^:\"'\\])//(.*)$", re.M),
    "#": re.compile(r"(?:^|\s)#(.*)$", re.M),
}
DOCSTRING = re.compile(r'"""(.*?)"""', re.S)


def anchors(text):
    """The fragments by which links name the headings of a page, as GitHub makes them."""
    found = set()
    for title in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(plain)
    return found


class Paths:
    """The tree's files and folders, asked by what a text calls them."""

    def __init__(self, tree):
        self.files = set(tree.paths)
        self.folders = {str(p) for f in tree.paths for p in PurePosixPath(f).parents} - {"."}
        self.top = {f.split("/")[0] for f in self.folders}
        self.folder_names = {f.rsplit("/", 1)[-1] for f in self.folders}
        self.names = {}  # last part -> paths
        for path in self.files | self.folders:
            self.names.setdefault(path.rsplit("/", 1)[-1], []).append(path)

    def has(self, path):
        """A file or folder from the root; `*` stands for any text within it."""
        path = path.rstrip("/")
        if "*" in path:
            return any(fnmatch.fnmatchcase(p, path) for p in self.files | self.folders)
        return path in self.files or path in self.folders

    def has_end(self, token):
        """A path of which `token` is the end."""
        if "*" in token:
            return any(fnmatch.fnmatchcase(p, "*/" + token) for p in self.files)
        ends = self.names.get(token.rsplit("/", 1)[-1], ())
        return any(p == token or p.endswith("/" + token) for p in ends)

    def is_missing(self, token, page):
        """True if `token` names a path of this repository that is not there."""
        token = token.rstrip("/")
        if ".pb." in token:
            return False  # generated
        if not token.endswith(".md"):
            token = PLACEHOLDER.sub("*", token) if not self.has(token) else token
        if "/" not in token:
            if not PAGE.fullmatch(token):
                return False
            above = [str(p) for p in PurePosixPath(page).parents]
            return not any(self.has(token if p == "." else f"{p}/{token}") for p in above)
        first = token.split("/")[0]
        if first == "..":
            return not self.has(resolve(page, token))
        if first in self.top:
            # `src/api`'s form, or a folder of the same name below the page's own.
            return not (self.has(token) or self.has_end(token) or self.has(resolve(page, token)))
        if first in self.folder_names and re.search(SUFFIX + "$", token):
            return not (self.has_end(token) or self.has(resolve(page, token)))
        return False


def resolve(page, target):
    """`target` of a link on `page`, from the root."""
    parts = list(PurePosixPath(page).parent.parts)
    for part in target.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in (".", ""):
            parts.append(part)
    return "/".join(parts)


def comments(path, text):
    """(offset, text) of each comment, and of each docstring."""
    suffix = Path(path).suffix
    if suffix in SLASHES:
        patterns = [LINE_COMMENT["//"]]
    elif suffix == ".py":
        patterns = [LINE_COMMENT["#"], DOCSTRING]
    elif suffix in HASHES or Path(path).name == "CMakeLists.txt":
        patterns = [LINE_COMMENT["#"]]
    else:
        return
    for pattern in patterns:
        for match in pattern.finditer(text):
            yield match.start(1), match.group(1)


def named_paths(path, text):
    """(offset, token) of each word that may be a path: in comments, in backticks of pages, and
    where a page names a file with its folder."""
    if path.endswith(".md"):
        spans = [(m.start(1), m.group(1)) for m in BACKTICKS.finditer(text)]
        prose = BACKTICKS.sub(_blank, LINK.sub(_blank, text))
        for match in TOKEN.finditer(prose):
            token = match.group(0).rstrip(".")
            if "/" in token and re.search(SUFFIX + "$", token):
                yield match.start(), token
    else:
        spans = comments(path, text)
    for offset, span in spans:
        for match in TOKEN.finditer(span):
            yield offset + match.start(), match.group(0).rstrip(".")


def _blank(match):
    return " " * len(match.group(0))


def check_links(tree, path, text, paths):
    for match in LINK.finditer(text):
        target, _, fragment = match.group(1).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        full = resolve(path, target) if target else path
        message = None
        if full and not paths.has(full):
            message = f"the link leads to {full}, which does not exist"
        elif fragment and full.endswith(".md") and fragment not in anchors(tree.text(full)):
            message = f"{full} has no section #{fragment}"
        if message:
            line = text[: match.start()].count("\n") + 1
            yield Finding("path", path, match.group(1), line, message)


def check_citations(tree, path, text, paths):
    """A quoted section after the name of a page is in that page."""
    for match in CITATION.finditer(text):
        page, section = match.groups()
        folders = [str(p) for p in PurePosixPath(path).parents]
        places = [page if f == "." else f"{f}/{page}" for f in folders]
        found = next((p for p in places if p in paths.files), None)
        if found and section.rstrip(".,") not in tree.text(found):
            line = text[: match.start()].count("\n") + 1
            message = f'{found} has nothing called "{section}"'
            yield Finding("path", path, match.group(0), line, message)


def check_paths(tree):
    paths = Paths(tree)
    for path in tree.paths:
        is_page = path.endswith(".md")
        if not is_page and Path(path).suffix not in SLASHES | HASHES | {".py"}:
            continue
        text = tree.text(path)
        if is_page:
            yield from check_links(tree, path, text, paths)
            yield from check_citations(tree, path, text, paths)
        for offset, comment in comments(path, text):
            for finding in check_citations(tree, path, comment, paths):
                line = text[:offset].count("\n") + finding.line
                yield dataclasses.replace(finding, line=line)
        for offset, token in named_paths(path, text):
            if paths.is_missing(token, path):
                line = text[:offset].count("\n") + 1
                message = f"{token} is no file or folder of this repository"
                yield Finding("path", path, token, line, message)


MAX_PAGE_LINES = 110  # two printed pages: what a README may have; notes beside it may have more
MAX_ROOT_LINES = 150


def check_page_sizes(tree):
    for path in tree.paths:
        if path.rsplit("/", 1)[-1] != "README.md":
            continue
        limit = MAX_ROOT_LINES if path == "README.md" else MAX_PAGE_LINES
        lines = len(tree.lines(path))
        if lines > limit:
            message = f"{lines} lines, at most {limit}: details belong to notes beside it"
            yield Finding("page", path, "", limit, message)
