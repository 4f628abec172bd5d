"""A KV pool gets most of its memory after the start. Its capacity is told from the start on."""

import os
import signal

from baton_server import PATIENCE_S, Server, metric, wait_until

POOL = ("--kv-memory", "1GiB", "--max-context", "1024")
# The thread that gives memory yields to all others: 2 GiB took 60 s beside four busy tests.
FULL_S = 10 * PATIENCE_S


def is_full(worker):
    """Every block has memory: of the worker's pool, and of the pools that it reads."""
    folder = f"/proc/{worker['pid']}/fd"
    paths = [f"{folder}/{fd}" for fd in os.listdir(folder)]
    arenas = [p for p in paths if os.readlink(p).startswith("/memfd:baton-kv-arena")]
    assert arenas
    sizes = [os.stat(path) for path in arenas]
    return all(size.st_blocks * 512 >= size.st_size for size in sizes)


def worker_of(server, role):
    """The worker of that role; None while it is not there."""
    return next((w for w in server.workers() if w["role"] == role), None)


def assert_capacity_is_whole(server, worker):
    counts = server.blocks(worker)
    total = metric(worker, "baton_kv_pool_blocks")
    assert counts["free"] + counts["cached"] == sum(counts.values()) == total > 0


def answer(server):
    body = {"prompt": "one two three", "max_tokens": 8, "temperature": 0}
    status, _, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    return reply["choices"][0]["text"]


def test_a_worker_killed_while_its_pool_gets_memory_comes_back_whole():
    with Server(*POOL) as server:
        for worker in server.workers():
            assert_capacity_is_whole(server, worker)
        expected = answer(server)
        for role in ("prefill", "decode"):
            pid = worker_of(server, role)["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda: (worker_of(server, role) or {"pid": pid})["pid"] != pid,
                PATIENCE_S,
                f"the {role} worker is back",
            )
            wait_until(lambda: server.get("/health")[0] == 200, PATIENCE_S, "serving again")
            assert answer(server) == expected
        full = "all blocks have memory"
        wait_until(lambda: all(is_full(worker) for worker in server.workers()), FULL_S, full)
        for worker in server.workers():
            assert_capacity_is_whole(server, worker)
        assert answer(server) == expected
