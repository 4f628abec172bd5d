"""deepseek2: one latent row for each token and layer, and experts in groups. No cut, batch, worker,
cache, guess or lost worker changes a bit, in either form of the model."""

from pathlib import Path

import pytest

from same_bits import (
    bits_alone,
    check_cached_prefix,
    check_guesses,
    check_hand_off,
    check_killed_decode_worker,
    requests_of,
)

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
    return bits_alone(model, requests())


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_hand_off_in_a_batch_changes_no_bit(name, model, alone, transport):
    check_hand_off(model, transport, requests(), alone, MODELS[name])


def test_a_cached_prefix_changes_no_bit(model, alone):
    check_cached_prefix(model, requests(), alone)


def test_guesses_change_no_bit(model):
    speculated, accepted = check_guesses(model, requests())
    assert speculated > accepted > 0


def test_a_killed_decode_worker_changes_no_bit(model):
    check_killed_decode_worker(model, requests(400))
