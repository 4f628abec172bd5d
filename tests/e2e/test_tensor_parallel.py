"""Workers whose model is divided among ranks, on the runner of kernels/simt: the same bits whether
prefill and decode share a process, and a hand-off between workers of another number of ranks.
"""

import functools
import subprocess

import pytest

from baton_server import BIN, Server, complete, metric
from fault_scenarios import all_begun, decoding_worker, in_prefill, kill_worker, only
from fault_work import Work
from roles_cluster import RolesCluster
from test_simt_device import (
    DEVICE,
    GOLDEN,
    IPC,
    NCCL,
    SHM,
    build_has_runner,
    fewer_requests,
    requests,
)

MODEL = str(GOLDEN / "tiny_ranks8_llama.gguf")
BLOCK_TOKENS = 64  # of a worker on the runner

pytestmark = pytest.mark.skipif(
    not build_has_runner(),
    reason="the runner needs x86-64, gcc and a build without ThreadSanitizer",
)


def ranks(count):
    return ("--tensor-parallel", str(count))


def answers(*args, model=MODEL):
    with Server(*DEVICE, *args, model=model) as server:
        return [complete(server, **fields) for fields in fewer_requests()]


@functools.cache
def answers_of_one_rank():
    return answers(*ranks(1))


TRANSPORTS = {"shm": SHM, "tcp": ("--transport", "tcp"), "nccl": NCCL, "cuda_ipc": IPC}


@pytest.mark.parametrize(
    "kv_dtype,transports",
    [
        ("bf16", ["shm", "nccl"]),
        pytest.param("bf16", ["tcp", "cuda_ipc"], marks=pytest.mark.long),
        pytest.param("fp8", ["cuda_ipc", "nccl"], marks=pytest.mark.long),
    ],
)
def test_disaggregated_equals_aggregated(kv_dtype, transports):
    divided = (*ranks(2), "--kv-dtype", kv_dtype)
    local = answers(*divided, "--mode", "aggregated")
    assert {a.timings.path for a in local} == {"local"}
    kv_bytes = None
    for transport in transports:
        remote = answers(*divided, *TRANSPORTS[transport])
        assert {a.timings.path for a in remote} == {"disagg"}
        assert {a.timings.transport for a in remote} == {transport}
        assert [a.bits() for a in remote] == [a.bits() for a in local]
        # All heads of a block cross as one slice, however they cross.
        kv_bytes = kv_bytes or [a.timings.kv_bytes for a in remote]
        assert [a.timings.kv_bytes for a in remote] == kv_bytes and min(kv_bytes) > 0


@pytest.mark.parametrize(
    "name", ["ranks2_qwen3moe", pytest.param("ranks2_gemma3", marks=pytest.mark.long)]
)
def test_experts_and_windows_are_divided(name):
    model = str(GOLDEN / f"tiny_{name}.gguf")
    local = answers(*ranks(2), "--mode", "aggregated", model=model)
    remote = answers(*ranks(2), model=model)
    assert {a.timings.path for a in remote} == {"disagg"}
    assert [a.bits() for a in remote] == [a.bits() for a in local]


@pytest.mark.parametrize(
    "transport,prefill,decode",
    [
        ("nccl", 4, 2),
        ("cuda_ipc", 2, 4),
        pytest.param("shm", 4, 2, marks=pytest.mark.long),
        pytest.param("nccl", 1, 2, marks=pytest.mark.long),
    ],
)
def test_workers_of_another_number_of_ranks_hand_over_when_they_may_be_inexact(
    transport, prefill, decode
):
    alone = answers_of_one_rank()
    with RolesCluster(
        worker_args=(*DEVICE, *TRANSPORTS[transport], "--allow-inexact"),
        role_args={"prefill": ranks(prefill), "decode": ranks(decode)},
        model=MODEL,
    ) as cluster:
        given = [complete(cluster, **fields) for fields in fewer_requests()]
        if transport == "nccl":
            # Whatever the ranks, one communicator carries all of it.
            worker = next(w for w in cluster.workers() if w["role"] == "decode")
            assert metric(worker, "baton_kv_nccl_communicators_total") == 1
            assert metric(worker, "baton_kv_nccl_drops_total", 'reason="failed"') == 0
            assert metric(worker, "baton_launch_gate_overruns_total") == 0
    assert {a.timings.path for a in given} == {"disagg"}
    assert {a.timings.transport for a in given} == {transport}

    # The KV has the same size and heads, whoever wrote it. All of it crosses: the decode worker
    # keeps nothing of an inexact pair.
    def num_blocks(answer):
        return -(-answer.usage.prompt_tokens // BLOCK_TOKENS)

    block_bytes = alone[0].timings.kv_bytes // num_blocks(alone[0])
    assert [a.timings.kv_bytes for a in given] == [block_bytes * num_blocks(a) for a in given]
    # Sums were added in another order, which no choice of a token shows here.
    assert [a.tokens for a in given] == [a.tokens for a in alone]
    assert not any(a.timings.exact for a in given)


def test_else_they_are_not_paired_and_nothing_is_lost():
    with RolesCluster(
        worker_args=DEVICE,
        role_args={"prefill": ranks(4), "decode": ranks(2)},
        model=MODEL,
        unpaired=("decode-0",),
    ) as cluster:
        answer = complete(cluster, **requests()[0])
    assert (answer.timings.path, answer.timings.exact) == ("local", True)


@pytest.mark.parametrize(
    "transport,role",
    [("nccl", "prefill"), pytest.param("cuda_ipc", "decode", marks=pytest.mark.long)],
)
def test_a_worker_killed_in_a_hand_over_changes_no_answer(transport, role):
    with Server(
        *DEVICE, *ranks(2), *TRANSPORTS[transport], "--prefill", "2", "--decode", "2", model=MODEL
    ) as cluster:
        work = Work(seed=1, num=0)
        # Requests that the victim decodes still run when it dies, and prompts wait for others.
        num_tokens = 40 if role == "decode" else 8
        work.requests = [dict(fields, max_tokens=num_tokens) for fields in requests()]
        work.record(cluster, width=len(work.requests))
        result = kill_worker(
            cluster,
            work,
            in_prefill("prefill-0") if role == "prefill" else all_begun,
            only("prefill-0") if role == "prefill" else decoding_worker(cluster, num_tokens),
            width=len(work.requests),
        )
        print(result)
        assert result["problems"] == []
        assert result["interrupted"] > 0, "it was killed in the middle"


def test_what_cannot_be_divided_is_one_clear_error():
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--model"]
    simt = ["--device", "simt"]
    for model, more, words in (
        ("head64_llama", [*simt, *ranks(2)], ("--tensor-parallel 2", "heads, 3,")),
        ("ranks2_gemma3", [*simt, *ranks(4)], ("--tensor-parallel 4", "KV heads, 2,")),
        ("ranks8_llama", [*simt, *ranks(3)], ("--tensor-parallel", "3")),
        ("ranks8_llama", ["--device", "cpu", *ranks(2)], ("--tensor-parallel 2", "processor")),
    ):
        result = subprocess.run(
            [*args, GOLDEN / f"tiny_{model}.gguf", *more],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode in (1, 2)
        said = result.stderr.splitlines()[-1]
        assert all(word in said for word in words), said
