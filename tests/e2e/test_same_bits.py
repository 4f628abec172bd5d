"""Models whose state is not one K and V of a layer: no cut, batch, worker, cache, guess or lost
worker changes a bit, in a file or a folder."""

import subprocess
from pathlib import Path

from baton_server import BIN
from same_bits import SameBits, check_guesses, check_killed_decode_worker

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


class OnProcessor(SameBits):
    def test_guesses_change_no_bit(self):
        speculated, accepted = check_guesses(self.model, self.requests())
        assert speculated > 0
        self.check_accepted(speculated, accepted)

    def check_accepted(self, speculated, accepted):
        assert speculated > accepted > 0

    def test_a_killed_decode_worker_changes_no_bit(self):
        check_killed_decode_worker(self.model, self.requests(400))


class TestShortConvolutions(OnProcessor):
    """lfm2: the last inputs of a sequence are part of its KV."""

    model = str(GOLDEN / "tiny_lfm2.gguf")
    # Slices of 2 * 8 bf16: four convolutions of 40 channels take three each, two layers of
    # attention one.
    bytes_per_token = (4 * 3 + 2) * 16 * 2
    # Around the reach of a convolution too.
    lengths = (1, 2, 3, 4, 15, 16, 17, 18, 33, 63, 64, 65, 255, 256, 257, 400)


class Latents(OnProcessor):
    """deepseek2: one latent row for each token and layer, and experts in groups."""

    lengths = (1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 255, 256, 257, 400)


class TestLatentsOfV3(Latents):
    model = str(GOLDEN / "tiny_deepseek2.gguf")
    bytes_per_token = 3 * (40 + 8) * 2


class TestLatentsOfV2Lite(Latents):
    model = str(GOLDEN / "tiny_deepseek2_lite")
    bytes_per_token = 3 * (32 + 16) * 2


class MixedLayers(OnProcessor):
    """gemma4: layers with heads of their own, layers that share KV, vectors of each layer and a cap
    of the logits."""

    # Around the windows of 33 and 20 too.
    lengths = (1, 2, 15, 16, 17, 19, 20, 21, 32, 33, 34, 63, 64, 65, 255, 256, 257, 400)

    def check_accepted(self, speculated, accepted):
        """Its texts are too random for right guesses."""

    def test_inspect_shows_the_bytes_of_a_token(self):
        args = [BIN, "inspect", self.model]
        done = subprocess.run(args, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert f"KV cache      {self.bytes_per_token} bytes a token (bf16)" in done.stdout
        assert "local heads   4 of 16" in done.stdout


class TestMixedLayersWithSharedKv(MixedLayers):
    """Three local layers of 16 elements and a global one of 32 store K and V; three layers share
    them."""

    model = str(GOLDEN / "tiny_gemma4.gguf")
    bytes_per_token = 2 * 2 * (3 * 16 + 32)


class TestMixedLayersOfADenseModel(MixedLayers):
    """Two local layers of 64 elements and two global ones of 32."""

    model = str(GOLDEN / "tiny_gemma4_dense")
    bytes_per_token = 2 * 2 * (2 * 64 + 2 * 32)
