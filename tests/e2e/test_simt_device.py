"""The CUDA sources as a product: workers that compute on the runner of kernels/simt give the same
bits whether prefill and decode share a process, over every transport, and after a worker is lost.

NCCL is the loopback of tests/nccl, through which the transport, its kernels and both processes run
as they would with the library. CUDA IPC passes a memory file between the processes where a GPU has
memory with a descriptor.
"""

import functools
import os
import subprocess
from pathlib import Path

import pytest

from baton_server import BIN, PATIENCE_S, Server, complete, metric, wait_until
from fault_scenarios import all_begun, decoding_worker, kill_worker
from fault_work import Work

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
DEVICE = ("--device", "simt", "--kv-memory", "16MiB")
SHM = ("--transport", "shm")
LOOPBACK = Path(BIN).resolve().parent / "tests/nccl/libbaton_nccl_loopback.so"
CUBLASLT = LOOPBACK.parents[1] / "cublaslt/libbaton_cublaslt_loopback.so"
FAST = ("--cublaslt-library", str(CUBLASLT))
NCCL = ("--transport", "nccl", "--nccl-library", str(LOOPBACK))
IPC = ("--transport", "cuda_ipc")
FP8 = ("--kv-dtype", "fp8")


def build_has_runner():
    probe = [BIN, "decode", "--router", "127.0.0.1:1", "--model", "none.gguf", "--device", "simt"]
    said = subprocess.run(probe, capture_output=True, text=True, timeout=60).stderr
    return "not in this build" not in said


pytestmark = pytest.mark.skipif(
    not build_has_runner(),
    reason="the runner needs x86-64, gcc and a build without ThreadSanitizer",
)


def requests():
    # Shorter than a block of 64 tokens, longer, and two whole blocks.
    prompts = [list(range(3, 3 + num)) for num in (20, 100, 128)]
    greedy = dict(temperature=0, ignore_eos=True, logprobs=3, max_tokens=6)
    seeded = dict(greedy, temperature=0.8, seed=7)
    return [
        dict(fields, prompt_token_ids=prompt) for prompt in prompts for fields in (greedy, seeded)
    ]


def fewer_requests():
    """Enough requests where clusters are compared one after another: every length, greedy or with
    a seed, and the last prompt once more, when all of its blocks are cached."""
    return [requests()[i] for i in (0, 3, 4, 5)]


@functools.cache
def answers(name, *args):
    with Server(*DEVICE, *args, model=str(GOLDEN / f"tiny_{name}.gguf")) as server:
        return [complete(server, **fields) for fields in fewer_requests()]


@pytest.mark.parametrize(
    "name",
    [
        "head64_gemma3",
        "head64_qwen3moe",
        "head64_lfm2",
        "head64_lfm2moe",
        pytest.param("head64_llama", marks=pytest.mark.long),  # below with each transport
        pytest.param("head64_qwen2", marks=pytest.mark.long),
        pytest.param("head128_qwen3", marks=pytest.mark.long),
    ],
)
def test_disaggregated_equals_aggregated(name):
    local = answers(name, "--mode", "aggregated")
    remote = answers(name)
    assert [a.timings.path for a in local] == ["local"] * len(local)
    assert [a.timings.path for a in remote] == ["disagg"] * len(remote)
    assert all(a.timings.kv_bytes > 0 for a in remote)
    assert [a.bits() for a in remote] == [a.bits() for a in local]


def test_the_transport_changes_no_bit():
    over = {
        name: answers("head64_llama", *args)
        for name, args in dict(
            shm=SHM,
            tcp=("--transport", "tcp", "--device-weights", "bf16"),
            nccl=NCCL,
            cuda_ipc=IPC,
        ).items()
    }
    for name, given in over.items():
        assert {a.timings.transport for a in given} == {name}
        assert [a.bits() for a in given] == [a.bits() for a in over["shm"]]


def long_requests():
    """Prompts of more rows than own kernels have in fast mode, and one of few."""
    fields = dict(temperature=0, ignore_eos=True, logprobs=3, max_tokens=6)
    return [dict(fields, prompt_token_ids=list(range(3, 3 + num))) for num in (140, 200, 40)]


