"""gemma4: layers with heads of their own, layers that share KV, vectors of each layer and a cap of
the logits. No cut, batch, worker, cache, guess or lost worker changes a bit, in either form of the
model and at the edges of windows and blocks."""

import subprocess
from pathlib import Path

import pytest

from baton_server import BIN
from same_bits import (
    bits_alone,
    check_cached_prefix,
    check_guesses,
    check_hand_off,
    check_killed_decode_worker,
    requests_of,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
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
    return bits_alone(model, requests())


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_hand_off_in_a_batch_changes_no_bit(name, model, alone, transport):
    check_hand_off(model, transport, requests(), alone, KV_BYTES_PER_TOKEN[name])


def test_a_cached_prefix_changes_no_bit(model, alone):
    check_cached_prefix(model, requests(), alone)


def test_guesses_change_no_bit(model):
    speculated, _ = check_guesses(model, requests())
    assert speculated > 0


def test_a_killed_decode_worker_changes_no_bit(model):
    check_killed_decode_worker(model, requests(400))


def test_inspect_shows_the_bytes_of_a_token(name, model):
    done = subprocess.run([BIN, "inspect", model], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"KV cache      {KV_BYTES_PER_TOKEN[name]} bytes a token (bf16)" in done.stdout
    assert "local heads   4 of 16" in done.stdout
