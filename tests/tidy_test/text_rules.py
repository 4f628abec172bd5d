"""Names, threads and text that must not appear."""

import re
from pathlib import Path

from cpp_scan import blank_comments_and_strings, scan
from include_rules import TABLE
from tree import CPP_SUFFIXES, Finding, is_test

FORBIDDEN_NAME = re.compile(r"(?:Manager|Helper|Helpers|Util|Utils|Utility|Context)$")
FORBIDDEN_FILE = re.compile(r"(?:^|_)(?:manager|helper|helpers|util|utils|utility|context)$")
TEXT_SUFFIXES = {
    ".cc",
    ".h",
    ".cu",
    ".cuh",
    ".py",
    ".rs",
    ".sh",
    ".cmake",
    ".md",
    ".proto",
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".txt",
    ".html",
    ".js",
}
# Written so that this file does not contain what it looks for.
LOCAL_PATH = re.compile(r"(?<![\w./$}])/(?:work|home|root|Users|tmp/dl)/[\w.]")
REGISTRY_HOST = re.compile(
    "|".join(
        h.replace(".", r"\.")
        for h in (
            "pypi" + ".org",
            "files.python" + "hosted.org",
            "registry.npm" + "js.org",
            "static.crates" + ".io",
            "index.crates" + ".io",
            "proxy.golang" + ".org",
            "deb.debian" + ".org",
            "jfrog" + ".io",
            "artifact" + "ory",
        )
    )
)
ISSUE_NUMBER = re.compile(
    r"(?i)\bissues?[ /]#?\d+\b|(?<![\w&#'\"=(:])#\d{1,5}\b(?!;)" r"|\bGH-\d+\b"
)
# A name may be formatted; the table then writes N for each "{}".
NAME = r'(?:fmt::format\(\s*)?"([^"]+)"'
THREAD_NAME = re.compile(
    r"\bThread\s*(?:\w+\s*)?[({]\s*"
    + NAME
    + r"|\bmake_unique<Thread>\(\s*"
    + NAME
    + r'|\bthread_name\s*=\s*"([^"]+)"'
)
THREAD_IN_VECTOR = re.compile(r"\bemplace_back\(\s*" + NAME)
RAW_THREAD = re.compile(r"\bstd::(?:thread|jthread|async)\b|\bpthread_create\b")
# Product code takes base::Mutex, which clang's analysis knows.
MUTEX_HEADER = "src/base/mutex.h"
RAW_MUTEX = re.compile(
    r"\bstd::(?:(?:recursive_|timed_|recursive_timed_|shared_|shared_timed_)?mutex"
    r"|lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable(?:_any)?)\b"
    r"|\bpthread_(?:mutex|cond|rwlock)_\w+|\babsl::(?:Mutex|MutexLock|CondVar)\b"
)
# A comment has a subject: these words need the line before them.
OPENING = {
    mark: re.compile(rf"(?:^|\s){mark}+!?\s*(Of|Those|What|Who|Likewise|The same)\b")
    for mark in ("//", "#")
}
# The one source that asks the processor, and the flags of x_avx2.cc and x_avx512.cc.
FEATURES_SOURCE = "src/base/instruction_sets.cc"
FLAGS_SOURCE = "scripts/cmake/baton_targets.cmake"
CPU_QUESTION = re.compile(r"\b(?:__builtin_cpu_(?:supports|is)|__get_cpuid\w*|__cpuid\w*)\b")
CPU_FLAG = re.compile(r"-m((?:avx|fma|f16c|bmi)\w*)")
LIBM = re.compile(
    r"\bstd::(?:exp2?|expm1|log2?|log10|log1p|pow|sin|cos|tan|tanh|erf)\b"
    r"|(?<![\w:.>])(?:expf?|exp2f?|logf?|log2f?|powf?|sinf?|cosf?|tanhf?)\s*\("
)


def check_names(tree):
    for path in tree.cpp():
        if FORBIDDEN_FILE.search(Path(path).stem):
            yield Finding("name", path, "", 1, f"the file name says nothing: {Path(path).name}")
        for found in scan(tree.text(path)).types:
            if FORBIDDEN_NAME.search(found.name):
                yield Finding(
                    "name",
                    path,
                    found.name,
                    found.line,
                    f"{found.name}: no Manager, Helper, Util, Context; name what it does",
                )


def check_mutexes(tree):
    for path in tree.cpp():
        if is_test(path) or path == MUTEX_HEADER:
            continue
        text = _code_only(tree.text(path))
        for match in RAW_MUTEX.finditer(text):
            line = text[: match.start()].count("\n") + 1
            message = f"{match.group()} is unknown to -Wthread-safety; use {MUTEX_HEADER}"
            yield Finding("mutex", path, match.group(), line, message)


def thread_table(text):
    """Thread names of the table in src/THREADS.md."""
    section = text.split("## Threads", 1)[-1].split("\n## ", 1)[0]
    return re.findall(r"^\|\s*`([^`]+)`", section, re.M)


