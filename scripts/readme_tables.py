#!/usr/bin/env python3
"""Writes the tables of the pages below from benchmarks/results/*.json.

  scripts/readme_tables.py            rewrites them
  scripts/readme_tables.py --check    exit 1 when one of them is not what the files say

A table stands between <!-- table NAME --> and <!-- end -->; NAME is a file of benchmarks/results.
<!-- headline NAME --> is three rows of a comparison, and what the split costs. A comparison's
picture is written beside its file.
"""

import functools
import json
import math
import os
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "compare"))
import tables as compare  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    "README.md",
    "benchmarks/RESULTS.md",
    "benchmarks/GPU.md",
    "deploy/NOTES.md",
    "deploy/operations.md",
    "kernels/NOTES.md",
    "tests/fuzz/NOTES.md",
    "src/cli/NOTES.md",
    "tests/NOTES.md",
    "tests/clients/RESULTS.md",
    "src/model/ACCURACY.md",
)


def where(result):
    return (
        f"{result['cpu']}, {result['cores']} cores, {result['threads']} threads,"
        f" commit {result['commit']}."
    )


def serving(result):
    s = result["summary"]
    rows = [
        ("start of `serve` to the first token", f"{s['start_to_first_token_ms']:.0f} ms"),
        (
            "second token after a 512-token prompt, later than aggregated by",
            f"{s['second_token_delay_steps']:.2f} decode steps of {s['decode_step_ms']:.1f} ms",
        ),
        ("TTFT less the prefill worker's own time, p50", f"{s['router_ttft_p50_ms']:.2f} ms"),
        ("processor time of the busiest idle process", f"{s['idle_percent_max']:.1f} %"),
        ("PSS of a decode worker over weights and KV pool", f"{s['decode_pss_over_mib']:.0f} MiB"),
    ]
    lines = ["| what | measured |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    return lines + ["", where(result)]


LENDING_MODES = {
    "split": "split",
    "split-fixed": "split, cores not lent",
    "colocate": "one process",
    "oversubscribed": "all threads to each",
    "aggregated": "aggregated",
}
LENDING_ROWS = {
    "stream1": "one stream, tokens/s",
    "stream4": "four streams, tokens/s",
    "stream16": "16 streams, tokens/s",
    "depth2000": "one stream after 2000 tokens of prompt, tokens/s",
    "ttft128": "TTFT of 128 tokens, ms",
    "ttft512": "TTFT of 512 tokens, ms",
    "ttft2000": "TTFT of 2000 tokens, ms",
    "itl99": "gap of two streams while long prompts come, p99, ms",
}


def lending(result):
    s = result["summary"]
    modes = list(next(iter(s.values()))["median"])
    heads = " | ".join(LENDING_MODES[mode] for mode in modes)
    lines = [f"| | {heads} | split / aggregated |", "|---|" + "---:|" * len(modes) + "---|"]
    for key, name in LENDING_ROWS.items():
        if key not in s:
            continue
        cells = " | ".join(f"{s[key]['median'][mode]:.0f}" for mode in modes)
        ratio = s[key]["to_aggregated"]["split"]
        spread = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        lines.append(f"| {name} | {cells} | {spread} |")
    rounds = 1 + max(row["round"] for row in result["rounds"])
    between = "its 95 % interval" if rounds >= 6 else "the smallest and largest"
    note = (
        f"{rounds} rounds in turn, medians; beside the ratio's median stand {between} of the"
        " rounds; above 1 the split is better. "
    )
    return lines + ["", note + where(result)]


def split_costs(result):
    """What the split costs by a comparison, and at most by the table of lent cores."""
    costs = []
    for users in (4, 16):
        row = next(row for row in result["streams"] if row["streams"] == users)
        median, low, high = row["ratio"]["baton aggregated"]
        costs.append(f"{median:.2f} ({low:.2f} to {high:.2f}) with {users} users")
    lent = json.loads((RESULTS / "lending.json").read_text())["summary"].values()
    slowest = min(row["to_aggregated"]["split"]["median"] for row in lent)
    return [
        f"Tokens/s of the split divided by those without it: {', '.join(costs)} (median, and all"
        " rounds). In [the table of lent cores](benchmarks/RESULTS.md#lent-cores) no median of the"
        f" split is more than {math.ceil(100 * (1 - slowest))} % slower than without it."
    ]


def prefix_cache(result):
    if "short_chat" in result:
        return turns_of_a_chat(result)
    lines = [
        "| request | prompt tokens | of them cached | TTFT | without the cache |",
        "|---|---:|---:|---:|---:|",
    ]
    turns = [r for r in result["chat"] if r["case"] in (1, 2, 5, 10)]
    cases = [(f"turn {r['case']} of a chat", r) for r in turns]
    first, *others = result["system"]
    cases.append(("first user of a system prompt", first))
    median = {key: statistics.median(r[key] for r in others) for key in first}
    cases.append((f"the {len(others)} users after (median)", median))
    for name, r in cases:
        lines.append(
            f"| {name} | {r['prompt_tokens']:.0f} | {r['cached_tokens']:.0f} |"
            f" {r['ttft_ms_on']:.0f} ms | {r['ttft_ms_off']:.0f} ms |"
        )
    return lines + ["", f"{result['model']}; " + where(result)]


def turns_of_a_chat(result):
    """Counts alone, which a busy machine does not change."""
    lines = ["| turn | prompt tokens | of them cached | computed |", "|---:|---:|---:|---:|"]
    for r in result["short_chat"]:
        prompt, cached = r["prompt_tokens"], r["cached_tokens"]
        lines.append(f"| {r['case']} | {prompt:.0f} | {cached:.0f} | {prompt - cached:.0f} |")
    return lines + ["", f"{result['model']}; " + where(result)]


def fixed_states(result):
    def cell(key):
        middle, low, high = (result[key][name] for name in ("median", "low", "high"))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    ttft, step = result["ttft_ms_median"], result["step_ms_median"]
    lines = [
        "| what | median (95 % interval) |",
        "|---|---:|",
        f"| TTFT of 128 tokens with checkpoints / without ({ttft:.0f} ms) | {cell('ttft_ratio')} |",
        "| second token after 512 tokens, later than aggregated by, in decode steps"
        f" of {step:.1f} ms | {cell('second_delay_steps')} |",
    ]
    where_text = f"{result['model']}; {len(result['rounds'])} rounds in turn. {where(result)}"
    return [*lines, "", where_text]


CHAOS_NAMES = {
    "kill": "`kill -9` of a random worker at a random moment",
    "freeze": "SIGSTOP of a worker for 10 s",
    "partition": "nothing from prefill workers reaches one decode worker for 10 s",
    "aborts": "clients that leave at a random moment, beside 8 that stay",
    "flips": "one flipped bit a MiB on the KV connections",
    "late": "slices that come a second late or twice, pools of 24 blocks",
    "router": "`kill -9` of the router (its streams break; then all requests again)",
    "cuts": "the decode worker killed at each token index 1..63 of one answer",
    "ports": "a worker killed and started again on the same ports, under load",
    "memory": "a worker killed by the kernel for its memory limit",
    "stall": "a decode worker killed while 20 streams run",
    "rolling": "each worker in turn asked to leave, 8 clients",
}


def chaos(result):
    lines = [
        "| fault | rounds | streams | wrong or failed | resumed | noticed after (max) |"
        " pause of a stream (p50 / max) | all workers serve again (max) | ledger clean (max) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]

    def cell(row, key, part):
        return f"{row[key][part]:.0f} ms" if key in row else ""

    for name, row in result["scenarios"].items():
        if name not in CHAOS_NAMES:
            continue
        pause = f"{cell(row, 'stall_ms', 'p50')} / {cell(row, 'stall_ms', 'max')}".strip(" /")
        lines.append(
            f"| {CHAOS_NAMES[name]} | {row['rounds']} | {row['streams']} | {row['problems']} |"
            f" {row['resumed']} | {cell(row, 'detect_ms', 'max')} |"
            f" {pause} | {cell(row, 'whole_again_ms', 'max')} |"
            f" {cell(row, 'clean_ms', 'max')} |"
        )
    loads = [row["load_average_before"] for row in result["scenarios"].values()]
    busy = f"load average before the scenarios {min(loads)} to {max(loads)}; "
    for name, write in (("overload", overload), ("slow_readers", slow_readers), ("soak", soak)):
        if name in result["scenarios"]:
            lines += ["", *write(result["scenarios"][name])]
    return lines + ["", f"`{result['command']}`; " + busy + where(result) + other_commits(result)]


def other_commits(result):
    """The scenarios that were run by themselves, at another commit than the file's."""
    at = {}
    for name, row in result["scenarios"].items():
        if row.get("commit", result["commit"]) != result["commit"]:
            at.setdefault(row["commit"], []).append(name)
    return "".join(f" At {commit}: {', '.join(names)}." for commit, names in at.items())


def overload(row):
    lines = [
        f"Open loop against {row['capacity_per_s']:.1f} requests/s of capacity (128 tokens in, 32"
        f" out; `{row['flags']}`; good is {row['slo']}, three times the p90 at half of it):",
        "",
        "| load | attempted | answered | 429 | goodput, requests/s | of the best | TTFT p90 |"
        " TTFT max |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in row["rates"]:
        lines.append(
            f"| {r['factor']}x | {r['attempted']} | {r['ok']} | {r['refused']} |"
            f" {r['goodput_per_s']:.2f} | {r['of_best']:.2f} | {r['ttft_p90_ms']:.0f} ms |"
            f" {r['ttft_max_ms']:.0f} ms |"
        )
    return lines


def overload_runs(result):
    has_cores = all("cores" in row for row in result["open"])
    offered = " offered, of capacity |" if has_cores else ""
    cores = " cores of the client / router |" if has_cores else ""
    columns = f"| server | load |{offered} first 15 s, of capacity | 60 s, of capacity | refused |"
    columns += f" told within, p99 | TTFT p50 | ITL p99 | to that at capacity | lost |{cores}"
    lines = [columns, "|---|" + "---:|" * (columns.count("|") - 2)]
    for row in result["open"]:
        age_s = row["refusal_age_p99_s"]
        told = "-" if age_s is None else f"{age_s * 1e3:.0f} ms"
        offered = cores = ""
        if has_cores:
            took = [row["cores"].get(name) for name in ("client", "router-0")]
            cores = " " + " / ".join("-" if c is None else f"{c:.2f}" for c in took) + " |"
            offered = f" {row['offered_to_capacity']:.2f} |"
        lines.append(
            f"| {row['server']} | {row['times']:g}x |{offered} {row['first15_to_capacity']:.2f} |"
            f" {row['all_to_capacity']:.2f} | {row['refused']} | {told} |"
            f" {row['ttft_p50_ms']:.0f} ms | {row['itl_p99_ms']:.1f} ms |"
            f" {row['itl_p99_to_capacity']:.2f} | {row['lost']} |{cores}"
        )
    best = ", ".join(
        f"{name} {server['capacity']['per_s']:.1f} requests/s with {server['capacity']['clients']}"
        f" clients, ITL p99 {server['capacity']['itl_p99_ms']:.1f} ms"
        for name, server in result["servers"].items()
    )
    shape = f"{result['prompt']} tokens in, {result['tokens']} out. Capacity (closed loop): {best}."
    return [*lines, "", f"{shape} {where(result)}"]


def slow_readers(row):
    return [
        f"{row['slow']} clients that stop reading and {row['idle']} idle connections: itl p99 of"
        f" normal streams {row['itl_p99_beside_slow_ms']:.1f} ms, beside as many clients that read"
        f" {row['itl_p99_beside_readers_ms']:.1f} ms ({row['itl_ratio']:.2f} times,"
        f" {row['gaps']} gaps)."
    ]


def soak(row):
    faults = ", ".join(f"{count} {name}" for name, count in row["faults"].items())
    # Results of before were of the resident memory, which the first use of a block makes larger.
    key = "memory_slope_mib_per_min"
    what = "Own" if key in row else "Resident"
    slopes_of = row[key] if key in row else row["rss_slope_mib_per_min"]
    slopes = ", ".join(f"{k} {v:+.2f}" for k, v in slopes_of.items())
    return [
        f"Soak of {row['minutes']:.0f} minutes, {row['streams']} answers, {row['problems']} wrong"
        f" or failed; faults: {faults}. {what} memory grows by (MiB a minute) {slopes}. Answers"
        f" a second: {row['answers_per_s_before']:.1f} before, {row['answers_per_s_after']:.1f}"
        f" from 10 s after the last fault on."
    ]


def fuzz(result):
    lines = [
        "| target | executions | a second | covered at the start | newly covered | findings |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["targets"].items():
        lines.append(
            f"| `{name}` | {row['executions']:,} | {row['executions_per_s']:,} |"
            f" {row['covered_at_start']:,} | {row['newly_covered']:,} | {row['findings']} |"
        )
    total = sum(row["executions"] for row in result["targets"].values())
    found = sum(row["findings"] for row in result["targets"].values())
    lines.append(f"| all | {total:,} | | | | {found} |")
    return lines + ["", f"`{result['command']}`, two sanitizers; " + where(result)]


def k8s(result):
    lines = [
        "| event | planned | requests | failed | wrong | stall p99 | longest stall | seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        stalls = [f"{row[k]:.0f} ms" if k in row else "" for k in ("stall_p99_ms", "stall_max_ms")]
        numbers = [str(row.get(k, "")) for k in ("requests", "failed", "wrong")]
        cells = [row["event"], "yes" if row["planned"] else "no", *numbers, *stalls]
        lines.append("| " + " | ".join([*cells, f"{row.get('seconds', '')}"]) + " |")
    image = result["images"]
    return lines + [
        "",
        f"Image {image['archive_bytes'] / 1e6:.1f} MB; `helm install --wait`"
        f" {result['install']['seconds']} s; {result['dry_run']['accepted']} value sets accepted by"
        f" the API server; `scripts/test_full.sh k8s`, Kubernetes 1.34.2; {result['cpu']},"
        f" {result['cores']} cores for everything, commit {result['commit']}.",
    ]


def plan(result):
    """A recorded load on simulated workers, under several policies."""

    def ms(summary, key):
        value = summary[f"{key}_ms"]
        return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.3g} ms"

    lines = [
        "| policy | step times | workers | in time | TTFT p50 / p99 | 2nd token p50 / p99 |"
        " ITL p50 / p99 | found in a cache | refused | simulated in |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    simulated = result["plan"]["simulated"]
    for run in simulated["runs"]:
        workers = f"{run['prefill']} P, {run['decode']} D" if run["prefill"] else str(run["decode"])
        lines.append(
            f"| {run['policy']} | {run['end']} | {workers} | {100 * run['met_share']:.1f} % |"
            f" {ms(run['ttft'], 'p50')} / {ms(run['ttft'], 'p99')} |"
            f" {ms(run['second_token'], 'p50')} / {ms(run['second_token'], 'p99')} |"
            f" {ms(run['itl'], 'p50')} / {ms(run['itl'], 'p99')} |"
            f" {100 * run['cached_tokens'] / run['prompt_tokens']:.1f} % |"
            f" {run['refused'] + run['failed']} | {run['elapsed_s']:.0f} s |"
        )
    load, first = result["plan"]["load"], simulated["runs"][0]
    return lines + [
        "",
        f"{first['requests']:,} requests, {load['rate_per_s']:.1f} a second, {load['input']:,}"
        f" tokens in and {load['output']} out on average; {result['model']}; pools found in"
        f" {simulated['sizing_runs']} simulations. `{result['command']}`; {result['cpu']},"
        f" {result['cores']} cores, one of them used; {result['machine_load']}; commit"
        f" {result['commit']}.",
    ]


def gpu_peers(result):
    """Our times by those of other programs on a GPU."""
    rows = {}
    for row in result["checks"]:
        if "ratio" not in row:
            continue
        other, what = row["name"].removeprefix("ours / ").split(": ", 1)
        rows.setdefault(what, {})[other] = f"{row['ratio']:.2f}"
    others = sorted({other for row in rows.values() for other in row})
    lines = [
        "| time of ours by that of | " + " | ".join(others) + " |",
        "|---|" + "---:|" * len(others),
    ]
    for what, row in rows.items():
        lines.append(f"| {what} | " + " | ".join(row.get(other, "") for other in others) + " |")
    return lines + ["", f"{result['device']}, commit {result['commit']}, `scripts/gpu_check.sh`."]


def gpu_check(result):
    """A table of times on a GPU, or of how they compare with other programs there. A share is of
    limits that were measured in the same call."""
    if any("ratio" in row for row in result["checks"]):
        return gpu_peers(result)
    lines = [
        "| what | µs | GB/s | TFLOP/s | of its limit | target |",
        "|---|---:|---:|---:|---:|---:|",
    ]

    def cell(row, key, scale, text):
        return text.format(row[key] / row["median_us"] / scale) if row.get(key) else ""

    def percent(row, key):
        return f"{row[key]:.0f} %" if key in row else ""

    for row in result["checks"]:
        if row.get("median_us", 0) <= 0:
            continue
        lines.append(
            f"| {row['name']} | {row['median_us']:.1f} | {cell(row, 'bytes', 1e3, '{:.0f}')} |"
            f" {cell(row, 'flops', 1e6, '{:.1f}')} | {percent(row, 'percent_of_limit')} |"
            f" {percent(row, 'target_percent')} |"
        )
    return lines + ["", f"{result['device']}, commit {result['commit']}, `scripts/gpu_check.sh`."]


def nvcc_summary(result):
    """What ptxas gives the kernels of each source, for each toolkit and GPU: the most registers of
    a kernel, and the bytes that its kernels spill."""
    registers, spills = (result["columns"].index(name) for name in ("registers", "spills"))
    baseline = kernel_baseline()
    cells, sources, targets = {}, [], []
    kernels = {row["source"]: row["kernels"] for row in result["rows"]}
    hopper = [
        {"arch": "sm_90a", "toolkit": "13.0.88", "source": source,
         "kernels": {name: baseline[name] for name in names if name in baseline}}
        for source, names in kernels.items()
    ]  # fmt: skip
    for row in hopper + result["rows"]:
        target = f"{row['arch']} ({row['toolkit'].rsplit('.', 1)[0]})"
        sources.append(row["source"])
        targets.append(target)
        numbers = row["kernels"].values()
        most = max((kernel[registers] for kernel in numbers), default=0)
        spilled = sum(kernel[spills] for kernel in numbers)
        text = f"{most}, {spilled} B spilled" if spilled else f"{most}"
        cells[row["source"], target] = text if numbers else "-"
    sources, targets = sorted(set(sources)), sorted(set(targets), key=in_order)
    lines = [
        "| source | kernels | shared memory, KiB | " + " | ".join(targets) + " |",
        "|---|---:|---:|" + "---:|" * len(targets),
    ]
    for source in sources:
        most = max((baseline[name][4] for name in kernels[source] if name in baseline), default=0)
        row = [cells.get((source, target), "not compiled") for target in targets]
        room = f"{most / 1024:.0f}" if most else ""
        lines.append(f"| {source} | {len(kernels[source])} | {room} | " + " | ".join(row) + " |")
    num_pairs = len(cells)
    return lines + [
        "",
        f"{num_pairs} of {len(sources) * len(targets)} pairs compiled: the most registers of one of"
        f" a source's kernels, and the most dynamic shared memory. Commit {result['commit']},"
        " `benchmarks/kernels/nvcc_summary.py`; sm_90a is what cuda_resources_test holds.",
    ]


def in_order(target):
    """sm_90a before sm_100f."""
    return int(re.search(r"\d+", target).group()), target


def kernel_baseline():
    """[registers, stack, spills, static and dynamic shared memory, threads] by kernel, on sm_90a;
    tests hold them."""
    rows = (ROOT / "kernels" / "cuda" / "resources_sm_90a.txt").read_text().splitlines()
    split = [row.split() for row in rows if not row.startswith("#")]
    return {name: list(map(int, numbers)) for name, *numbers in split}


def test_times(result):
    slowest = sorted(result["seconds"].items(), key=lambda item: -item[1])[:20]
    lines = ["| test | seconds |", "|---|---:|"]
    lines += [f"| {name} | {seconds:.0f} |" for name, seconds in slowest]
    total = sum(result["seconds"].values())
    return lines + [
        "",
        f"{len(result['seconds'])} tests take {total:.0f} s together. {result['cpu']},"
        f" {result['cores']} cores, as many tests at once, commit {result['commit']}.",
    ]


def client_row(name, calm, killed):
    """A test of the clients' tier: without faults, and while workers die."""
    test = name.split("::")[1].removeprefix("test_").replace("_", " ")
    users = ", ".join(
        f"{package.removeprefix('npm:')} {version}".strip()
        for package, version in (calm or killed)["clients"].items()
    )
    answers = split = deaths = equal = "-"
    if calm and calm.get("whole", 0) + calm.get("streamed", 0):
        num = calm.get("whole", 0) + calm.get("streamed", 0)
        answers = f"{calm.get('whole', 0)} + {calm.get('streamed', 0)}"
        split = "all" if calm.get("split", 0) == num else f"{calm.get('split', 0)} of {num}"
    if killed and killed.get("kills"):
        dead = [kill["role"] for kill in killed["kills"]]
        deaths = f"{dead.count('prefill')} + {dead.count('decode')}, {killed.get('resumed', 0)}"
        equal = f"{killed.get('equal', 0)} of {killed.get('compared', 0)}"
    results = [run["result"] if run else "-" for run in (calm, killed)]
    return [users, test, answers, split, results[0], deaths, equal, results[1]]


def clients(result):
    calm, killed = result.get("undisturbed", {}), result.get("killed", {})
    rows = [client_row(n, calm.get(n), killed.get(n)) for n in sorted({*calm, *killed})]
    rows.sort(key=lambda row: row[0].lower())
    dead = sum(len(run.get("kills", [])) for run in killed.values())
    skipped = sorted({
        f"{name.split('::')[1]}: {run['reason']}"
        for name, run in calm.items()
        if run["result"] == "skipped"
    })  # fmt: skip
    lines = [
        "| client | test | answers, whole + streamed | split | result"
        " | killed, prefill + decode, resumed answers | equal answers | result while killed |",
        "|---|---|---:|---:|---|---:|---:|---|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"{len(calm)} tests with 1 prefill and 1 decode worker, {len(killed)} with 2 and 2 of which"
        f" {dead} were killed (seed {result.get('kill_seed')}), commit {result['commit']}."
        + other_tests(result),
    ]
    return lines + [f"Skipped: {'; '.join(skipped)}."] * bool(skipped)


def other_tests(result):
    """The tests that were run by themselves, at another commit than the file's."""
    num_at = {}
    for mode in ("undisturbed", "killed"):
        for run in result.get(mode, {}).values():
            at = run.get("commit", result["commit"])
            num_at[at] = num_at.get(at, 0) + 1
    num_at.pop(result["commit"], None)
    return "".join(f" Runs of commit {at}: {count}." for at, count in num_at.items())


def ratio_of(value, digits=2):
    """A median with its interval."""
    low, high = value["low"], value["high"]
    return f"{value['median']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def viewers(result):
    lines = ["| viewers | ITL p50 | ITL p99 | router's time a turn | p99 / without viewers |"]
    lines.append("|---:|---:|---:|---:|---:|")
    for number, row in result["summary"].items():
        lines.append(
            f"| {number} | {row['itl_p50_ms']:.1f} ms | {row['itl_p99_ms']:.1f} ms |"
            f" {row['router_cpu_ms']:.0f} ms | {ratio_of(row['itl_p99_ms_ratio'], 3)} |"
        )
    rounds = f"{len(result['rounds'])} rounds in turn; {result['streams']} streams. "
    return lines + ["", rounds + where(result)]


def surfaces(result):
    calls, keys, streams = result["surfaces"], result["keys"], result["streams"]
    rows = [
        (f"`{name}`, router's time a token / chat's", ratio_of(calls[f"{name}_to_chat"]))
        for name in ("messages", "responses")
    ]
    rows += [
        (f"{keys['keys']} keys and all limits, more time of a {name}, us",
         ratio_of(keys[f"{name}_more_us"], 1))
        for name in ("tokenize", "completion")
    ]  # fmt: skip
    rows += [
        (f"{streams['streams']} streams, with keys / without: {name}",
         ratio_of(streams[f"{key}_ratio"]))
        for key, name in (
            ("added_p50_us", "router's part of a token, p50"),
            ("added_p99_us", "the same, p99"),
            ("router_us_a_token", "router's processor time a token"),
        )
    ]  # fmt: skip
    lines = ["| what | median (95 % interval) |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    return lines + ["", f"{result['rounds']} rounds in turn. " + where(result)]


def structured(result):
    s = result["summary"]
    streams = f"{result['streams']} streams, tokens/s with a schema / without"
    tools = s["tool_us_a_token"].values()
    compiled = s["compile_ms"]
    rows = [
        ("a schema adds to a token, ms", ratio_of(s["mask"]["added_ms"])),
        (streams, ratio_of(s["streams16"]["ratio"])),
        (f"first compilation of {compiled['count']} schemas, p50 and p99, ms",
         f"{compiled['p50']:.1f}, {compiled['p99']:.1f}"),
        ("parsing tool calls, by style, us a token", f"{min(tools):.2f} to {max(tools):.2f}"),
        ("log-probabilities of a prompt of 2,000 tokens / plain prefill",
         ratio_of(s["echo"]["ratio"])),
        ("the same / plain prefill and the output matrix alone",
         ratio_of(s["echo_to_plain_and_head"])),
        ("16 prompts in one request / in 16 requests, time", ratio_of(s["prompts16"]["ratio"])),
    ]  # fmt: skip
    rows += [(f"tokens/s with a schema, {name}", ratio_of(spread))
             for name, spread in s.get("peers", {}).items()]  # fmt: skip
    lines = ["| what | measured (95 % interval) |", "|---|---:|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    return lines + ["", f"{len(result['rounds'])} rounds in turn. " + where(result)]


def speculation(result):
    """Guessing beside none; a name is a text and its number of streams."""
    lines = [
        "| text | streams | off, tokens/s | `ngram` / off | `auto` / off | right guesses |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["summary"].items():
        text, streams = re.fullmatch(r"([a-z]+)(\d+)", name).groups()
        # Files of the script before had medians alone.
        ratios = " | ".join(
            f"{ratio:.2f}" if isinstance(ratio, float) else ratio_of(ratio)
            for ratio in (row["to_off"][mode] for mode in ("ngram", "auto"))
        )
        off = row["median"]["off"]
        right = "-" if row["right"] is None else f"{100 * row['right']:.0f} %"
        lines.append(f"| {text} | {streams} | {off:.0f} | {ratios} | {right} |")
    rounds = len({turn["round"] for turn in result["rounds"]})
    return [*lines, "", f"Medians of {rounds} rounds in turn. {where(result)}"]


def routers(result):
    lines = [
        "| streams | router | added to a token, p50 | p99 | cores |"
        " Baton / it: p50 | p99 | cores |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    measured = ("added_p50_ms", "added_p99_ms", "cpu_cores")
    for streams, rows in result["summary"].items():
        for name, row in rows["median"].items():
            p50, p99, cores = (row[what] for what in measured)
            others = rows["baton_to"].get(name)
            ratios = " | ".join(ratio_of(others[what]) for what in measured) if others else "| |"
            lines.append(
                f"| {streams} | {name} | {p50:.2f} ms | {p99:.2f} ms | {cores:.2f} | {ratios} |"
            )
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    tokens = f"{result['tokens_per_s_a_stream']:.0f} tokens/s a stream"
    machine = f"{result['cpu']}, {result['cores']} cores, commit {result['commit']}."
    workers = f"{result['workers']} toy workers"
    return [*lines, "", f"{workers}, {tokens}; {versions}. {machine}"]


def token_trace(result):
    lines = [
        "| streams | process | wake-ups | processor, us | waited for a processor, us |"
        " system calls |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for shape, summary in result["summary"].items():
        name = f"{shape}: {summary['tokens_per_s']:.0f} tokens/s"
        for process, row in summary["processes"].items():
            times = f"{row['cpu_us']:.0f} | {row['waited_us']:.0f}"
            calls = f"{row['syscalls']:.1f}"
            lines.append(f"| {name} | {process} | {row['wakeups']:.1f} | {times} | {calls} |")
            name = ""
    return [*lines, "", f"For each token that the client got. {where(result)}"]


def architectures(result):
    def kv(row, kind):
        return f"{row[kind]['worst']:.1e} of {row[kind]['bound']:.1e}"

    lines = [
        "| architecture | form | models | largest error, f32 KV | bf16 KV | argmax |"
        " transformers | bytes a token | a sequence | perplexity | prefill | decode | of |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]

    def measured(row):
        ppl, speed = row.get("perplexity"), row.get("speed")
        out = "-"
        if ppl:
            out = f"{ppl['bf16']:.2f} ({100 * (ppl['bf16'] / ppl['float64'] - 1):+.2f} %)"
        if not speed:
            return f"{out} | - | - | -"
        prefill, decode = speed["prefill_tokens_per_s"], speed["decode_tokens_per_s"]
        return f"{out} | {prefill:,.0f} | {decode:,.0f} | {speed['of']}"

    for row in result["rows"]:
        begin = f"| {row['architecture']} | {row['form']} | "
        own = row["saved"]
        saved = f"{own['worst']:.1e}, {own['equal']} of {own['folders']}" if own else "-"
        if not row["models"]:
            lines.append(f"{begin}0 | - | - | - | {saved} | - | - | {measured(row)} |")
            continue
        right = row["f32"]["decided"] - row["f32"]["wrong"]
        lines.append(
            f"{begin}{len(row['models'])} | {kv(row, 'f32')} | {kv(row, 'bf16')} |"
            f" {right} of {row['f32']['decided']} | {saved} |"
            f" {row['token_bytes']:,} | {row['sequence_bytes']:,} | {measured(row)} |"
        )
    return lines + ["", where(result)]


def equal_bits(result):
    paths = list(result["rows"][0]["equal"])
    lines = [
        f"| model | {' | '.join(paths)} | decode worker killed |",
        "|---|" + "---:|" * (len(paths) + 1),
    ]
    for row in result["rows"]:
        cells = " | ".join(f"{row['equal'][path]} of {row['prompts']}" for path in paths)
        lines.append(f"| {row['model']} | {cells} | {row['resumed_equal']} of {row['kills']} |")
    return [*lines, "", f"Seed {result['seed']}. {where(result)}"]


TABLES = {
    "equal_bits": equal_bits,
    "forward": compare.forward_alone,
    "compare_vllm": compare.beside_vllm,
    "architectures": architectures,
    "viewers": viewers,
    "surfaces": surfaces,
    "structured": structured,
    "speculation": speculation,
    "routers": routers,
    "token_trace": token_trace,
    "clients": clients,
    "chaos": chaos,
    "k8s": k8s,
    "fuzz": fuzz,
    "gpu_check": gpu_check,
    "plan": plan,
    "serving": serving,
    "lending": lending,
    "overload": overload_runs,
    "prefix_cache": prefix_cache,
    "fixed_states": fixed_states,
    "test_times": test_times,
    "nvcc_summary": nvcc_summary,
}


MARKED = re.compile(r"<!-- (table|headline) (\S+) -->.*?<!-- end -->", re.S)
pictures = {}  # path: text


def render(page, match):
    kind, name = match.groups()
    if not (RESULTS / f"{name}.json").is_file():
        return match.group(0)  # its run is still to come
    result = json.loads((RESULTS / f"{name}.json").read_text())
    if kind == "headline":
        table = "\n".join([*compare.headline(result), "", *split_costs(result)])
    elif result["benchmark"] == "compare":
        svg = RESULTS / f"{name}.svg"
        pictures[svg] = compare.picture(result)
        table = "\n".join(compare.markdown(result, os.path.relpath(svg, page.parent)))
    else:
        table = "\n".join(TABLES[result["benchmark"]](result))
    return f"<!-- {kind} {name} -->\n{table}\n<!-- end -->"


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    for name in PAGES:
        page = ROOT / name
        text = page.read_text()
        wanted = MARKED.sub(functools.partial(render, page), text)
        if not check:
            page.write_text(wanted)
        elif wanted != text:
            raise SystemExit(f"{name} differs from benchmarks/results: scripts/readme_tables.py")
    for path, svg in pictures.items():
        if not check:
            path.write_text(svg)
        elif not path.is_file() or path.read_text() != svg:
            raise SystemExit(f"{path.name} differs from its result: scripts/readme_tables.py")


if __name__ == "__main__":
    main()
