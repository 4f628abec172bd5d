#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU; closes with ctest's
# summary. Idempotent. Usage: scripts/test.sh [ctest arguments, e.g. -R tidy]
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
jobs="${BATON_TEST_JOBS:-$(nproc)}"
ctest --preset release -j "$jobs" --timeout 900 --output-junit test_times.xml "$@"
echo "test.sh: passed in $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
