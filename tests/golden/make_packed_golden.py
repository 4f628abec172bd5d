#!/usr/bin/env python3
"""Writes packed.safetensors: small matrices in the packed forms of model folders, and the weights
that they stand for.

The files of compressed-tensors and auto-round are made by these packages; their own dequantisation
must give the same weights, rounded to the type of the scales. AutoAWQ's and GPTQ's are packed here,
by what the packages publish:

    AutoAWQ (WQLinear_GEMM)  word j of a row holds outputs 8j + 0 2 4 6 1 3 5 7, from the low
                             bits up
    GPTQ                     a word holds neighbours in k, the first in the low bits; its zero
                             points are neighbours in n; checkpoint_format "gptq" stores them less
                             0x11111111 (8 bits: 0x01010101) a word, "gptq_v2" as they are
    weights                  scale * (code - zero), a scale and a zero point for each group
    ModelOpt NVFP4           a byte holds two e2m1, the first in the low bits; a weight is e2m1 *
                             weight_scale (e4m3, for each 16) * weight_scale_2
    MXFP4, MXFP8             e2m1 in such bytes, or e4m3; times 2^(weight_scale - 127), a byte for
                             each 32
    auto-round               integers as GPTQ has them: packing "auto_gptq" stores zero points less
                             one, its own packing as they are; "auto_awq" is AutoAWQ's

Each matrix CASE is the tensors CASE.* and CASE.expected, F32 [n, k]: the product in fp32, or, where
no block type of GGUF holds it, rounded to the type of the scales.

    python3 -m venv /tmp/packed
    /tmp/packed/bin/pip install torch compressed-tensors==0.20.1 auto-round==0.16.1 safetensors \
        numpy gguf
    /tmp/packed/bin/python tests/golden/make_packed_golden.py
"""

import pathlib

import gguf
import numpy as np
import torch
from auto_round.export.export_to_autoround.qlinear_fp import QuantLinear as FloatLinear
from auto_round.export.export_to_awq.utils import WQLinear_GEMM, dequantize_gemm
from auto_round_extension.torch.qlinear_torch import QuantLinear as OwnLinear
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear as GptqLinear
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
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
AR_N = 32  # auto-round packs whole groups of 32 rows
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


# MXFP4 and MXFP8 ---------------------------------------------------------------------------------


def powers_for(weight, largest):
    """A power of two for each 32 of a row, times which `largest` is not below them."""
    amax = weight.float().reshape(weight.shape[0], -1, 32).abs().amax(-1)
    return torch.exp2(torch.ceil(torch.log2(amax / largest)))


def mx_compressed(case, *, bits, k):
    args = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32,
                            symmetric=True, scale_dtype=torch.uint8)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.from_numpy(random.normal(0, 0.05, (N, k))).to(torch.bfloat16)
    # The smallest scale, and the largest whose weights bf16 and devices hold.
    weight[2, :32] *= 2.0**-115
    weight[3, 32:64] *= 2.0**8
    scale = powers_for(weight, 6 if bits == 4 else 448)
    scale[2, 0] = 2.0**-127
    if bits == 4:
        scale[4, 1] = 2.0**125
    compressor = MXFP4PackedCompressor if bits == 4 else MXFP8QuantizationCompressor
    packed = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)
    again = compressor.decompress(packed, scheme)["weight"]
    assert packed["weight_scale"].dtype == torch.uint8 and packed["weight_scale"].min() == 0
    put(case, again, **packed)


def with_e8m0(case, other):
    """The tensors of another case, whose scales have the type of powers of two."""
    parts = {name.removeprefix(other + "."): tensor
             for name, tensor in tensors.items() if name.startswith(other + ".")}
    expected = parts.pop("expected")
    parts = {name: tensor.clone() for name, tensor in parts.items()}
    parts["weight_scale"] = parts["weight_scale"].view(torch.float8_e8m0fnu)
    assert torch.equal(parts["weight_scale"].float().log2() + 127,
                       tensors[f"{other}.weight_scale"].float())
    put(case, expected.clone(), **parts)


# auto-round --------------------------------------------------------------------------------------


