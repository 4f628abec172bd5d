"""Models whose layers are mostly short convolutions or gated delta nets, computed by the CUDA
sources on the runner. The last inputs and the fixed states of a sequence are cleared, copied and
handed over there too, so that no cut, batch, worker, cache or lost worker changes a bit."""

import subprocess
from pathlib import Path

import pytest

from baton_server import BIN
from same_bits import SameBits, bits_alone, check_killed_decode_worker
from test_simt_device import pytestmark  # noqa: F401  (where there is a runner)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


class OnRunner(SameBits):
    flags = ("--device", "simt", "--kv-memory", "16MiB")
    num_tokens = 6
    num_tokens_amid_kill = 200
    # Around the reach of a convolution, half a block, a block of 64 tokens, a split.
    lengths = (1, 2, 3, 4, 31, 33, 63, 64, 65, 66, 127, 128, 129, 257, 400)

    # An objective of 1 ms makes the chunks of a prompt as short as they can be.
    def test_short_chunks_in_a_batch_change_no_bit(self, alone):
        flags = ("--slo", "itl=1ms", *self.flags)
        assert bits_alone(self.model, self.requests(), *flags) == alone

    @pytest.mark.long
    def test_a_killed_decode_worker_changes_no_bit(self):
        rows = self.requests(self.num_tokens_amid_kill)
        check_killed_decode_worker(self.model, rows, *self.flags)


class TestShortConvolutions(OnRunner):
    model = str(GOLDEN / "tiny_head64_lfm2_q4_0.gguf")
    num_tokens_amid_kill = 60


class TestDeltaNets(OnRunner):
    model = str(GOLDEN / "tiny_head64_qwen35.gguf")


@pytest.mark.parametrize(
    "model, flags, words",
    [
        (
            TestShortConvolutions.model,
            ("--kv-dtype", "fp8"),
            "--kv-dtype fp8: architecture lfm2 keeps more than K and V",
        ),
        (
            TestShortConvolutions.model,
            ("--tensor-parallel", "2"),
            "its convolutions are not divided among 2 ranks",
        ),
        (
            TestDeltaNets.model,
            ("--tensor-parallel", "2"),
            "its fixed states are not divided among 2 ranks",
        ),
    ],
)
def test_what_a_device_does_not_serve_is_one_clear_error(model, flags, words):
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--device", "simt", "--model", model, *flags]
    result = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert words in result.stderr.splitlines()[-1]
