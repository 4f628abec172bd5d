"""What a worker leaves for after its start: most of its KV pool's memory, whose capacity is told
from the start on, and the check of its tokenizer."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

from baton_server import BIN, PATIENCE_S, TINY, Server, metric, wait_until

POOL = ("--kv-memory", "1GiB", "--max-context", "1024")
# The thread that gives memory yields to all others: 2 GiB took 60 s beside four busy tests.
FULL_S = 10 * PATIENCE_S


def is_full(worker):
    """Every block has memory: of the worker's pool, and of the pools that it reads."""
    folder = f"/proc/{worker['pid']}/fd"
    sizes = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile; arenas stay
            if os.readlink(f"{folder}/{fd}").startswith("/memfd:baton-kv-arena"):
                sizes.append(os.stat(f"{folder}/{fd}"))
    assert sizes
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


def test_a_server_whose_tokenizer_is_broken_ends_with_the_reason(tmp_path):
    data = Path(TINY).read_bytes()
    letter = data.index("\u0102".encode(), data.index(b"tokenizer.ggml.tokens"))
    model = tmp_path / "broken.gguf"  # the token before it has the same name
    model.write_bytes(data[:letter] + "\u0101".encode() + data[letter + 2 :])
    ports = [f"--{name}=127.0.0.1:0" for name in ("http", "grpc", "admin")]
    argv = [BIN, "serve", str(model), *ports, f"--run-dir={tmp_path}/run", "--kv-memory=16MiB"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    reason = r"baton serve: (prefill|decode)-0 did not start: baton (prefill|decode): "
    reason += r"tokenizer\.ggml\.tokens\[\d+\] and \[\d+\] are both "
    assert re.search(reason, done.stderr), done.stderr
    said = [log.read_text() for log in (tmp_path / "run").glob("*.log")]
    assert not any("joins with model" in text for text in said)


def test_the_router_has_the_tokenizer_before_a_worker_brings_it():
    with Server("--log-level", "debug", model=TINY) as server:
        log = (Path(server.dir) / "router-0.log").read_text()
    assert len(re.findall(r"tokenizer [0-9a-f]{16} is there before a worker", log)) == 1, log
