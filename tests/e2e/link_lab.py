"""A bad link beside good ones: what clients see of it, beside the cluster without that worker.

Two prefill and two decode workers, each in a network namespace of its own, joined by a bridge to
the router outside. The link of prefill-0 is damaged in one of four ways, and then healed. Requests
come at a steady rate, each of 7 to 10 sentences. The table says how many failed or hung and how
often one was placed again. It also gives the 99th percentiles of first token and whole answer, and
how long after its healing the link carries KV again. The first seconds, in which a router has to
find the link, are not counted (--skip).

    sudo -E build/venv/bin/python tests/e2e/link_lab.py

needs root (network namespaces, tc). A problem makes the exit code 1: something failed or hung, more
than ten resumes a hundred requests, a 99th percentile of answers above twice that of the cluster
without the worker and half a second, or a healed link without KV for 10 s.
"""

import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc

from baton_server import BIN, MODEL, START_LIMIT_S, metrics_text, wait_until
from roles_cluster import RolesCluster
from scripted_model import write_wide

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from machine import quantile  # noqa: E402
from kv_fault_proxy import Faults, KvFaultProxy  # noqa: E402  (roles_cluster adds its folder)

NET = "10.98.77"
SLOW = "tbf rate 2mbit burst 16kb latency 400ms"
HUNG_S = 30
HEALED_S = 10
SENTENCES = [
    "The harbour of the old town lies quiet in the morning.",
    "Two ships wait for the tide and a third one is being loaded.",
    "Nobody on the quay knows when the letters from the north will come.",
    "A woman counts the barrels twice and writes both numbers down.",
    "The clock of the church has been wrong for as long as anyone remembers.",
    "Children run along the wall and shout the names of the boats.",
    "In the afternoon the wind turns and smells of rain.",
    "The captain reads the same page of his book for an hour.",
    "Later there is music in the inn and the windows are open.",
    "When it is dark the light on the island answers the one on the cape.",
    "A dog follows the postman as far as the bridge and no farther.",
    "The map in the office shows a street that was never built.",
]


def why_not():
    """None, or why there can be no such lab here."""
    if os.geteuid() != 0:
        return "no root"
    for tool in ("ip", "tc"):
        if subprocess.run(["which", tool], capture_output=True).returncode != 0:
            return f"no {tool} (apt-get install iproute2)"
    tried = subprocess.run(["ip", "netns", "add", "blink-try"], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"no network namespaces: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", "blink-try"], check=True)
    return None


