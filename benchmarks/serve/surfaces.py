#!/usr/bin/env python3
"""What surfaces and API keys cost the router.

  build/venv/bin/python benchmarks/serve/surfaces.py --model FILE|NAME [--out FILE.json]
      [--rounds 9] [--parts surfaces,keys,streams]

surfaces  processor time of the router for each token of streams of /v1/chat/completions,
          /v1/messages and /v1/responses: the same prompts, in turns on one server whose model
          computes next to nothing (tests/e2e/scripted_model.py). All must say the same text.
keys      processor time of the router for each request to a server with KEYS keys, whose tenants
          have every limit, and to one without: POST /tokenize, which no worker sees, and a
          completion of one token. In turns, over one connection each.
streams   STREAMS streams at once over gRPC, with keys and without, a fresh server for each turn:
          the router's own time between a token's arrival from its worker and its sending
          (server_times of each chunk), and the router's processor time for each token.

Every other round takes its turns in the opposite order. Printed are medians and, of the ratios (of
keys: differences) within a round, the median with an interval that holds it with 95 %. Targets:
Messages and Responses 1.05 times chat at most; keys 20 us a request at most; with STREAMS streams
the interval of the p99's ratio contains 1 or lies below. Needs grpcio (scripts/deps.sh --tests).
"""

import argparse
import hashlib
import http.client
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from lending import together
from serving import ROOT, Server, argument_parser

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests/e2e")]
from machine import quantile, record, spread  # noqa: E402
from scripted_model import write_wide  # noqa: E402

PARALLEL, TOKENS = 8, 400  # of a turn of `surfaces`: 3200 tokens
KEYS = 10_000
TOKENIZED, COMPLETED = 2000, 200  # requests of a turn of `keys`
STREAMS, STREAM_TOKENS = 1000, 8
KEY = "key-4321"
# All 1,000 run at once or wait without a limit.
STREAM_FLAGS = ["--mode", "aggregated", "--decode", "4", "--max-context", "512"]
STREAM_FLAGS += ["--kv-memory", "512MiB", "--queue-wait-ms", "600000"]
STREAM_FLAGS += ["--prefill-wait-ms", "600000", "--silence-timeout", "0"]


def router_us(server):
    """Processor time that the router's threads have had."""
    (pid,) = [p["pid"] for p in server.processes() if p["role"] == "router"]
    spent_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass  # one of the library's that has just ended
    return spent_ns / 1e3


