"""Include direction: the dependency table of the architecture as a check."""

import re

from tree import Finding, is_test

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')

# Component -> components it may include directly. Rows are transitive.
TABLE = {
    "src/base": [],
    "src/wire": ["src/base"],
    "src/tls": ["src/base"],
    "src/rpc": ["src/base", "src/tls"],
    "src/http": ["src/base", "src/tls"],
    "src/device": ["src/base"],
    "kernels": ["src/base", "src/device"],
    "kvcache": ["src/base"],
    "kvcache/transport": ["src/base", "src/tls", "src/device", "kvcache"],
    "scheduler": ["src/base", "kvcache"],
    "src/model": ["src/base", "src/wire", "src/device", "kernels"],
    "src/text": ["src/base", "src/wire"],
    "src/obs": ["src/base", "src/http"],
    "src/otlp": ["src/base", "src/obs", "proto"],
    "src/engine": [
        "src/base",
        "src/wire",
        "src/device",
        "kernels",
        "kvcache",
        "kvcache/transport",
        "scheduler",
        "src/model",
        "src/text",
        "src/obs",
    ],
    "src/worker": [
        "src/wire",
        "src/engine",
        "src/model",
        "src/text",
        "kvcache",
        "kvcache/transport",
        "scheduler",
        "src/obs",
        "src/otlp",
        "src/rpc",
        "proto",
    ],
    "src/router": [
        "src/wire",
        "scheduler",
        "kvcache",
        "src/text",
        "src/obs",
        "src/rpc",
        "proto",
    ],
    "src/api": ["src/wire", "src/router", "src/http", "src/text", "src/obs", "src/otlp", "proto"],
    "src/loadgen": ["src/base", "proto"],
    "src/plan": ["src/base", "scheduler"],
    "src/sim": ["src/wire", "src/engine", "src/router", "src/loadgen", "src/plan", "proto"],
    "src/cli": [
        "src/worker",
        "src/api",
        "src/router",
        "src/engine",
        "src/loadgen",
        "src/plan",
        "src/sim",
        "proto",
    ],
    "proto": [],
}
# Single headers that a component may include beyond its row.
EXTRA_HEADERS = {
    "kernels": {"kvcache/kv_view.h", "kvcache/kv_layout.h", "kvcache/kv_slices.h"},
    "src/model": {"kvcache/kv_view.h", "kvcache/kv_layout.h", "kvcache/kv_window.h"},
    # The codecs of a worker, and nothing that needs a thread or a socket.
    "src/sim": {
        "src/worker/handoff_codec.h",
        "src/worker/hello_codec.h",
        "src/worker/prefix_teller.h",
        "src/worker/request_codec.h",
        "src/worker/worker_load.h",
    },
}
# Headers of a component that are not part of its pure face, and who may not see them.
IMPURE = {"kvcache/kv_arena.h": ["scheduler", "src/router", "src/api"]}

GRPC_PEOPLE = {
    "src/otlp",
    "src/rpc",
    "src/worker",
    "src/router",
    "src/api",
    "src/cli",
    "src/loadgen",
    "proto",
}
# Components that know the messages and no gRPC.
PROTOBUF_PEOPLE = {"src/sim"}
PROTOBUF_HEADERS = re.compile(r"google/protobuf/|baton/v1/\w+(?<!\.grpc)\.pb\.h$")
# Component -> headers that would make it impure.
FORBIDDEN_HEADERS = {
    "kvcache": r"thread|mutex|shared_mutex|condition_variable|future|chrono|random|pthread\.h"
    r"|time\.h|ctime"
    r"|src/base/(thread|mutex|clock|random|bounded_queue|log)\.h",
    "scheduler": r"thread|mutex|shared_mutex|condition_variable|future|atomic|chrono|random"
    r"|pthread\.h|time\.h|ctime|src/base/(thread|mutex|clock|random|bounded_queue|log)\.h",
}
CUDA_HEADERS = re.compile(r"^(cuda|cublas|nccl|nv|cub/|cute/|thrust/|cooperative_groups)")
CUDA_PEOPLE = (
    "src/device/cuda/",
    "kernels/cuda/",
    "kvcache/transport/nccl",
    "kernels/simt/",
)


