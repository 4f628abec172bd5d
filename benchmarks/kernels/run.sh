#!/usr/bin/env bash
# Times every kernel on this machine and writes benchmarks/results/kernels_<cpu>.json: raw samples,
# limits measured in the same run, processor, commit, flags.
#   benchmarks/kernels/run.sh [BUILD_DIR] [further flags of kernel_bench]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build="${1:-build/release}"
shift || true
cpu="$(awk -F': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)"
name="$(tr '[:upper:] ' '[:lower:]_' <<<"$cpu" | tr -cd 'a-z0-9_-')"
commit="$(git rev-parse --short=12 HEAD)"
git diff --quiet HEAD -- kernels benchmarks/kernels || commit+="-dirty"
mkdir -p benchmarks/results
"$build/benchmarks/kernels/kernel_bench" --benchmark_min_time=0.05 --benchmark_repetitions=5 \
  --benchmark_out="benchmarks/results/kernels_$name.json" --benchmark_out_format=json \
  --benchmark_context=commit="$commit" --benchmark_context=processor="$cpu" "$@"
