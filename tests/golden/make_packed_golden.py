#!/usr/bin/env python3
"""Writes packed.safetensors: small matrices in the packed forms of model folders, and the weights
that they stand for.

The files of compressed-tensors are made by that package; its own decompression must give the same
weights, rounded to the type of the scales. AutoAWQ's and GPTQ's are packed here, by what the
packages publish:

    AutoAWQ (WQLinear_GEMM)  word j of a row holds outputs 8j + 0 2 4 6 1 3 5 7, from the low
                             bits up
    GPTQ                     a word holds neighbours in k, the first in the low bits; its zero
                             points are neighbours in n; checkpoint_format "gptq" stores them less
                             0x11111111 (8 bits: 0x01010101) a word, "gptq_v2" as they are
    weights                  scale * (code - zero), a scale and a zero point for each group
    ModelOpt NVFP4           a byte holds two e2m1, the first in the low bits; a weight is e2m1 *
                             weight_scale (e4m3, for each 16) * weight_scale_2

Each matrix CASE is the tensors CASE.* and CASE.expected, F32 [n, k]: the product in fp32, or, where
no block type of GGUF holds it, rounded to the type of the scales.

    python3 -m venv /tmp/packed
    /tmp/packed/bin/pip install torch compressed-tensors safetensors numpy gguf
    /tmp/packed/bin/python tests/golden/make_packed_golden.py
"""

import pathlib

import gguf
import numpy as np
import torch
from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
N = 24
K = 96
GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

random = np.random.default_rng(20261129)
tensors = {}


def put(case, expected, **parts):
    for name, tensor in parts.items():
        if isinstance(tensor, np.ndarray):
            tensor = torch.from_numpy(np.ascontiguousarray(tensor))
        tensors[f"{case}.{name}"] = tensor.contiguous()
    assert torch.isfinite(expected).all()
    tensors[f"{case}.expected"] = expected.to(torch.float32).contiguous()


# compressed-tensors ------------------------------------------------------------------------------


