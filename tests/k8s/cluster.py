"""One release of the chart in a Lab: what its pods are, and load on it, its answers checked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kube_lab import wait_until

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "benchmarks"))
from machine import quantile  # noqa: E402

CHART = SOURCE / "deploy/helm/baton"
RELEASE = "demo"
NAME = "demo-baton"
ROLES = ("router", "prefill", "decode")
PROMPTS = (
    "The capital of France is",
    "Water boils when",
    "Name three colours of the rainbow:",
    "In a far away country there lived",
    "The opposite of hot is",
    "def add(a, b):",
    "Once upon a time a fox met a crow who",
    "The first ten prime numbers are",
)
USERS = 4
QUIET_S = 3  # of load before an event, so that streams run when it comes


class Load:
    """`baton bench` from a node's network until told to stop; every second prompt has a known
    answer, all others a known number of tokens."""

    def __init__(self, lab, binary, url, golden):
        self.report = lab.folder / "load.json"
        self.report.unlink(missing_ok=True)
        with open(lab.folder / "load.log", "ab") as log:
            self.process = subprocess.Popen(
                lab.in_node(0, binary, "bench", url, "--api", "completions", "--users", USERS,
                            "--input", "uniform:24:160", "--output", "uniform:16:64",
                            "--golden", golden, "--golden-every", 2, "--duration", "1800s",
                            "--json", self.report),
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def finish(self):
        """Ends it and gives {requests, failed, wrong, stall_p99_ms, stall_max_ms, first_error}."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)  # 1 only says that the numbers are no benchmark
        result = json.loads(self.report.read_text(encoding="utf-8"))["runs"][0]
        done = [r for r in result["requests"] if r["outcome"] != "unfinished"]
        failed = [r for r in done if r["outcome"] != "ok"]
        short = [
            r for r in done
            if r["outcome"] == "ok" and "golden" not in r
            and r.get("completion_tokens") != r["want_output"]
        ]  # fmt: skip
        wrong = [r for r in done if r.get("golden_wrong")]
        stalls = [max(r["gaps_us"]) / 1000 for r in done if r.get("gaps_us")]
        return {
            "requests": len(done),
            "golden": sum("golden" in r and r["outcome"] == "ok" for r in done),
            "failed": len(failed),
            "wrong": len(wrong) + len(short),
            "stall_p99_ms": round(quantile(stalls, 0.99), 1),
            "stall_max_ms": round(max(stalls, default=0), 1),
            "first_error": next((r.get("error") or r["outcome"] for r in failed + wrong), ""),
        }


class Cluster:
    """See the file comment."""

    def __init__(self, lab, binary, values):
        self.lab, self.binary = lab, binary
        self.values = lab.folder / "values.json"
        self.values.write_text(json.dumps(values))
        self.golden = lab.folder / "golden.jsonl"

    def helm_up(self, *args, wait=True):
        """Installs or upgrades with this cluster's values."""
        if wait:
            args = ("--wait", "--timeout", "240s", *args)
        return self.lab.helm("upgrade", "--install", RELEASE, CHART, "-f", self.values, *args)

    def url(self):
        service = self.lab.get("service", NAME)
        return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"

    def pods(self, role=None):
        """Pods of the release that are not on their way out."""
        roles = role or ",".join(ROLES)  # not the pod of `helm test`
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component in ({roles})"
        items = self.lab.get("pods", "-l", selector)["items"]
        return [p for p in items if "deletionTimestamp" not in p["metadata"]]

    def workload(self, role):
        return f"statefulset/{NAME}-router" if role == "router" else f"deployment/{NAME}-{role}"

    def wait_rolled_out(self, *roles, timeout=300):
        for role in roles or ROLES:
            self.lab.kubectl("rollout", "status", self.workload(role), f"--timeout={timeout}s",
                             timeout=timeout + 30)  # fmt: skip

    def wait_whole(self, limit_s=240):
        """Every workload has the pods that it wants, all ready."""
        self.wait_rolled_out(timeout=limit_s)
        wait_until(lambda: all(is_ready(p) for p in self.pods()), limit_s, "all pods are ready")

    def record_golden(self):
        """Asks a quiet cluster for the answers that all later ones are held against."""
        prompts = self.lab.folder / "prompts.txt"
        prompts.write_text("\n".join(PROMPTS) + "\n")
        script = SOURCE / "src/loadgen/record_golden.py"
        command = self.lab.in_node(0, sys.executable, script, self.url(), prompts, self.golden,
                                   "--api", "completions", "--max-tokens", 32)  # fmt: skip
        subprocess.run(command, check=True, timeout=300)

    def ask(self, prompt, max_tokens=8, base=None):
        """One answer, as parsed JSON; from the Service, or from `base`."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        code = (
            "import sys,urllib.request as u;"
            "r=u.Request(sys.argv[1],sys.argv[2].encode(),{'Content-Type':'application/json'});"
            "print(u.urlopen(r,timeout=60).read().decode())"
        )
        url = (base or self.url()) + "/v1/completions"
        command = self.lab.in_node(0, sys.executable, "-c", code, url, json.dumps(body))
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.splitlines()[-1])
        return json.loads(done.stdout)

    def under_load(self, event):
        """Runs `event()` while requests come, until QUIET_S after it; the load's row."""
        load = Load(self.lab, self.binary, self.url(), self.golden)
        try:
            time.sleep(QUIET_S)
            start = time.monotonic()
            notes = event()
            seconds = time.monotonic() - start
            time.sleep(QUIET_S)
            row = load.finish()
        finally:
            if load.process.poll() is None:
                load.process.kill()
                load.process.wait()
        return {**row, "seconds": round(seconds, 1), **(notes or {})}

    def host_pid(self, pod):
        """Process of the pod's one container, on this machine."""
        node = int(pod["spec"]["nodeName"].removeprefix("node"))
        return self.lab.host_pid(node, pod["status"]["containerStatuses"][0]["containerID"])

    def metric(self, pod, line_start):
        """The value of the first line of the pod's /metrics that begins so; None without."""
        port = next(
            p["containerPort"]
            for p in pod["spec"]["containers"][0]["ports"]
            if p["name"] == "admin"
        )
        code = "import sys,urllib.request as u;print(u.urlopen(sys.argv[1]).read().decode())"
        url = f"http://{pod['status']['podIP']}:{port}/metrics"
        command = self.lab.in_node(0, sys.executable, "-c", code, url)
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        lines = [line for line in done.stdout.splitlines() if line.startswith(line_start)]
        return float(lines[0].rsplit(" ", 1)[1]) if lines else None


def is_ready(pod):
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def restarts(pod):
    return pod["status"]["containerStatuses"][0]["restartCount"]


def kill_container(cluster, pod):
    """SIGKILL to the pod's process; waits until kubelet has started it again and it is ready."""
    before = restarts(pod)
    os.kill(cluster.host_pid(pod), signal.SIGKILL)

    def is_back():
        now = cluster.lab.get("pod", pod["metadata"]["name"])
        return restarts(now) > before and is_ready(now)

    wait_until(is_back, 120, f"{pod['metadata']['name']} is ready again")
