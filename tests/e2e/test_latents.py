"""deepseek2: one latent row for each token and layer, and experts in groups. No cut, batch, worker,
cache, guess or lost worker changes a bit, in either form of the model."""

import threading
from pathlib import Path

import pytest

from baton_server import Server, complete, wait_until
from same_bits import answers, kill_a_busy_decode_worker, requests_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
BLOCK = 16
# The shape of V3 as a file, that of V2-Lite as a folder; and the bytes of a token's bf16 rows.
MODELS = {"tiny_deepseek2.gguf": 3 * (40 + 8) * 2, "tiny_deepseek2_lite": 3 * (32 + 16) * 2}
# Around blocks, tiles and splits.
LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 33, 63, 64, 65, 100, 255, 256, 257, 400]


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return str(GOLDEN / name)


@pytest.fixture(scope="module")
def alone(model):
    """One after the other, by one worker that remembers nothing."""
    with Server("--mode", "aggregated", "--prefix-cache", "off", model=model) as server:
        return [a.bits() for a in answers(server, requests())]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_hand_off_in_a_batch_changes_no_bit(name, model, alone, transport):
    with Server("--transport", transport, model=model) as server:
        got = answers(server, requests(), 8)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    for answer, length in zip(got, LENGTHS):
        assert answer.timings.path == "disagg" and answer.timings.transport == transport
        assert answer.timings.kv_bytes == -(-length // BLOCK) * BLOCK * MODELS[name]
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


def test_guesses_change_no_bit(model):
    rows = [
        {**fields, "prompt_token_ids": fields["prompt_token_ids"][:40] * 4, "max_tokens": 60}
        for fields in requests()
    ]
    with Server("--mode", "aggregated", model=model) as server:
        wanted = [a.bits() for a in answers(server, rows)]
    with Server("--mode", "aggregated", "--speculate", "ngram", model=model) as server:
        got = answers(server, rows, 4)
    assert sum(a.timings.speculated for a in got) > sum(a.timings.accepted for a in got) > 0
    assert [a.bits() for a in got] == wanted


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
