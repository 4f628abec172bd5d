"""Spans of requests, as a collector gets them from the router and both workers."""

import signal
import socket

import grpc
import pytest

from baton_server import Server, complete, generated_stubs, metric, wait_until
from otlp_collector import Collector

WAIT_S = 120
SECRET_WORDS = "a walrus in Copenhagen"
PROMPT = f"A long story of {SECRET_WORDS}, told again: " * 30
CLIENT_TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"
NO_SPAN = ""
STAGES = {
    "admit",
    "queue_prefill",
    "prefill",
    "kv_wait",
    "kv_transfer",
    "queue_decode",
    "first_step",
    "decode",
}
WORKER_SPANS = {"worker prefill", "worker kv_transfer", "worker decode"}


@pytest.fixture(scope="module", name="collector")
def fixture_collector():
    collector = Collector()
    yield collector
    collector.stop()


@pytest.fixture(scope="module", name="traced")
def fixture_traced(collector):
    with Server("--otlp-endpoint", collector.address) as server:
        yield server


def trace_of(collector, request_id, worker_spans=frozenset(WORKER_SPANS)):
    """(request span, all spans of its trace), once every part is there."""

    def complete_trace():
        whole = [s for s in collector.spans() if s.attributes.get("baton.request_id") == request_id]
        if len(whole) != 1:
            return None
        spans = collector.spans(whole[0].trace)
        uid = whole[0].attributes["baton.request_uid"]
        mine = [
            s
            for s in spans
            if s.parent == whole[0].id or s.attributes.get("baton.request_uid") == uid
        ]
        return (whole[0], mine) if worker_spans <= {s.name for s in mine} else None

    return wait_until(complete_trace, WAIT_S, f"the spans of {request_id}")


def ask(server, request_id, traceparent=None, max_tokens=24, **fields):
    """One streamed completion over gRPC."""
    pb2, pb2_grpc = generated_stubs()
    metadata = [("traceparent", value) for value in traceparent or []]
    request = pb2.CompletionRequest(
        prompt=PROMPT, max_tokens=max_tokens, request_id=request_id, ignore_eos=True, **fields
    )
    stub = pb2_grpc.CompletionServiceStub(server.channel)
    return list(stub.StreamComplete(request, timeout=600, metadata=metadata))[-1].timings


def test_a_request_is_a_tree_of_spans_whose_times_are_its_timings(traced, collector):
    timings = ask(traced, "tree")
    whole, spans = trace_of(collector, "tree")
    assert timings.path == "disagg" and timings.kv_bytes > 0
    assert whole.parent == NO_SPAN and whole.name == "text_completion smollm2:135m"
    assert len({s.id for s in spans}) == len(spans), "ids are unique"
    for span in spans:
        print(f"{(span.start - whole.start) * 1e3:9.3f} ms  {span}")
        assert span.trace == whole.trace
        if span is whole:
            continue
        assert span.parent == whole.id
        # Clocks of one host are one. A worker marks an end when it has the processor again, which
        # may be after the router has heard of it.
        late_s = 0 if span.name in STAGES else 30
        assert whole.start - 1e-6 <= span.start <= span.end <= whole.end + late_s + 1e-6, span
        assert span.start <= whole.end, span
    stages = {s.name: s.seconds * 1e3 for s in spans if s.name in STAGES}
    assert sum(stages.values()) == pytest.approx(whole.seconds * 1e3, rel=0.01)
    of = lambda *names: sum(stages.get(name, 0) for name in names)  # noqa: E731
    assert of("prefill") == pytest.approx(timings.prefill_ms, rel=0.01)
    assert of("decode") == pytest.approx(timings.decode_ms, rel=0.01)
    assert of("first_step") == pytest.approx(timings.first_step_ms, rel=0.01, abs=0.01)
    assert of("admit", "queue_prefill") == pytest.approx(timings.queue_ms, rel=0.01, abs=0.01)
    assert of("kv_wait", "kv_transfer", "queue_decode") == pytest.approx(
        timings.kv_wait_ms, rel=0.01, abs=0.01
    )


def test_spans_say_who_did_what(traced, collector):
    timings = ask(traced, "names")
    whole, spans = trace_of(collector, "names")
    assert whole.resource["service.name"] == "baton-router" and whole.kind == 2  # SERVER
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "smollm2:135m",
        "gen_ai.usage.output_tokens": 24,
        "gen_ai.request.max_tokens": 24,
        "gen_ai.request.stream": True,
        "http.response.status_code": 200,
        "baton.path": "disagg",
        "baton.kv_bytes": timings.kv_bytes,
        "baton.prefill_worker": "prefill-0",
    }
    assert {key: whole.attributes[key] for key in expected} == expected
    assert whole.attributes["gen_ai.usage.input_tokens"] > 100
    reasons = whole.attributes["gen_ai.response.finish_reasons"].values
    assert [value.string_value for value in reasons] == ["length"]
    assert 0 < whole.attributes["gen_ai.response.time_to_first_chunk"] < whole.seconds
    for not_asked_for in ("gen_ai.request.choice.count", "gen_ai.request.seed"):
        assert not_asked_for not in whole.attributes
    by = {s.name: s for s in spans}
    assert by["worker prefill"].resource["service.instance.id"] == "prefill-0"
    assert by["worker kv_transfer"].resource["service.instance.id"] == "decode-0"
    assert by["worker kv_transfer"].attributes["baton.kv_bytes"] == timings.kv_bytes
    assert by["worker decode"].resource["service.name"] == "baton-decode"
    # Both spans are of one prefill, as the router and the worker noticed it.
    seen, done = by["prefill"], by["worker prefill"]
    assert seen.start < done.end and done.start < seen.end
    assert not [s for s in collector.spans() if "walrus" in s.text]


