"""gpt-oss: windows of every other layer, sinks and experts. No cut, batch, worker, cache, guess or
lost worker changes a bit, in either form of the model and at the edges of windows and blocks."""

import os
import random
import secrets
import signal
import threading
from pathlib import Path

import pytest

from baton_server import Server, complete, in_parallel, metric, wait_until

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MODELS = ["tiny_gptoss.gguf", "tiny_gptoss_mxfp4"]  # windows of 33 and 20; a file and a folder
SEED_TEXT = os.environ.get("BATON_TEST_SEED", "20")  # as tests/test_seed.h reads it
SEED = secrets.randbits(32) if SEED_TEXT == "random" else int(SEED_TEXT)
print(f"BATON_TEST_SEED={SEED}")
# Around windows, blocks, tiles and splits.
LENGTHS = [1, 2, 15, 16, 17, 19, 20, 21, 32, 33, 34, 63, 64, 65, 255, 256, 257, 400]


def requests(num_tokens=12):
    rng = random.Random(SEED)
    rows = []
    for i, length in enumerate(LENGTHS):
        fields = dict(
            prompt_token_ids=[rng.randrange(3, 263) for _ in range(length)],
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=3,
            temperature=0,
        )
        if i % 2 == 1:
            fields.update(temperature=0.8, seed=rng.randrange(1 << 30), top_p=0.95)
        rows.append(fields)
    return rows


def answers(server, rows, width=1):
    return in_parallel([lambda f=f: complete(server, **f) for f in rows], width)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return str(GOLDEN / request.param)


@pytest.fixture(scope="module")
def alone(model):
    """One after the other, by one worker that remembers nothing."""
    with Server("--mode", "aggregated", "--prefix-cache", "off", model=model) as server:
        return [a.bits() for a in answers(server, requests())]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_hand_off_in_a_batch_changes_no_bit(model, alone, transport):
    with Server("--transport", transport, model=model) as server:
        got = answers(server, requests(), 8)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    for answer in got:
        assert answer.timings.path == "disagg" and answer.timings.transport == transport
        assert answer.timings.exact
    assert [a.bits() for a in got] == alone


def test_a_cached_prefix_changes_no_bit(model, alone):
    rows = requests()
    with Server("--mode", "aggregated", model=model) as server:
        for fields in rows:  # leaves a prefix of each that ends within a block, or at its end
            ids = fields["prompt_token_ids"]
            complete(server, **{**fields, "prompt_token_ids": ids[: max(1, len(ids) * 2 // 3)]})
        got = answers(server, rows, 4)
    assert sum(a.timings.cached_tokens for a in got) > 500
    assert [a.bits() for a in got] == alone


def kill_a_busy_decode_worker(server):
    """Waits until one runs requests, then kills it."""
    busy = []

    def find():
        workers = [w for w in server.workers() if w["role"] == "decode"]
        busy[:] = [w for w in workers if metric(w, "baton_requests_running") > 0]
        return bool(busy)

    wait_until(find, 60, "a decode worker runs requests")
    os.kill(busy[0]["pid"], signal.SIGKILL)


def test_a_killed_decode_worker_changes_no_bit(model):
    rows = [f for f in requests(400) if len(f["prompt_token_ids"]) < 100]
    with Server("--mode", "aggregated", model=model) as server:
        wanted = [a.bits() for a in answers(server, rows)]
    with Server("--decode", "2", "--prefill", "1", model=model) as server:
        killer = threading.Thread(target=kill_a_busy_decode_worker, args=(server,))
        killer.start()
        got = answers(server, rows, len(rows))
        killer.join()
    assert [a.bits() for a in got] == wanted
    assert sum(a.timings.resumes for a in got) > 0, "it was killed in the middle"
