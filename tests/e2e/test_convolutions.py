"""A model whose layers are mostly short convolutions: the last inputs of a sequence are part of its
KV, so that no cut, batch, worker, cache, guess or lost worker changes a bit."""

import threading
from pathlib import Path

import pytest

from baton_server import Server, complete, wait_until
from same_bits import answers, kill_a_busy_decode_worker, requests_of

MODEL = str(Path(__file__).resolve().parents[1] / "golden" / "tiny_lfm2.gguf")
BLOCK = 16
# Slices of 2 * 8 bf16: four convolutions of 40 channels take three each, two layers of attention
# one.
KV_BYTES_PER_TOKEN = (4 * 3 + 2) * 16 * 2
# Around the reach of a convolution, blocks, tiles and splits.
LENGTHS = [1, 2, 3, 4, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 33, 63, 64, 65, 255, 256, 257, 400]


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module")
def alone():
    """One after the other, by one worker that remembers nothing."""
    with Server("--mode", "aggregated", "--prefix-cache", "off", model=MODEL) as server:
        return [a.bits() for a in answers(server, requests())]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_hand_off_in_a_batch_changes_no_bit(alone, transport):
    with Server("--transport", transport, model=MODEL) as server:
        got = answers(server, requests(), 8)
        wait_until(server.ledger_is_clean, 15, "no block is held")
    for answer, length in zip(got, LENGTHS):
        assert answer.timings.path == "disagg" and answer.timings.transport == transport
        assert answer.timings.kv_bytes == -(-length // BLOCK) * BLOCK * KV_BYTES_PER_TOKEN
        assert answer.timings.exact
    assert [a.bits() for a in got] == alone


def test_a_cached_prefix_changes_no_bit(alone):
    rows = requests()
    with Server("--mode", "aggregated", model=MODEL) as server:
        for fields in rows:  # leaves a prefix of each that ends within a block, or at its end
            ids = fields["prompt_token_ids"]
            complete(server, **{**fields, "prompt_token_ids": ids[: max(1, len(ids) * 2 // 3)]})
        got = answers(server, rows, 4)
    assert sum(a.timings.cached_tokens for a in got) > 500
    assert [a.bits() for a in got] == alone


def test_guesses_change_no_bit():
    rows = [
        {**fields, "prompt_token_ids": fields["prompt_token_ids"][:40] * 4, "max_tokens": 60}
        for fields in requests()
    ]
    with Server("--mode", "aggregated", model=MODEL) as server:
        wanted = [a.bits() for a in answers(server, rows)]
    with Server("--mode", "aggregated", "--speculate", "ngram", model=MODEL) as server:
        got = answers(server, rows, 4)
    assert sum(a.timings.speculated for a in got) > sum(a.timings.accepted for a in got) > 0
    assert [a.bits() for a in got] == wanted


def test_a_killed_decode_worker_changes_no_bit():
    rows = [f for f in requests(400) if len(f["prompt_token_ids"]) < 100]
    with Server("--mode", "aggregated", model=MODEL) as server:
        wanted = [a.bits() for a in answers(server, rows)]
    with Server("--decode", "2", "--prefill", "1", model=MODEL) as server:
        killer = threading.Thread(target=kill_a_busy_decode_worker, args=(server,))
        killer.start()
        got = answers(server, rows, len(rows))
        killer.join()
    assert [a.bits() for a in got] == wanted
    assert sum(a.timings.resumes for a in got) > 0, "it was killed in the middle"
