"""gpt-oss: windows of every other layer, sinks and experts. No cut, batch, worker, cache, guess or
lost worker changes a bit, in either form of the model and at the edges of windows and blocks."""

import threading
from pathlib import Path

import pytest

from baton_server import Server, complete, wait_until
from same_bits import answers, kill_a_busy_decode_worker, requests_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MODELS = ["tiny_gptoss.gguf", "tiny_gptoss_mxfp4"]  # windows of 33 and 20; a file and a folder
# Around windows, blocks, tiles and splits.
LENGTHS = [1, 2, 15, 16, 17, 19, 20, 21, 32, 33, 34, 63, 64, 65, 255, 256, 257, 400]


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


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