def component_of(path):
    """The longest row of the table that holds this path, or None (tests, benchmarks)."""
    if path.startswith("baton/v1/"):
        return "proto"
    rows = [row for row in TABLE if path.startswith(row + "/")]
    return max(rows, key=len) if rows else None


def closure(row):
    """All components a row may include."""
    seen, queue = {row}, [row]
    while queue:
        for below in TABLE[queue.pop()]:
            if below not in seen:
                seen.add(below)
                queue.append(below)
    return seen


def allowed(path, row, included):
    target = component_of(included)
    if target is None or target in closure(row):
        return row not in IMPURE.get(included, [])
    return included in EXTRA_HEADERS.get(row, set())


def _check_line(path, row, number, included):
    if not allowed(path, row, included):
        yield Finding("include", path, included, number, f"{row} must not include {included}")
    grpc = re.match(r"^(grpc|grpc\+\+|grpcpp|google/protobuf|baton/v1)/", included)
    is_message = row in PROTOBUF_PEOPLE and PROTOBUF_HEADERS.match(included)
    if grpc and row not in GRPC_PEOPLE and not is_message:
        yield Finding("include", path, included, number, f"{row} must not know gRPC or Protobuf")
    if row in FORBIDDEN_HEADERS and re.fullmatch(FORBIDDEN_HEADERS[row], included):
        yield Finding(
            "include",
            path,
            included,
            number,
            f"{row} is pure: no {included} (time, threads and randomness are arguments)",
        )
    if CUDA_HEADERS.match(included) and not path.startswith(CUDA_PEOPLE):
        yield Finding("include", path, included, number, "CUDA headers stay in the CUDA folders")
    if included.startswith("spdlog/") and row != "src/base":
        yield Finding("include", path, included, number, "log through src/base/log.h")


def check_includes(tree):
    known = set(tree.paths)
    for path in tree.cpp():
        row = component_of(path)
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(2)
            ours = included.startswith(
                ("src/", "kernels/", "kvcache/", "scheduler/", "tests/", "benchmarks/")
            )
            if match.group(1) == '"' and "/" not in included:
                yield Finding("include", path, included, number, "include from the repository root")
            elif ours and included not in known:
                yield Finding("include", path, included, number, f"no such file: {included}")
            elif not is_test(path) and included.startswith("tests/"):
                yield Finding("include", path, included, number, "product code includes a test")
            if row is not None:
                yield from _check_line(path, row, number, included)


def cycles(graph):
    """The groups of nodes of {node: nodes it includes} that include each other in a circle."""
    reached = {}
    for node in graph:
        seen, queue = set(), [node]
        while queue:
            for below in graph.get(queue.pop(), ()):
                if below not in seen:
                    seen.add(below)
                    queue.append(below)
        reached[node] = seen
    in_circle = [node for node in graph if node in reached[node]]
    return {
        tuple(sorted(o for o in in_circle if o in reached[node] and node in reached[o]))
        for node in in_circle
    }


def check_cycles(tree):
    """No files and no components in a circle; kvcache/transport counts with kvcache."""
    known = set(tree.paths)
    files, components = {}, {}
    for path in tree.cpp():
        for line in tree.lines(path):
            match = INCLUDE.match(line)
            if not match or match.group(2) not in known:
                continue
            files.setdefault(path, set()).add(match.group(2))
            rows = component_of(path), component_of(match.group(2))
            above, below = (row and row.removesuffix("/transport") for row in rows)
            if above and below and above != below:
                components.setdefault(above, set()).add(below)
    for graph, what in ((files, "files"), (components, "components")):
        for circle in sorted(cycles(graph)):
            message = f"{what} include each other: {', '.join(circle)}"
            yield Finding("cycle", circle[0], what, 1, message)


def check_guards(tree):
    for path in tree.select({".h"}):
        if path.endswith("_body.h"):
            continue  # written to be included several times, under different definitions
        match = re.search(r"^#ifndef (\w+)\n#define (\w+)\n", tree.text(path), re.M)
        if not match or match.group(1) != match.group(2) or not match.group(1).startswith("BATON_"):
            yield Finding("guard", path, "", 1, "the header has no include guard BATON_..._H_")
