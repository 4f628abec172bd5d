#!/usr/bin/env python3
"""GGUF files with the shapes of published models and random weights, to measure speed with.

  benchmarks/compare/shapes.py FOLDER [NAME ...]

Names: lfm2 (LFM2.5-350M: short convolutions, attention in six of sixteen layers) and qwen35
(Qwen3.5-0.8B: gated delta nets, attention in six of twenty-four). Both have their published
vocabularies' sizes, with tokens that mean nothing, and matrices in Q4_0. Weights are random, so
what such a model writes is nothing to read. Wants the PyPI packages gguf and numpy, and 8 GB of
memory.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "golden"))
import delta_models  # noqa: E402
import tiny_models  # noqa: E402
from gguf import GGMLQuantizationType  # noqa: E402

CONTEXT = 4096
Q4_0 = GGMLQuantizationType.Q4_0


def lfm2():
    attention = (2, 5, 8, 10, 12, 14)
    return tiny_models.TinyModel(
        "lfm2", "lfm2", Q4_0, layers=16, hidden=1024, ffn=4608, heads=16, kv_heads=8, dim=64,
        vocab=65536, rope_base=1e6, convs=tuple(i for i in range(16) if i not in attention),
        context=CONTEXT,
    )


def qwen35():
    return delta_models.DeltaModel(
        "qwen35", Q4_0, layers=24, interval=4, hidden=1024, ffn=3584, heads=8, kv_heads=2, dim=256,
        vocab=248320, rope_base=1e7, rope_dims=64, k_heads=16, v_heads=16, k_dim=128, v_dim=128,
        taps=4, context=CONTEXT,
    )


SHAPES = {"lfm2": ("LFM2.5-350M-shape.Q4_0.gguf", lfm2),
          "qwen35": ("Qwen3.5-0.8B-shape.Q4_0.gguf", qwen35)}


def main():
    folder, *names = sys.argv[1:] or sys.exit(__doc__)
    for name in names or SHAPES:
        file, make = SHAPES[name]
        model = make()
        path = Path(folder) / file
        model.write_gguf(path)
        print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
