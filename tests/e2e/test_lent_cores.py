"""A worker that is handed something else than its server's core budget: it says what is wrong in
one line, and computes with the threads of its own."""

import os
import subprocess
import threading

import pytest

from baton_server import BIN, MODEL


def not_memory():
    return os.open("/dev/null", os.O_RDWR)


def not_sealed():
    return os.memfd_create("cores", os.MFD_ALLOW_SEALING)


@pytest.mark.parametrize(
    ("make", "value", "said"),
    [
        (not_memory, "{} 0", "core budget: descriptor {} is no memory file"),
        (not_sealed, "{} 0", "core budget: the memory file has seals"),
        (not_memory, "cores", "BATON_CORES_FD=cores is no descriptor and member"),
    ],
)
def test_a_budget_that_is_none_is_named_and_the_worker_goes_on(make, value, said):
    fd = make()
    args = [BIN, "decode", "--router", "127.0.0.1:1", "--model", MODEL, "--threads", "1"]
    try:
        with subprocess.Popen(
            args,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[fd],
            env={**os.environ, "BATON_CORES_FD": value.format(fd)},
        ) as worker:
            limit = threading.Timer(180, worker.kill)  # then its lines end
            limit.start()
            lines = []
            try:
                for line in worker.stderr:
                    lines.append(line)
                    # Later than the budget: it computes, and looks for its router.
                    if "127.0.0.1:1" in line:
                        break
            finally:
                limit.cancel()
                worker.kill()
    finally:
        os.close(fd)
    named = [line for line in lines if "lends no cores" in line]
    assert len(named) == 1, lines
    assert said.format(fd) in named[0]
    assert "127.0.0.1:1" in lines[-1], lines
