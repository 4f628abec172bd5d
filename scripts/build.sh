#!/usr/bin/env bash
# Builds Baton. Usage: scripts/build.sh [--progress] [PRESET] [ninja target ...], PRESET one of dev,
# release, quick, cuda, cuda-all, asan, tsan, odr, fuzz. --progress: one line that says how much is
# left, instead of a line for each step.
# The default preset is release. The binary of release or quick, whichever was built last, is linked
# as build/baton, if it is among the targets.
# quick builds the program alone in less time: without tests and `--device simt`.
set -euo pipefail
cd "$(dirname "$0")/.."

progress=0
if [[ "${1:-}" == --progress ]]; then
  progress=1
  shift
fi
preset="${1:-release}"
shift || true
case "$preset" in
  dev | release | quick | cuda | cuda-all | asan | tsan | odr | fuzz) ;;
  *)
    echo "build.sh: unknown preset '$preset'; choose dev, release, quick, cuda, cuda-all," \
      "asan, tsan, odr or fuzz" >&2
    exit 2
    ;;
esac
for tool in cmake ninja g++ protoc; do
  if ! command -v "$tool" >/dev/null; then
    echo "build.sh: $tool is missing; run scripts/deps.sh" >&2
    exit 1
  fi
done

jobs="${BATON_JOBS:-$(nproc)}"
echo "== configure ($preset)"
log="build/configure-$preset.log"
mkdir -p build
if ! cmake --preset "$preset" >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "build.sh: configuring failed; a missing library is installed by scripts/deps.sh" >&2
  exit 1
fi
echo "== build ($preset, $jobs jobs)"
export NINJA_STATUS="[%f/%t] "  # what ninja_progress.py reads, whatever the user's own is
if [[ $progress -eq 1 ]]; then
  cmake --build --preset "$preset" -j "$jobs" ${@:+--target "$@"} |
    python3 scripts/ninja_progress.py
else
  cmake --build --preset "$preset" -j "$jobs" ${@:+--target "$@"}
fi
if [[ "$preset" =~ ^(release|quick)$ && -x "build/$preset/baton" ]] &&
  [[ -z "$*" || " $* " =~ \ (baton|all)\  ]]; then
  ln -sfn "$preset/baton" build/baton
  echo "built build/baton"
fi
