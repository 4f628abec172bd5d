"""A control group with a memory limit, of cgroup v1 or v2: the kernel kills who exceeds it."""

import os
import re
import signal
import tempfile
from pathlib import Path

from baton_server import wait_until

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


class MemoryGroup:
    """Memory that its processes touch after they were added may be at most `limit_bytes`."""

    def __init__(self, limit_bytes):
        self.is_v2 = (V2 / "cgroup.controllers").exists()
        self.path = Path(tempfile.mkdtemp(prefix="baton_test_", dir=V2 if self.is_v2 else V1))
        limit = "memory.max" if self.is_v2 else "memory.limit_in_bytes"
        (self.path / limit).write_text(str(limit_bytes))
        swap = self.path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    @staticmethod
    def why_not():
        """Why there can be no such group here; None when there can."""
        if os.geteuid() != 0:
            return "needs root"
        try:
            with MemoryGroup(1 << 30):
                return None
        except OSError as error:
            return f"no group with a memory limit can be made: {error}"

    def add(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self):
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def num_killed(self):
        """Processes that the kernel killed for the limit's sake."""
        events = self.path / ("memory.events" if self.is_v2 else "memory.oom_control")
        return int(re.search(r"^oom_kill (\d+)$", events.read_text(), re.M).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        # Processes that a failed test left in the group would keep it, and would hide why the test
        # failed.
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.pids(), 10, "the group's processes have ended")
        self.path.rmdir()
