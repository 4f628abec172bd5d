#!/usr/bin/env python3
"""Baton and llama.cpp side by side in one interleaved run: same files, prompts and threads.

  benchmarks/compare/run.py --llama-cpp DIR [--model FILE]... [--isa avx2] [--quick] [--forward]

DIR has llama-server and llama-bench (or bin/, build/bin/). Five parts for each model:
  forward   tokens a second of the forward pass, without a server: prompts of 128, 512 and 2000
            tokens, generation at depth 0 and 2000; beside them the share of what this machine
            can read (generation) or compute (prompts), measured in the same run
  start     each server alone: ms from its exec to the first token, and, after 16 users, the memory
            of all its processes (PSS)
  ttft      one request at a time of 128 and of 512 tokens: ms to the first token
  streams   `baton bench URL`: 1, 4 and 16 users in a closed loop, 128 tokens in and 128 out;
            every fourth prompt is golden (its answer was recorded alone and must come again)
  burst     four running streams when three prompts of 2000 tokens arrive, 0.6 s apart: gaps of the
            four from then until the last prompt's first token, and the ttft of the three
All servers are up all the time and idle but one (checked); the order of turns is A B C, C B A, ...
Writes benchmarks/results/compare_MODEL.json, with every sample. --isa avx2 is Baton's form for
processors without AVX-512; DIR must then be a build of llama.cpp for them (-DGGML_NATIVE=OFF
-DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON), and the file is compare_MODEL_avx2.json. --quick:
one round and short answers, to see that everything works; its numbers are not to be quoted.
--forward: the forward pass alone, of any file that both sides read (shapes.py makes such files),
into forward_MODEL.json. Uses the standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "compare"))
from machine import count, free_port, program, quantile, record, result_folder  # noqa: E402
from servers import Server, baton_argv, llama_argv, llama_tool, llama_version  # noqa: E402

# name, prompt tokens, generated tokens, depth
FORWARD = (
    ("pp128", 128, 0, 0),
    ("pp512", 512, 0, 0),
    ("pp2000", 2000, 0, 0),
    ("tg64", 0, 64, 0),
    ("tg64@2000", 0, 64, 2000),
)
STREAMS = (1, 4, 16)
TTFT_TOKENS = (128, 512)
TTFT_REQUESTS = 8
BURST = {"streams": 4, "long_prompts": 3, "long_tokens": 2000, "at_s": 1.0, "gap_s": 0.6}
# Prompts that go on like this for a while, in any model.
GOLDEN = ("1 2 3 4 5 6 7 8", "a b c d e f g", "Monday, Tuesday,", "one two three four")
TOKEN_IDS = "1000:40000"  # ordinary tokens in the vocabularies of both demo models
MAX_IDLE_CORES = 0.05


class Comparison:
    """One model: its servers, turns and samples. The first three servers are in each part."""

    benchmark = "compare"

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.rounds = 1 if args.quick else args.rounds
        self.voids = []

    def say(self, text):
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    # forward

    def baton_forward(self, case):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            argv = [self.args.baton, "bench", "model", self.model, "--cases", case[0]]
            argv += ["--threads", str(self.args.threads), "--repetitions", "1", "--json", out.name]
            argv += ["--isa", self.args.isa]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            result = json.loads(Path(out.name).read_text())
        row = result["results"][0]
        # The limit is what the machine did at its best during the whole run.
        self.limits[row["limit"]] = max(row["limit_per_s"], self.limits.get(row["limit"], 0))
        self.work[case[0]] = {k: row[k] for k in ("work_per_token", "limit")}
        return row["tokens_per_s"][0]

    def llama_forward(self, case):
        _, prompt, generate, depth = case
        argv = [llama_tool(self.args.llama_cpp, "llama-bench"), "-m", self.model, "-fa", "1"]
        argv += ["-t", str(self.args.threads), "-p", str(prompt), "-n", str(generate)]
        argv += ["-d", str(depth), "-r", "1", "-o", "json"]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(done.stdout)[0]["avg_ts"]

    def forward(self):
        self.limits, self.work = {}, {}
        sides = {"baton": self.baton_forward, "llama.cpp": self.llama_forward}
        cases = [c for c in FORWARD if not self.args.quick or c[3] == 0 and c[1] <= 512]
        samples = {case[0]: {name: [] for name in sides} for case in cases}
        for k in range(self.rounds):
            for case in cases:
                for name in list(sides) if k % 2 == 0 else list(sides)[::-1]:
                    samples[case[0]][name].append(sides[name](case))
                self.say(f"forward {case[0]}: {self.last(samples[case[0]])}")
        rows = []
        for case, by_side in samples.items():
            work = self.work[case]
            peak = self.limits[work["limit"]]
            row = {"case": case, "limit": work["limit"], **pair_ratio(by_side, "baton")}
            row["share_of_limit"] = {
                name: statistics.median(values) * work["work_per_token"] / peak
                for name, values in by_side.items()
            }
            rows.append({**row, "samples": by_side})
        return rows

    @staticmethod
    def last(by_side):
        return ", ".join(f"{name} {values[-1]:.1f}" for name, values in by_side.items())

    # servers

    def argvs(self, ports):
        return {
            "baton": baton_argv(self.args, self.model, "disagg", ports[0]),
            "baton aggregated": baton_argv(self.args, self.model, "aggregated", ports[1]),
            "llama.cpp": llama_argv(self.args, self.model, 0, ports[2]),
            "llama.cpp -b 64": llama_argv(self.args, self.model, 64, ports[3]),
        }

    def start_alone(self, name, measures_memory):
        """(ms to the first token, MiB or none) of a server while no other one is up."""
        ports = [free_port() for _ in range(4)]
        argvs = self.argvs(ports)
        begin = time.monotonic()
        server = Server(name, argvs[name], ports[list(argvs).index(name)])
        try:
            server.wait_ready(look_s=0.005)
            server.complete("Hello", 1)
            first_token_ms = (time.monotonic() - begin) * 1e3
            if not measures_memory:
                return first_token_ms, None
            flags = ["--users", "16", "--requests", "16", "--input", "128"]
            self.bench(server, 7, [*flags, "--output", str(self.num_output())])
            return first_token_ms, server.pss_mib()
        finally:
            server.stop()

    def starts(self):
        """Before the servers stand ready together."""
        names = list(self.argvs([0] * 4))[:3]
        ms, mib = {name: [] for name in names}, {}
        for k in range(self.rounds):
            for name in self.turns(names, k):
                first_token_ms, mib[name] = self.start_alone(name, k == self.rounds - 1)
                ms[name].append(first_token_ms)
            self.say(f"start to first token, ms: {self.last(ms)}")
        return {**times_faster(ms, "baton"), "samples": ms, "pss_mib": mib}

    def start(self):
        ports = [free_port() for _ in range(4)]
        # One after another, so that whatever stands is stopped when the next one fails.
        for (name, argv), port in zip(self.argvs(ports).items(), ports):
            self.servers.append(Server(name, argv, port))
        baton = self.servers[:2]
        for server in self.servers:
            server.wait_ready()
        self.golden = {}
        for server in self.servers:
            rows = []
            for prompt in GOLDEN:
                # Both modes of Baton must give the same text, so one account serves both.
                asked = baton[1] if server in baton else server
                text = asked.complete(prompt, self.num_output())
                rows.append({"prompt": prompt, "max_tokens": self.num_output(), "text": text})
            path = Path(self.folder) / f"golden_{server.port}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            self.golden[server.name] = path
        self.idle = self.idle_cores()
        for name, cores in self.idle.items():
            if cores > MAX_IDLE_CORES:
                raise SystemExit(f"{name} takes {cores:.2f} cores while nobody asks it")

    def idle_cores(self):
        time.sleep(1)
        before = {s.name: s.cpu_s() for s in self.servers}
        time.sleep(4)
        return {s.name: (s.cpu_s() - before[s.name]) / 4 for s in self.servers}

    def num_output(self):
        return 16 if self.args.quick else 128

    def bench(self, server, seed, flags):
        """One run of the load client: its whole JSON result."""
        out = Path(self.folder) / "run.json"
        out.unlink(missing_ok=True)
        argv = [self.args.baton, "bench", server.url, "--api", "completions"]
        argv += ["--token-ids", TOKEN_IDS, "--seed", str(seed), "--json", str(out), *flags]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not out.exists():
            raise SystemExit(f"{server.name}: {done.stderr}")
        run = json.loads(out.read_text())["runs"][0]
        for reason in void_reasons(server.name, run["report"]):
            self.voids.append(f"{server.name} {' '.join(flags[:2])}: {reason}")
        return run

    def turns(self, servers, k):
        return servers if k % 2 == 0 else servers[::-1]

    def ttft(self):
        servers = self.servers[:3]
        rows = []
        for tokens in TTFT_TOKENS:
            samples = {server.name: [] for server in servers}
            for k in range(self.rounds):
                for server in self.turns(servers, k):
                    flags = ["--users", "1", "--requests", str(TTFT_REQUESTS)]
                    flags += ["--input", str(tokens), "--output", "2"]
                    run = self.bench(server, 10 * tokens + k, flags)
                    samples[server.name].append(stream_numbers(run)["ttft_ms"])
                medians = {n: [statistics.median(v[-1])] for n, v in samples.items()}
                self.say(f"ttft of {tokens} tokens, ms: {self.last(medians)}")
            ms = {name: [statistics.median(v) for v in taken] for name, taken in samples.items()}
            rows.append({"tokens": tokens, **times_faster(ms, "baton"), "samples": samples})
        return rows

    def streams(self):
        servers = self.servers[:3]
        rows = []
        for users in STREAMS:
            runs = {server.name: [] for server in servers}
            for k in range(self.rounds):
                for server in self.turns(servers, k):
                    flags = ["--users", str(users), "--requests", str(max(4, 2 * users))]
                    flags += ["--input", "128", "--output", str(self.num_output())]
                    flags += ["--golden", str(self.golden[server.name]), "--golden-every", "4"]
                    run = self.bench(server, 100 * users + k, flags)
                    runs[server.name].append(stream_numbers(run))
                self.say(
                    f"{users} streams: "
                    + self.last({n: [r["tokens_per_s"] for r in v] for n, v in runs.items()})
                )
            rates = {name: [r["tokens_per_s"] for r in taken] for name, taken in runs.items()}
            rows.append({"streams": users, **pair_ratio(rates, "baton"), "runs": runs})
        return rows

    def burst_trace(self):
        path = Path(self.folder) / "burst.jsonl"
        tokens = 60 if self.args.quick else 800
        rows = [(0, 32, tokens)] * BURST["streams"]
        at_ms = 200 if self.args.quick else BURST["at_s"] * 1e3
        for i in range(BURST["long_prompts"]):
            rows.append((int(at_ms + 1e3 * BURST["gap_s"] * i), BURST["long_tokens"], 2))
        keys = ("timestamp", "input_length", "output_length")
        path.write_text("".join(json.dumps(dict(zip(keys, row))) + "\n" for row in rows))
        return path

    def burst(self):
        path = self.burst_trace()
        runs = {server.name: [] for server in self.servers}
        for k in range(self.rounds):
            for server in self.turns(self.servers, k):
                run = self.bench(server, 5000 + k, ["--trace", str(path)])
                runs[server.name].append(burst_numbers(run))
            p99 = {n: [quantile(v[-1]["itl_ms"], 0.99)] for n, v in runs.items()}
            self.say("burst, itl p99 ms: " + self.last(p99))
        itl = {n: [quantile(r["itl_ms"], 0.99) for r in v] for n, v in runs.items()}
        return {"workload": BURST, **pair_ratio(itl, "baton"), "runs": runs}

    def run(self):
        begin = time.monotonic()
        head = record(self.benchmark, self.args.threads)
        result = {
            **head,
            "model": Path(self.model).name,
            "rounds": self.rounds,
            "quick": self.args.quick,
            "isa": self.args.isa,
            "load_before": os.getloadavg(),
        }
        self.fill(result)
        after = record(self.benchmark, self.args.threads)
        for key in ("cpu", "cores", "system"):
            if after[key] != head[key]:
                self.voids.append(f"{key} changed during the run: {head[key]}, then {after[key]}")
        result["load_after"] = os.getloadavg()
        result["void"] = self.voids
        result["minutes"] = round((time.monotonic() - begin) / 60, 1)
        return result

    def fill(self, result):
        """Measures the parts."""
        result["llama_cpp"] = llama_version(self.args.llama_cpp)
        result["forward"] = self.forward()
        result["limits"] = self.limits
        if self.args.forward:
            self.benchmark = result["benchmark"] = "forward"
        else:
            self.measure_servers(result)

    def measure_servers(self, result):
        with tempfile.TemporaryDirectory() as self.folder:
            self.servers = []
            result["start"] = self.starts()
            try:
                self.start()
                result["idle_cores"] = self.idle
                result["ttft"] = self.ttft()
                result["streams"] = self.streams()
                result["burst"] = self.burst()
            finally:
                for server in self.servers:
                    server.stop()


def forgiven(name, reason):
    """The others' answers may depend on the batch; that is their promise, not their error. Counted
    in the result all the same."""
    return "golden prompts had a wrong answer" in reason and not name.startswith("baton")


def void_reasons(name, report):
    """Why a run of the server of that name says nothing about it. Times come from the requests that
    were answered, so a server that failed some must not look fast for it."""
    reasons = [reason for reason in report["void"] if not forgiven(name, reason)]
    if report["cut_short"]:
        reasons.append(report["cut_short"])
    failed = report["attempted"] - report["ok"]
    if failed:
        reasons.append(f"{failed} of {report['attempted']} requests failed")
    return reasons


def pair_ratio(by_name, first):
    """Medians, and for each other name the ratio first / other of the rounds: median and spread."""
    ratios = {}
    for name, values in by_name.items():
        if name == first:
            continue
        pairs = [a / b for a, b in zip(by_name[first], values)]
        ratios[name] = [statistics.median(pairs), min(pairs), max(pairs)]
    return {
        "median": {name: statistics.median(values) for name, values in by_name.items()},
        "ratio": ratios,  # median, smallest, largest
    }


def times_faster(by_name, first):
    """As pair_ratio, of times: other / first, so that above 1 `first` is the faster one."""
    speeds = {name: [1 / value for value in values] for name, values in by_name.items()}
    return {**pair_ratio(by_name, first), "ratio": pair_ratio(speeds, first)["ratio"]}


def stream_numbers(run):
    report = run["report"]
    return {
        "tokens_per_s": report["output_tokens_per_s"],
        "golden_asked": report["golden_asked"],
        "golden_wrong": report["golden_wrong"],
        "failed": report["attempted"] - report["ok"],
        "lag_p99_ms": lag_ms(run),
        "ttft_ms": [
            (r["first_token_us"] - r["intended_us"]) / 1e3
            for r in run["requests"]
            if "first_token_us" in r
        ],
        "itl_ms": [round(g / 1e3, 2) for r in run["requests"] for g in r.get("gaps_us", [])],
    }


def lag_ms(run):
    lags = [run["start_lag_us"], run["read_lag_us"]]
    return max(quantile(values, 0.99) / 1e3 for values in lags if values)


def burst_numbers(run):
    """Gaps of the streams that end after the first long prompt came and begin before the last one's
    first token."""
    longs = [r for r in run["requests"] if r["want_input"] == BURST["long_tokens"]]
    begin = min(r["intended_us"] for r in longs)
    end = max(r.get("first_token_us", r["end_us"]) for r in longs)
    gaps = []
    for r in run["requests"]:
        if r["want_input"] == BURST["long_tokens"] or "first_token_us" not in r:
            continue
        at = r["first_token_us"]
        for gap in r["gaps_us"]:
            if at + gap >= begin and at <= end:
                gaps.append(round(gap / 1e3, 2))
            at += gap
    return {
        "itl_ms": gaps,
        "window_s": (end - begin) / 1e6,
        "long_ttft_ms": [
            (r["first_token_us"] - r["intended_us"]) / 1e3 for r in longs if "first_token_us" in r
        ],
        "failed": run["report"]["attempted"] - run["report"]["ok"],
        "lag_p99_ms": lag_ms(run),
    }


def measure_and_write(comparison, kind):
    """Writes KIND_MODEL.json; returns 1 where a part is void."""
    args, result = comparison.args, comparison.run()
    name = Path(comparison.model).name.lower().split("-")[0].split(".")[0]
    name += f"_{args.isa}" if args.isa != "auto" else ""
    path = Path(args.out) / f"{kind}_{name}{'_quick' if args.quick else ''}.json"
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    print(f"{path} after {result['minutes']} minutes")
    for reason in result["void"]:
        print(f"VOID {reason}")
    return 1 if result["void"] else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache" / "baton"))
    parser.add_argument("--llama-cpp", required=True, metavar="DIR")
    parser.add_argument(
        "--model",
        action="append",
        help=f"a .gguf file, once for each; default: all of {home}/models",
    )
    baton = str(ROOT / "build" / "release" / "baton")
    parser.add_argument("--baton", type=program, default=baton)
    parser.add_argument("--threads", type=count, default=os.cpu_count())
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--isa", default="auto", choices=("auto", "avx512", "avx2", "portable"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--forward", action="store_true")
    results = str(ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=result_folder, default=results, metavar="FOLDER")
    args = parser.parse_args()
    models = args.model or sorted(map(str, (home / "models").glob("*.gguf")))
    if not models:
        raise SystemExit("no model: give --model FILE or run `baton pull smollm2:135m`")
    for model in models:
        if not Path(model).is_file():
            raise SystemExit(f"--model {model} is no file; both sides read the same .gguf file")
    for tool in ("llama-server", "llama-bench"):
        llama_tool(args.llama_cpp, tool)  # said now, not after the first hour
    kind = "forward" if args.forward else "compare"
    sys.exit(max([measure_and_write(Comparison(args, model), kind) for model in models]))


if __name__ == "__main__":
    main()
