#!/usr/bin/env bash
# gguf 0.19.0 (PyPI): its encoder of NVFP4 scales turns each scale of 256 and more into 448.
#
# A scale of NVFP4 is a positive float8 E4M3, whose largest values are 256, 288, ... 416 and 448.
# `NVFP4.fp32_to_ue4m3` gives all of these the code of 448. The decoder beside it reads all of them
# rightly, so six scales come back as another, up to 75 % too large. A tensor with a scale of the
# whole is often packed such that its largest scale is 448, and then has scales in this range. The
# encoder also rounds a tie up, where the cast of ml_dtypes rounds it to even. A program that packs
# such scales anew must copy their bytes, or use another encoder.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" &&
  "$work/venv/bin/pip" install -q gguf==0.19.0 ml-dtypes==0.6.0 || exit 2

cat >"$work/try.py" <<'PY'
import importlib.metadata

import ml_dtypes
import numpy as np
from gguf.quants import NVFP4

print("gguf", importlib.metadata.version("gguf"))
codes = np.arange(1, 0x7F, dtype=np.uint8)  # every positive number of E4M3
values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
# The decoder halves, as the values of its table of 4-bit codes are doubled.
assert np.array_equal(NVFP4.ue4m3_to_fp32(codes) * 2, values)
encoded = NVFP4.fp32_to_ue4m3(values)
changed = {float(v): float(w) for v, w in zip(values, values[encoded - 1]) if v != w}
print("of", len(values), "scales these are encoded as another:", changed)
tie = np.array([1.0625], np.float32)  # between 1 and 1.125
ours = float(NVFP4.ue4m3_to_fp32(NVFP4.fp32_to_ue4m3(tie))[0]) * 2
even = float(tie.astype(ml_dtypes.float8_e4m3fn)[0])
print(f"1.0625 is encoded as {ours}, by ml_dtypes as {even}")
assert changed == {v: 448.0 for v in (256.0, 288.0, 320.0, 352.0, 384.0, 416.0)}
assert (ours, even) == (1.125, 1.0)
PY
"$work/venv/bin/python" "$work/try.py"
