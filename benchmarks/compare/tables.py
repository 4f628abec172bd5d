"""README tables and the picture of a result of run.py; scripts/readme_tables.py calls it."""

import math
import statistics
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from machine import quantile  # noqa: E402

# Colours that can be told apart by most eyes (Okabe and Ito, 2008).
COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00")
PANEL, HEIGHT, TOP, BOTTOM, LEFT = 320, 300, 58, 250, 46
LIMITS = {
    "read": ("reading", "GB/s"),
    "int16": ("int16", "Gop/s"),
    "fp32": ("fp32", "GFLOP/s"),
}


# A p99 of fewer is one of the last few by chance.
SAMPLES_OF_P99 = 1000


def flat(runs, key):
    return [value for run in runs for value in run[key]]


def spread(ratio):
    return f"{ratio[0]:.2f} | {ratio[1]:.2f} to {ratio[2]:.2f}"


def share(row, name):
    return f"{100 * row['share_of_limit'][name]:.0f} % of {LIMITS[row['limit']][0]}"


def forward_table(result):
    lines = [
        "| forward pass, tokens/s | Baton | llama.cpp | ratio | spread | Baton, of the limit |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for row in result["forward"]:
        m = row["median"]
        lines.append(
            f"| {row['case']} | {m['baton']:.0f} | {m['llama.cpp']:.0f} |"
            f" {spread(row['ratio']['llama.cpp'])} | {share(row, 'baton')} |"
        )
    return lines


def streams_table(result):
    lines = [
        "| server | streams | tokens/s | Baton / server | spread | ttft p50 | itl p50 |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    for row in result["streams"]:
        for name, runs in row["runs"].items():
            ratio = "| " if name == "baton" else spread(row["ratio"][name])
            lines.append(
                f"| {name} | {row['streams']} | {row['median'][name]:.0f} | {ratio} |"
                f" {statistics.median(flat(runs, 'ttft_ms')):.0f} ms |"
                f" {statistics.median(flat(runs, 'itl_ms')):.1f} ms |"
            )
    return lines


def start_table(result):
    """Start, memory and time to the first token; results before these parts have none."""
    if "start" not in result or "ttft" not in result:
        return []
    names = list(result["start"]["median"])
    other = names[-1]
    heads = " | ".join(names)
    rows = [("start to the first token, ms", result["start"])]
    rows += [(f"ttft of {row['tokens']} tokens, ms", row) for row in result["ttft"]]
    lines = [f"| | {heads} | {other} / Baton | spread |", "|---|" + "---:|" * (len(names) + 2)]
    for title, row in rows:
        cells = " | ".join(f"{row['median'][name]:.0f}" for name in names)
        lines.append(f"| {title} | {cells} | {spread(row['ratio'][other])} |")
    memory = result["start"]["pss_mib"]
    cells = " | ".join(f"{memory[name]:.0f}" for name in names)
    ratio = memory[other] / memory["baton"]
    return [*lines, f"| memory after 16 users, MiB (PSS) | {cells} | {ratio:.2f} | |", ""]


def p99(gaps):
    return f"{quantile(gaps, 0.99):.1f} ms" if len(gaps) >= SAMPLES_OF_P99 else "-"


def burst_table(result):
    lines = [
        "| server | gaps | itl p50 | itl p99 | itl max | ttft of the long prompts (p50) |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in result["burst"]["runs"].items():
        gaps = flat(runs, "itl_ms")
        ttft = statistics.median(flat(runs, "long_ttft_ms"))
        lines.append(
            f"| {name} | {len(gaps)} | {quantile(gaps, 0.5):.1f} ms | {p99(gaps)} |"
            f" {max(gaps):.0f} ms | {ttft:.0f} ms |"
        )
    return lines


def headline(result):
    """Three rows: the forward pass, 16 users at a time, and gaps beside long prompts. Of llama.cpp
    the last one is of the server with the shorter gaps."""
    forward = next(row for row in result["forward"] if row["case"] == "pp512")["median"]
    users = next(row for row in result["streams"] if row["streams"] == 16)["median"]
    gaps = {name: flat(runs, "itl_ms") for name, runs in result["burst"]["runs"].items()}
    others = [name for name in gaps if name.startswith("llama.cpp")]
    other = min(others, key=lambda name: statistics.median(gaps[name]))
    return [
        "| | Baton | Baton without the split | llama.cpp |",
        "|---|---:|---:|---:|",
        f"| forward pass of 512 prompt tokens | {forward['baton']:.0f} tokens/s | the same |"
        f" {forward['llama.cpp']:.0f} tokens/s |",
        f"| 16 users at a time | {users['baton']:.0f} tokens/s |"
        f" {users['baton aggregated']:.0f} tokens/s | {users['llama.cpp']:.0f} tokens/s |",
        "| gap between two tokens of four streams while three prompts of 2000 tokens arrive, p99 |"
        f" {p99(gaps['baton'])} | {p99(gaps['baton aggregated'])} |"
        f" {p99(gaps[other])} (`{other}`) |",
        "",
        foot(result),
    ]


def foot(result):
    limits = ", ".join(
        f"{LIMITS[name][0]} {value / 1e9:.1f} {LIMITS[name][1]}"
        for name, value in result.get("limits", {}).items()
    )
    limits = f"; limits measured in the same run: {limits}" if limits else ""
    note = " **A quick run: not to be quoted.**" if result["quick"] else ""
    if result["void"]:
        note += f" **{len(result['void'])} of its parts are void.**"
    return (
        f"{result['model']}; {result['cpu']}, {result['cores']} cores, {result['threads']} threads,"
        f" {result['rounds']} rounds, commit {result['commit']}{limits}.{note}"
    )


def forward_alone(result):
    """The table of a run with --forward."""
    return [*forward_table(result), "", foot(result)]


def beside_vllm(result):
    """The table of a run of vllm.py."""
    lines = [*start_table(result), *streams_table(result), ""]
    return [*lines, *burst_table(result), "", foot(result)]


def markdown(result, picture):
    lines = [*forward_table(result), "", *start_table(result), *streams_table(result), ""]
    lines += burst_table(result)
    return lines + ["", f"![{result['model']} beside llama.cpp]({picture})", "", foot(result)]


# The picture: three panels, written as SVG.


def text(x, y, content, anchor="middle", kind=""):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(content)}</text>'


def line(x1, y1, x2, y2, kind="grid"):
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def round_step(top, count=5):
    """1, 2 or 5 times a power of ten, so that about `count` marks reach the top."""
    step = 10 ** math.floor(math.log10(top / count))
    return next(step * k for k in (1, 2, 5, 10) if top / (step * k) <= count)


def y_axis(svg, left, top_value, width):
    step = round_step(top_value)
    mark = 0.0
    while mark <= top_value:
        y = BOTTOM - (BOTTOM - TOP) * mark / top_value
        svg += [line(left, y, left + width, y), text(left - 5, y + 4, f"{mark:g}", "end")]
        mark += step


def forward_panel(result, x):
    svg = [text(x, 24, "Forward pass: Baton / llama.cpp", "start", "title")]
    rows = result["forward"]
    top = 1.1 * max([1.0] + [row["ratio"]["llama.cpp"][2] for row in rows])
    left, width = x + LEFT, PANEL - LEFT - 24
    y_axis(svg, left, top, width)
    at = lambda value: BOTTOM - (BOTTOM - TOP) * value / top  # noqa: E731
    slot = width / len(rows)
    for i, row in enumerate(rows):
        middle, low, high = row["ratio"]["llama.cpp"]
        centre = left + slot * (i + 0.5)
        svg.append(
            f'<rect x="{centre - slot / 3:.1f}" y="{at(middle):.1f}" width="{slot / 1.5:.1f}"'
            f' height="{BOTTOM - at(middle):.1f}" fill="{COLOURS[0]}"/>'
        )
        svg += [line(centre, at(low), centre, at(high), "ink")]
        svg += [text(centre, BOTTOM + 16, row["case"])]
    svg += [line(left, at(1), left + width, at(1), "ink")]
    svg.append(text(left, TOP - 14, "times as fast (1 = the same); line: spread", "start"))
    return svg


def streams_panel(result, x):
    svg = [text(x, 24, "Streams: tokens/s", "start", "title")]
    rows = result["streams"]
    names = list(rows[0]["runs"])
    top = 1.1 * max(value for row in rows for value in row["median"].values())
    left, width = x + LEFT, PANEL - LEFT - 24
    y_axis(svg, left, top, width)
    slot = width / len(rows)
    bar = slot / (len(names) + 1)
    for i, row in enumerate(rows):
        for j, name in enumerate(names):
            height = (BOTTOM - TOP) * row["median"][name] / top
            svg.append(
                f'<rect x="{left + slot * i + bar * (j + 0.5):.1f}" y="{BOTTOM - height:.1f}"'
                f' width="{bar * 0.9:.1f}" height="{height:.1f}" fill="{COLOURS[j]}"/>'
            )
        svg.append(text(left + slot * (i + 0.5), BOTTOM + 16, f"{row['streams']}"))
    return svg


def burst_panel(result, x):
    svg = [text(x, 24, "Burst of long prompts: itl, ms (log)", "start", "title")]
    runs = result["burst"]["runs"]
    gaps = {name: sorted(flat(taken, "itl_ms")) for name, taken in runs.items()}
    gaps = {name: [max(g, 0.1) for g in values] for name, values in gaps.items() if values}
    low = math.floor(math.log10(min(quantile(v, 0.01) for v in gaps.values())))
    high = math.ceil(math.log10(max(v[-1] for v in gaps.values())))
    left, width = x + LEFT, PANEL - LEFT - 24
    y_axis(svg, left, 100, width)
    at = lambda g: left + width * max(0, math.log10(g) - low) / (high - low)  # noqa: E731
    for power in range(low, high + 1):
        here = left + width * (power - low) / (high - low)
        svg += [line(here, TOP, here, BOTTOM), text(here, BOTTOM + 16, f"{10.0**power:g}")]
    svg.append(text(left, TOP - 14, "% of the gaps that are shorter", "start"))
    for j, values in enumerate(gaps.values()):
        path = ""
        for k in range(101):
            share_y = BOTTOM - (BOTTOM - TOP) * k / 100
            g = values[min(len(values) - 1, int(k / 100 * len(values)))]
            path += f"{'L' if path else 'M'}{at(g):.1f} {share_y:.1f}"
        svg.append(f'<path class="line" stroke="{COLOURS[j]}" d="{path}"/>')
    return svg


def picture(result):
    width = 3 * PANEL + 24
    style = (
        "text{font:11px system-ui,sans-serif;fill:#333}.title{font-size:13px;font-weight:600}"
        ".grid{stroke:#e4e4e4;fill:none}.ink{stroke:#222;stroke-width:1.5;fill:none}"
        ".line{fill:none;stroke-width:2}"
    )
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}">',
        f"<title>{escape(result['model'])} beside llama.cpp</title><style>{style}</style>",
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
    ]
    svg += forward_panel(result, 12) + streams_panel(result, 12 + PANEL)
    svg += burst_panel(result, 12 + 2 * PANEL)
    x = 12 + LEFT
    for j, name in enumerate(result["burst"]["runs"]):
        svg.append(f'<rect x="{x}" y="281" width="10" height="10" fill="{COLOURS[j]}"/>')
        svg.append(text(x + 14, 290, name, "start"))
        x += 34 + 7 * len(name)
    return "\n".join(svg) + "\n</svg>\n"
