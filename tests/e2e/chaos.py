"""The long fault run: real processes, many rounds of each fault, a table and a JSON file.

scripts/chaos.sh runs it in the project's environment. A problem (an answer that differs from the
quiet run's, a failed stream, a block that nobody gives back) is printed and makes the exit code 1.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import quantile, record  # noqa: E402

from baton_server import BIN, Server, metrics_text  # noqa: E402
from fault_scenarios import (  # noqa: E402
    CUT_REQUEST,
    PacketCut,
    ProxyCut,
    abort_storm,
    after,
    all_begun,
    cut_at_index,
    cut_link,
    damaged_link,
    exceed_memory,
    freeze_worker,
    kill_router,
    kill_worker,
    reuse_ports,
    rolling_restart,
)
from fault_work import (  # noqa: E402
    Work,
    audit_ledger,
    fill_pool,
    pool_args,
    wait_clean,
)
from load_scenarios import Limits, overload, slow_readers, soak  # noqa: E402
from memory_group import MemoryGroup  # noqa: E402
from roles_cluster import RolesCluster  # noqa: E402

NUM_DECODE = 2
PAIR = ("--prefill", "2", "--decode", str(NUM_DECODE))
LARGE_POOL = 384  # 6128 tokens: room for half of the streams when one decode worker is gone
SMALL_POOL = 24
FILL_EVERY = 5


class Chaos:
    """The arguments of a run, and what it found."""

    def __init__(self, args):
        self.args = args
        self.random = random.Random(args.seed)

    def rounds(self, wanted):
        return max(1, round(wanted * self.args.scale))

    def check_pool(self, cluster):
        """Every block can be had, and the audit finds no orphan."""
        wait_clean(cluster)
        fill_pool(cluster, NUM_DECODE)
        code, ledger = audit_ledger(cluster)
        assert code == 0 and ledger["clean"], ledger

    def large_work(self, cluster):
        work = Work(self.args.seed, self.args.streams, max_prompt=1500, max_tokens=48)
        work.record(cluster, width=self.args.streams)
        # The second time is as long as a round will be: what the caches keep is found.
        start = time.monotonic()
        work.record(cluster, width=self.args.streams)
        self.span_s = time.monotonic() - start
        return work

    def in_serve(self, rounds, one, *server_args):
        """`one(cluster, work, round)` so often in one cluster of `serve`; the rows it gave."""
        rows = []
        with Server(*PAIR, *pool_args(LARGE_POOL), *server_args) as cluster:
            work = self.large_work(cluster)
            for number in range(rounds):
                rows.append(one(cluster, work, number))
                print(f"  {number + 1}/{rounds}: {brief(rows[-1])}", flush=True)
                if number % FILL_EVERY == FILL_EVERY - 1 or number == rounds - 1:
                    self.check_pool(cluster)
        return rows

    # ---- One function a scenario; each returns rows.

    def kill(self):
        def one(cluster, work, _):
            return kill_worker(
                cluster,
                work,
                after(self.random.uniform(0.05, 0.9 * self.span_s)),
                self.random.choice,
                width=self.args.streams,
            )

        # With the prefix caches on, prompts of later rounds are found; off, each is computed and
        # crosses in every round.
        rounds = self.rounds(25)
        rows = self.in_serve(rounds - rounds // 2, one)
        if rounds > 1:
            rows += self.in_serve(rounds // 2, one, "--prefix-cache", "off")
        return rows

    def freeze(self):
        def one(cluster, work, number):
            role = ("decode", "prefill")[number % 2]
            return freeze_worker(
                cluster,
                work,
                after(self.random.uniform(0.05, 0.5 * self.span_s)),
                lambda workers: self.random.choice([w for w in workers if w["role"] == role]),
                freeze_s=10,
                width=self.args.streams,
            )

        return self.in_serve(self.rounds(4), one)

    def partition(self):
        rows = []
        with RolesCluster(2, 2, ["--transport", "tcp", *pool_args(LARGE_POOL)], True) as cluster:
            work = self.large_work(cluster)
            for number in range(self.rounds(3)):
                cut = ProxyCut(cluster, f"decode-{number % 2}")
                rows.append(cut_link(cluster, work, after(0.3), cut, 10.0, self.args.streams))
                print(f"  {brief(rows[-1])}", flush=True)
            self.check_pool(cluster)
        why_not = PacketCut.why_not()
        if why_not:
            print(f"  by iptables: skipped, {why_not}")
            return rows

        def one(cluster, work, number):
            cut = PacketCut(cluster, f"decode-{number % 2}")
            return cut_link(cluster, work, after(0.3), cut, 10.0, self.args.streams)

        return rows + self.in_serve(self.rounds(2), one, "--transport", "tcp")

    def aborts(self):
        def one(cluster, work, number):
            return abort_storm(cluster, work, self.rounds(500), 8, seed=number + 1)

        return self.in_serve(1, one)

    def flips(self):
        with RolesCluster(2, 2, ["--transport", "tcp", *pool_args(LARGE_POOL)], True) as cluster:
            work = self.large_work(cluster)
            for proxy in cluster.proxies.values():
                proxy.faults.flips_per_mib = 1.0
            rows = [damaged_link(cluster, work, self.args.streams, self.rounds(3))]
            for proxy in cluster.proxies.values():
                proxy.faults.flips_per_mib = 0.0
            self.check_pool(cluster)
        return rows

    def late(self):
        worker_args = ["--transport", "tcp", "--prefix-cache", "off", *pool_args(SMALL_POOL)]
        with RolesCluster(2, 2, worker_args, True) as cluster:
            work = Work(self.args.seed, 40, max_prompt=250, max_tokens=12).record(cluster)
            for proxy in cluster.proxies.values():
                proxy.faults.late_share = proxy.faults.hold_share = 0.02
                proxy.faults.late_s = 1.0
            rows = [damaged_link(cluster, work, 8, self.rounds(5))]
            for proxy in cluster.proxies.values():
                proxy.faults.late_share = proxy.faults.hold_share = 0.0
            self.check_pool(cluster)
        return rows

    def bad_link(self, disturb):
        """The links to decode-0 are what `disturb(proxy)` makes of them while work goes on; every
        answer must be whole, since those to decode-1 are good."""
        with RolesCluster(2, 2, ["--transport", "tcp", *pool_args(LARGE_POOL)], True) as cluster:
            work = self.large_work(cluster)
            proxy = cluster.proxies["decode-0"]
            with disturb(proxy):
                rows = [damaged_link(cluster, work, self.args.streams, self.rounds(3))]
            rows[0]["links"] = link_metrics(cluster)
            self.check_pool(cluster)
        return rows

    def slow_link(self):
        @contextlib.contextmanager
        def slow(proxy):
            proxy.faults.bytes_per_s = 250_000
            yield
            proxy.faults.bytes_per_s = 0

        return self.bad_link(slow)

    def flapping_link(self):
        @contextlib.contextmanager
        def flapping(proxy):
            stop = threading.Event()

            def flap():
                while not stop.wait(self.random.uniform(0.2, 2)):
                    proxy.break_connections()

            thread = threading.Thread(target=flap)
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()

        return self.bad_link(flapping)

    def garbling_link(self):
        @contextlib.contextmanager
        def garbling(proxy):
            proxy.faults.flips_per_mib = 20.0
            proxy.faults.late_share = proxy.faults.hold_share = 0.05
            yield
            proxy.faults.flips_per_mib = 0.0
            proxy.faults.late_share = proxy.faults.hold_share = 0.0

        return self.bad_link(garbling)

    def router(self):
        def one(cluster, work, _):
            return kill_router(cluster, work, 8, self.args.streams)

        return self.in_serve(self.rounds(3), one)

    def cuts(self):
        rows = []
        with RolesCluster(1, NUM_DECODE, pool_args(SMALL_POOL)) as cluster:
            work = Work(1, 0)
            work.requests = [CUT_REQUEST]
            work.record(cluster)
            for index in range(1, 64):
                rows.append(cut_at_index(cluster, work, index))
                if rows[-1]["resumed"] != 1:
                    rows[-1]["problems"].append(f"killed at token {index}, but not resumed")
            wait_clean(cluster)
            fill_pool(cluster, NUM_DECODE)
        return rows

    def to_each(self, fault):
        """`fault(cluster, work, victim, width)` of each worker in turn, processes by hand."""
        rows = []
        with RolesCluster(2, 2, ["--transport", "tcp", *pool_args(LARGE_POOL)]) as cluster:
            work = Work(self.args.seed, 40, max_prompt=400, max_tokens=32).record(cluster)
            for victim in ("decode-0", "prefill-0", "decode-1", "prefill-1"):
                rows.append(fault(cluster, work, victim, width=8))
                print(f"  {brief(rows[-1])}", flush=True)
            self.check_pool(cluster)
        return rows

    def ports(self):
        return self.to_each(reuse_ports)

    def memory(self):
        why_not = MemoryGroup.why_not()
        if why_not:
            print(f"  skipped, {why_not}")
            return []
        return self.to_each(exceed_memory)

    def stall(self):
        """20 running streams of which a kill hits about half."""
        rows = []
        with Server(*PAIR, *pool_args(LARGE_POOL)) as cluster:
            work = Work(self.args.seed, 20, max_prompt=64, max_tokens=160)
            for fields in work.requests:
                fields.pop("stop", None)
                fields.update(n=1, ignore_eos=True)
            work.record(cluster, width=20)
            for _ in range(self.rounds(5)):

                def pick(workers):
                    decode = [w for w in workers if w["role"] == "decode"]
                    return self.random.choice(decode)

                rows.append(kill_worker(cluster, work, all_begun, pick, width=20))
                print(f"  {brief(rows[-1])}", flush=True)
            self.check_pool(cluster)
        return rows

    def rolling(self):
        def by_signal(worker):
            os.kill(worker["pid"], signal.SIGTERM)

        with Server(*PAIR, *pool_args(LARGE_POOL)) as cluster:
            work = Work(self.args.seed, 40, max_prompt=400, max_tokens=48).record(cluster)

            def by_command(worker):
                done = subprocess.run(
                    [BIN, "drain", worker["worker_id"], "--admin", cluster.router["admin"]],
                    capture_output=True,
                    text=True,
                    timeout=120,
                )
                assert done.returncode == 0, done.stderr

            rows = []
            for number in range(self.rounds(3)):
                leave = (by_signal, by_command)[number % 2]
                rows.append(rolling_restart(cluster, work, 8, leave))
                print(f"  {brief(rows[-1])}", flush=True)
            self.check_pool(cluster)
        return rows

    def overload(self):
        duration_s = self.rounds(40)
        with Server(*PAIR, *pool_args(LARGE_POOL)) as cluster:
            limits = Limits(cluster, duration_s)
        with Server(*PAIR, *limits.flags, *pool_args(LARGE_POOL)) as cluster:
            rows = [overload(cluster, limits, duration_s)]
            self.check_pool(cluster)
        return rows

    def slow_readers(self):
        with Server(*PAIR, *pool_args(LARGE_POOL)) as cluster:
            rows = [slow_readers(cluster, self.rounds(4))]
            self.check_pool(cluster)
        return rows

    def soak(self):
        with Server(*PAIR, *pool_args(LARGE_POOL)) as cluster:
            work = Work(self.args.seed, 40, max_prompt=400, max_tokens=48).record(cluster)
            rows = [soak(cluster, work, 30 * self.args.scale)]
            self.check_pool(cluster)
        return rows


SCENARIOS = (
    "kill",
    "freeze",
    "partition",
    "aborts",
    "flips",
    "late",
    "slow_link",
    "flapping_link",
    "garbling_link",
    "router",
    "cuts",
    "ports",
    "memory",
    "stall",
    "rolling",
    "overload",
    "slow_readers",
    "soak",
)


def brief(row):
    return {k: v if k != "problems" else len(v) for k, v in row.items() if k != "stalls_ms"}


def link_metrics(cluster):
    """The router's rows of links."""
    lines = metrics_text(cluster.router).splitlines()
    return [line for line in lines if line.startswith("baton_link_")]


