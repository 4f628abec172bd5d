"""A model whose layers are mostly short convolutions: the last inputs of a sequence are part of its
KV, so that no cut, batch, worker, cache, guess or lost worker changes a bit."""

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
    return bits_alone(MODEL, requests())


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_hand_off_in_a_batch_changes_no_bit(alone, transport):
    check_hand_off(MODEL, transport, requests(), alone, KV_BYTES_PER_TOKEN)


def test_a_cached_prefix_changes_no_bit(alone):
    check_cached_prefix(MODEL, requests(), alone)


def test_guesses_change_no_bit():
    speculated, accepted = check_guesses(MODEL, requests())
    assert speculated > accepted > 0


def test_a_killed_decode_worker_changes_no_bit():
    check_killed_decode_worker(MODEL, requests(400))
