#!/usr/bin/env python3
"""The map of modes: where the split, aggregated and adaptive mode is better, on one host.

  benchmarks/serve/mode_map.py --model FILE|NAME [--out FILE.json] [--svg FILE.svg] [--rounds 9]
      [--prompts 32,256,1000,4000] [--outputs 16,128,512] [--loads 0.2,0.5,0.8,1,1.2]
      [--requests 20] [--clients 8] [--serve-args="--local-prefill-tokens 64"]

A shape is a number of prompt tokens and one of output tokens; a cell is a shape at a load. For each
shape closed loops of --clients clients find the capacity, in answers a second, of the split and of
aggregated mode; the larger one is the capacity of the shape. In each round the three modes then
serve all loads of the shape, a server each, in turns A B C, C B A: --requests Poisson arrivals at
load x capacity, the same for all modes. The prompts have nothing in common.

The score of a cell is answers a second that clients waited: the answers, divided by the sum of all
requests' times from their intended arrival to their last token. A request that is not answered
counts as the limit of 120 s. The ratio of a cell is adaptive's score to the better one of the other
two (of the same round); printed are its median, its 95 % interval and the worst cell, and the
picture shows all of them. Median TTFT and the gaps' 99th percentile are in the file, and why
adaptive placed its requests as it did (baton_routes_total). Takes hours; a quiet machine, which the
load averages in the file show. Uses the standard library only.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import shlex
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from overload import TIMEOUT_S, Answer, gaps_ms
from serving import ROOT, Server, argument_parser, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import count, counts, positives, quantile, record, spread  # noqa: E402

STATIC = ("disagg", "aggregated")
MODES = (*STATIC, "adaptive")
TARGET = 0.97
TOKEN = re.compile(rb'"finish_reason": ?null')


def address(server):
    return "127.0.0.1", server.port


async def ask(where, body, answer, start):
    """Streams one completion over a connection of its own."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection(*where)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {where[0]}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        is_done = status != 200
        while line := await reader.readline():
            if status != 200 or not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                is_done = True
                break
            if b'"error"' in line[:20]:
                break
            if TOKEN.search(line):
                answer.arrivals.append(time.monotonic() - start)
        if is_done:
            answer.status = status
    except (OSError, IndexError, ValueError):
        pass
    finally:
        answer.ended = time.monotonic() - start
        if writer is not None:
            writer.close()


