"""A cluster whose processes a test starts, kills and starts again itself, one by one.

`serve` gives its workers free ports and restarts them when it likes; here each worker keeps its
ports over its lives, and a fault proxy can stand before the KV port of each decode worker.
"""

import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc

from baton_server import (
    BIN,
    MODEL,
    PATIENCE_S,
    START_LIMIT_S,
    Server,
    free_port,
    http_json,
    pool_flags,
    wait_until,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from kv_fault_proxy import Faults, KvFaultProxy  # noqa: E402

# Decode workers say that they listen on the second address, where their proxy does.
REAL_HOST = "127.0.0.1"
TOLD_HOST = "127.0.0.2"


class Role:
    """One process: its command line, and what it reported about its present life."""

    def __init__(self, name, role, args):
        self.name, self.role, self.args = name, role, args
        self.process = None
        self.report = None
        self.num_lives = 0


def keep_port(role, flag, key):
    """The next life of the process listens where this one does; KV over shm or IPC has no port."""
    if ":" not in role.report[key]:
        return
    place = role.args.index(flag) + 1
    host = role.args[place].rsplit(":", 1)[0]
    role.args[place] = f"{host}:{role.report[key].rsplit(':', 1)[1]}"


def leave_port(role, flag):
    """The next life of the process listens wherever there is a port; keep_port's reverse."""
    place = role.args.index(flag) + 1
    role.args[place] = role.args[place].rsplit(":", 1)[0] + ":0"


class RolesCluster(Server):
    """Router, prefill workers and decode workers as processes of their own."""

    def __init__(
        self,
        prefill=1,
        decode=1,
        worker_args=(),
        proxied=False,
        binaries=None,
        unpaired=(),
        model=MODEL,
        role_args=None,
    ):
        """`binaries`: {role or process: path} of those that run another build than BATON_BIN;
        `role_args`: {role: arguments} beside `worker_args`;
        `unpaired`: decode workers that no prefill worker will be connected to; None: whoever is."""
        self.binaries = binaries or {}
        self.model = model
        self.role_args = role_args or {}
        worker_args = [*pool_flags(model, worker_args), *worker_args]
        self.unpaired = None if unpaired is None else set(unpaired)
        self.dir = tempfile.mkdtemp(prefix="baton_roles_")
        self.roles, self.proxies = {}, {}
        self.secret = os.path.join(self.dir, "secret")
        Path(self.secret).write_text(secrets.token_hex(32))
        try:
            self._start_all(prefill, decode, worker_args, proxied)
        except BaseException:
            text = self.output()
            self.stop(signal.SIGKILL)
            print(text)
            raise

    def _start_all(self, prefill, decode, worker_args, proxied):
        anywhere = "127.0.0.1:0"
        own = self.role_args.get("router", ())
        self._add("router-0", "router", ["--grpc", anywhere, "--http", anywhere, *own])
        self.start("router-0")
        router = self.roles["router-0"].report
        # The router keeps its ports, so that workers and clients find it again.
        self.roles["router-0"].args = ["--grpc", router["grpc"], "--http", router["http"]]
        self.roles["router-0"].args += ["--admin", router["admin"], *self._secret_args()]
        self.roles["router-0"].args += own
        for i in range(decode):
            self._add_worker(f"decode-{i}", "decode", worker_args, proxied)
        for i in range(prefill):
            self._add_worker(f"prefill-{i}", "prefill", worker_args, False)
        for name in self.roles:
            if name != "router-0":
                self.start(name, wait=False)
        for name, role in self.roles.items():
            self.read_report(name)
            if name != "router-0":
                keep_port(role, "--listen", "grpc")
                keep_port(role, "--kv-listen", "kv")
        self.router = self.topology()[0]
        self.http = "http://" + router["http"]
        self.grpc = router["grpc"]
        self.channel = grpc.insecure_channel(self.grpc)
        wait_until(self.is_whole, START_LIMIT_S, "every worker is ready and every pair linked")

    def _secret_args(self):
        return ["--cluster-secret-file", self.secret]

    def _add(self, name, role, args):
        self.roles[name] = Role(name, role, [*args, *self._secret_args()])
        if role == "router":
            self.roles[name].args += ["--admin", "127.0.0.1:0"]

    def _add_worker(self, name, role, worker_args, proxied):
        host = TOLD_HOST if proxied else REAL_HOST
        # Known beforehand only where a proxy needs it.
        kv_port = free_port(REAL_HOST, TOLD_HOST) if proxied else 0
        args = ["--router", self.roles["router-0"].report["grpc"], "--worker-id", name]
        args += ["--model", self.model, "--threads", "1", "--listen", f"{host}:0"]
        args += ["--kv-listen", f"{REAL_HOST}:{kv_port}", "--admin", f"{host}:0"]
        if proxied:
            args += ["--advertise", TOLD_HOST]
            self.proxies[name] = KvFaultProxy(
                (TOLD_HOST, kv_port), (REAL_HOST, kv_port), Faults(seed=len(self.proxies) + 1)
            )
        self._add(name, role, [*args, *worker_args, *self.role_args.get(role, ())])

    def _binary(self, role):
        return self.binaries.get(role.name, self.binaries.get(role.role, BIN))

    def start(self, name, wait=True):
        """Starts one process; with `wait` until it has reported its addresses."""
        role = self.roles[name]
        read_fd, write_fd = os.pipe()
        with open(os.path.join(self.dir, f"{name}.log"), "ab") as log:
            role.process = subprocess.Popen(
                [self._binary(role), role.role, *role.args],
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[write_fd],
                env={**os.environ, "BATON_REPORT_FD": str(write_fd)},
            )
        os.close(write_fd)
        role.report_fd = read_fd
        role.report = None
        role.num_lives += 1
        if wait:
            self.read_report(name)

    def read_report(self, name):
        role = self.roles[name]
        if role.report is not None:
            return role.report
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([role.report_fd], [], [], START_LIMIT_S)
            piece = os.read(role.report_fd, 65536) if ready else b""
            assert piece, f"{name} reported nothing: {self.output()}"
            text += piece
        os.close(role.report_fd)
        role.report = json.loads(text)
        return role.report

    def kill(self, name, how=signal.SIGKILL):
        """Ends one process and gives its exit code; -9 after SIGKILL."""
        process = self.roles[name].process
        process.send_signal(how)
        return process.wait(90)

    def topology(self):
        rows = []
        for name, role in self.roles.items():
            if role.report is None or role.process.poll() is not None:
                continue
            rows.append({**role.report, "pid": role.process.pid, "worker_id": name})
        return rows

    def is_whole(self):
        """Every process that was started serves, and every pair has its data connection."""
        try:
            _, _, seen = http_json(f"http://{self.roles['router-0'].report['http']}/v1/topology")
        except OSError:
            return False
        expected = {row["worker_id"]: row["incarnation"] for row in self.topology()}
        return is_whole(seen, expected, self.unpaired)

    def output(self):
        return "\n".join(
            f"== {path.name}\n" + path.read_text(errors="replace")[-3000:]
            for path in sorted(Path(self.dir).glob("*.log"))
        )

    def stop(self, how=signal.SIGINT, limit_s=PATIENCE_S):
        processes = [r.process for r in self.roles.values() if r.process is not None]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(how)
        for process in processes:
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for proxy in self.proxies.values():
            proxy.stop()

    def __exit__(self, *exc):
        self.channel.close()
        self.stop()
        if exc[0] is not None:
            print(self.output())


def is_whole(topology, expected, unpaired=frozenset()):
    """True when /v1/topology shows exactly these {worker_id: incarnation}, ready and linked, but
    for the decode workers in `unpaired`; with None links do not matter."""
    rows = {row["worker_id"]: row for row in topology["processes"]}
    if {name: row["incarnation"] for name, row in rows.items()} != expected:
        return False
    if not all(row["ready"] for row in rows.values()):
        return False
    if unpaired is None:
        return True
    decode = {name for name, row in rows.items() if row["role"] == "decode"} - unpaired
    return all(
        {link["to"] for link in row["links"] if link["up"]} == decode
        for row in rows.values()
        if row["role"] == "prefill"
    )
