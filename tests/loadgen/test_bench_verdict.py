"""`baton bench --compare` tells a server that takes twice as long from the other: times are held
to a ratio, so nothing else runs beside it."""

import json
import re

from test_bench_cli import Toy, bench


def test_a_comparison_ends_with_a_verdict(tmp_path):
    out = tmp_path / "c.json"
    toy, other = Toy(), Toy(40000, 4000)
    page = tmp_path / "c.html"
    load = ["--rate", "50", "--requests", "6", "--output", "4", "--rounds", "16", "--json", out]
    done = bench("--compare", toy.url, other.url, *load, "--html", page)
    toy.stop()
    other.stop()
    assert done.returncode == 0 or "is void" in done.stderr, done.stderr
    assert "verdict: they differ" in done.stdout
    comparison = json.loads(out.read_text())["comparison"]
    ttft = next(m for m in comparison["metrics"] if m["metric"] == "ttft p50")
    assert ttft["verdict"] == "B is worse" and 1.5 < ttft["ratio"] < 2.5
    rounds = [r["report"]["output_tokens_per_s"] for r in json.loads(out.read_text())["runs"]]
    row = re.search(r"<td>A http.*", page.read_text()).group()
    shown = float(re.findall(r"<td>([^<]*)</td>", row)[4])
    assert min(rounds) <= shown <= max(rounds), "rounds were laid over each other"
