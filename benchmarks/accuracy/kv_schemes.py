#!/usr/bin/env python3
"""What rounding K and V to int8 does to the output of attention, for several forms of a row.

  build/venv/bin/pip install gguf numpy tokenizers sentencepiece protobuf
  build/venv/bin/python benchmarks/accuracy/kv_schemes.py MODEL.gguf... [--tokens 200]

One forward pass in fp32 over the first tokens of tests/data/alice.txt (llama, qwen2, qwen3, gemma3
without experts). Each layer's attention is computed again with rounded K, and with rounded V. The
table has the error of the output relative to its norm, as the root mean square over the layers, and
the bits of a value, scales included. "turned W, scale S" turns each W elements by a Hadamard matrix
and has a bf16 scale for each S.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "golden"))

import numpy as np  # noqa: E402

import make_golden  # noqa: E402

TEXT = ROOT / "tests" / "data" / "alice.txt"
SCHEMES = [(1, 0), (2, 0), (1, 64), (1, 32), (1, 16), (32, 0), (64, 0), (0, 0)]
SCHEMES += [(128, 128), (64, 64), (64, 32), (32, 32), (16, 16)]


def bf16(x):
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def hadamard(size):
    out = np.ones((1, 1), dtype=np.float32)
    while len(out) < size:
        out = np.block([[out, out], [out, -out]]).astype(np.float32)
    return out / np.float32(np.sqrt(size))


def rounded(x, turn, scale):
    """x [rows, heads, dim] through int8; 0 stands for the whole row."""
    dim = x.shape[-1]
    h = hadamard(min(turn or dim, dim))
    y = (x.reshape(-1, len(h)) @ h).reshape(-1, min(scale or dim, dim))
    step = bf16(np.abs(y).max(axis=-1, keepdims=True) / np.float32(127))
    y = np.rint(y / np.where(step > 0, step, 1)) * step
    return (y.reshape(-1, len(h)) @ h.T).reshape(x.shape).astype(np.float32)


class Recorder:
    """Takes the place of make_golden.attention: measures all schemes, returns the exact output."""

    def __init__(self):
        self.exact = make_golden.attention
        self.errors = {}

    def __call__(self, q, k, v, scale, window, sinks=None):
        def run(k, v):
            return self.exact(q, k, v, np.float32(scale), window, sinks)

        out = run(k, v)
        forms = {"bf16": (bf16(k), bf16(v), 16)}
        dim = k.shape[-1]
        for turn, group in SCHEMES:
            name = f"scale {group or dim}"
            if turn != 1:
                name = f"turned {turn or dim}, " + name
            bits = 8 + 16 / min(group or dim, dim)
            forms[name] = (rounded(k, turn, group), rounded(v, turn, group), bits)
        for name, (k_form, v_form, bits) in forms.items():
            row = self.errors.setdefault(name, (bits, [], []))
            row[1].append(np.linalg.norm(run(k_form, v) - out) / np.linalg.norm(out))
            row[2].append(np.linalg.norm(run(k, v_form) - out) / np.linalg.norm(out))
        return out


class Fp32Weights(make_golden.Weights):
    def get(self, name):
        return super().get(name).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    for path in args.models:
        weights = Fp32Weights(str(path))
        tokens = make_golden.bos_of(weights)
        tokens += make_golden.tokenizer_of(weights)(TEXT.read_text())[: args.tokens]
        recorder = Recorder()
        make_golden.attention = recorder
        make_golden.hidden_states(weights, [tokens])
        make_golden.attention = recorder.exact
        print(f"| {path.name} | bits a value | error by K | error by V |\n|---|---:|---:|---:|")
        for name, (bits, *errors) in recorder.errors.items():
            k, v = (100 * np.sqrt(np.mean(np.square(e))) for e in errors)
            print(f"| {name} | {bits:.2f} | {k:.2f} % | {v:.2f} % |")


if __name__ == "__main__":
    main()