def body_of(rng, shape):
    body = {
        "prompt": token_prompt(rng, shape.prompt),
        "max_tokens": shape.tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    return json.dumps(body).encode()


async def limited(where, body, answer, start):
    """Asks, and leaves the answer without a status after the limit."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ask(where, body, answer, start), TIMEOUT_S)


async def closed_loop(where, shape, num_clients, num_requests, seed):
    """Answers a second of clients that each have one request under way."""
    rng = random.Random(seed)
    left = [body_of(rng, shape) for _ in range(num_requests)]
    start = time.monotonic()
    answers = []

    async def client():
        while left:
            now = time.monotonic() - start
            answer = Answer(now, now)
            answers.append(answer)
            await limited(where, left.pop(), answer, start)

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return sum(answer.status == 200 for answer in answers) / (time.monotonic() - start)


async def open_loop(where, shape, rate, num_requests, seed):
    """Answers to so many Poisson arrivals."""
    rng = random.Random(seed)
    start = time.monotonic()
    answers, tasks = [], []
    at = 0.0
    for _ in range(num_requests):
        at += rng.expovariate(rate)
        body = body_of(rng, shape)
        await asyncio.sleep(max(0, start + at - time.monotonic()))
        answer = Answer(at, time.monotonic() - start)
        answers.append(answer)
        tasks.append(asyncio.create_task(limited(where, body, answer, start)))
    await asyncio.gather(*tasks)
    return answers


def score(answers):
    """Answers for a second of waiting."""
    good = [a for a in answers if a.status == 200]
    waited = sum(a.ended - a.due for a in good) + TIMEOUT_S * (len(answers) - len(good))
    return len(good) / waited


def routes(server):
    """Placements so far by their reason; empty of a server without that counter."""
    text = server.admin("router-0", "/metrics")
    rows = re.findall(r'^baton_routes_total\{[^}]*reason="(\w+)"[^}]*\} (\S+)$', text, re.M)
    return {reason: float(count) for reason, count in rows}


def measure_cell(server, shape, rate, args, seed):
    before = routes(server)
    answers = asyncio.run(open_loop(address(server), shape, rate, args.requests, seed))
    good = [a for a in answers if a.status == 200 and a.arrivals]
    after = routes(server)
    row = {
        "score": score(answers),
        "answered": len(good),
        "ttft_ms": quantile([(a.arrivals[0] - a.due) * 1e3 for a in good], 0.5),
        "itl99_ms": quantile(gaps_ms(good), 0.99),
        "lag99_ms": quantile([(a.sent - a.due) * 1e3 for a in answers], 0.99),
        "routes": {r: n - before.get(r, 0) for r, n in after.items() if n > before.get(r, 0)},
    }
    return {key: None if value != value else value for key, value in row.items()}  # JSON has no NaN


@contextlib.contextmanager
def serving(args, mode):
    server = Server(args, ["--mode", mode, *shlex.split(args.serve_args)])
    try:
        # Every role has measured its speed before the first cell.
        warm_up = SimpleNamespace(prompt=256, tokens=16)
        asyncio.run(closed_loop(address(server), warm_up, 2, 4, seed=1))
        yield server
    finally:
        server.stop()


def measure_capacity(args, shape):
    found = {}
    for mode in STATIC:
        with serving(args, mode) as server:
            found[mode] = asyncio.run(
                closed_loop(address(server), shape, args.clients, 2 * args.clients, seed=2)
            )
    if max(found.values()) == 0:
        raise SystemExit(f"no answers to {shape.prompt} tokens for {shape.tokens}: {found}")
    return found


def measure_shape(args, shape):
    """Rows of the shape's cells."""
    capacity = measure_capacity(args, shape)
    rows = [{"load": load, "rounds": []} for load in args.loads]
    for k in range(args.rounds):
        found = {}
        for mode in MODES if k % 2 == 0 else MODES[::-1]:
            with serving(args, mode) as server:
                for i, load in enumerate(args.loads):
                    rate = load * max(capacity.values())
                    found[mode, i] = measure_cell(server, shape, rate, args, seed=1000 * k + i)
        for i, row in enumerate(rows):
            row["rounds"].append({mode: found[mode, i] for mode in MODES})
    for row in rows:
        row.update(prompt=shape.prompt, output=shape.tokens, capacity=capacity)
        row["summary"] = summary_of(row["rounds"])
    return rows


def summary_of(rounds):
    """Adaptive's ratio to the better static mode, which one that is, and its share of pairs."""
    ratios = []
    for found in rounds:
        better = max(found[mode]["score"] for mode in STATIC)
        # No mode answered anything: none is better.
        ratios.append(found["adaptive"]["score"] / better if better > 0 else 1.0)
    means = {m: sum(found[m]["score"] for found in rounds) for m in STATIC}
    counts = [found["adaptive"]["routes"] for found in rounds]
    total = sum(sum(count.values()) for count in counts)
    pairs = sum(count.get("pair", 0) for count in counts)
    return {
        "ratio": spread(ratios),
        "better": max(STATIC, key=means.get),
        "pair_share": pairs / total if total else None,
    }


def colour(ratio):
    """Red below the target, white at it, green from 1.1 on."""
    if ratio < TARGET:
        depth = min(1.0, (TARGET - ratio) / 0.3)
        return f"rgb(255,{int(220 - 150 * depth)},{int(220 - 150 * depth)})"
    depth = min(1.0, (ratio - TARGET) / 0.13)
    return f"rgb({int(255 - 135 * depth)},{int(255 - 50 * depth)},{int(255 - 135 * depth)})"


def picture(args, cells, head):
    """The map as SVG: a panel a load, prompts downwards, outputs to the right."""
    width, height, gap, left, top = 92, 44, 36, 64, 92
    panel_w = left + width * len(args.outputs)
    panel_h = gap + height * len(args.prompts)
    columns = min(3, len(args.loads))
    rows = -(-len(args.loads) // columns)
    size = (columns * (panel_w + 24) + 24, top + rows * (panel_h + 40))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="24" y="28" font-size="16">Adaptive mode to the better static mode</text>',
        f'<text x="24" y="48">{head}</text>',
        '<text x="24" y="66">In a cell: the ratio, the better static mode (S = split, '
        "A = aggregated), adaptive's share of pairs. Rows: prompt tokens; columns: output.</text>",
    ]
    for i, load in enumerate(args.loads):
        x0 = 24 + (i % columns) * (panel_w + 24)
        y0 = top + (i // columns) * (panel_h + 40)
        out.append(f'<text x="{x0}" y="{y0 + 12}" font-weight="bold">load {load:g}</text>')
        for c, tokens in enumerate(args.outputs):
            x = x0 + left + c * width + width / 2
            out.append(f'<text x="{x}" y="{y0 + gap - 6}" text-anchor="middle">{tokens}</text>')
        for r, prompt in enumerate(args.prompts):
            y = y0 + gap + r * height
            out.append(f'<text x="{x0}" y="{y + height / 2 + 4}">{prompt}</text>')
            for c, tokens in enumerate(args.outputs):
                out += square(cells[prompt, tokens, load], x0 + left + c * width, y, width, height)
    return "\n".join([*out, "</svg>"]) + "\n"


def square(summary, x, y, width, height):
    ratio = summary["ratio"]["median"]
    share = summary["pair_share"]
    mode = "S" if summary["better"] == "disagg" else "A"
    text = f"{ratio:.2f} {mode}" + ("" if share is None else f" {share:.0%}")
    return [
        f'<rect x="{x}" y="{y}" width="{width - 2}" height="{height - 2}" '
        f'fill="{colour(ratio)}" stroke="#888"/>',
        f'<text x="{x + width / 2 - 1}" y="{y + height / 2 + 4}" '
        f'text-anchor="middle">{text}</text>',
    ]


def read_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--svg")
    parser.add_argument("--prompts", type=counts, default=[32, 256, 1000, 4000])
    parser.add_argument("--outputs", type=counts, default=[16, 128, 512])
    parser.add_argument("--loads", type=positives, default=[0.2, 0.5, 0.8, 1.0, 1.2])
    parser.add_argument("--requests", type=count, default=20)
    parser.add_argument("--clients", type=count, default=8)
    parser.add_argument("--serve-args", default="")
    return parser.parse_args()


def main():
    args = read_arguments()
    result = {
        **record("mode_map", args.threads),
        "arguments": {k: v for k, v in vars(args).items() if k not in ("baton", "out", "svg")},
        "load_average_before": os.getloadavg(),
        "cells": [],
    }
    print(f"{'prompt':>6} {'output':>6} {'load':>5}  {'ratio':>6} {'95 %':>13}  better      pairs")
    for prompt in args.prompts:
        for tokens in args.outputs:
            for row in measure_shape(args, SimpleNamespace(prompt=prompt, tokens=tokens)):
                result["cells"].append(row)
                found, ratio = row["summary"], row["summary"]["ratio"]
                share = found["pair_share"]
                print(
                    f"{prompt:6} {tokens:6} {row['load']:5g}  {ratio['median']:6.3f} "
                    f"{ratio['low']:6.3f} {ratio['high']:6.3f}  {found['better']:10}  "
                    + ("-" if share is None else f"{share:.0%}"),
                    flush=True,
                )
    result["load_average_after"] = os.getloadavg()
    worst = min(result["cells"], key=lambda row: row["summary"]["ratio"]["median"])
    ratio = worst["summary"]["ratio"]["median"]
    result["worst_ratio"] = ratio
    where = f"prompt {worst['prompt']}, output {worst['output']}, load {worst['load']:g}"
    print(f"worst ratio {ratio:.3f} ({where}), target {TARGET}")
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    if args.svg:
        cells = {(r["prompt"], r["output"], r["load"]): r["summary"] for r in result["cells"]}
        head = (
            f"worst ratio {ratio:.3f} ({where}); {args.rounds} rounds of {args.requests} requests; "
            f"{result['cpu']}, {args.threads} threads, commit {result['commit']}"
        )
        Path(args.svg).write_text(picture(args, cells, head))


if __name__ == "__main__":
    main()
