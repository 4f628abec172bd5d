"""Workers of one server pack their model's weights together, keep them once, and one that starts
again finds them; what cannot be shared is said, and every worker packs its own."""

import os
import re
import signal

import pytest

from baton_server import MODEL, START_LIMIT_S, Server, wait_until
from lone_worker import lines_with, not_memory

PROMPT = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
LINE = re.compile(r"packed (\d+) of (\d+) matrices in [\d.]+ s, in (\S+ \S+) that the workers")


def packed_lines(server, worker):
    """(packed by that life, of all, memory) of each life of a worker, by its log."""
    with open(os.path.join(server.dir, f"{worker}.log"), errors="replace") as log:
        return [(int(a), int(b), size) for a, b, size in LINE.findall(log.read())]


def weight_maps(worker):
    """The mappings of packed weights of a worker: {(inode, access)}."""
    with open(f"/proc/{worker['pid']}/maps") as maps:
        rows = [line.split() for line in maps if "memfd:baton-weights" in line]
    return {(row[4], row[1]) for row in rows}


def answer(server):
    status, _, body = server.post("/v1/completions", PROMPT)
    assert status == 200, body
    return body["choices"][0]["text"]


@pytest.fixture(scope="module")
def shared():
    # "on": a machine without huge pages for shared memory shares small ones.
    with Server("--prefill", "2", "--decode", "2", "--share-weights", "on") as server:
        yield server


def test_all_workers_of_a_model_map_one_copy_that_they_packed_together(shared):
    lines = [packed_lines(shared, w["worker_id"]) for w in shared.workers()]
    assert all(len(lives) == 1 for lives in lines), lines
    ((total, size),) = {(lives[0][1], lives[0][2]) for lives in lines}
    assert sum(lives[0][0] for lives in lines) == total
    maps = [weight_maps(w) for w in shared.workers()]
    assert len(maps) == 4 and len(set.union(*maps)) == 1, maps
    ((_, access),) = maps[0]
    assert access.startswith("r--s"), "nobody writes after the start"
    assert size.endswith("MiB")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_starts_again_finds_the_weights(shared, role):
    before = answer(shared)
    worker = next(w for w in shared.workers() if w["role"] == role)
    (inode,) = weight_maps(worker)
    os.kill(worker["pid"], signal.SIGKILL)

    def next_life():
        rows = [w for w in shared.workers() if w["worker_id"] == worker["worker_id"]]
        return rows and rows[0]["pid"] != worker["pid"] and rows[0]

    again = wait_until(next_life, START_LIMIT_S, "the worker serves again")
    packed, total, _ = packed_lines(shared, worker["worker_id"])[-1]
    assert packed == 0 and total > 0
    assert weight_maps(again) == {inode}
    assert answer(shared) == before


def test_each_worker_has_a_copy_of_its_own_where_that_is_asked(shared):
    with Server("--share-weights", "off") as server:
        assert all(not weight_maps(w) for w in server.workers())
        assert all(not packed_lines(server, w["worker_id"]) for w in server.workers())
        assert answer(server) == answer(shared)


def test_each_model_has_memory_of_its_own(shared):
    small = ("--max-context", "512", "--kv-memory", "64MiB")
    with Server("gemma3:270m", "--share-weights", "on", *small) as server:
        of_model = {}
        for worker in server.workers():
            (inode,) = weight_maps(worker)
            of_model.setdefault(worker["model"], set()).add(inode)
        assert len(of_model) == 2 and all(len(inodes) == 1 for inodes in of_model.values())
        assert len(set.union(*of_model.values())) == 2
        _, _, body = server.post("/v1/completions", {**PROMPT, "model": MODEL})
        assert body["choices"][0]["text"] == answer(shared)


def no_slots():
    return os.memfd_create("weights", os.MFD_ALLOW_SEALING)


@pytest.mark.parametrize(
    ("make", "value", "said"),
    [
        (not_memory, "{} any", "not shared: descriptor {} is no memory file"),
        (no_slots, "{} any", "not shared: the memory file has 0 bytes"),
        (not_memory, "{} tiny", "BATON_WEIGHTS_FD={} tiny is no descriptor and kind of pages"),
        (not_memory, "weights", "BATON_WEIGHTS_FD=weights is no descriptor and kind of pages"),
    ],
)
def test_memory_that_holds_no_weights_is_named_and_the_worker_goes_on(make, value, said):
    fd = make()
    lines = lines_with(fd, "BATON_WEIGHTS_FD", value.format(fd))
    named = [line for line in lines if said.format(fd) in line]
    assert len(named) == 1, lines
