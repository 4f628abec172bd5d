"""Copies of a small F16 folder whose projections are packed: random codes, scales and zero points
in the forms of AutoAWQ, GPTQ and compressed-tensors, groups of 32."""

import json
import random
import shutil
import struct
from pathlib import Path

GROUP = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
CONFIGS = {
    "awq": {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "gptq": {"bits": 4, "group_size": GROUP, "checkpoint_format": "gptq", "sym": False},
    "compressed-tensors": {
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": GROUP,
                },
            }
        },
    },
}


def read(path):
    """name -> (dtype, shape, bytes) of a .safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {
        name: (row["dtype"], row["shape"], body[slice(*row["data_offsets"])])
        for name, row in header.items()
    }


def write(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape}
        header[name]["data_offsets"] = [offset, offset + len(data)]
        offset += len(data)
    text = json.dumps(header).encode()
    bodies = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + bodies)


def words(rows):
    """Neighbours of each row, the first in the low bits of a word of 8."""
    out = []
    for row in rows:
        for at in range(0, len(row), 8):
            out.append(sum(code << 4 * i for i, code in enumerate(row[at : at + 8])))
    return struct.pack(f"<{len(out)}I", *out)


def halves(rows):
    values = [value for row in rows for value in row]
    return struct.pack(f"<{len(values)}e", *values)


def transposed(rows):
    return [list(row) for row in zip(*rows)]


def in_awq_order(rows):
    return [[row[at + i] for at in range(0, len(row), 8) for i in AWQ_ORDER] for row in rows]


def pack(method, module, n, k, rng):
    """The tensors of a module [n, k]."""
    codes = [[rng.randrange(16) for _ in range(k)] for _ in range(n)]
    zeros = [[rng.randrange(1, 16) for _ in range(k // GROUP)] for _ in range(n)]
    scales = [[rng.uniform(0.02, 0.06) for _ in range(k // GROUP)] for _ in range(n)]
    groups = k // GROUP
    if method == "compressed-tensors":
        return {
            f"{module}.weight_packed": ("I32", [n, k // 8], words(codes)),
            f"{module}.weight_scale": ("F16", [n, groups], halves(scales)),
            f"{module}.weight_shape": ("I64", [2], struct.pack("<qq", n, k)),
        }
    zeros = transposed(zeros)
    out = {f"{module}.scales": ("F16", [groups, n], halves(transposed(scales)))}
    if method == "awq":
        out[f"{module}.qweight"] = ("I32", [k, n // 8], words(in_awq_order(transposed(codes))))
        zeros = in_awq_order(zeros)
    else:
        of_row = struct.unpack(f"<{n * k // 8}I", words(codes))
        by_row = [of_row[row * (k // 8) : (row + 1) * (k // 8)] for row in range(n)]
        flat = [word for column in transposed(by_row) for word in column]
        out[f"{module}.qweight"] = ("I32", [k // 8, n], struct.pack(f"<{len(flat)}I", *flat))
        zeros = [[zero - 1 for zero in row] for row in zeros]
        of_column = [column // GROUP for column in range(k)]
        out[f"{module}.g_idx"] = ("I32", [k], struct.pack(f"<{k}i", *of_column))
    out[f"{module}.qzeros"] = ("I32", [groups, n // 8], words(zeros))
    return out


def pack_folder(source, target, method, seed=1):
    """Copies `source` to `target`, its projections packed by `method`."""
    rng = random.Random(seed)
    shutil.copytree(source, target)
    target = Path(target)
    tensors = {}
    for name, (dtype, shape, data) in read(target / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            tensors.update(pack(method, name[: -len(".weight")], *shape, rng))
        else:
            tensors[name] = (dtype, shape, data)
    write(target / "model.safetensors", tensors)
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **CONFIGS[method]}
    (target / "config.json").write_text(json.dumps(config))
