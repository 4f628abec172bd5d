"""More requests than a server runs at once: who waits, who is told at once, and what is never
started."""

import threading
import time

import pytest

from baton_server import Server, generated_stubs, metric, wait_until

MAX_BATCH = 2
QUEUE_WAIT_S = 4
LONG = {"prompt": "Once", "max_tokens": 120, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module", name="server")
def fixture_server():
    with Server(
        "--max-batch", str(MAX_BATCH), "--queue-wait-ms", str(QUEUE_WAIT_S * 1000)
    ) as running:
        yield running


def ask(server, fields):
    """(status, headers, body, seconds)"""
    begin = time.monotonic()
    status, headers, body = server.post("/v1/completions", fields)
    return status, headers, body, time.monotonic() - begin


def ask_together(server, all_fields):
    results = [None] * len(all_fields)

    def run(index):
        results[index] = ask(server, all_fields[index])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(all_fields))]
    for thread in threads:
        thread.start()
    return results, threads


def router_metric(server, name, labels=""):
    return metric(server.router, name, labels)


def test_the_decode_worker_runs_no_more_than_it_is_told(server):
    assert ask(server, LONG)[0] == 200
    results, threads = ask_together(server, [LONG] * 6)
    most = 0
    while any(thread.is_alive() for thread in threads):
        processes = server.get("/v1/topology")[2]["processes"]
        (decode,) = [row for row in processes if row["role"] == "decode"]
        most = max(most, decode.get("running", 0))
        time.sleep(0.02)
    assert most <= MAX_BATCH
    assert {status for status, *_ in results} <= {200, 429}
    texts = {body["choices"][0]["text"] for status, _, body, _ in results if status == 200}
    assert len(texts) == 1, "who runs beside it changes no bit"


def test_most_refusals_come_at_once_and_say_the_wait(server):
    # Eight served answers tell how long one is: before them nobody is refused at the door.
    for _ in range(8):
        assert ask(server, LONG)[0] == 200
    before = router_metric(server, "baton_early_refusals_total", 'reason="queue_wait"')
    results, threads = ask_together(server, [LONG] * 60)
    for thread in threads:
        thread.join()
    served = [r for r in results if r[0] == 200]
    refused = [r for r in results if r[0] == 429]
    assert len(served) + len(refused) == 60
    assert served
    if router_metric(server, "baton_early_refusals_total", 'reason="queue_wait"') == before:
        pytest.skip("this machine serves sixty answers within the queue wait")
    early = [r for r in refused if "would wait about" in r[2]["error"]["message"]]
    assert early
    for _, headers, body, seconds in early:
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert "--queue-wait-ms is 4000" in body["error"]["message"]
        assert seconds < QUEUE_WAIT_S / 2
    wait_until(
        lambda: router_metric(server, "baton_predicted_wait_seconds") == 0, 10, "nobody waits"
    )


def test_an_answer_that_cannot_come_in_time_is_never_started(server):
    assert ask(server, {**LONG, "max_tokens": 64})[0] == 200
    computed = router_metric(server, "baton_prompt_tokens_total")
    # No machine computes so many tokens in twice the time; none needs as long to look at a request.
    status, _, body, _ = ask(
        server, {**LONG, "max_tokens": 1500, "timeout_ms": 1000, "prompt": "A second one"}
    )
    assert status == 504
    assert "was not started: 'timeout_ms' leaves it" in body["error"]["message"]
    assert router_metric(server, "baton_prompt_tokens_total") == computed
    assert router_metric(server, "baton_early_refusals_total", 'reason="deadline"') == 1


def test_the_smaller_priority_is_placed_first():
    pb2, pb2_grpc = generated_stubs()
    with Server("--max-batch", "1", "--queue-wait-ms", "120000") as server:
        stub = pb2_grpc.CompletionServiceStub(server.channel)
        ended = []

        def ask_http(name, fields):
            assert server.post("/v1/completions", fields)[0] == 200
            ended.append(name)

        def ask_grpc(name, fields):
            stub.Complete(pb2.CompletionRequest(**fields), timeout=120)
            ended.append(name)

        threads = []

        def start(ask_one, name, num_waiting, **fields):
            threads.append(threading.Thread(target=ask_one, args=(name, {**LONG, **fields})))
            threads[-1].start()
            wait_until(
                lambda: router_metric(server, "baton_requests_waiting") >= num_waiting,
                20,
                f"{name} waits",
            )

        # One runs, and prompts_ahead may wait at their workers; the others wait at the router.
        for i in range(4):
            start(ask_http, f"first {i}", 0)
        wait_until(lambda: router_metric(server, "baton_requests_waiting") >= 1, 20, "a queue")
        before = int(router_metric(server, "baton_requests_waiting"))
        start(ask_http, "low", before + 1, priority=3)
        start(ask_http, "normal", before + 2)
        start(ask_grpc, "high", before + 3, priority=-1)
        for thread in threads:
            thread.join()
        order = [name for name in ended if not name.startswith("first")]
        assert order == ["high", "normal", "low"], ended
