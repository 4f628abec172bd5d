"""gemma4: layers with heads of their own, layers that share KV, vectors of each layer and a cap of
the logits. No cut, batch, worker, cache, guess or lost worker changes a bit, in either form of the
model and at the edges of windows and blocks."""

import subprocess
import threading
from pathlib import Path

import pytest

from baton_server import BIN, Server, complete, wait_until
from same_bits import answers, kill_a_busy_decode_worker, requests_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
BLOCK = 16
# By model, the bytes of KV in bf16: of tiny_gemma4 three local layers of 16 elements and a global
# one of 32 store K and V, and three layers share them; of tiny_gemma4_dense two local layers of 64
# and two global ones of 32. Windows of 33 and 20; a file and a folder.
KV_BYTES_PER_TOKEN = {
    "tiny_gemma4.gguf": 2 * 2 * (3 * 16 + 32),
    "tiny_gemma4_dense": 2 * 2 * (2 * 64 + 2 * 32),
}
# Around windows, blocks, tiles and splits.
LENGTHS = [1, 2, 15, 16, 17, 19, 20, 21, 32, 33, 34, 63, 64, 65, 255, 256, 257, 400]


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module", params=list(KV_BYTES_PER_TOKEN))
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
        assert answer.timings.kv_bytes == -(-length // BLOCK) * BLOCK * KV_BYTES_PER_TOKEN[name]
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
    assert sum(a.timings.speculated for a in got) > 0
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


def test_inspect_shows_the_bytes_of_a_token(name, model):
    done = subprocess.run([BIN, "inspect", model], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"KV cache      {KV_BYTES_PER_TOKEN[name]} bytes a token (bf16)" in done.stdout
    assert "local heads   4 of 16" in done.stdout
