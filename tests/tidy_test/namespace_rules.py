"""One namespace a folder: a name means one thing in the binary."""

import re

from tree import Finding

# Folder -> its namespace below baton; "" is baton itself. The longest folder counts. Tests and
# benchmarks stand in the namespace of what they measure.
NAMESPACES = {
    "src/base": "",
    "src/wire": "wire",
    "src/tls": "tls",
    "src/rpc": "rpc",
    "src/http": "http",
    "src/device": "device",
    "src/obs": "obs",
    "src/otlp": "otlp",
    "src/text": "text",
    "src/model": "model",
    "src/engine": "engine",
    "src/router": "router",
    "src/worker": "worker",
    "src/api": "api",
    "src/loadgen": "loadgen",
    "src/plan": "plan",
    "src/sim": "sim",
    "src/cli": "cli",
    "kernels": "kernels",
    "kvcache": "kv",
    "scheduler": "scheduler",
    "benchmarks/kernels": "kernels",
    "benchmarks/loading": "model",
    "benchmarks/router": "router",
    "benchmarks/transport": "kv",
    "tests": "",
    "tests/fuzz": "fuzz",
    "tests/cublaslt": "kernels",
    "tests/ipc": "kv",
    "tests/nccl": "kv",
    "tests/benchmarks/router": "router",
}
OPENS = re.compile(r"^namespace (baton(?:::\w+)*) \{")
AHEAD = re.compile(r"^(template <[^;{}]*>\s*)?(class|struct|enum class) \w+(\s*:\s*\w+)?;")
ABOVE = "|".join(sorted({name for name in NAMESPACES.values() if name}))
USING = re.compile(rf"^using (namespace\b|(::)?(baton::)?({ABOVE})::[\w:]+;)")


def namespace_of(path):
    """The namespace of a file, or None where the table names no folder of it."""
    if path.startswith("tests/"):
        tested = [f for f in NAMESPACES if path.startswith(f"tests/{f.removeprefix('src/')}/")]
    else:
        tested = []
    named = [f for f in NAMESPACES if path.startswith(f + "/")]
    folder = max(named, key=len, default=None)
    if folder == "tests" and tested:
        folder = max(tested, key=len)
    if folder is None:
        return None
    return "baton" + ("::" + NAMESPACES[folder] if NAMESPACES[folder] else "")


def _blocks(lines):
    """(line number, namespace, lines inside) of each block that opens at the left margin."""
    number = 0
    while number < len(lines):
        match = OPENS.match(lines[number])
        number += 1
        if match:
            begin = number
            while number < len(lines) and not lines[number].startswith("}  // namespace baton"):
                number += 1
            yield begin, match.group(1), lines[begin:number]


def _only_declares_ahead(inside):
    said = [line for line in inside if line.strip() and not line.lstrip().startswith("//")]
    return all(AHEAD.match(line) for line in re.sub(r">\n", "> ", "\n".join(said)).split("\n"))


def _within(name, wanted):
    """True if a block of this name may stand in a folder whose namespace is `wanted`."""
    below = name.split("::")[1:2]
    if wanted == "baton":
        return not below or below[0] not in NAMESPACES.values()
    return (name + "::").startswith(wanted + "::")


def check_namespaces(tree):
    for path in tree.cpp():
        wanted = namespace_of(path)
        if wanted is None:
            continue
        lines = tree.lines(path)
        for number, name, inside in _blocks(lines):
            if _within(name, wanted) or _only_declares_ahead(inside):
                continue
            message = f"the namespace of this folder is {wanted}, not {name}"
            yield Finding("namespace", path, name, number, message)
        if not path.endswith(".h"):
            continue
        for number, line in enumerate(lines, 1):
            if USING.match(line):
                message = "a header takes no names of another namespace for everybody"
                yield Finding("namespace", path, line.strip(), number, message)
