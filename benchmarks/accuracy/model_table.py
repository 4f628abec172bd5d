#!/usr/bin/env python3
"""For every model file: does it load, the error of its logits and its perplexity against float64,
and its speed.

  build/venv/bin/pip install gguf numpy tokenizers sentencepiece protobuf
  build/venv/bin/python benchmarks/accuracy/model_table.py [--build build/release] [--check-demo]
  benchmarks/accuracy/model_table.py --print     the table of the stored result; needs no package
  benchmarks/accuracy/model_table.py --speed     measures the stored rows' speeds anew; likewise

Writes benchmarks/results/model_accuracy.json and prints it as a table. Loads: `baton inspect`.
Logits: what tests/model/golden_test.cc prints, the largest error of a stored logit in units of its
row's root mean square. Perplexity: `baton eval` and tests/golden/make_perplexity_golden.py, of
tests/data/alice.txt for the demo models (stored reference; --check-demo computes it again) and of
its first 1,000 bytes in windows of 256 tokens for the tiny ones. Those are random and sure of
themselves (perplexities of 1e5 and more), so bf16 KV moves their perplexity more than a real one's.
Speeds: `baton bench model`, a prompt of 128 tokens and 32 tokens after an empty one, median of 5;
those of tiny models only show that every path runs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path += [str(GOLDEN), str(ROOT / "benchmarks")]

from machine import record  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "model_accuracy.json"
DEMO_REFERENCE = GOLDEN / "perplexity_golden.json"
TEXT = ROOT / "tests" / "data" / "alice.txt"
DEMO_CONTEXT = 2048
TINY_BYTES = 1000
TINY_CONTEXT = 256
WEIGHT_TYPES = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k mxfp4".split()
WEIGHT_TYPES += "iq4_nl iq4_xs q3_k q2_k mixed_rope".split()
ARCHITECTURES = "llama_linear llama_yarn llama_llama3 qwen2 qwen3 qwen3moe gemma3".split()
ERROR_LINE = re.compile(r"^(\S+) (f32|bf16): (\d+) rows, error worst (\S+) rms (\S+) of", re.M)


def model_paths(models):
    yield from (models / name for name in json.loads(DEMO_REFERENCE.read_text()))
    for name in WEIGHT_TYPES + ARCHITECTURES + ["qwen3moe_q8_0", "qwen3moe_mxfp4"]:
        yield GOLDEN / f"tiny_{name}.gguf"
        if (GOLDEN / f"tiny_{name}").is_dir():
            yield GOLDEN / f"tiny_{name}"
    yield GOLDEN / "tiny_split-00001-of-00003.gguf"


def logit_errors(build):
    """{(file name, KV type): {worst, rms, rows}} of all golden tests, which must pass."""
    env = {**os.environ, "BATON_SOURCE_DIR": str(ROOT)}
    test = build / "tests" / "model" / "model_golden_test"
    done = subprocess.run([test], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout[-3000:])
    return {
        (name, kv): {"worst": float(worst), "rms": float(rms), "rows": int(rows)}
        for name, kv, rows, worst, rms in ERROR_LINE.findall(done.stdout)
    }


def evaluate(baton, model, text, context, kv):
    with tempfile.TemporaryDirectory() as folder:
        text_file, result = Path(folder) / "text", Path(folder) / "json"
        text_file.write_text(text)
        command = [baton, "eval", f"--perplexity={text_file}", f"--model={model}"]
        command += [f"--context={context}", f"--kv-dtype={kv}", f"--json={result}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(result.read_text())["perplexity"]


def speeds(baton, model):
    """Median tokens a second of the forward pass."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "json"
        command = [baton, "bench", "model", model, "--cases=pp128,tg32", f"--json={result}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        cases = json.loads(result.read_text())["results"]
    median = {case["case"]: case["median"] for case in cases}
    return {"prefill_tokens_per_s": median["pp128"], "decode_tokens_per_s": median["tg32"]}


def reference(path, demo, check_demo):
    if demo and not check_demo:
        return json.loads(DEMO_REFERENCE.read_text())[path.name]["perplexity"]
    import make_perplexity_golden

    # A folder's reference is its file's: the weights are the same, and `gguf` reads files only.
    file = path.with_suffix(".gguf") if path.is_dir() else path
    if "split" in path.name:
        file = GOLDEN / "tiny_qwen2.gguf"
    text = TEXT.read_text()
    if demo:
        return make_perplexity_golden.reference(file, text)["perplexity"]
    return make_perplexity_golden.reference(file, text[:TINY_BYTES], TINY_CONTEXT)["perplexity"]


def measure(path, baton, errors, check_demo):
    demo = path.parent != GOLDEN
    row = {"model": path.name, "form": "folder" if path.is_dir() else "GGUF"}
    row["loads"] = subprocess.run([baton, "inspect", path], capture_output=True).returncode == 0
    for kv in ("f32", "bf16"):
        row[f"logit_error_{kv}"] = errors.get((path.name, kv))
    text = TEXT.read_text()
    context = DEMO_CONTEXT if demo else TINY_CONTEXT
    row["perplexity_float64"] = reference(path, demo, check_demo)
    for kv in ("f32", "bf16"):
        got = evaluate(baton, path, text if demo else text[:TINY_BYTES], context, kv)
        row[f"perplexity_{kv}"] = got
        row[f"perplexity_difference_{kv}"] = got / row["perplexity_float64"] - 1
    return {**row, **speeds(baton, path)}


def table(rows):
    lines = [
        "| model | form | loads | logit error, f32 KV | bf16 KV | perplexity in float64 |"
        " difference, f32 KV | bf16 KV | prefill tok/s | decode tok/s |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        worst = [
            f"{row[f'logit_error_{kv}']['worst']:.1e}" if row[f"logit_error_{kv}"] else "not run"
            for kv in ("f32", "bf16")
        ]
        lines.append(
            f"| {row['model']} | {row['form']} | {'yes' if row['loads'] else 'NO'} | {worst[0]} |"
            f" {worst[1]} | {row['perplexity_float64']:.6g} |"
            f" {100 * row['perplexity_difference_f32']:+.4f} % |"
            f" {100 * row['perplexity_difference_bf16']:+.3f} % |"
            f" {row['prefill_tokens_per_s']:,.0f} | {row['decode_tokens_per_s']:,.0f} |"
        )
    return "\n".join(lines)


def main():
    home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache" / "baton"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--check-demo", action="store_true")
    parser.add_argument("--models", type=Path, default=home / "models")
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    if args.print:
        print(table(json.loads(RESULT.read_text())["rows"]))
        return
    if args.speed:
        result = json.loads(RESULT.read_text())
        paths = {(path.name, path.is_dir()): path for path in model_paths(args.models)}
        for row in result["rows"]:
            path = paths[row["model"], row["form"] == "folder"]
            row.update(speeds(args.build / "baton", path))
        result["speed"] = record("model_speed", os.cpu_count())
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
        print(table(result["rows"]))
        return
    errors = logit_errors(args.build)
    rows = []
    for path in model_paths(args.models):
        if not path.exists():
            sys.exit(f"{path} is missing; fetch it with: baton pull")
        rows.append(measure(path, args.build / "baton", errors, args.check_demo))
        print(path.name, file=sys.stderr)
    result = {**record("model_accuracy", os.cpu_count()), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
