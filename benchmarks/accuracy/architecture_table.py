#!/usr/bin/env python3
"""For every architecture as GGUF file and as folder: the error of its logits, what it keeps, the
perplexity of a real model where one is at hand, and its speed.

  benchmarks/accuracy/architecture_table.py [--build build/release] [--models DIR] [--shapes DIR]
  scripts/readme_tables.py                     the table of src/model/ACCURACY.md

Runs tests/model/golden_test.cc over the random models of tests/golden and hf_saved_test.cc over the
folders that transformers saved, which must pass, and keeps what they print in benchmarks/results.
An architecture of src/model/architecture.cc without a model has a row that says so. --models has
the demo models (`baton pull`), --shapes what benchmarks/compare/shapes.py wrote. Speeds are those
of model_table.py, of all processors: of a demo model if there is one, else of a shape, else of the
first tiny model, whose speed only shows that every path runs. Takes no package but Python's own and
about five minutes; nothing else should run meanwhile.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import record  # noqa: E402
from model_table import (  # noqa: E402
    DEMO_CONTEXT,
    DEMO_REFERENCE,
    GOLDEN,
    TEXT,
    evaluate,
    speeds,
)

RESULT = ROOT / "benchmarks" / "results" / "architectures.json"
FORMS = ("GGUF", "folder")
# By architecture, as GGUF files.
DEMO_MODELS = {"llama": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
SHAPES = {"lfm2": "LFM2.5-350M-shape.Q4_0.gguf", "qwen35": "Qwen3.5-0.8B-shape.Q4_0.gguf"}
GOLDEN_LINE = re.compile(
    r"^(?P<model>\S+) (?P<kv>f32|bf16): (?P<rows>\d+) rows, error worst (?P<worst>\S+) rms \S+ of"
    r" bound (?P<bound>\S+); argmax decided on (?P<decided>\d+), wrong on (?P<wrong>\d+);"
    r" (?P<architecture>\S+), (?P<token_bytes>\d+) bytes a token,"
    r" (?P<sequence_bytes>\d+) a sequence$",
    re.M,
)
SAVED_LINE = re.compile(
    r"^(?P<release>\S+) (?P<folder>\S+): largest difference (?P<worst>\S+);"
    r" argmax (?P<argmax>equal|other); (?P<architecture>\S+)$",
    re.M,
)


def lines_of(build, test, tests, pattern):
    command = [build / "tests" / "model" / test, f"--gtest_filter={tests}"]
    env = {**os.environ, "BATON_SOURCE_DIR": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [match.groupdict() for match in pattern.finditer(done.stdout)]
    if done.returncode != 0 or not lines:
        sys.exit(f"{test} failed or printed no line that is known:\n{done.stdout[-3000:]}")
    return lines


def known_architectures():
    text = (ROOT / "src" / "model" / "architecture.cc").read_text()
    return re.findall(r'ArchitectureTraits\{\s*\.name = "([^"]+)"', text)


def errors(lines):
    """The line whose error is the largest part of its bound, and the counts of all."""
    worst = max(lines, key=lambda line: float(line["worst"]) / float(line["bound"]))
    out = {key: float(worst[key]) for key in ("worst", "bound")}
    return {**out, **{key: sum(int(line[key]) for line in lines)
                      for key in ("rows", "decided", "wrong")}}  # fmt: skip


def row_of(architecture, form, golden, saved):
    def is_it(line):
        is_file = line["model"].endswith(".gguf")
        return line["architecture"] == architecture and is_file == (form == "GGUF")

    lines = list(filter(is_it, golden))
    row = {"architecture": architecture, "form": form}
    row["models"] = sorted({line["model"] for line in lines})
    own = [line for line in saved if line["architecture"] == architecture and form == "folder"]
    row["saved"] = own and {
        "folders": len(own),
        "worst": max(float(line["worst"]) for line in own),
        "equal": sum(line["argmax"] == "equal" for line in own),
        "releases": sorted({line["release"] for line in own}),
    }
    if not lines:
        return row
    for kv in ("f32", "bf16"):
        row[kv] = errors([line for line in lines if line["kv"] == kv])
    first = next(line for line in lines if line["kv"] == "bf16")
    for key in ("token_bytes", "sequence_bytes"):
        row[key] = int(first[key])
    return row


def perplexity_of(baton, file):
    """That of the demo models' text, and what it is in float64."""
    return {
        "model": file.name,
        "bf16": evaluate(baton, file, TEXT.read_text(), DEMO_CONTEXT, "bf16"),
        "float64": json.loads(DEMO_REFERENCE.read_text())[file.name]["perplexity"],
    }


def measure_model(row, baton, args):
    """Adds the perplexity and the speed of a row's model."""
    is_file = row["form"] == "GGUF"
    demo = args.models / DEMO_MODELS.get(row["architecture"], "-")
    shape = args.shapes / SHAPES.get(row["architecture"], "-")
    if is_file and demo.is_file():
        row["perplexity"] = perplexity_of(baton, demo)
        row["speed"] = {"of": "real", "model": demo.name, **speeds(baton, demo)}
    elif is_file and shape.is_file():
        row["speed"] = {"of": "shape", "model": shape.name, **speeds(baton, shape)}
    elif row["models"]:
        tiny = GOLDEN / row["models"][0]
        row["speed"] = {"of": "tiny", "model": tiny.name, **speeds(baton, tiny)}


def main():
    home = Path(os.environ.get("BATON_HOME", Path.home() / ".cache" / "baton"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--models", type=Path, default=home / "models")
    parser.add_argument("--shapes", type=Path, default=ROOT / "build" / "shapes")
    args = parser.parse_args()
    golden = lines_of(args.build, "model_golden_test", "*TinyGoldenTest*", GOLDEN_LINE)
    saved = lines_of(args.build, "model_folder_test", "*SavedFolderTest*", SAVED_LINE)
    rows = [
        row_of(architecture, form, golden, saved)
        for architecture in known_architectures()
        for form in FORMS
    ]
    for row in rows:
        measure_model(row, args.build / "baton", args)
        print(row["architecture"], row["form"], file=sys.stderr)
    result = {**record("architectures", os.cpu_count()), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(rows)} rows; now run scripts/readme_tables.py")


if __name__ == "__main__":
    main()