def _code_only(text):
    """Comments blanked, literals kept: thread names are literals."""
    return re.sub(r"^\s*//.*$|\s//.*$", "", text, flags=re.M)


def check_threads(tree):
    if "src/THREADS.md" not in tree.paths:
        yield Finding(
            "thread", "src/THREADS.md", "", 0, "src/THREADS.md with the thread table is missing"
        )
        return
    table = thread_table(tree.text("src/THREADS.md"))
    used = set()
    for path in tree.cpp():
        if is_test(path) or path.startswith("benchmarks/"):
            continue
        text = _code_only(tree.text(path))
        header = str(Path(path).with_suffix(".h"))
        declared = text + (tree.text(header) if header in tree.paths else "")
        patterns = [THREAD_NAME] + ([THREAD_IN_VECTOR] if "vector<Thread>" in declared else [])
        for pattern in patterns:
            for match in pattern.finditer(text):
                name = next(group for group in match.groups() if group).replace("{}", "N")
                used.add(name)
                line = text[: match.start()].count("\n") + 1
                if name not in table:
                    yield Finding(
                        "thread",
                        path,
                        name,
                        line,
                        f'thread "{name}" is not in the table of src/THREADS.md',
                    )
        if not path.startswith("src/base/thread."):
            for match in RAW_THREAD.finditer(blank_comments_and_strings(tree.text(path))):
                if text[match.end() : match.end() + 2] == "::":
                    continue  # std::thread::hardware_concurrency and the like start nothing
                line = text[: match.start()].count("\n") + 1
                yield Finding(
                    "thread",
                    path,
                    match.group(0),
                    line,
                    f"{match.group(0)}: threads are started as baton::Thread",
                )
    for name in table:
        if name not in used:
            yield Finding(
                "thread",
                "src/THREADS.md",
                name,
                0,
                f'the table lists thread "{name}", which no source starts',
            )


def check_text(tree):
    rules = (
        ("local_path", LOCAL_PATH, "a path of somebody's machine"),
        ("registry", REGISTRY_HOST, "the host of a package registry"),
        ("issue_number", ISSUE_NUMBER, "an issue number: say why instead"),
    )
    for path in tree.paths:
        suffix = Path(path).suffix
        if suffix not in TEXT_SUFFIXES or Path(path).name in ("Cargo.lock", "package-lock.json"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            for rule, pattern, message in rules:
                match = pattern.search(line)
                if match:
                    yield Finding(
                        rule, path, match.group(0), number, f"{message}: {match.group(0)}"
                    )


def check_openings(tree):
    for path in tree.code() + tree.select({".proto"}):
        mark = "//" if Path(path).suffix in CPP_SUFFIXES | {".rs", ".proto"} else "#"
        is_inside = False  # the line before is a comment
        for number, line in enumerate(tree.lines(path), 1):
            is_comment = line.lstrip().startswith(mark)
            match = OPENING[mark].search(line)
            if match and not (is_comment and is_inside):
                word = match.group(1)
                yield Finding("opening", path, word, number, f'a comment begins with "{word}"')
            is_inside = is_comment


def check_libm(tree):
    """Kernels and the sampler use our own polynomials: glibc's exp differs with and without FMA."""
    for path in tree.cpp():
        in_sampler = path.startswith("src/model/") and "sampler" in Path(path).name
        if not (path.startswith("kernels/") or in_sampler):
            continue
        text = blank_comments_and_strings(tree.text(path))
        for match in LIBM.finditer(text):
            line = text[: match.start()].count("\n") + 1
            yield Finding(
                "libm",
                path,
                match.group(0).strip("( "),
                line,
                f"{match.group(0).strip('( ')}: no libm in kernels or sampler",
            )


def check_cpu_features(tree):
    """Whoever chooses code of x_avx2.cc asks for every feature that it is compiled for."""
    for path in tree.cpp():
        text = blank_comments_and_strings(tree.text(path))
        for match in CPU_QUESTION.finditer(text):
            if path == FEATURES_SOURCE:
                break
            line = text[: match.start()].count("\n") + 1
            message = f"{match.group()}: ask {FEATURES_SOURCE}"
            yield Finding("cpu", path, match.group(), line, message)
    if not {FEATURES_SOURCE, FLAGS_SOURCE} <= set(tree.paths):
        return
    flags = set(CPU_FLAG.findall(tree.text(FLAGS_SOURCE)))
    for name in sorted(flags ^ set(re.findall(r'"(\w+)"', tree.text(FEATURES_SOURCE)))):
        message = f"{name} stands in one of {FEATURES_SOURCE} and {FLAGS_SOURCE}"
        yield Finding("cpu", FEATURES_SOURCE, name, 1, message)


def check_readmes(tree):
    for row in TABLE:
        has_code = any(
            p.startswith(row + "/") and p.endswith((".h", ".cc", ".proto")) for p in tree.paths
        )
        if has_code and f"{row}/README.md" not in tree.paths:
            yield Finding(
                "readme", row, "", 0, f"{row}/README.md, the folder's design page, is missing"
            )
