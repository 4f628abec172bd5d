#!/usr/bin/env python3
"""Random blocks of every weight type and what the PyPI package `gguf` dequantises them to, into
dequantize.golden in this folder (README.md has the format)."""

import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q


def finite_halves(rng, count):
    """fp16 numbers of every exponent, subnormal ones and both zeros among them, as bytes."""
    bits = rng.integers(0, 1 << 16, size=count, dtype=np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF
    bits[:2] = 0x0000, 0x8000
    return bits.view(np.uint8).reshape(-1, 2)


def write_dequantized(path):
    """Random blocks of every type and what `gguf` dequantises them to."""
    rng = np.random.default_rng(2)
    kinds = [Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.MXFP4,
             Q.IQ4_NL, Q.IQ4_XS, Q.Q3_K, Q.Q2_K]
    halves = {Q.F16: [0], Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0],
              Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.BF16: [], Q.MXFP4: [],
              Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.Q3_K: [108], Q.Q2_K: [80, 82]}
    n, k = 5, 512
    out = bytearray(b"BATONDEQ" + struct.pack("<III", len(kinds), n, k))
    for kind in kinds:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, size=(n * k // elements, size), dtype=np.uint8)
        for at in halves[kind]:
            raw[:, at:at + 2] = finite_halves(rng, len(raw))
        if kind == Q.BF16:
            raw[(raw[:, 1] & 0x7F) == 0x7F, 1] = 0x3F  # no infinities, no NaN
        if kind == Q.MXFP4:
            raw[:, 0] %= 255  # 255 is NaN in the format's definition
            raw[:3, 0] = 0, 1, 254
        values = gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(n, k)
        assert not np.isnan(values).any()
        name = kind.name.encode()
        out += struct.pack("<I", len(name)) + name + raw.tobytes() + values.tobytes()
    path.write_bytes(out)


if __name__ == "__main__":
    write_dequantized(pathlib.Path(__file__).resolve().parent / "dequantize.golden")
