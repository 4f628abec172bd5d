"""The proof on a real Kubernetes: installs the chart's profile cpu-demo on two nodes and, under
load, does to it what a cluster does. Prints a row for each event; every second answer is compared
with that of the quiet cluster, every other one with the number of tokens that was asked for.

  scripts/test_full.sh k8s            (or: tests/k8s/prove.py [EVENT ...] [--json FILE] [--list])

Exit 1 when a planned change failed or falsified a request, or an event did not end as it must; 77
with the reason where there can be no cluster. Needs root and the programs of tests/k8s/tools.sh.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

import cluster as cluster_module
from cluster import CHART, RELEASE, ROLES, Cluster, is_ready, kill_container
from kube_lab import Lab, wait_until, why_not
from value_sets import ACCEPTED, BASE, PROFILES, merged

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "benchmarks"))
sys.path.insert(0, str(SOURCE / "deploy/container"))
from machine import record  # noqa: E402
from oci_archive import tar_of_folder, write_archive  # noqa: E402

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
IMAGE = "localhost/baton"
SKIPPED = 77


class Proof:
    """The events; each returns a row of numbers or None."""

    def __init__(self, lab, args):
        self.lab, self.args = lab, args
        self.binary = os.environ.get("BATON_BIN", str(SOURCE / "build/baton"))
        home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache/baton"))
        self.models = lab.folder / "models"
        self.models.mkdir()
        (self.models / MODEL).write_bytes((home / "models" / MODEL).read_bytes())
        profile = yaml.safe_load((CHART / "profiles/cpu-demo.yaml").read_text(encoding="utf-8"))
        values = merged(
            profile,
            {
                "image": {"tag": "one", "pullPolicy": "Never"},
                "model": {"hostPath": {"folder": str(self.models)}},
            },
        )
        self.values = values
        self.cluster = Cluster(lab, self.binary, values)

    # ---- Before load.

    def images(self):
        """Two builds of the image and one whose process never serves, on both nodes."""
        static = SOURCE / "build/release/baton-static"
        sizes = {}
        for tag, epoch in (("one", "1"), ("two", "2")):
            archive = self.lab.folder / f"{tag}.tar"
            command = [sys.executable, "-B", SOURCE / "deploy/container/build_image.py"]
            command += ["--binary", static, "--out", archive, "--name", f"{IMAGE}:{tag}"]
            environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
            sizes = json.loads(subprocess.check_output(command, text=True, env=environment))
            self.lab.import_image(archive)
        with tempfile.TemporaryDirectory() as root:
            pause = (self.lab.folder / "pause_root/pause").read_bytes()
            (Path(root) / "baton").write_bytes(pause)
            (Path(root) / "baton").chmod(0o755)
            bad = self.lab.folder / "bad.tar"
            layer = tar_of_folder(root, 0)
            write_archive(bad, f"{IMAGE}:bad", [layer], {"Entrypoint": ["/baton"]}, 0)
        self.lab.import_image(bad)
        return {k: sizes[k] for k in ("archive_bytes", "binary_bytes", "sbom_packages")}

    def dry_run(self):
        """The real API server judges what each value set renders (server-side dry run)."""
        self.lab.kubectl("create", "namespace", "judge")
        accepted = 0
        sets = {name: None for name in PROFILES} | {n: merged(BASE, v) for n, v in ACCEPTED.items()}
        for name, values in sets.items():
            file = CHART / f"profiles/{name}.yaml"
            if values is not None:
                file = self.lab.folder / "set.json"
                file.write_text(json.dumps(values))
            text = self.lab.helm("template", "judged", CHART, "--namespace", "judge", "-f", file)
            self._make_accounts(text, "judge")
            self.lab.kubectl("apply", "--dry-run=server", "-n", "judge", "-f", "-", stdin=text)
            accepted += 1
        return {"accepted": accepted}

    def _make_accounts(self, text, namespace):
        """The service accounts of bare pods (that of `helm test`), which the server looks up."""
        for item in yaml.safe_load_all(text):
            if item and item["kind"] == "Pod":
                name = item["spec"].get("serviceAccountName", "default")
                self.lab.kubectl("create", "serviceaccount", name, "-n", namespace, check=False)

    def missing_secret(self):
        """A Secret that is named and not there is said at once, not by pods that hang."""
        done = self.lab.helm(
            "install", "nosecret", CHART, "-f", self.cluster.values, "--set",
            "clusterSecret.existingSecret=absent", check=False,
        )  # fmt: skip
        assert done.returncode != 0 and 'there is no Secret "absent"' in done.stderr, done.stderr
        return {}

    def install(self):
        """helm install, helm test; both roles on both nodes; how the processes are confined."""
        start = time.monotonic()
        notes = self.cluster.helm_up().split("NOTES:", 1)[1]
        seconds = time.monotonic() - start
        for command in ("rollout status", f"helm test {RELEASE}", "port-forward"):
            assert command in notes, notes
        tested = self.lab.helm("test", RELEASE, "--logs")
        assert "Phase:          Succeeded" in tested, tested
        for role in ROLES:
            nodes = {p["spec"]["nodeName"] for p in self.cluster.pods(role)}
            assert nodes == {"node0", "node1"}, f"{role} on {nodes}"
        for pod in self.cluster.pods():
            self._check_confined(pod)
        self.cluster.record_golden()
        return {"seconds": round(seconds, 1)}

    def _check_confined(self, pod):
        proc = Path(f"/proc/{self.cluster.host_pid(pod)}")
        status = (proc / "status").read_text(encoding="utf-8")
        field = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert field["Uid"].split() == ["65532"] * 4, field["Uid"]
        assert field["CapEff"] == field["CapBnd"] == "0" * 16 and field["NoNewPrivs"] == "1"
        mounts = (proc / "mountinfo").read_text(encoding="utf-8").splitlines()
        root = [m.split() for m in mounts if m.split()[4] == "/"][-1]
        assert "ro" in root[5].split(","), root

    # ---- Planned.

    def quiet(self):
        return self.cluster.under_load(lambda: time.sleep(10))

    def rolling_update(self, role):
        def event():
            self.lab.kubectl("rollout", "restart", self.cluster.workload(role))
            self.cluster.wait_rolled_out(role)

        return self.cluster.under_load(event)

    def new_image(self):
        """All workloads to another image at once: old and new processes serve together."""
        return self.cluster.under_load(
            lambda: self.cluster.helm_up("--set", "image.tag=two")
            and self.cluster.wait_rolled_out()
        )

    def rollback(self):
        return self.cluster.under_load(
            lambda: self.lab.helm("rollback", RELEASE, "--wait") and self.cluster.wait_rolled_out()
        )

    def delete_pod(self, role):
        def event():
            pod = self.cluster.pods(role)[0]["metadata"]
            self.lab.kubectl("delete", "pod", pod["name"])
            self.cluster.wait_whole()

        return self.cluster.under_load(event)

    def drain_node(self):
        """`kubectl drain`, which asks the disruption budgets; all pods move to the other node."""

        def event():
            self.lab.kubectl("drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data",
                             "--timeout=240s")  # fmt: skip
            self.cluster.wait_whole()

        try:
            row = self.cluster.under_load(event)
            assert all(p["spec"]["nodeName"] == "node0" for p in self.cluster.pods())
        finally:
            self.lab.kubectl("uncordon", "node1")
            # Back on both nodes for the events that follow.
            self.lab.kubectl("rollout", "restart", *map(self.cluster.workload, ROLES))
            self.cluster.wait_whole()
        return row

    def scale_decode(self):
        def event():
            for replicas in (3, 1, 2):
                self.lab.kubectl("scale", self.cluster.workload("decode"), f"--replicas={replicas}")
                self.cluster.wait_whole()
                wait_until(lambda n=replicas: len(self.cluster.pods("decode")) == n, 120, "scaled")

        return self.cluster.under_load(event)

    def bad_image(self):
        """A revision that never serves takes no traffic and removes nobody who does."""
        decode = self.cluster.workload("decode")

        def event():
            self.lab.kubectl("set", "image", decode, f"decode={IMAGE}:bad")
            done = self.lab.kubectl("rollout", "status", decode, "--timeout=15s", check=False)
            assert done.returncode != 0, "a revision that never serves was taken for good"
            ready = [p for p in self.cluster.pods("decode") if is_ready(p)]
            assert len(ready) == 2, f"{len(ready)} of the old decode workers are left"
            self.lab.kubectl("rollout", "undo", decode)
            self.cluster.wait_whole()

        return self.cluster.under_load(event)

    def rotate_secret(self):
        """Another cluster secret: old and new workers do not pair, each half serves by itself."""
        return self.cluster.under_load(
            lambda: self.cluster.helm_up("--set", "clusterSecret.generation=2")
            and self.cluster.wait_rolled_out()
        )

    # ---- Unplanned.

    def kill_process(self, role):
        return self.cluster.under_load(
            lambda: kill_container(self.cluster, self.cluster.pods(role)[0])
        )

    def out_of_memory(self):
        """The kernel kills a decode worker that reaches its limit."""

        def event():
            pod = self.cluster.pods("decode")[0]
            pid, before = self.cluster.host_pid(pod), cluster_module.restarts(pod)
            group = memory_group(pid)
            used = int((group / "memory.usage_in_bytes").read_text())
            (group / "memory.limit_in_bytes").write_text(str(used + (1 << 20)))
            # Another process in the container's group takes what is left of the limit.
            eater = subprocess.Popen([sys.executable, "-c", EATER, str(group), str(pid)])
            name = pod["metadata"]["name"]

            def is_back():
                now = self.lab.get("pod", name)
                return cluster_module.restarts(now) > before and is_ready(now)

            try:
                wait_until(is_back, 120, f"{name} was killed for its memory and is ready again")
            finally:
                eater.kill()
                eater.wait()
            last = self.lab.get("pod", name)["status"]["containerStatuses"][0]["lastState"]
            return {"reason": last["terminated"]["reason"]}

        return self.cluster.under_load(event)

    def kubelet_stopped(self):
        """A node whose kubelet is gone: its pods leave the Service, their streams go on."""

        def event():
            self.lab.stop_part("kubelet1")
            wait_until(lambda: not self.lab.node_ready(1), 60, "node1 is NotReady")
            time.sleep(5)
            self.lab.start_kubelet(1)
            wait_until(lambda: self.lab.node_ready(1), 60, "node1 is Ready")
            self.cluster.wait_whole()

        return self.cluster.under_load(event)

    # ---- Without load.

    def readiness(self):
        """A worker that says that it is ready answers the very next request. Worker after worker is
        killed with its pod, and as soon as the new one is ready one request goes through it alone.
        The request goes to a router itself, because the Service's rules may be late."""
        self.lab.kubectl("scale", self.cluster.workload("prefill"), "--replicas=1")
        self.lab.kubectl("scale", self.cluster.workload("decode"), "--replicas=1")
        wait_until(lambda: len(self.cluster.pods()) == 4, 120, "one worker of each role")
        self.cluster.wait_whole()
        failed, start = 0, time.monotonic()
        for number in range(self.args.restarts):
            role = ("decode", "prefill")[number % 2]
            name = self.cluster.pods(role)[0]["metadata"]["name"]
            self.lab.kubectl("delete", "pod", name, "--force", "--grace-period=0")
            wait_until(lambda: all(is_ready(p) for p in self.cluster.pods()), 90, "all ready")
            router = self.cluster.pods("router")[number % 2]["status"]["podIP"]
            try:
                self.cluster.ask(f"Restart {number}:", 2, f"http://{router}:8080")
            except RuntimeError as error:
                failed += 1
                print(f"  restart {number} ({role}): {error}", flush=True)
        seconds = round(time.monotonic() - start, 1)
        for role in ("prefill", "decode"):
            self.lab.kubectl("scale", self.cluster.workload(role), "--replicas=2")
        self.cluster.wait_whole()
        assert failed == 0, f"{failed} of {self.args.restarts} first requests failed"
        return {"requests": self.args.restarts, "failed": failed, "wrong": 0, "seconds": seconds}

    def host_network(self):
        """Workers in their nodes' networks: KV over shm within a node, over tcp between nodes."""
        self.lab.helm("uninstall", RELEASE, "--wait")
        near = Cluster(
            self.lab, self.binary,
            merged(self.values, {
                "worker": {"hostNetwork": True, "prefixCache": False},
                "prefill": {"update": {"maxSurge": 0, "maxUnavailable": 1}},
                "decode": {"update": {"maxSurge": 0, "maxUnavailable": 1}},
            }),
        )  # fmt: skip
        near.helm_up()
        node_of = {p["metadata"]["name"]: p["spec"]["nodeName"] for p in near.pods()}
        seen = {}
        for number in range(24):
            timings = near.ask(f"Story {number} begins with", 4)["timings"]
            assert timings["path"] == "disagg", timings
            same = node_of[timings["prefill_worker"]] == node_of[timings["decode_worker"]]
            assert timings["transport"] == ("shm" if same else "tcp"), timings
            seen[timings["transport"]] = seen.get(timings["transport"], 0) + 1
        return {"requests": 24, "failed": 0, "wrong": 0, **seen}


