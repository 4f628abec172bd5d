#!/usr/bin/env bash
# transformers 5 writes the number of experts of a Qwen3-MoE model under another key than
# transformers 4 did, and transformers 4 takes its default for the key that it does not find.
#
# Seen with transformers 4.51.3 and 5.24.0: a config of 8 experts that 5.24.0 saves has
# "num_local_experts" and no "num_experts". 4.51.3 reads it without an error or a warning, and says
# that the model has 128 experts. 5.24.0 reads both spellings.
# A reader of such folders must take both keys, and must not fill in a default for this number.
#
# Exit status 0: still so. 1: it changed. 2: the packages could not be installed.
set -euo pipefail

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

cat >"$work/config.py" <<'PY'
import json
import sys

from transformers import Qwen3MoeConfig

folder, action = sys.argv[1:]
if action == "save":
    Qwen3MoeConfig(num_experts=8).save_pretrained(folder)
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        keys = sorted(set(json.load(file)) & {"num_experts", "num_local_experts"})
    print(" ".join(keys))
else:
    print(Qwen3MoeConfig.from_pretrained(folder).num_experts)
PY

for release in 4.51.3 5.24.0; do
  python3 -m venv "$work/$release" &&
    "$work/$release/bin/pip" install -q "transformers==$release" || exit 2
done

old="$work/4.51.3/bin/python"
new="$work/5.24.0/bin/python"
changed=0
expect() {  # WHAT WANTED COMMAND...
  local what="$1" wanted="$2" got
  shift 2
  got="$("$@" 2>"$work/stderr" | tail -n 1)"
  echo "$what: $got"
  if [[ "$got" != "$wanted" ]]; then
    echo "  expected: $wanted"
    changed=1
  fi
}
expect "4.51.3 saves 8 experts as" num_experts "$old" "$work/config.py" "$work/a" save
expect "5.24.0 saves 8 experts as" num_local_experts "$new" "$work/config.py" "$work/b" save
expect "4.51.3 reads what 5.24.0 saved as" 128 "$old" "$work/config.py" "$work/b" read
if grep -i "expert" "$work/stderr"; then
  echo "  4.51.3 now says something about it"
  changed=1
fi
expect "5.24.0 reads what 4.51.3 saved as" 8 "$new" "$work/config.py" "$work/a" read
exit "$changed"
