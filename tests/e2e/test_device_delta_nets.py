"""A model whose layers are mostly gated delta nets, computed by the CUDA sources on the runner: its
fixed states are cleared, copied and handed over there too, so that no cut, batch, worker, cache or
lost worker changes a bit."""

import subprocess
from pathlib import Path

import pytest

from baton_server import BIN
from same_bits import (
    bits_alone,
    check_cached_prefix,
    check_hand_off,
    check_killed_decode_worker,
    requests_of,
)
from test_simt_device import pytestmark  # noqa: F401  (where there is a runner)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
MODEL = str(GOLDEN / "tiny_head64_qwen35.gguf")
DEVICE = ("--device", "simt", "--kv-memory", "16MiB")
# Around the reach of a convolution, half a block, a block of 64 tokens, a split.
LENGTHS = [1, 2, 3, 4, 31, 33, 63, 64, 65, 66, 127, 128, 129, 257, 400]


def requests(num_tokens=6):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module")
def alone():
    return bits_alone(MODEL, requests(), *DEVICE)


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_hand_off_in_a_batch_changes_no_bit(alone, transport):
    check_hand_off(MODEL, transport, requests(), alone, None, *DEVICE)


# An objective of 1 ms makes the chunks of a prompt as short as they can be.
def test_short_chunks_in_a_batch_change_no_bit(alone):
    flags = ("--slo", "itl=1ms", *DEVICE)
    assert bits_alone(MODEL, requests(), *flags) == alone


# A prefix is hit where a copy of the state after it was kept.
def test_a_cached_prefix_changes_no_bit(alone):
    check_cached_prefix(MODEL, requests(), alone, *DEVICE)


@pytest.mark.long
def test_a_killed_decode_worker_changes_no_bit():
    check_killed_decode_worker(MODEL, requests(200), *DEVICE)


def test_several_ranks_are_one_clear_error():
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--device", "simt", "--model", MODEL]
    result = subprocess.run(
        [*args, "--tensor-parallel", "2"], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert "its fixed states are not divided among 2 ranks" in result.stderr.splitlines()[-1]
