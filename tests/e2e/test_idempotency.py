"""One generation for all requests under one idempotency key, though connections break."""

import concurrent.futures
import http.client
import json

import grpc
import pytest

from baton_server import Server, generated_stubs, http_json, metric, wait_until

BODY = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_completion_tokens": 64,
    "ignore_eos": True,  # and no seed: two generations would differ
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.fixture()
def fresh():
    """A server of the test's own, whose counters begin at 0."""
    with Server() as running:
        yield running


def post(server, key, body=BODY):
    """The open answer to a chat under `key`, and its connection."""
    connection = http.client.HTTPConnection(server.router["http"], timeout=300)
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return connection, connection.getresponse()


def events(response, limit=None):
    """The JSON of the next events, [DONE] as None."""
    found = []
    while limit is None or len(found) < limit:
        line = response.readline()
        if not line:
            break
        if line.startswith(b"data: "):
            data = line[6:].strip()
            found.append(None if data == b"[DONE]" else json.loads(data))
    return found


def counts(server):
    return {
        code: metric(server.router, "baton_requests_total", f'code="{code}"')
        for code in (200, 400, 499)
    }


def answers(server, state):
    return metric(server.router, "baton_idempotency_answers", f'state="{state}"')


def test_a_retry_after_a_broken_stream_gets_the_one_generation(fresh):
    connection, response = post(fresh, "story-1")
    begun = events(response, 6)
    response.close()
    connection.close()  # in mid-stream

    _, response = post(fresh, "story-1")
    assert response.getheader("X-Request-Id")
    whole = events(response)
    assert whole[-1] is None, "a complete answer"
    assert {c["id"] for c in whole[:-1]} == {begun[0]["id"]}
    assert whole[: len(begun)] == begun, "the same chunks from the first one on"
    usage = whole[-2]["usage"]
    assert usage["completion_tokens"] == 64
    assert counts(fresh) == {200: 1, 400: 0, 499: 0}

    _, response = post(fresh, "story-1")
    assert events(response) == whole, "also when it has long been finished"
    status, _, error = http_json(
        fresh.http + "/v1/chat/completions",
        {**BODY, "max_completion_tokens": 65},
        headers={"Idempotency-Key": "story-1"},
    )
    assert (status, error["error"]["code"]) == (400, "idempotency_key_reused")
    assert counts(fresh) == {200: 1, 400: 1, 499: 0}
    for result, count in (("new", 1), ("joined", 2), ("conflict", 1)):
        name = "baton_idempotency_requests_total"
        assert metric(fresh.router, name, f'result="{result}"') == count
    assert metric(fresh.router, "baton_generation_tokens_total") == 64
    wait_until(fresh.ledger_is_clean, 15, "its blocks are free")


def test_grpc_calls_share_a_generation_and_an_abandoned_one_ends(fresh):
    pb2, pb2_grpc = generated_stubs()
    stub = pb2_grpc.CompletionServiceStub(fresh.channel)
    request = pb2.CompletionRequest(prompt="Once upon a time", max_tokens=48, ignore_eos=True)

    def call(key):
        return stub.StreamComplete(request, timeout=120, metadata=(("idempotency-key", key),))

    broken = call("grpc-1")
    begun = [next(broken) for _ in range(3)]
    broken.cancel()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        beside = [list(chunks) for chunks in pool.map(call, ["grpc-1"] * 3)]
    for chunks in beside:
        assert [c.token_index for c in chunks] == list(range(48))
        assert [c.token_id for c in chunks] == [c.token_id for c in beside[0]]
        assert [c.token_id for c in chunks[:3]] == [c.token_id for c in begun]
        assert {c.id for c in chunks} == {begun[0].id}
        assert {c.request_id for c in chunks} == {begun[0].request_id}
        assert chunks[-1].usage.completion_tokens == 48
    assert counts(fresh) == {200: 1, 400: 0, 499: 0}

    request.max_tokens = 4000
    abandoned = call("grpc-2")
    next(abandoned)
    abandoned.cancel()
    with pytest.raises(grpc.RpcError):
        next(abandoned)
    wait_until(lambda: answers(fresh, "orphaned") == 1, 15, "it goes on for a retry")
    name = "baton_idempotency_dropped_total"
    wait_until(
        lambda: metric(fresh.router, name, 'reason="abandoned"') == 1, 20, "nobody came for it"
    )
    wait_until(fresh.ledger_is_clean, 15, "its blocks are free")
    assert answers(fresh, "orphaned") == 0
