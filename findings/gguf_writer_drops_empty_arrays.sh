#!/usr/bin/env bash
# gguf 0.19.0 (PyPI): two things that its writer and reader do to arrays in the metadata.
#
# `GGUFWriter.add_array` with an empty list writes no key and says nothing: whoever reads the file
# cannot tell "no merges" or "no stop ids" from a key that was forgotten, and takes its default.
# A list of lists is written as an array of arrays, which GGUF has. `GGUFReader` gives it back as
# one flat list: `contents()` of [[1, 2], [3, 4]] is [1, 2, 3, 4], and inner arrays of unequal types
# and lengths come out mixed. The file itself is right: a reader of its bytes finds two arrays.
#
# Exit status 0: still so. 1: it changed. 2: the check could not be made (packages, port).
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q gguf==0.19.0 || exit 2

cat >"$work/try.py" <<'PY'
import os
import sys
import traceback


def end(kind, error, trace):
    """A claim that fails ends with 1, all else with 2."""
    traceback.print_exception(kind, error, trace)
    sys.stdout.flush()
    os._exit(1 if issubclass(kind, AssertionError) else 2)


sys.excepthook = end

import importlib.metadata
import struct

import gguf

path = sys.argv[1]


def write_and_read(array):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("test.array", array)
    writer.add_uint32("test.last", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = gguf.GGUFReader(path).fields
    assert fields["test.last"].contents() == 7
    return fields["test.array"].contents() if "test.array" in fields else "no key"


def bytes_of(*values):  # (struct's format, value): the bytes as GGUF stores them
    return b"".join(struct.pack("<" + kind, value) for kind, value in values)


print("gguf", importlib.metadata.version("gguf"))
ARRAYS = ([], [5], [[1, 2], [3, 4]], [[1], [2.5, 3.5]])
seen = {str(array): write_and_read(array) for array in ARRAYS}
for array, read in seen.items():
    print(f"{array} is read as {read}")
write_and_read([[1, 2], [3, 4]])
with open(path, "rb") as file:
    data = file.read()
# An array of type 9 (arrays), of 2; each of type 5 (int32), of 2.
nested = bytes_of(("I", 9), ("I", 9), ("Q", 2), ("I", 5), ("Q", 2), ("i", 1), ("i", 2),
                  ("I", 5), ("Q", 2), ("i", 3), ("i", 4))
print("the file has an array of arrays:", nested in data)
assert seen["[]"] == "no key"
assert seen["[5]"] == [5]
assert seen["[[1, 2], [3, 4]]"] == [1, 2, 3, 4] and nested in data
assert seen["[[1], [2.5, 3.5]]"] == [1, 2.5, 3.5]
PY
"$work/venv/bin/python" "$work/try.py" "$work/file.gguf" || exit "$(($? == 1 ? 1 : 2))"