def test_the_trace_of_a_grpc_client_goes_on(traced, collector):
    ask(traced, "continued-grpc", [TRACEPARENT])
    whole, spans = trace_of(collector, "continued-grpc")
    assert (whole.trace, whole.parent) == (CLIENT_TRACE, CLIENT_SPAN)
    assert {s.trace for s in spans} == {CLIENT_TRACE}


def test_the_trace_of_an_http_client_goes_on(traced, collector):
    headers = {"traceparent": TRACEPARENT, "X-Request-Id": "continued-http"}
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
    status, _, _ = traced.post("/v1/chat/completions", body, headers=headers)
    assert status == 200
    whole, _ = trace_of(collector, "continued-http")
    assert (whole.trace, whole.parent) == (CLIENT_TRACE, CLIENT_SPAN)
    assert whole.name == "chat smollm2:135m"


@pytest.mark.parametrize(
    "given",
    [
        ["00-" + "0" * 32 + f"-{CLIENT_SPAN}-01"],
        [f"ff-{CLIENT_TRACE}-{CLIENT_SPAN}-01"],
        [f"00-{CLIENT_TRACE.upper()}-{CLIENT_SPAN}-01"],
        [TRACEPARENT + "-more"],
        [TRACEPARENT, TRACEPARENT],
    ],
    ids=["zero", "version-ff", "upper-case", "too-long", "twice"],
)
def test_a_malformed_traceparent_begins_a_new_trace(traced, collector, given, request):
    name = request.node.callspec.id
    ask(traced, f"malformed-{name}", given, max_tokens=4)
    whole, _ = trace_of(collector, f"malformed-{name}")
    assert whole.trace != CLIENT_TRACE and whole.parent == NO_SPAN


def test_a_trace_that_is_not_sampled_makes_no_spans(traced, collector):
    ask(traced, "unsampled", [TRACEPARENT[:-1] + "0"], max_tokens=4)
    ask(traced, "behind-it", max_tokens=4)
    trace_of(collector, "behind-it")
    names = {s.attributes.get("baton.request_id") for s in collector.spans()}
    assert "unsampled" not in names and "behind-it" in names


def test_a_refused_request_has_a_span_with_its_error(traced, collector):
    with pytest.raises(grpc.RpcError):
        ask(traced, "late", max_tokens=2000, timeout_ms=300)
    whole, _ = trace_of(collector, "late", worker_spans=frozenset())
    assert whole.attributes["http.response.status_code"] == 504 and whole.status == 2  # ERROR


def test_without_a_collector_requests_are_served_and_losses_counted():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: every call is refused
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with Server("--otlp-endpoint", address) as server:
            fields = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            answers = [complete(server, **fields) for _ in range(3)]
            assert len({str(a.bits()) for a in answers}) == 1
            assert answers[0].timings.path == "disagg"
            name, label = "baton_otlp_spans_dropped_total", 'reason="export_failed"'
            for row in server.topology():
                at_least = 3 * (4 if row["role"] == "router" else 1)
                wait_until(
                    lambda row=row, n=at_least: metric(row, name, label) >= n,
                    WAIT_S,
                    f"{row['worker_id']} counts what it lost",
                )
                assert metric(row, "baton_otlp_spans_exported_total") == 0
            lines = [line for line in server.output().splitlines() if "does not take spans" in line]
            assert len(lines) == len(server.topology()), "once in each process"
            assert all(address in line for line in lines)
            assert server.stop(signal.SIGTERM, limit_s=60) == 0


@pytest.mark.parametrize("named_by", ["flag", "environment"])
def test_a_drain_sends_what_waits(collector, named_by):
    url = f"http://{collector.address}"
    flags = ("--otlp-endpoint", url) if named_by == "flag" else ()
    env = {} if named_by == "flag" else {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
    with Server(*flags, env=env) as server:
        ask(server, f"last-words-{named_by}", max_tokens=4)
        assert server.stop(signal.SIGTERM, limit_s=60) == 0
        names = {s.attributes.get("baton.request_id") for s in collector.spans()}
        name = f"last-words-{named_by}"
        assert name in names, "the router's spans left before it did"
        whole = next(s for s in collector.spans() if s.attributes.get("baton.request_id") == name)
        uid = whole.attributes["baton.request_uid"]
        mine = [s.name for s in collector.spans() if s.attributes.get("baton.request_uid") == uid]
        assert WORKER_SPANS <= set(mine)
