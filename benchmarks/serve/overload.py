#!/usr/bin/env python3
"""What a server does with more requests than it can serve: open loops beyond a measured capacity.

  benchmarks/serve/overload.py --model FILE|NAME [--out FILE.json]
      [--seconds 60] [--loads 1,1.5,3,10] [--streams 1,2,4,8,16,32] [--serve-args="--max-batch 16"]

First closed loops find the capacity: for each number of clients (--streams), each client asks again
as soon as it has its answer; the most answers a second are the capacity. Then, for each load, a
server that has just started gets Poisson arrivals at that many times the capacity, whatever became
of those before. Requests have --prompt tokens and ask for --tokens tokens. Printed for each load:
  first15, all   answers a second that ended in the first 15 s and in the whole time, and the same
                 in parts of the capacity
  refused        answers of 429 and 503, and the 99th percentile of their age
  ttft, itl      of the accepted: median and 99th percentile, ms
  lost           neither answered nor refused, which must be 0
Uses the standard library only.
"""

import asyncio
import json
import random
import shlex
import sys
import time
from pathlib import Path

from serving import ROOT, Server, argument_parser, record, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import quantile  # noqa: E402

WARM_UP_S = 5
EARLY_S = 15
# A request that waits and then streams for longer is lost.
TIMEOUT_S = 120


class Answer:
    """One request: when it began, its tokens came and it ended, in seconds since the start."""

    def __init__(self, began):
        self.began = began
        self.ended = None
        self.status = 0  # 0 = neither answered nor refused
        self.arrivals = []


async def ask(port, body, answer, start):
    """Streams one completion over a connection of its own."""
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
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
            if b'"finish_reason":null' in line:
                answer.arrivals.append(time.monotonic() - start)
        if is_done:
            answer.status = status
    except (OSError, IndexError, ValueError):
        pass
    finally:
        answer.ended = time.monotonic() - start
        if writer is not None:
            writer.close()


def body_of(rng, args):
    return json.dumps(
        {
            "prompt": token_prompt(rng, args.prompt),
            "max_tokens": args.tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()


async def closed_loop(port, args, num_clients, seconds):
    """Answers of clients that each have one request under way."""
    start = time.monotonic()
    answers = []

    async def client(seed):
        rng = random.Random(seed)
        while (now := time.monotonic() - start) < WARM_UP_S + seconds:
            answer = Answer(now)
            answers.append(answer)
            await asyncio.wait_for(ask(port, body_of(rng, args), answer, start), TIMEOUT_S)

    await asyncio.gather(*(client(1000 * num_clients + i) for i in range(num_clients)))
    return answers


async def open_loop(port, args, rate):
    """Answers to Poisson arrivals."""
    rng = random.Random(args.seed)
    start = time.monotonic()
    answers, tasks = [], []
    at = rng.expovariate(rate)
    while at < args.seconds:
        body = body_of(rng, args)
        await asyncio.sleep(max(0, start + at - time.monotonic()))
        answer = Answer(time.monotonic() - start)
        answers.append(answer)
        call = asyncio.wait_for(ask(port, body, answer, start), TIMEOUT_S)
        tasks.append(asyncio.create_task(call))
        at += rng.expovariate(rate)
    await asyncio.gather(*tasks, return_exceptions=True)
    return answers


def gaps_ms(answers):
    return [
        (b - a) * 1e3
        for answer in answers
        if answer.status == 200
        for a, b in zip(answer.arrivals, answer.arrivals[1:])
    ]


def measure_capacity(args):
    """The best closed loop, and all of them."""
    loops = []
    server = Server(args, shlex.split(args.serve_args))
    for num_clients in args.streams:
        answers = asyncio.run(closed_loop(server.port, args, num_clients, args.closed_seconds))
        end = WARM_UP_S + args.closed_seconds
        served = [a for a in answers if a.status == 200]
        rate = sum(WARM_UP_S < a.ended <= end for a in served) / args.closed_seconds
        itl_p99_ms = quantile(gaps_ms(served), 0.99)
        loops.append({"clients": num_clients, "per_s": rate, "itl_p99_ms": itl_p99_ms})
        print(f"closed loop of {num_clients:3}: {rate:7.2f}/s, ITL p99 {itl_p99_ms:.0f} ms")
    server.stop()
    return max(loops, key=lambda loop: loop["per_s"]), loops


def limit_of(server):
    for line in server.admin("router-0", "/metrics").splitlines():
        if line.startswith("baton_batch_limit"):
            return float(line.rsplit(" ", 1)[1])
    return None


def measure_load(args, times, capacity):
    server = Server(args, shlex.split(args.serve_args))
    answers = asyncio.run(open_loop(server.port, args, times * capacity["per_s"]))
    limit = limit_of(server)
    server.stop()
    served = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status in (429, 503)]
    gaps = gaps_ms(served)
    ttft = [(a.arrivals[0] - a.began) * 1e3 for a in served if a.arrivals]
    first = sum(a.ended <= EARLY_S for a in served) / EARLY_S
    whole = sum(a.ended <= args.seconds for a in served) / args.seconds
    return {
        "times": times,
        "offered_per_s": len(answers) / args.seconds,
        "first15_per_s": first,
        "first15_to_capacity": first / capacity["per_s"],
        "all_per_s": whole,
        "all_to_capacity": whole / capacity["per_s"],
        "served": len(served),
        "refused": len(refused),
        "refusal_age_p50_s": quantile([a.ended - a.began for a in refused], 0.5),
        "refusal_age_p99_s": quantile([a.ended - a.began for a in refused], 0.99),
        "ttft_p50_ms": quantile(ttft, 0.5),
        "ttft_p99_ms": quantile(ttft, 0.99),
        "itl_p50_ms": quantile(gaps, 0.5),
        "itl_p99_ms": quantile(gaps, 0.99),
        "itl_p99_to_capacity": quantile(gaps, 0.99) / capacity["itl_p99_ms"],
        "failed": sum(a.status not in (0, 200, 429, 503) for a in answers),
        "lost": sum(a.status == 0 for a in answers),
        "batch_limit": limit,
    }


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--closed-seconds", type=float, default=15)
    parser.add_argument("--loads", default="1,1.5,3,10")
    parser.add_argument("--streams", default="1,2,4,8,16,24,32")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-args", default="")
    args = parser.parse_args()
    args.streams = [int(n) for n in args.streams.split(",")]
    result = {**record("overload", args.threads), "seed": args.seed, "prompt": args.prompt}
    result |= {"tokens": args.tokens, "seconds": args.seconds, "serve_args": args.serve_args}
    capacity, result["closed"] = measure_capacity(args)
    result["capacity"] = capacity
    result["open"] = []
    for times in (float(x) for x in args.loads.split(",")):
        row = measure_load(args, times, capacity)
        result["open"].append(row)
        print(
            f"{times:4.1f}x: first15 {row['first15_per_s']:6.2f}/s "
            f"({row['first15_to_capacity']:.2f}), all {row['all_per_s']:6.2f}/s "
            f"({row['all_to_capacity']:.2f}); refused {row['refused']} "
            f"at p99 {row['refusal_age_p99_s']:.3f} s; TTFT {row['ttft_p50_ms']:.0f} /"
            f" {row['ttft_p99_ms']:.0f} ms; ITL p99 {row['itl_p99_ms']:.0f} ms"
            f" ({row['itl_p99_to_capacity']:.2f}); failed {row['failed']}, lost {row['lost']};"
            f" limit {row['batch_limit']}",
            flush=True,
        )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
