"""A decode worker that is given a descriptor by its environment and finds no router."""

import os
import subprocess
import threading

from baton_server import BIN, MODEL, START_LIMIT_S, pool_flags

ROUTER = "127.0.0.1:1"  # nobody listens there


def not_memory():
    return os.open("/dev/null", os.O_RDWR)


def lines_with(fd, variable, value):
    """The log lines of a worker that inherits `fd` and has `variable` set to `value`. They end at
    the line that names its router: by then it computes. Closes `fd`."""
    args = [BIN, "decode", "--router", ROUTER, "--model", MODEL, "--threads", "1"]
    args += pool_flags(MODEL)
    lines = []
    try:
        with subprocess.Popen(
            args,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[fd],
            env={**os.environ, variable: value},
        ) as worker:
            limit = threading.Timer(START_LIMIT_S, worker.kill)  # then its lines end
            limit.start()
            try:
                for line in worker.stderr:
                    lines.append(line)
                    if ROUTER in line:
                        break
            finally:
                limit.cancel()
                worker.kill()
    finally:
        os.close(fd)
    assert ROUTER in lines[-1], lines
    return lines