def numbers_of(rows, key):
    return [row[key] for row in rows if key in row]


def condense(rows, seconds):
    """The numbers that the table and the operator's page give for one scenario."""
    stalls = [s for row in rows for s in row.get("stalls_ms", [])]
    result = {
        "rounds": len(rows),
        "streams": sum(numbers_of(rows, "streams")),
        "problems": sum(len(row["problems"]) for row in rows),
        "resumed": sum(numbers_of(rows, "resumed")),
        "seconds": round(seconds, 1),
    }
    if stalls:
        result["stall_ms"] = {
            "p50": quantile(stalls, 0.5),
            "p99": quantile(stalls, 0.99),
            "max": max(stalls),
            "num": len(stalls),
        }
    for key in ("detect_ms", "whole_again_ms", "clean_ms"):
        values = numbers_of(rows, key)
        if values:
            result[key] = {"p50": quantile(values, 0.5), "max": max(values)}
    drains = [w["drain_ms"] for row in rows for w in row.get("workers", [])]
    if drains:
        result["drain_ms"] = {"p50": quantile(drains, 0.5), "max": max(drains)}
    for key in ("aborts", "cancelled", "flips", "late", "held", "broken_streams"):
        values = numbers_of(rows, key)
        if values:
            result[key] = sum(values)
    for row in rows:
        result.update(row.get("report", {}))
    victims = collections.Counter(numbers_of(rows, "worker"))
    if victims:
        result["victims"] = dict(sorted(victims.items()))
    means = collections.Counter(numbers_of(rows, "means"))
    if means:
        result["means"] = dict(means)
    return result