def auto_round(case, *, bits, symmetric, kind):
    scale = torch.from_numpy(random.uniform(0.5, 1.5, (AR_N, K // GROUP)) * 0.12 / 2 ** (bits - 1))
    scale = scale.to(torch.float16).float()
    top = 1 << bits
    zero = torch.full((AR_N, K // GROUP), float(top // 2))
    if not symmetric:
        zero = torch.from_numpy(random.integers(1, top, (AR_N, K // GROUP))).float()
    codes = torch.from_numpy(random.integers(0, top, (AR_N, K))).float()
    spread = [tensor.repeat_interleave(GROUP, 1) for tensor in (scale, zero)]
    exact = (codes - spread[1]) * spread[0]
    linear = torch.nn.Linear(K, AR_N, bias=False)
    linear.weight.data = exact.clone()
    if kind == "awq":
        packed = WQLinear_GEMM.from_linear(linear, bits, GROUP, scales=scale.t().contiguous(),
                                           zeros=zero.t().contiguous(), device="cpu")
        again = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, bits, GROUP).t()
    else:
        layer = {"own": OwnLinear, "gptq": GptqLinear}[kind]
        packed = layer(bits, GROUP, K, AR_N, False)
        packed.device = torch.device("cpu")
        packed.pack(linear, scale, int(zero[0, 0]) if symmetric else zero, None, device="cpu")
        again = packed(torch.eye(K, dtype=torch.float16)).t()
    assert torch.equal(exact.half(), again.half()), case
    parts = {name: tensor for name, tensor in packed.state_dict().items() if name != "bias"}
    wide = bits == 8 and not symmetric
    put(case, exact.half() if wide else exact, **parts)


def auto_round_float(case, *, bits, data_type):
    group = 16 if data_type == "nv_fp" else 32
    linear = torch.nn.Linear(128, N, bias=False)
    weight = torch.from_numpy(random.normal(0, 0.05, (N, 128))).float()
    linear.weight.data = weight
    packed = FloatLinear(bits, group, 128, N, False, data_type=data_type, sym=True, act_bits=16,
                         weight_dtype=torch.bfloat16)
    if data_type == "nv_fp":
        amax = weight.reshape(N, -1, 16).abs().amax(-1)
        whole = (448 * 6 / weight.abs().max()).reshape(1)
        scale = (amax / 6 * whole).to(torch.float8_e4m3fn).float()
        packed.pack(linear, scale, global_scale=whole, device="cpu")
        both = packed.weight_scale.float() / packed.weight_global_scale
    else:
        scale = torch.log2(powers_for(weight, 6 if bits == 4 else 448))
        packed.pack(linear, scale, device="cpu")
        both = torch.exp2(packed.weight_scale.float() - 127)
    parts = packed.state_dict()
    if bits == 8:
        values = parts["weight"].float()
    else:
        codes = torch.stack([parts["weight_packed"] & 15, parts["weight_packed"] >> 4], -1)
        magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        values = magnitudes[(codes & 7).long()] * torch.where(codes < 8, 1, -1)
    again = values.reshape(N, 128) * both.repeat_interleave(group, 1)
    assert (again - weight).abs().max() < weight.abs().max() / 4, case
    put(case, again.to(torch.bfloat16), **parts)


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
    mx_compressed("mxfp4_ct", bits=4, k=K)
    with_e8m0("mxfp4_e8m0", "mxfp4_ct")
    mx_compressed("mxfp8_ct", bits=8, k=K)
    with_e8m0("mxfp8_e8m0", "mxfp8_ct")
    auto_round("ar4", bits=4, symmetric=True, kind="gptq")
    auto_round("ar4_zeros", bits=4, symmetric=False, kind="gptq")
    auto_round("ar8", bits=8, symmetric=True, kind="gptq")
    auto_round("ar4_own", bits=4, symmetric=False, kind="own")
    auto_round("ar8_own", bits=8, symmetric=False, kind="own")
    auto_round("ar4_awq", bits=4, symmetric=False, kind="awq")
    auto_round_float("ar_mxfp4", bits=4, data_type="mx_fp")
    auto_round_float("ar_mxfp8", bits=8, data_type="mx_fp")
    auto_round_float("ar_nvfp4", bits=4, data_type="nv_fp")
    save_file(tensors, HERE / "packed.safetensors")


if __name__ == "__main__":
    main()
