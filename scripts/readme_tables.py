#!/usr/bin/env python3
"""Writes the tables of README.md from the JSON files of benchmarks/results.

  scripts/readme_tables.py            rewrites README.md
  scripts/readme_tables.py --check    exit 1 when README.md is not what the files say

A table stands between <!-- table NAME --> and <!-- end -->; NAME is a file of benchmarks/results.
A comparison's picture is written beside its file.
"""

import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "compare"))
import tables as compare  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


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


def prefix_cache(result):
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


TABLES = {
    "serving": serving,
    "prefix_cache": prefix_cache,
}


pictures = {}  # path: text


def render(match):
    name = match.group(1)
    result = json.loads((RESULTS / f"{name}.json").read_text())
    if result["benchmark"] == "compare":
        pictures[RESULTS / f"{name}.svg"] = compare.picture(result)
        table = "\n".join(compare.markdown(result, f"benchmarks/results/{name}.svg"))
    else:
        table = "\n".join(TABLES[result["benchmark"]](result))
    return f"<!-- table {name} -->\n{table}\n<!-- end -->"


def main():
    readme = ROOT / "README.md"
    text = readme.read_text()
    wanted = re.sub(r"<!-- table (\S+) -->.*?<!-- end -->", render, text, flags=re.S)
    if sys.argv[1:] == ["--check"]:
        drawn = all(path.is_file() and path.read_text() == svg for path, svg in pictures.items())
        if wanted != text or not drawn:
            raise SystemExit("README.md differs from benchmarks/results: scripts/readme_tables.py")
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        readme.write_text(wanted)
        for path, svg in pictures.items():
            path.write_text(svg)


if __name__ == "__main__":
    main()