class LinkLab(RolesCluster):
    """Each worker in a namespace `blink-NAME` with one interface eth0."""

    def __init__(self, prefill, decode, binary=BIN, worker_args=(), model=MODEL):
        self.binary = binary
        self.garblers = []
        self.hosts = {}
        names = [f"decode-{i}" for i in range(decode)] + [f"prefill-{i}" for i in range(prefill)]
        self._net_up(names)
        binaries = dict.fromkeys(("router", "prefill", "decode"), binary)
        super().__init__(prefill, decode, worker_args, binaries=binaries, model=model)

    def _sh(self, *command, check=True):
        return subprocess.run([*map(str, command)], check=check, capture_output=True)

    def _net_up(self, names):
        self._net_down(names)
        self._sh("ip", "link", "add", "blink0", "type", "bridge")
        self._sh("ip", "addr", "add", f"{NET}.1/24", "dev", "blink0")
        self._sh("ip", "link", "set", "blink0", "up")
        for i, name in enumerate(names):
            space, outer = f"blink-{name}", f"blink-v{i}"
            self.hosts[name] = f"{NET}.{10 + i}"
            self._sh("ip", "netns", "add", space)
            self._sh("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns",
                     space)  # fmt: skip
            self._sh("ip", "link", "set", outer, "master", "blink0", "up")
            self._in(name, "ip", "addr", "add", f"{self.hosts[name]}/24", "dev", "eth0")
            self._in(name, "ip", "link", "set", "eth0", "up")
            self._in(name, "ip", "link", "set", "lo", "up")

    def _net_down(self, names=()):
        for name in names or list(self.hosts):
            self._sh("ip", "netns", "del", f"blink-{name}", check=False)
        self._sh("ip", "link", "del", "blink0", check=False)

    def _in(self, name, *command, check=True):
        return self._sh("ip", "netns", "exec", f"blink-{name}", *command, check=check)

    def _start_all(self, prefill, decode, worker_args, proxied):
        self._add("router-0", "router", ["--grpc", f"{NET}.1:0", "--http", "127.0.0.1:0"])
        self.start("router-0")
        for i in range(decode):
            self._add_worker(f"decode-{i}", "decode", worker_args, proxied)
        for i in range(prefill):
            self._add_worker(f"prefill-{i}", "prefill", worker_args, proxied)
        for name in self.roles:
            if name != "router-0":
                self.start(name, wait=False)
        for name in self.roles:
            self.read_report(name)
        self.router = self.topology()[0]
        self.http = "http://" + self.router["http"]
        self.grpc = self.router["grpc"]
        self.channel = grpc.insecure_channel(self.grpc)
        wait_until(self.is_whole, START_LIMIT_S, "every worker is ready and every pair linked")

    def _add_worker(self, name, role, worker_args, proxied):
        host = self.hosts[name]
        args = ["--router", self.roles["router-0"].report["grpc"], "--worker-id", name]
        args += ["--model", self.model, "--threads", "1", "--transport", "tcp"]
        args += ["--listen", f"{host}:0", "--kv-listen", f"{host}:0", "--admin", f"{host}:0"]
        self._add(name, role, [*args, *worker_args])

    def start(self, name, wait=True):
        role = self.roles[name]
        if name == "router-0":
            return super().start(name, wait)
        read_fd, write_fd = os.pipe()
        with open(os.path.join(self.dir, f"{name}.log"), "ab") as log:
            role.process = subprocess.Popen(
                ["ip", "netns", "exec", f"blink-{name}", self.binary, role.role, *role.args],
                stdout=log, stderr=subprocess.STDOUT, pass_fds=[write_fd],
                env={**os.environ, "BATON_REPORT_FD": str(write_fd)},
            )  # fmt: skip
        os.close(write_fd)
        role.report_fd, role.report = read_fd, None
        role.num_lives += 1
        if wait:
            self.read_report(name)

    # ---- Bad links, of one worker's egress.

    def slow(self, name, rate=SLOW):
        self._in(name, "tc", "qdisc", "add", "dev", "eth0", "root", *rate.split())

    def heal(self, name):
        self._in(name, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        self._in(name, "iptables", "-t", "nat", "-F", check=False)
        for proxy in self.garblers:
            proxy.stop()  # its connections end; the next ones go straight to the decode workers
        self.garblers.clear()
        self.filter(name, None)

    def filter(self, name, rule):
        """Drops or resets what goes to the KV ports of decode workers; None = nothing."""
        if self._sh("which", "iptables", check=False).returncode != 0:
            raise RuntimeError("no iptables (apt-get install iptables)")
        self._in(name, "iptables", "-F", check=False)
        if rule is None:
            return
        for role in self.roles.values():
            if role.role != "decode":
                continue
            port = role.report["kv"].rsplit(":", 1)[1]
            self._in(name, "iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", port, *rule.split())

    def garble(self, name, **faults):
        """Data that this worker sends to decode workers goes through proxies that damage it."""
        self.filter(name, "-j REJECT --reject-with tcp-reset")
        for role in [r for r in self.roles.values() if r.role == "decode"]:
            host, port = role.report["kv"].rsplit(":", 1)
            damage = Faults(seed=len(self.garblers) + 1)
            vars(damage).update(faults)
            proxy = KvFaultProxy((f"{NET}.1", 0), (host, int(port)), damage)
            self.garblers.append(proxy)
            self._in(name, "iptables", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", host,
                     "--dport", port, "-j", "DNAT", "--to-destination",
                     f"{NET}.1:{proxy.address[1]}")  # fmt: skip
        time.sleep(0.5)  # connections of before are reset
        self.filter(name, None)

    def stop(self, *args, **kwargs):
        super().stop(*args, **kwargs)
        for proxy in self.garblers:
            proxy.stop()
        self._net_down()


class Asked:
    """One request as its client saw it."""

    def __init__(self, number, at_s):
        rng = random.Random(number)
        self.number, self.at_s = number, at_s
        # The number first, so that no prefix cache has it.
        self.prompt = f"{number}. " + " ".join(rng.sample(SENTENCES, rng.randint(7, 10)))
        self.ttft_s = self.answer_s = None
        self.error, self.timings = None, {}

    def run(self, http, max_tokens):
        body = {"model": "default", "prompt": self.prompt, "max_tokens": max_tokens,
                "temperature": 0, "ignore_eos": True, "stream": True}  # fmt: skip
        request = urllib.request.Request(http + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})  # fmt: skip
        start, done = time.monotonic(), False
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                for line in response:
                    if not line.startswith(b"data: "):
                        continue
                    if line.startswith(b"data: [DONE]"):
                        done = True
                        break
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.error = event["error"]["code"]
                        break
                    if self.ttft_s is None:
                        self.ttft_s = time.monotonic() - start
                    self.timings = event.get("timings") or self.timings
        except urllib.error.HTTPError as error:
            self.error = f"{error.code} {error.read()[:80]!r}"
        except OSError as error:
            self.error = str(error)
        self.answer_s = time.monotonic() - start
        if not done and self.error is None:
            self.error = "the stream ended without [DONE]"