def answers_to_long_prompts(tmp_path, *args, **env):
    """And what each worker said."""
    model = str(GOLDEN / "tiny_head64_llama.gguf")
    environment = {"BATON_HOME": str(tmp_path), **env}
    with Server(*DEVICE, *args, model=model, env=environment) as server:
        given = [complete(server, **fields) for fields in long_requests()]
        said = [Path(server.dir, f"{w}-0.log").read_text() for w in ("prefill", "decode")]
    return given, said


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The answers by our own kernels."""
    given, said = answers_to_long_prompts(tmp_path_factory.mktemp("home"))
    assert all(a.timings.exact for a in given)
    assert not any("cuBLASLt" in log for log in said), "on the runner nobody looks for it"
    return given


def test_fast_mode_says_that_it_is_not_exact(own, tmp_path):
    fast, said = answers_to_long_prompts(tmp_path, *FAST)
    assert {a.timings.path for a in fast} == {"disagg"}
    assert not any(a.timings.exact for a in fast)
    line = "products of more than 128 rows are by cuBLASLt 13.0.0"
    assert [log.count(line) for log in said] == [1, 1]
    # A step of the runner is planned to 100 ms, in which it computes no 128 rows: what the library
    # multiplies, and how near it is, is asked in tests/model/fast_products_test.cc.
    assert [a.tokens for a in fast] == [a.tokens for a in own]
    # One plan for each shape, of the first worker that came, for both.
    assert len(list((tmp_path / "products").glob("*.plan"))) == 5
    deterministic, _ = answers_to_long_prompts(tmp_path, "--deterministic")
    assert all(a.timings.exact for a in deterministic)
    assert [a.bits() for a in deterministic] == [a.bits() for a in own]


def test_a_wrong_library_is_not_used_and_one_line_says_so(own, tmp_path):
    wrong, said = answers_to_long_prompts(tmp_path, *FAST, BATON_CUBLASLT_LOOPBACK="wrong=0")
    assert [a.bits() for a in wrong] == [a.bits() for a in own]
    assert all(a.timings.exact for a in wrong)
    assert [log.count("all products are by our own kernels") for log in said] == [1, 1]
    assert all("is wrong, relative error 1" in log for log in said)


def test_a_fast_and_a_deterministic_worker_are_not_paired(tmp_path):
    model = str(GOLDEN / "tiny_head64_llama.gguf")
    with Server(*DEVICE, *SHM, model=model, env={"BATON_HOME": str(tmp_path)}) as server:
        args = [BIN, "prefill", "--router", server.router["grpc"], "--model", model]
        secret = f"{server.dir}/cluster-secret"
        args += ["--worker-id", "prefill-9", "--cluster-secret-file", secret, *DEVICE, *SHM]
        with open(tmp_path / "prefill.log", "w") as log:
            prefill = subprocess.Popen([*args, *FAST], stdout=log, stderr=log)
        try:
            wait_until(
                lambda: any(
                    p["worker_id"] == "prefill-9" and p["ready"]
                    for p in server.get("/v1/topology")[2]["processes"]
                ),
                60,
                "it is ready",
            )
            given = [complete(server, **fields) for fields in long_requests()]
            said = Path(server.dir, "router-0.log").read_text()
        finally:
            prefill.terminate()
            assert prefill.wait(PATIENCE_S) == 0
    assert {a.timings.prefill_worker for a in given} == {"prefill-0"}
    assert all(a.timings.exact for a in given)
    assert "deterministic=0" in said, "the router names what differs"


def test_a_library_that_cannot_be_used_is_one_clear_error():
    model = ["--model", str(GOLDEN / "tiny_head64_llama.gguf")]
    for device, more, code, words in (
        ("simt", ["--cublaslt-library", "/nowhere/lt.so"], 1, "/nowhere/lt.so"),
        ("simt", [*FAST, "--deterministic"], 2, "--deterministic"),
        ("cpu", FAST, 2, "not for the processor"),
    ):
        args = [BIN, "decode", "--router", "127.0.0.1:1", "--device", device, *model, *more]
        result = subprocess.run(args, capture_output=True, text=True, timeout=60)
        assert result.returncode == code
        assert words in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "transports", [(IPC,), pytest.param((SHM, NCCL), marks=pytest.mark.long)], ids=["ipc", "others"]
)
def test_fp8_kv_has_the_same_bits_everywhere_and_half_the_bytes(transports):
    local = answers("head64_llama", *FP8, "--mode", "aggregated")
    wide = answers("head64_llama", *SHM)
    for transport in transports:
        remote = answers("head64_llama", *FP8, *transport)
        assert {a.timings.path for a in remote} == {"disagg"}
        assert [a.bits() for a in remote] == [a.bits() for a in local]
        # A row of 64 codes has a scale of two bytes.
        assert [a.timings.kv_bytes * 128 for a in remote] == [
            a.timings.kv_bytes * 66 for a in wide
        ]
    assert [a.bits() for a in local] != [a.bits() for a in wide]


@pytest.mark.parametrize(
    "name", ["head64_gemma3", pytest.param("head64_qwen3moe", marks=pytest.mark.long)]
)
def test_fp8_kv_of_windows_and_experts_has_the_bits_of_one_process(name):
    local = answers(name, *FP8, "--mode", "aggregated")
    assert [a.bits() for a in answers(name, *FP8)] == [a.bits() for a in local]


def test_what_crosses_by_nccl_is_counted_and_shown():
    with Server(*DEVICE, *NCCL, model=str(GOLDEN / "tiny_head64_llama.gguf")) as server:
        answer = complete(server, **requests()[2])
        assert answer.timings.path == "disagg"
        decode = next(w for w in server.workers() if w["role"] == "decode")
        labels = 'transport="nccl"'
        assert metric(decode, "baton_kv_transfer_bytes_total", labels) == answer.timings.kv_bytes
        assert metric(decode, "baton_kv_transfer_seconds_count", labels) == 1
        assert metric(decode, "baton_kv_nccl_communicators_total") == 1
        assert metric(decode, "baton_kv_nccl_batches_total") > 0
        assert metric(decode, "baton_kv_nccl_drops_total", 'reason="failed"') == 0
        assert metric(decode, "baton_kv_nccl_peers_lost_total") == 0
        _, _, view = server.get("/v1/topology")
        prefill = next(w for w in view["processes"] if w["role"] == "prefill")
        assert [link["transport"] for link in prefill["links"]] == ["nccl"]
        wait_until(server.ledger_is_clean, 15, "no block is held")


def test_what_crosses_by_cuda_ipc_is_counted_and_shown():
    with Server(*DEVICE, *IPC, model=str(GOLDEN / "tiny_head64_llama.gguf")) as server:
        answer = complete(server, **requests()[2])
        assert answer.timings.path == "disagg"
        workers = {w["role"]: w for w in server.workers()}
        labels = 'transport="cuda_ipc"'
        decode = workers["decode"]
        assert metric(decode, "baton_kv_transfer_bytes_total", labels) == answer.timings.kv_bytes
        assert metric(decode, "baton_kv_transfer_seconds_count", labels) == 1
        for worker in workers.values():
            assert metric(worker, "baton_kv_ipc_offers_total") > 0
            for reason in ("late", "protocol", "overrun"):
                assert metric(worker, "baton_kv_ipc_faults_total", f'reason="{reason}"') == 0
        _, _, view = server.get("/v1/topology")
        prefill = next(w for w in view["processes"] if w["role"] == "prefill")
        assert [link["transport"] for link in prefill["links"]] == ["cuda_ipc"]
        wait_until(server.ledger_is_clean, 15, "no block is held")


@pytest.mark.parametrize(
    "transport",
    [
        pytest.param(IPC, id="cuda_ipc"),
        pytest.param(NCCL, id="nccl", marks=pytest.mark.long),
        pytest.param((*SHM, *FP8), id="shm_fp8", marks=pytest.mark.long),
    ],
)
def test_a_killed_decode_worker_changes_no_answer(transport):
    model = str(GOLDEN / "tiny_head64_llama.gguf")
    with Server(*DEVICE, *transport, "--decode", "2", model=model) as cluster:
        work = Work(seed=1, num=0)
        # Long enough that each still runs when the last one has begun.
        work.requests = [dict(fields, max_tokens=60) for fields in fewer_requests()]
        work.record(cluster, width=len(work.requests))
        result = kill_worker(
            cluster,
            work,
            all_begun,
            decoding_worker(cluster, 50),
            width=len(work.requests),
        )
        print(result)
        assert result["problems"] == []
        assert result["resumed"] > 0, "it was killed in the middle"


def test_what_has_no_kernel_is_one_clear_error():
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--device", "simt", "--model"]
    for name, words in (("gemma3", "head size 16"), ("bf16", "head size 16")):
        result = subprocess.run(
            [*args, GOLDEN / f"tiny_{name}.gguf"], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 1
        assert words in result.stderr.splitlines()[-1]
    result = subprocess.run(
        [*args, GOLDEN / "tiny_head64_llama.gguf", "--kv-dtype", "f32"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0 and "bf16" in result.stderr.splitlines()[-1]


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU here")
def test_fp8_kv_without_a_device_is_one_clear_error():
    args = [BIN, "decode", "--router", "127.0.0.1:1", *FP8]
    model = ["--model", GOLDEN / "tiny_head64_llama.gguf"]
    # Without CUDA in the build the command line is refused, else the machine.
    for device, codes in (("auto", (1, 2)), ("cpu", (2,))):
        result = subprocess.run(
            [*args, *model, "--device", device], capture_output=True, text=True, timeout=60
        )
        assert result.returncode in codes
        said = result.stderr.splitlines()[-1]
        assert "--kv-dtype fp8" in said and "bf16 or f32" in said


def test_nccl_that_cannot_be_used_is_one_clear_error():
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--device", "simt", "--transport", "nccl"]
    model = ["--model", GOLDEN / "tiny_head64_llama.gguf"]
    for more, words in (
        (["--nccl-library", "/nowhere/libnccl.so.2"], "/nowhere/libnccl.so.2"),
        ([], "--nccl-library"),
    ):
        result = subprocess.run(
            [*args, *model, *more], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 1
        assert words in result.stderr.splitlines()[-1]


def test_cuda_ipc_without_a_device_is_one_clear_error():
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--device", "cpu", "--transport", "cuda_ipc"]
    model = ["--model", GOLDEN / "tiny_head64_llama.gguf"]
    result = subprocess.run([*args, *model], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "--transport cuda_ipc shares a GPU's memory" in result.stderr.splitlines()[-1]


def test_a_worker_with_kv_of_another_type_is_refused():
    model = str(GOLDEN / "tiny_head64_llama.gguf")
    with Server(*DEVICE, *SHM, model=model) as server:
        args = [BIN, "prefill", "--router", server.router["grpc"], "--model", model]
        secret = f"{server.dir}/cluster-secret"
        args += ["--worker-id", "prefill-9", "--cluster-secret-file", secret, *DEVICE, *SHM]
        # It asks again for a while before it ends (tests/worker/registration_test.cc).
        with subprocess.Popen([*args, *FP8], stderr=subprocess.PIPE, text=True) as worker:
            said = next(line for line in worker.stderr if "refuses this worker" in line)
            worker.kill()
    assert "layout_id differs" in said
    assert "(fp8 fragments" in said and "(bf16 plain" in said
    assert "give both one --model, --kv-dtype and --device" in said


@pytest.mark.parametrize(
    "other",
    [pytest.param(NCCL, id="nccl"), pytest.param(IPC, id="cuda_ipc", marks=pytest.mark.long)],
)
def test_workers_without_a_common_transport_are_not_paired(tmp_path, other):
    """The other prefill worker stays, and gets no prompt."""
    model = str(GOLDEN / "tiny_head64_llama.gguf")
    with Server(*DEVICE, *SHM, model=model) as server:
        args = [BIN, "prefill", "--router", server.router["grpc"], "--model", model]
        secret = f"{server.dir}/cluster-secret"
        args += ["--worker-id", "prefill-9", "--cluster-secret-file", secret]
        with open(tmp_path / "prefill.log", "w") as log:
            prefill = subprocess.Popen([*args, *DEVICE, *other], stdout=log, stderr=log)
        try:
            row = wait_until(
                lambda: next(
                    (
                        p
                        for p in server.get("/v1/topology")[2]["processes"]
                        if p["worker_id"] == "prefill-9" and p["ready"]
                    ),
                    None,
                ),
                60,
                "it is ready",
            )
            given = [complete(server, **fields) for fields in fewer_requests()]
        finally:
            prefill.terminate()
            assert prefill.wait(PATIENCE_S) == 0
    assert row["links"] == []
    assert {(a.timings.path, a.timings.prefill_worker) for a in given} == {("disagg", "prefill-0")}
