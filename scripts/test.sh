#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests that must hold at every commit and need no
# GPU; closes with ctest's summary. Idempotent. Usage: scripts/test.sh [ctest arguments, e.g. -R
# tidy]. BATON_TEST_LONG=1 adds the tests with the label long (tests/README.md), as the tier
# `release` of scripts/test_full.sh does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step=start
started=$SECONDS
fail() {
  local code=$?
  local minutes=$(((SECONDS - started) / 60))
  echo "test.sh: failed at step \"$step\" after $minutes min (exit $code);" \
    "the lines above say why" >&2
}
trap 'fail' ERR

step="install packages"
scripts/deps.sh --tests
step="build"
scripts/build.sh release
step="fetch the demo models"
build/baton pull smollm2:135m >/dev/null
build/baton pull gemma3:270m >/dev/null
step="tests"
# Twice as many as there are cores: half of what they do is waiting.
jobs="${BATON_TEST_JOBS:-$((2 * $(nproc)))}"
tests=(-LE '^long$')
[[ "${BATON_TEST_LONG:-0}" != 1 ]] || tests=()
ctest --preset release -j "$jobs" --timeout 900 --output-junit test_times.xml "${tests[@]}" "$@"
echo "test.sh: passed in $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
