"""A model file that is replaced or removed under a running server, which goes on with its own."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from baton_server import Server, wait_until

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ASKED = {
    "prompt": [1, 2, 3, 4, 5],
    "max_tokens": 8,
    "temperature": 0,
    "logprobs": 2,
    "ignore_eos": True,
}


def answer(server):
    """The first choice of an answer, or None while nobody can give one."""
    status, _, body = server.post("/v1/completions", ASKED)
    return body["choices"][0] if status == 200 else None


def kill_all_workers(server):
    """Kills every worker, and waits until all of them are there again."""
    before = {p["worker_id"]: p["pid"] for p in server.workers()}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    def are_new():
        rows = {p["worker_id"]: p["pid"] for p in server.workers()}
        return rows.keys() == before.keys() and not set(rows.values()) & set(before.values())

    wait_until(are_new, 60, "the next workers")


@pytest.mark.parametrize("how", ["replaced", "removed", "renamed"])
def test_a_worker_that_starts_again_serves_the_file_that_the_server_began_with(tmp_path, how):
    path = tmp_path / "m.gguf"
    shutil.copy(GOLDEN / "tiny_qwen2.gguf", path)
    with Server(model=str(path)) as server:
        wanted = answer(server)
        assert wanted is not None
        if how == "replaced":
            shutil.copy(GOLDEN / "tiny_qwen3.gguf", tmp_path / "other")
            os.replace(tmp_path / "other", path)
        elif how == "removed":
            path.unlink()
        else:
            path.rename(tmp_path / "older.gguf")
        kill_all_workers(server)
        again = wait_until(lambda: answer(server), 60, "an answer of the next workers")
        assert again == wanted
        assert server.get("/v1/models")[2]["data"][0]["id"] == "m"
        assert "is not the file that this server began with" in server.output()
