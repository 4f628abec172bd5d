#!/usr/bin/env bash
# The long fault run: real processes are killed, frozen and cut off under load, and every answer is
# compared with a quiet run. Prints a table, writes benchmarks/results/chaos.json; exit 1 when an
# answer differed, a stream failed or a block leaked. About an hour on 2 cores.
#   scripts/chaos.sh [SCENARIO ...] [--scale F] [--streams N] [--seed N] [--json FILE]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! -x build/venv/bin/python ]]; then
  echo "chaos.sh: build/venv is missing; run scripts/deps.sh --tests" >&2
  exit 1
fi
export BATON_BIN="${BATON_BIN:-$PWD/build/baton}"
if [[ ! -x "$BATON_BIN" ]]; then
  echo "chaos.sh: $BATON_BIN is missing; run scripts/build.sh release" >&2
  exit 1
fi
"$BATON_BIN" pull smollm2:135m >/dev/null
PYTHONDONTWRITEBYTECODE=1 exec build/venv/bin/python tests/e2e/chaos.py "$@"
