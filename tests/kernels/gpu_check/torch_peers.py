#!/usr/bin/env python3
"""The times that gpu_check's stage 8 compares with: torch's products (cuBLAS) and its
scaled_dot_product_attention at the shapes of Llama-3.1-8B. It writes one JSON object a line on
standard output:

  {"name": "torch gemm qkv m 8", "samples_us": [..], "bytes": .., "flops": ..}

Usage: torch_peers.py [--tiny]. Exit status: 0, or 77 with {"not_run": reason} where torch with CUDA
is not importable.
"""

import json
import math
import sys

NOT_RUN = 77
HEADS, KV_HEADS, DIM = 32, 8, 128
PRODUCTS = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "output": (128256, 4096),
}
ROWS = (1, 8, 32, 64, 2048, 8192)
MOST_OUTPUT_ROWS = 64
DECODES = ((1, 1024), (8, 1024), (64, 1024), (1, 8192), (8, 8192))
PREFILL = 2048
ENOUGH_MS = 1.0
MOST_LAUNCHES = 2048
COLD_BYTES = 504 << 20  # four times the largest L2


def say(**line):
    print(json.dumps(line), flush=True)


def import_torch():
    try:
        import torch
    except ImportError as error:
        return None, f"torch: {error}"
    if not torch.cuda.is_available():
        return None, f"torch {torch.__version__} finds no GPU"
    return torch, ""


def copies_for(num_bytes):
    return max(1, min(128, COLD_BYTES // num_bytes))


def record(torch, launch, num_launches):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(num_launches):
            launch(i)
    return graph


def replay_ms(torch, graph, count):
    """Milliseconds of each of `count` runs, with an event between two; the one before the first
    event is not timed, and the GPU computes it while the host asks for the others."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    for event in events:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in zip(events, events[1:])]


def time_us(torch, launch, num_launches, num_samples):
    """Microseconds a launch, one number a sample, each at least about 1 ms long, as our own are
    (device_body.h)."""
    for i in range(num_launches):
        launch(i)
    torch.cuda.synchronize()
    graph = record(torch, launch, num_launches)
    ms = replay_ms(torch, graph, 1)[0]
    repeats = max(1, min(math.ceil(ENOUGH_MS / max(ms, 1e-6)), MOST_LAUNCHES // num_launches))
    if repeats > 1:
        num_launches *= repeats
        graph = record(torch, launch, num_launches)
    return [ms * 1e3 / num_launches for ms in replay_ms(torch, graph, num_samples)]


def products(torch, rows, shapes, num_samples):
    for name, (n, k) in shapes.items():
        copies = copies_for(2 * n * k)
        weights = [random(torch, n, k) for _ in range(copies)]
        for m in rows:
            if name == "output" and m > MOST_OUTPUT_ROWS:
                continue
            x = random(torch, m, k)
            samples = time_us(
                torch,
                lambda i: torch.nn.functional.linear(x, weights[i % copies]),
                copies,
                num_samples,
            )
            say(
                name=f"torch gemm {name} m {m}",
                samples_us=samples,
                bytes=2 * (n * k + m * (n + k)),
                flops=2 * m * n * k,
            )


def random(torch, *sizes):
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)


def attention(torch, batch, rows, context, num_samples):
    kv_bytes = 4 * batch * context * KV_HEADS * DIM
    copies = copies_for(kv_bytes)
    kv = [
        (random(torch, batch, KV_HEADS, context, DIM), random(torch, batch, KV_HEADS, context, DIM))
        for _ in range(copies)
    ]
    q = random(torch, batch, HEADS, rows, DIM)

    def launch(i):
        keys, values = kv[i % copies]
        return torch.nn.functional.scaled_dot_product_attention(
            q, keys, values, is_causal=rows > 1, enable_gqa=True
        )

    pairs = batch * HEADS * (rows * (rows + 1) // 2 if rows > 1 else context)
    samples = time_us(torch, launch, copies, num_samples)
    kind = f"prefill {rows}" if rows > 1 else f"b {batch} x {context}"
    say(
        name=f"torch attention {kind}",
        samples_us=samples,
        bytes=kv_bytes,
        flops=4 * pairs * DIM,
    )


def main():
    tiny = "--tiny" in sys.argv[1:]
    torch, why_not = import_torch()
    if torch is None:
        say(not_run=why_not)
        return NOT_RUN
    with torch.no_grad():
        if tiny:
            products(torch, (1, 3), {"o": (16, 8)}, 2)
            attention(torch, 1, 1, 16, 2)
            return 0
        for batch, context in DECODES:
            attention(torch, batch, 1, context, 20)
        attention(torch, 1, PREFILL, PREFILL, 20)
        products(torch, ROWS, PRODUCTS, 20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
