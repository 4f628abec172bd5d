#!/usr/bin/env bash
# safetensors 0.8.0 (PyPI), with numpy: it saves types that it does not load again.
#
# `safetensors.numpy.save` takes BF16 and three kinds of FP8 as arrays of ml_dtypes, and the file
# has the right type names. `load_file` reads BF16. `load`, which takes the same file as bytes,
# raises KeyError for it. FP8 is read by neither: `load_file` looks for the type in numpy, which
# has none of that name. So `load(data)` is not `load_file` without a file. A program that reads
# such models with numpy has to read the header itself, and view the bytes as the type it names.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" &&
  "$work/venv/bin/pip" install -q safetensors==0.8.0 ml-dtypes==0.6.0 numpy==2.4.6 || exit 2

cat >"$work/try.py" <<'PY'
import json
import sys

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import load, load_file, save

path = sys.argv[1]


def outcome(read):
    try:
        return read()["a"].dtype.name
    except Exception as error:
        return type(error).__name__


print("safetensors", safetensors.__version__)
seen = {}
for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
             ml_dtypes.float8_e8m0fnu):
    data = save({"a": np.ones(16, kind)})
    with open(path, "wb") as file:
        file.write(data)
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    name = header["a"]["dtype"]
    seen[name] = outcome(lambda: load(data)), outcome(lambda: load_file(path))
    print(f"{name}: load gives {seen[name][0]}, load_file gives {seen[name][1]}")
assert seen == {
    "F16": ("float16", "float16"),
    "BF16": ("KeyError", "bfloat16"),
    "F8_E4M3": ("KeyError", "AttributeError"),
    "F8_E5M2": ("KeyError", "AttributeError"),
    "F8_E8M0": ("KeyError", "AttributeError"),
}
PY
"$work/venv/bin/python" "$work/try.py" "$work/file.safetensors"