def load(http, rate, seconds, max_tokens, first=0):
    """`rate` requests a second for `seconds`; the Asked of each."""
    asked = []
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(256) as pool:
        for i in range(int(rate * seconds)):
            at_s = i / rate
            time.sleep(max(0.0, begin + at_s - time.monotonic()))
            asked.append(Asked(first + i, at_s))
            pool.submit(asked[-1].run, http, max_tokens)
    return asked


def row_of(name, asked, skip_s):
    counted = [a for a in asked if a.at_s >= skip_s]
    good = [a for a in counted if a.error is None]
    resumes = sum(a.timings.get("resumes", 0) for a in counted)
    return {
        "scenario": name,
        "requests": len(counted),
        "failed": sum(a.error is not None for a in counted),
        "failed_before": sum(a.error is not None for a in asked if a.at_s < skip_s),
        "hung": sum(a.answer_s >= HUNG_S for a in counted),
        "resumes": resumes,
        "resumes_per_100": round(100 * resumes / max(len(counted), 1), 1),
        "local": sum(a.timings.get("path") == "local" for a in counted),
        "ttft_p99_s": round(quantile([a.ttft_s for a in good], 0.99), 2),
        "answer_p50_s": round(quantile([a.answer_s for a in good], 0.5), 2),
        "answer_p99_s": round(quantile([a.answer_s for a in good], 0.99), 2),
    }


def flap(lab, stop, every_s):
    """The link is cut and resets, by turns, for ever."""
    while not stop.is_set():
        lab.filter("prefill-0", "-j REJECT --reject-with tcp-reset")
        if stop.wait(every_s):
            break
        lab.filter("prefill-0", None)
        stop.wait(every_s)
    lab.filter("prefill-0", None)


def run_scenario(name, args):
    num_prefill = 1 if name == "without" else 2
    lab = LinkLab(num_prefill, 2, args.binary, model=args.model)
    stop = threading.Event()
    helper = None
    with lab:
        load(lab.http, 2, 2, args.max_tokens, first=10_000)  # warm
        if name == "slow":
            lab.slow("prefill-0")
        elif name == "flapping":
            helper = threading.Thread(target=flap, args=(lab, stop, args.flap_s))
            helper.start()
        elif name == "garbling":
            lab.garble("prefill-0", flips_per_mib=args.flips_per_mib)
        elif name == "repeating":  # slices come twice, or later than the next ones
            lab.garble("prefill-0", late_share=0.2, hold_share=0.2)
        asked = load(lab.http, args.rate, args.seconds, args.max_tokens)
        row = row_of(name, asked, args.skip)
        stop.set()
        if helper:
            helper.join()
        if name != "without":
            lab.heal("prefill-0")
            row["healed_after_s"] = healed_after(lab)
        row["links"] = [
            line for line in metrics_text(lab.router).splitlines()
            if line.startswith("baton_link")
        ]  # fmt: skip
        if args.log:
            logs = sorted(Path(lab.dir).glob("*.log"))
            text = "\n".join(p.read_text(errors="replace") for p in logs)
            Path(args.log + f".{name}").write_text(text)
    return row


def healed_after(lab, limit_s=30):
    """Seconds until a request's KV came from prefill-0 again, with two requests a second."""
    begin = time.monotonic()
    number = 50_000
    while time.monotonic() - begin < limit_s:
        asked = Asked(number, 0)
        asked.run(lab.http, 2)
        number += 1
        timings = asked.timings
        came = timings.get("prefill_worker") == "prefill-0" and timings.get("path") == "disagg"
        if came and timings.get("resumes", 0) == 0:
            return round(time.monotonic() - begin, 1)
        time.sleep(0.2)
    return None


def problems(row, base):
    found = [key for key in ("failed", "hung") if row[key] > 0]
    if row["resumes_per_100"] > 10:
        found.append("resumes_per_100")
    if base and row["answer_p99_s"] > 2 * base["answer_p99_s"] + 0.5:
        found.append("answer_p99_s")
    healed_s = row.get("healed_after_s", 0.0)
    if healed_s is None or healed_s > HEALED_S:
        found.append("healed_after_s")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=BIN)
    parser.add_argument("--model", help="default: one of large KV that computes little")
    parser.add_argument("--scenarios", default="without,slow,flapping,garbling,repeating")
    parser.add_argument("--rate", type=float, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--skip", type=float, default=8)
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--flap-s", type=float, default=2)
    parser.add_argument("--flips-per-mib", type=float, default=20)
    parser.add_argument("--json")
    parser.add_argument("--log")
    args = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"cannot be tried here: {reason}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        args.model = args.model or write_wide(Path(folder) / "wide.gguf")
        return run_all(args)


def run_all(args):
    rows, base, bad = [], None, False
    for name in args.scenarios.split(","):
        row = run_scenario(name, args)
        base = row if name == "without" else base
        row["problems"] = problems(row, base)
        bad |= bool(row["problems"])
        rows.append(row)
        print(json.dumps(row), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
