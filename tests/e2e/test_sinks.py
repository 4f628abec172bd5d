"""gpt-oss: windows of every other layer, sinks and experts. No cut, batch, worker, cache, guess or
lost worker changes a bit, in either form of the model and at the edges of windows and blocks."""

from pathlib import Path

import pytest

from same_bits import (
    bits_alone,
    check_cached_prefix,
    check_hand_off,
    check_killed_decode_worker,
    requests_of,
)

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
    return bits_alone(model, requests())


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_hand_off_in_a_batch_changes_no_bit(model, alone, transport):
    check_hand_off(model, transport, requests(), alone)


def test_a_cached_prefix_changes_no_bit(model, alone):
    check_cached_prefix(model, requests(), alone)


def test_a_killed_decode_worker_changes_no_bit(model):
    check_killed_decode_worker(model, requests(400))
