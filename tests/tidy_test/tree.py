"""The repository's files, and the findings of rules about them."""

import dataclasses
import subprocess
from pathlib import Path

CODE_SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".py", ".rs", ".sh", ".cmake"}
CPP_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One violation: `key` names it in the allow-list as `rule path[:name]`."""

    rule: str
    path: str
    name: str
    line: int
    message: str

    @property
    def key(self):
        return f"{self.rule} {self.path}" + (f":{self.name}" if self.name else "")

    def __str__(self):
        return f"{self.path}:{self.line}: [{self.rule}] {self.message}"


class Tree:
    """All tracked and new files of a root folder that are not ignored."""

    def __init__(self, root):
        self.root = Path(root)
        listed = subprocess.run(
            [
                "git",
                "-C",
                str(root),
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ],
            capture_output=True,
            check=False,
        )
        if listed.returncode == 0:
            names = [n for n in listed.stdout.decode().split("\0") if n]
        else:  # an unpacked archive has no .git
            names = [str(p.relative_to(root)) for p in self.root.rglob("*") if p.is_file()]
            names = [n for n in names if not n.startswith(("build/", ".git/"))]
        self.paths = sorted(n for n in names if (self.root / n).is_file())
        self._texts = {}

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(encoding="utf-8", errors="replace")
        return self._texts[path]

    def lines(self, path):
        return self.text(path).splitlines()

    def select(self, suffixes):
        return [p for p in self.paths if Path(p).suffix in suffixes]

    def cpp(self):
        return self.select(CPP_SUFFIXES)

    def code(self):
        return [
            p
            for p in self.paths
            if Path(p).suffix in CODE_SUFFIXES or Path(p).name == "CMakeLists.txt"
        ]


def is_test(path):
    return path.startswith("tests/") or "/tests/" in path