# Joins the group and takes memory until the kernel kills somebody of it, which is not itself.
EATER = """
import sys, time
open('/proc/self/oom_score_adj', 'w').write('0')
open('/proc/' + sys.argv[2] + '/oom_score_adj', 'w').write('1000')
open(sys.argv[1] + '/cgroup.procs', 'w').write('0')
held = []
for _ in range(64):
    held.append(bytearray(1 << 20))
    time.sleep(0.05)
time.sleep(60)
"""


def memory_group(pid):
    """The control group (v1) that limits a process's memory."""
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    raise LookupError(f"process {pid} is in no memory group of version 1")


def events(proof):
    """name -> (is it planned?, function); in the order in which they run."""
    planned = {
        "quiet": proof.quiet,
        **{f"rolling update of {r}": lambda r=r: proof.rolling_update(r) for r in ROLES},
        "new image, all workloads": proof.new_image,
        "helm rollback": proof.rollback,
        **{f"delete a {r} pod": lambda r=r: proof.delete_pod(r) for r in ROLES},
        "kubectl drain": proof.drain_node,
        "scale decode 2 to 3 to 1 to 2": proof.scale_decode,
        "image that never serves": proof.bad_image,
        "secret rotation": proof.rotate_secret,
    }
    unplanned = {
        "kill -9 prefill": lambda: proof.kill_process("prefill"),
        "kill -9 decode": lambda: proof.kill_process("decode"),
        "kill -9 router": lambda: proof.kill_process("router"),
        "decode out of memory": proof.out_of_memory,
        "kubelet stopped": proof.kubelet_stopped,
    }
    after = {
        "restarts, first request": proof.readiness,
        "host network": proof.host_network,
    }
    return (
        {name: (True, one) for name, one in planned.items()}
        | {name: (False, one) for name, one in unplanned.items()}
        | {name: (True, one) for name, one in after.items()}
    )