def table(scenarios):
    def cell(result, key, part):
        return f"{result[key][part]:.0f}" if key in result else "-"

    head = ("scenario", "rounds", "streams", "problems", "resumed", "detect max", "stall p99")
    head += ("whole max", "clean max", "s")
    lines = [head]
    for name, r in scenarios.items():
        lines.append(
            (
                name,
                str(r["rounds"]),
                str(r["streams"]),
                str(r["problems"]),
                str(r["resumed"]),
                cell(r, "detect_ms", "max"),
                cell(r, "stall_ms", "p99"),
                cell(r, "whole_again_ms", "max"),
                cell(r, "clean_ms", "max"),
                f"{r['seconds']:.0f}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(line, widths)) for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", nargs="*", help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of rounds")
    parser.add_argument("--streams", type=int, default=40, help="at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default=str(ROOT / "benchmarks" / "results" / "chaos.json"))
    args = parser.parse_args()
    unknown = [name for name in args.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"{unknown[0]} is not one of {', '.join(SCENARIOS)}")
    result = {**record("chaos", threads=2), "seed": args.seed, "scenarios": {}}
    options = {"--scale": args.scale, "--streams": args.streams, "--seed": args.seed}
    result["command"] = " ".join(
        ["scripts/chaos.sh"]
        + [f"{k} {v}" for k, v in options.items() if v != parser.get_default(k.strip("-"))]
    )
    if os.path.exists(args.json):  # scenarios of one commit may run one by one
        former = json.loads(Path(args.json).read_text())
        if former["commit"] == result["commit"] and former["command"] == result["command"]:
            result["scenarios"] = former["scenarios"]
    chaos = Chaos(args)
    problems = []
    for name in args.scenario or SCENARIOS:
        print(f"== {name}", flush=True)
        load_before = os.getloadavg()[0]
        start = time.monotonic()
        rows = getattr(chaos, name)()
        if not rows:
            continue  # skipped, with its reason
        condensed = condense(rows, time.monotonic() - start)
        condensed["load_average_before"] = round(load_before, 1)
        result["scenarios"][name] = condensed
        problems += [f"{name}: {problem}" for row in rows for problem in row["problems"]]
        # After each scenario, so that a run that is cut short keeps what it has.
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    print(table(result["scenarios"]))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