class Client:
    """A connection that stays open."""

    def __init__(self, port, key=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self.headers = {"Content-Type": "application/json"}
        if key is not None:
            self.headers["Authorization"] = f"Bearer {key}"

    def ask(self, path, body):
        self.connection.request("POST", path, json.dumps(body), self.headers)
        response = self.connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise SystemExit(f"{path}: status {response.status}: {text[:300]}")
        return text


# --- surfaces ---------------------------------------------------------------------------------


def body_of(surface, prompt):
    common = {"temperature": 0, "stream": True, "ignore_eos": True, "model": "default"}
    if surface == "responses":
        return "/v1/responses", {**common, "input": prompt, "max_output_tokens": TOKENS}
    chat = {**common, "messages": [{"role": "user", "content": prompt}], "max_tokens": TOKENS}
    if surface == "chat":
        chat["stream_options"] = {"include_usage": True}
        return "/v1/chat/completions", chat
    return "/v1/messages", chat


def said(surface, text):
    """(text, tokens) of a stream."""
    lines = [line[6:] for line in text.decode().splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    if surface == "chat":
        texts = [e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]]
        return "".join(texts), events[-1]["usage"]["completion_tokens"]
    if surface == "messages":
        texts = [e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta"]
        (usage,) = [e["usage"] for e in events if e["type"] == "message_delta"]
        return "".join(texts), usage["output_tokens"]
    texts = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    return "".join(texts), events[-1]["response"]["usage"]["output_tokens"]


def surface_turn(server, surface):
    """(microseconds of the router a token, what was said)."""
    before = router_us(server)
    prompts = [f"{i} plain" for i in range(PARALLEL)]

    def ask(prompt):
        return Client(server.port).ask(*body_of(surface, prompt))

    texts = together([lambda p=prompt: ask(p) for prompt in prompts])
    spent = router_us(server) - before
    answers = [said(surface, text) for text in texts]
    num_tokens = sum(tokens for _, tokens in answers)
    if num_tokens != PARALLEL * TOKENS:
        raise SystemExit(f"void: {surface} made {num_tokens} tokens")
    return spent / num_tokens, [text for text, _ in answers]


def measure_surfaces(args):
    names = ("chat", "messages", "responses")
    cost = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        args = argparse.Namespace(**{**vars(args), "model": write_wide(Path(folder, "wide.gguf"))})
        server = Server(args)
        try:
            for name in names:
                surface_turn(server, name)
            for k in range(args.rounds):
                texts = {}
                for name in names if k % 2 == 0 else names[::-1]:
                    spent, texts[name] = surface_turn(server, name)
                    cost[name].append(spent)
                if any(texts[name] != texts["chat"] for name in names):
                    raise SystemExit("void: the surfaces say different texts")
        finally:
            server.stop()
    result = {"router_us_a_token": cost}
    for name in names:
        ratio = spread([a / b for a, b in zip(cost[name], cost["chat"])])
        result[f"{name}_to_chat"] = ratio
        print(
            f"{name:10} {statistics.median(cost[name]):6.1f} us of the router a token, "
            f"{ratio['median']:.3f} of chat ({ratio['low']:.3f} .. {ratio['high']:.3f})"
        )
    return result


# --- keys -------------------------------------------------------------------------------------


def write_keys(folder):
    limits = {"requests_per_minute": 10**9, "tokens_per_minute": 10**9, "concurrency": 10**6}
    rows = [
        {
            "tenant": f"tenant-{i}",
            "sha256": hashlib.sha256(f"key-{i}".encode()).hexdigest(),
            **limits,
            "kv_share": 1.0,
        }
        for i in range(KEYS)
    ]
    path = Path(folder, "keys.json")
    path.write_text(json.dumps(rows))
    return ["--api-keys", str(path)]


def keys_turn(server, key):
    """Microseconds of the router for each request, by kind."""
    client, spent = Client(server.port, key), {}
    kinds = {
        "tokenize": (TOKENIZED, "/tokenize", {"content": "Hi"}),
        "completion": (COMPLETED, "/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
    }
    for kind, (count, path, body) in kinds.items():
        client.ask(path, body)
        before = router_us(server)
        for _ in range(count):
            client.ask(path, body)
        spent[kind] = (router_us(server) - before) / count
    return spent


def measure_keys(args):
    samples = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        keyed = Server(args, write_keys(folder))
        plain = Server(args)
        turns = {"without": (plain, None), "with": (keyed, KEY)}
        try:
            for server, key in turns.values():
                keys_turn(server, key)
            for k in range(args.rounds):
                for name in list(turns) if k % 2 == 0 else list(turns)[::-1]:
                    samples[name].append(keys_turn(*turns[name]))
        finally:
            plain.stop()
            keyed.stop()
    result = {"keys": KEYS, "router_us_a_request": samples}
    for kind in ("tokenize", "completion"):
        pairs = zip(samples["with"], samples["without"])
        more = spread([a[kind] - b[kind] for a, b in pairs])
        result[f"{kind}_more_us"] = more
        without = statistics.median(row[kind] for row in samples["without"])
        print(
            f"{kind:10} {without:6.1f} us of the router a request; with {KEYS} keys and all limits"
            f" {more['median']:+.1f} us ({more['low']:+.1f} .. {more['high']:+.1f})"
        )
    return result


# --- streams ----------------------------------------------------------------------------------


def stream_all(address, key):
    """The router's microseconds between arrival and sending, of each token of all streams."""
    import grpc
    from baton_server import generated_stubs

    pb2, pb2_grpc = generated_stubs()
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    lags = []
    # A connection has 100 streams at most by default.
    channels = [
        grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(STREAMS // 50)
    ]

    def begin(i):
        request = pb2.CompletionRequest(
            prompt_token_ids=[1000 + i, 2000 + i, 3000], max_tokens=STREAM_TOKENS, ignore_eos=True
        )
        stub = pb2_grpc.CompletionServiceStub(channels[i % len(channels)])
        return stub.StreamComplete(request, metadata=metadata, timeout=600)

    calls = [begin(i) for i in range(STREAMS)]
    for call in calls:
        for chunk in call:
            times = chunk.server_times
            if times.token_unix_us:
                lags.append(times.sent_unix_us - times.token_unix_us)
    for channel in channels:
        channel.close()
    return lags


def streams_turn(args, flags, key):
    server = Server(args, STREAM_FLAGS + flags)
    try:
        address = next(p["grpc"] for p in server.processes() if p["role"] == "router")
        before = router_us(server)
        lags = stream_all(address, key)
        spent = router_us(server) - before
    finally:
        server.stop()
    if len(lags) < STREAMS * STREAM_TOKENS:
        raise SystemExit(f"void: {len(lags)} tokens of {STREAMS} streams")
    return {
        "added_p50_us": quantile(lags, 0.5),
        "added_p99_us": quantile(lags, 0.99),
        "router_us_a_token": spent / len(lags),
    }


def measure_streams(args):
    samples = {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        turns = {"without": ([], None), "with": (write_keys(folder), KEY)}
        for k in range(args.rounds):
            for name in list(turns) if k % 2 == 0 else list(turns)[::-1]:
                samples[name].append(streams_turn(args, *turns[name]))
    result = {"streams": STREAMS, "tokens": STREAM_TOKENS, "samples": samples}
    for key in samples["with"][0]:
        pairs = zip(samples["with"], samples["without"])
        ratio = spread([a[key] / max(b[key], 1) for a, b in pairs])
        result[f"{key}_ratio"] = ratio
        without = statistics.median(row[key] for row in samples["without"])
        print(
            f"{STREAMS} streams, {key}: {without:.0f} without keys, {ratio['median']:.3f} times "
            f"that with keys ({ratio['low']:.3f} .. {ratio['high']:.3f})"
        )
    return result


def main():
    parts = {"surfaces": measure_surfaces, "keys": measure_keys, "streams": measure_streams}
    parser = argument_parser(__doc__)
    parser.add_argument("--parts", default=",".join(parts))
    parser.set_defaults(rounds=9)
    args = parser.parse_args()
    unknown = set(args.parts.split(",")) - set(parts)
    if unknown:
        parser.error(f"--parts: {', '.join(sorted(unknown))}; known are {', '.join(parts)}")
    result = {**record("surfaces", args.threads), "model": Path(args.model).name}
    result |= {"rounds": args.rounds, "load_before": os.getloadavg()}
    for name in args.parts.split(","):
        result[name] = parts[name](args)
    result["load_after"] = os.getloadavg()
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
