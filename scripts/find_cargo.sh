#!/usr/bin/env bash
# usage: find_cargo.sh [--minimum]
# Prints the folder whose cargo and rustc build the Rust libraries: that of the cargo on PATH if it
# is new enough, else that of the newest /usr/lib/rust-1.NN (Ubuntu's packages cargo-1.NN). Prints
# one line to stderr and exits with 1 where there is none. --minimum prints the NN of the oldest
# cargo 1.NN that is new enough.
set -euo pipefail
min_minor=87
if [[ "${1:-}" == --minimum ]]; then
  echo $min_minor
  exit 0
fi
minor_of() { "$1" --version 2>/dev/null | sed -n 's/^[a-z]* 1\.\([0-9]*\).*/\1/p'; }
best=
best_minor=$((min_minor - 1))
shopt -s nullglob
for folder in "$(dirname "$(command -v cargo || echo /none/cargo)")" /usr/lib/rust-1.*/bin; do
  [[ -x "$folder/cargo" && -x "$folder/rustc" ]] || continue
  minor="$(minor_of "$folder/cargo" || true)"
  if [[ "${minor:-0}" -gt $best_minor ]]; then
    best=$folder
    best_minor=$minor
  fi
  # The one on PATH is the user's choice.
  if [[ "${minor:-0}" -ge $min_minor && "$folder" != /usr/lib/rust-1.* ]]; then break; fi
done
if [[ -z "$best" ]]; then
  echo "find_cargo.sh: no cargo of 1.$min_minor or newer; run scripts/deps.sh" >&2
  exit 1
fi
echo "$best"
