#!/usr/bin/env bash
# grpcio 1.85.3: metadata between 8 and 16 KiB is served or refused by chance.
#
# A limit of a protocol is expected to be a line: below it a call is served, above it refused. gRPC
# has two of them for metadata, 8 KiB and 16 KiB unless a channel argument says otherwise, and in
# between it refuses with a probability that grows with the size. One client that sends the same
# 10,000 bytes (a long token, baggage of a trace) 400 times to an idle server gets both answers: OK,
# and RESOURCE_EXHAUSTED, which clients and routers take for a full server and send again. Who wants
# a line has to set `grpc.max_metadata_size` and `grpc.absolute_max_metadata_size` to equal values.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q grpcio==1.85.3 || exit 2

cat >"$work/try.py" <<'PY'
import collections
from concurrent import futures

import grpc

BOTH = [("grpc.max_metadata_size", 12288), ("grpc.absolute_max_metadata_size", 12288)]


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def answers(options, size, calls=400):
    server = grpc.server(futures.ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    counts = collections.Counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/a/b")
        for _ in range(calls):
            try:
                call(b"", metadata=(("x-key", "v" * size),))
                counts["OK"] += 1
            except grpc.RpcError as error:
                counts[error.code().name] += 1
    server.stop(None).wait()
    return dict(counts)


print("grpcio", grpc.__version__)
default = {size: answers((), size) for size in (7000, 10000, 12000, 17000)}
equal = {size: answers(BOTH, size) for size in (10000, 13000)}
print("default limits, by bytes of one value:", default)
print("both limits at 12288:", equal)
assert default[7000] == {"OK": 400}
assert default[17000] == {"RESOURCE_EXHAUSTED": 400}
for size in (10000, 12000):
    assert set(default[size]) == {"OK", "RESOURCE_EXHAUSTED"}, default
assert default[10000]["OK"] > default[12000]["OK"]
assert equal == {10000: {"OK": 400}, 13000: {"RESOURCE_EXHAUSTED": 400}}
PY

"$work/venv/bin/python" "$work/try.py"