def table(rows):
    text = "| event | planned | requests | failed | wrong | stall p99 | longest | seconds |\n"
    text += "|---|---|---:|---:|---:|---:|---:|---:|\n"
    for row in rows:
        stalls = [f"{row[k]} ms" if k in row else "" for k in ("stall_p99_ms", "stall_max_ms")]
        numbers = [str(row.get(k, "")) for k in ("requests", "failed", "wrong")]
        cells = [row["event"], "yes" if row["planned"] else "no", *numbers, *stalls]
        text += "| " + " | ".join([*cells, str(row.get("seconds", ""))]) + " |\n"
    return text


def run(lab, args):
    proof, rows, problems = Proof(lab, args), [], []
    result = record("k8s", 1)
    for name in ("images", "dry_run", "missing_secret", "install"):
        result[name] = getattr(proof, name)()
        print(f"{name}: {result[name]}", flush=True)
    for name, (planned, event) in events(proof).items():
        if args.events and name not in args.events:
            continue
        try:
            row = {"event": name, "planned": planned, **(event() or {})}
            if planned and (row.get("failed") or row.get("wrong")):
                problems.append(f"{name}: {row}")
        except (AssertionError, LookupError, OSError, RuntimeError,
                subprocess.SubprocessError) as error:  # fmt: skip
            problems.append(f"{name}: {error}")
            row = {"event": name, "planned": planned, "error": str(error)[:500]}
            print(lab.kubectl("get", "pods", "-o", "wide", check=False).stdout, flush=True)
        rows.append(row)
        print(f"{name}: {row}", flush=True)
    result["rows"] = rows
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))
    for problem in problems:
        print(f"PROBLEM {problem}")
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("events", nargs="*", help="only these; --list names them")
    parser.add_argument("--json", help="write all rows to this file")
    parser.add_argument("--restarts", type=int, default=20, help="of the event about readiness")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(events(Proof.__new__(Proof))))
        return 0
    reason = why_not()
    if reason:
        print(f"k8s: skipped, {reason}")
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Lab(2) as lab:
        try:
            return run(lab, args)
        except BaseException:
            print(lab.kubectl("get", "pods", "-A", "-o", "wide", check=False).stdout)
            print(lab.kubectl("get", "events", "-A", check=False).stdout[-4000:])
            raise


if __name__ == "__main__":
    sys.exit(main())
