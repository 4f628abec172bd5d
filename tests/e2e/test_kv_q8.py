"""K and V in q8: no cut, batch, transport, cache, guess or lost worker changes a bit, half the
bytes cross, and what cannot have it is refused by name."""

import subprocess
import threading
from pathlib import Path

import pytest

from baton_server import BIN, Server, pool_flags
from same_bits import (
    answers,
    bits_alone,
    check_cached_prefix,
    check_hand_off,
    check_killed_decode_worker,
    requests_of,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
Q8 = ("--kv-dtype", "q8")
BLOCK = 16
# Layers, K and V, KV heads, 16 codes and a scale of two bytes.
MODELS = {"tiny_q4_0": 2 * 2 * 2 * (16 + 2), "tiny_gemma3": 7 * 2 * 1 * (16 + 2)}
# Around blocks, the window of gemma3 (33), tiles and splits.
LENGTHS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 32, 33, 34, 63, 64, 65, 255, 256, 257, 400]


def path_of(model):
    return str(GOLDEN / f"{model}.gguf")


def requests(num_tokens=12):
    return requests_of(LENGTHS, num_tokens)


@pytest.fixture(scope="module", params=MODELS)
def alone(request):
    """A model, and its answers one after the other, by one worker that remembers nothing."""
    model = path_of(request.param)
    return model, MODELS[request.param], bits_alone(model, requests(), *Q8)


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.long)])
def test_split_equals_aggregated_and_half_the_bytes_cross(alone, transport):
    model, bytes_per_token, wanted = alone
    check_hand_off(model, transport, requests(), wanted, bytes_per_token, *Q8)


def test_a_cached_prefix_and_guesses_change_no_bit(alone):
    model, _, wanted = alone
    check_cached_prefix(model, requests(), wanted, "--speculate", "ngram", *Q8)


def test_q8_is_not_bf16(alone):
    model, _, wanted = alone
    with Server("--mode", "aggregated", model=model) as server:
        got = answers(server, requests(), 4)
    assert [a.bits() for a in got] != wanted


def test_a_killed_decode_worker_changes_no_bit():
    check_killed_decode_worker(path_of("tiny_gemma3"), requests(400), *Q8)


@pytest.mark.parametrize("mine, its", [("bf16", "q8"), ("q8", "bf16"), ("q8", "f32")])
def test_a_worker_with_kv_of_another_type_is_refused(mine, its):
    model = path_of("tiny_q4_0")
    with Server("--kv-dtype", mine, model=model) as server:
        args = [BIN, "prefill", "--router", server.router["grpc"], "--model", model]
        secret = f"{server.dir}/cluster-secret"
        args += ["--worker-id", "prefill-9", "--cluster-secret-file", secret, "--kv-dtype", its]
        args += pool_flags(model)
        # It asks again for a while before it ends.
        with subprocess.Popen(args, stderr=subprocess.PIPE, text=True) as worker:
            limit = threading.Timer(180, worker.kill)  # then its lines end
            limit.start()
            try:
                said = next((line for line in worker.stderr if "refuses this worker" in line), "")
            finally:
                limit.cancel()
                worker.kill()
    assert said, "no refusal within 180 s"
    encoding = {"bf16": "bf16 paired", "q8": "q8 turned-lanes", "f32": "f32 plain"}
    assert "layout_id differs" in said
    assert f"({encoding[mine]} " in said and f"({encoding[its]} " in said
    assert "give both one --model, --kv-dtype and --device" in said


def last_line(*args):
    result = subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    return result.stderr.splitlines()[-1]


def test_what_cannot_have_q8_is_one_clear_error():
    worker = ("decode", "--router", "127.0.0.1:1", *Q8, "--model")
    assert "--kv-dtype q8: architecture lfm2" in last_line(*worker, path_of("tiny_lfm2"))
    for device in ("simt", "cuda"):
        # Where the build has no CUDA, that is the error.
        said = last_line(*worker, path_of("tiny_head64_llama"), "--device", device)
        assert "--kv-dtype q8" in said or f"--device {device}" in said
    said = last_line(*worker, path_of("tiny_head64_llama"), "--tensor-parallel", "2")
    assert "--kv-dtype q8" in said or "--tensor-parallel 2" in said


def test_inspect_says_the_bytes_of_a_token():
    for model, bytes_per_token in MODELS.items():
        said = subprocess.run([BIN, "inspect", path_of(model)], capture_output=True, text=True)
        assert f"{bytes_per_token} (q8)" in said.stdout
    said = subprocess.run([BIN, "inspect", path_of("tiny_lfm2")], capture_output=True, text=True)
    assert said.returncode == 0 and "(q8)" not in said.stdout