def compressed(case, *, bits, group=None, symmetric=True, wide=False, **options):
    """Compresses random weights. options: n, k, dtype, ints, tiny."""
    n, k = options.get("n", N), options.get("k", K)
    dtype = options.get("dtype", torch.bfloat16)
    ints = options.get("ints", False)
    args = QuantizationArgs(
        num_bits=bits, symmetric=symmetric, group_size=group or -1,
        strategy="group" if group else "channel",
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    groups = k // (group or k)
    weight = torch.from_numpy(random.normal(0, 0.05, (n, k))).to(dtype)
    scale = torch.from_numpy(random.uniform(0.5, 1.5, (n, groups)) * 0.12 / 2**(bits - 1)).to(dtype)
    if options.get("tiny"):
        scale[3] = 1.1e-6  # below what f16 holds in eight bits
    half = 1 << (bits - 1)
    zero = torch.zeros((n, groups), dtype=torch.int8)
    if not symmetric:
        zero = torch.from_numpy(random.integers(-half, half, (n, groups))).to(torch.int8)
        zero[0, 0], zero[1, 0] = -half, half - 1
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    compressor = IntQuantizationCompressor if ints else PackedQuantizationCompressor
    packed = compressor.compress(state, scheme)
    again = compressor.decompress(packed, scheme)["weight"]
    if symmetric:
        packed.pop("weight_zero_point", None)
    # The values of the codes, by the definition.
    unpacked = packed["weight"].numpy().astype(np.int64) if ints else unpack_rows(
        packed["weight_packed"].numpy(), bits, k) - half
    group_of = np.arange(k) // (group or k)
    exact = (unpacked - zero.numpy()[:, group_of]).astype(np.float32)
    exact = torch.from_numpy(exact * scale.float().numpy()[:, group_of])
    assert torch.equal(exact.to(dtype), again.to(dtype)), case
    put(case, exact.to(dtype) if wide else exact, **packed)


def compressed_in_order(case):
    """actorder "group", which the package wrote before 0.20: columns of a group lie anywhere."""
    codes = random.integers(-8, 8, (N, K))
    group_of = random.permutation(np.arange(K) // GROUP)
    scale = torch.from_numpy(random.uniform(0.005, 0.015, (N, K // GROUP))).to(torch.bfloat16)
    exact = codes.astype(np.float32) * scale.float().numpy()[:, group_of]
    put(case, torch.from_numpy(exact).to(torch.bfloat16), weight_scale=scale,
        weight_packed=pack_to_int32(torch.from_numpy(codes).to(torch.int8), 4),
        weight_shape=torch.tensor([N, K]), weight_g_idx=group_of.astype(np.int32))


def unpack_rows(words, bits, k):
    per_word = 32 // bits
    out = words.view(np.uint32)[:, :, None] >> (np.arange(per_word, dtype=np.uint32) * bits)
    return (out & ((1 << bits) - 1)).reshape(words.shape[0], -1)[:, :k].astype(np.int64)


# AutoAWQ and GPTQ --------------------------------------------------------------------------------


def parts_of(bits, group, zeros, group_of):
    """Random codes [k, n], zero points and f16 scales [groups, n], and the weights [n, k]."""
    groups = K // group
    codes = random.integers(0, 1 << bits, (K, N))
    if zeros is None:
        zeros = random.integers(0, 1 << bits, (groups, N))
        zeros[0, :2] = 0, (1 << bits) - 1
    scales = random.uniform(0.5, 1.5, (groups, N)) * 0.12 / 2 ** (bits - 1)
    scales = scales.astype(np.float16)
    exact = (codes - zeros[group_of]).astype(np.float32) * scales[group_of].astype(np.float32)
    return codes, zeros, scales, torch.from_numpy(np.ascontiguousarray(exact.T))


def words_of(values, bits):
    """Neighbours in the last dimension, the first in the low bits."""
    per_word = 32 // bits
    values = values.reshape(*values.shape[:-1], -1, per_word).astype(np.uint32)
    shifted = values << (np.arange(per_word, dtype=np.uint32) * bits)
    return np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint32)


def awq(case, symmetric):
    zeros = np.full((K // GROUP, N), 8) if symmetric else None
    codes, zeros, scales, exact = parts_of(4, GROUP, zeros, np.arange(K) // GROUP)

    def pack(values):
        ordered = values.reshape(values.shape[0], -1, 8)[:, :, AWQ_ORDER]
        return words_of(ordered.reshape(values.shape), 4).view(np.int32)

    put(case, exact, qweight=pack(codes), qzeros=pack(zeros), scales=scales)


def gptq(case, *, bits, symmetric, version, group=GROUP, act_order=False, wide=False):
    zeros = np.full((K // group, N), 1 << (bits - 1)) if symmetric else None
    group_of = np.arange(K) // group
    if act_order:
        group_of = random.permutation(group_of)
    codes, zeros, scales, exact = parts_of(bits, group, zeros, group_of)
    qzeros = words_of(zeros, bits)
    if version == 1:
        qzeros = qzeros - np.uint32(0x11111111 if bits == 4 else 0x01010101)
    qweight = words_of(codes.T, bits).T
    if wide:
        exact = exact.to(torch.float16)
    put(case, exact, qweight=qweight.view(np.int32), qzeros=qzeros.view(np.int32), scales=scales,
        g_idx=group_of.astype(np.int32))


# NVFP4 -------------------------------------------------------------------------------------------


def nvfp4_compressed(case, k):
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16,
                            symmetric=True, scale_dtype=torch.float8_e4m3fn)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.from_numpy(random.normal(0, 0.05, (N, k))).to(torch.bfloat16)
    largest = weight.float().reshape(N, -1, 16).abs().amax(-1)
    whole = (448 * 6 / largest.max()).reshape(1)
    scale = (largest / 6 * whole).to(torch.float8_e4m3fn).float()
    scale[2, 1] = 0.001953125  # subnormal
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": whole}
    packed = NVFP4PackedCompressor.compress(state, scheme)
    again = NVFP4PackedCompressor.decompress(packed, scheme)["weight"]
    put(case, again, **packed)


def nvfp4_modelopt(case, k):
    codes = random.integers(0, 16, (N, k))
    scale = torch.from_numpy(random.uniform(1, 448, (N, k // 16))).to(torch.float8_e4m3fn)
    scale[1, 0] = 0
    whole = torch.tensor(0.1 / (448 * 6), dtype=torch.float32)
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
    values = np.where(codes < 8, 1, -1).astype(np.float32) * magnitudes[codes % 8]
    both = (scale.float() * whole).numpy().repeat(16, axis=1)
    put(case, torch.from_numpy(values * both).to(torch.bfloat16),
        weight=(codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8),
        weight_scale=scale, weight_scale_2=whole)


def nvfp4_gguf(case, k):
    """Blocks of GGUF, as PyPI gguf dequantises them: every scale, and both NaN of e4m3."""
    blocks = random.integers(0, 256, (N, k // 64, 36), dtype=np.uint8)
    scales = np.arange(N * k // 16, dtype=np.uint32) * 5 % 256
    blocks[:, :, :4] = scales.astype(np.uint8).reshape(N, -1, 4)
    blocks[0, 0, :4] = 0x7F, 0xFF, 0x80, 0x01
    values = gguf.quants.dequantize(blocks.reshape(N, -1), gguf.GGMLQuantizationType.NVFP4)
    put(case, torch.from_numpy(np.ascontiguousarray(values.reshape(N, k))),
        blocks=blocks.reshape(N, -1))


def main():
    compressed("ct4", bits=4, group=GROUP)
    compressed("ct4_zeros", bits=4, group=GROUP, symmetric=False)
    compressed("ct4_channel_f16", bits=4, dtype=torch.float16)
    compressed("ct4_f32", bits=4, group=GROUP, dtype=torch.float32, wide=True)
    compressed_in_order("ct4_order")
    compressed("ct4_group16", bits=4, group=16, wide=True)
    compressed("ct4_row40", bits=4, k=40, wide=True)
    compressed("ct4_tiny", bits=4, group=GROUP, tiny=True, wide=True)
    compressed("ct8", bits=8)
    compressed("ct8_zeros", bits=8, group=GROUP, symmetric=False, wide=True)
    compressed("ct_ints", bits=8, ints=True)
    compressed("ct_ints_zeros", bits=8, ints=True, symmetric=False, wide=True)
    awq("awq", symmetric=False)
    awq("awq_eights", symmetric=True)
    gptq("gptq4", bits=4, symmetric=True, version=1)
    gptq("gptq4_zeros", bits=4, symmetric=False, version=1)
    gptq("gptq4_v2", bits=4, symmetric=False, version=2)
    gptq("gptq4_row", bits=4, symmetric=False, version=1, group=K)
    gptq("gptq4_order", bits=4, symmetric=False, version=2, act_order=True, wide=True)
    gptq("gptq8", bits=8, symmetric=True, version=1)
    gptq("gptq8_zeros", bits=8, symmetric=False, version=2, wide=True)
    nvfp4_compressed("nvfp4_ct", K)
    nvfp4_modelopt("nvfp4_modelopt", K)
    nvfp4_compressed("nvfp4_ct_blocks", 128)
    nvfp4_modelopt("nvfp4_modelopt_blocks", 192)
    nvfp4_gguf("nvfp4_gguf", 128)
    save_file(tensors, HERE / "packed.safetensors")


if __name__ == "__main__":
    main()
