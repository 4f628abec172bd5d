"""A collector for spans: OTLP over gRPC, kept in memory."""

import atexit
import concurrent.futures
import functools
import shutil
import sys
import tempfile
import threading

import grpc

from baton_server import ROOT


@functools.cache
def _stubs():
    from grpc_tools import protoc

    out = tempfile.mkdtemp(prefix="baton_otlp_stubs_")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    root = ROOT / "proto/standard"
    files = [str(path.relative_to(root)) for path in root.glob("opentelemetry/**/*.proto")]
    assert protoc.main(["protoc", f"-I{root}", f"--python_out={out}", *files]) == 0
    sys.path.insert(0, out)
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    return trace_service_pb2


def _plain(value):
    return getattr(value, value.WhichOneof("value"))


class Span:
    """One span, its attributes as a dictionary, and whose it is."""

    def __init__(self, resource, raw):
        self.resource = resource
        self.name, self.kind = raw.name, raw.kind
        self.trace, self.id, self.parent = (
            raw.trace_id.hex(),
            raw.span_id.hex(),
            raw.parent_span_id.hex(),
        )
        self.start, self.end = raw.start_time_unix_nano / 1e9, raw.end_time_unix_nano / 1e9
        self.attributes = {a.key: _plain(a.value) for a in raw.attributes}
        self.status = raw.status.code
        self.text = str(raw)

    @property
    def seconds(self):
        return self.end - self.start

    def __repr__(self):
        return f"{self.resource['service.instance.id']} {self.name} {self.seconds * 1e3:.3f} ms"


class Collector:
    """Listens on `address` from start() to stop(); `spans` are what it got."""

    def __init__(self):
        self.pb2 = _stubs()
        self.lock = threading.Lock()
        self.received = []
        handler = grpc.method_handlers_generic_handler(
            "opentelemetry.proto.collector.trace.v1.TraceService",
            {
                "Export": grpc.unary_unary_rpc_method_handler(
                    self.export,
                    request_deserializer=self.pb2.ExportTraceServiceRequest.FromString,
                    response_serializer=self.pb2.ExportTraceServiceResponse.SerializeToString,
                )
            },
        )
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def export(self, request, _):
        with self.lock:
            for part in request.resource_spans:
                resource = {a.key: _plain(a.value) for a in part.resource.attributes}
                for scope in part.scope_spans:
                    self.received += [Span(resource, raw) for raw in scope.spans]
        return self.pb2.ExportTraceServiceResponse()

    def spans(self, trace=None):
        with self.lock:
            return [s for s in self.received if trace in (None, s.trace)]

    def stop(self):
        self.server.stop(None).wait()
