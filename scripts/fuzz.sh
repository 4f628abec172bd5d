#!/usr/bin/env bash
# Builds the libFuzzer programs of tests/fuzz and lets each search for a while, beginning with its
# committed corpus; closes with a table and exits 1 on a finding. The inputs that a search learned
# are kept in build/fuzz/corpus, found inputs in build/fuzz/findings. A search of all targets
# without a finding writes benchmarks/results/fuzz.json; scripts/readme_tables.py then rewrites the
# table of tests/fuzz/NOTES.md. Usage: scripts/fuzz.sh [seconds per target, 60] [target ...]
#   a finding again:       build/fuzz/tests/fuzz/fuzz_TARGET build/fuzz/findings/TARGET/crash-...
#   a smaller one:         the same with -minimize_crash=1 -runs=100000
#   mended: copy the input to tests/fuzz/corpus/TARGET under a name that says what it was.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds="${1:-60}"
shift || true
if ! [[ "$seconds" =~ ^[0-9]+$ ]]; then
  echo "fuzz.sh: '$seconds' is no number; usage: scripts/fuzz.sh [seconds] [target ...]" >&2
  exit 2
fi
runtime='/usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-x86_64.a'
if ! command -v clang++-14 >/dev/null || ! compgen -G "$runtime" >/dev/null; then
  echo "fuzz.sh: libFuzzer is missing (apt-get install clang-14 libclang-rt-14-dev)" >&2
  exit 1
fi
all=()
for folder in tests/fuzz/corpus/*/; do all+=("$(basename "$folder")"); done
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  if ! [[ -d "tests/fuzz/corpus/$target" ]]; then
    echo "fuzz.sh: there is no target '$target'; there are ${all[*]}" >&2
    exit 2
  fi
done

scripts/build.sh fuzz "${targets[@]/#/fuzz_}"
out="$PWD/build/fuzz"
scratch="$(mktemp -d "$([[ -d /dev/shm ]] && echo /dev/shm || echo /tmp)/baton-fuzz.XXXXXX")"
trap 'rm -rf "$scratch"' EXIT
export TMPDIR="$scratch"
# As in the ordinary tests: gRPC and Protobuf are not instrumented.
export ASAN_OPTIONS="detect_container_overflow=0:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1"

# A model file may be large; whoever reads text or frames learns more from short inputs.
max_bytes() {
  case "$1" in
    gguf | gguf_split | model_folder | safetensors) echo 65536 ;;
    tokenizer_json | tokenizer_spec) echo 16384 ;;
    *) echo 4096 ;;
  esac
}

# Limits that any input must keep: 10 s (a template may use 0.9 s of processor time, and is run
# twice), 256 MiB at once, 1 GiB in all with the sanitizers' shadow.
search() {
  local target="$1"
  mkdir -p "$out/corpus/$target" "$out/findings/$target" "$out/logs"
  rm -f "$out/findings/$target"/*
  nice -n 10 "$out/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len="$(max_bytes "$target")" \
    -print_final_stats=1 -artifact_prefix="$out/findings/$target/" \
    "$out/corpus/$target" "tests/fuzz/corpus/$target" >"$out/logs/$target.log" 2>&1
}

# "NAME EXECUTIONS EXEC/S COVERED-AT-START COVERED-AT-END FINDINGS" from the log of one search.
row() {
  local target="$1" findings
  findings=$(find "$out/findings/$target" -type f ! -name 'slow-unit-*' | wc -l)
  awk -v target="$target" -v findings="$findings" -v failed="$2" '
    { for (i = 1; i < NF; ++i) if ($i == "cov:") covered = $(i + 1) }
    /INITED/ { first = covered }
    /^#[0-9]+/ { runs = substr($1, 2) + 0 }
    /^stat::number_of_executed_units:/ { runs = $2 }
    /^stat::average_exec_per_sec:/ { speed = $2 }
    END {
      if (failed && findings == 0) findings = 1
      printf "%-16s %12d %8d %9d %9d %9d\n", target, runs, speed, first, covered - first, findings
      exit findings > 0
    }' "$out/logs/$target.log"
}

jobs="${BATON_JOBS:-$(nproc)}"
echo "== search (${#targets[@]} targets, $seconds s each, $jobs at a time)"
failed=()
for target in "${targets[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
  (search "$target" || touch "$scratch/failed-$target") &
done
wait
verdict=0
rows="$scratch/rows"
table="$(printf '%-16s %12s %8s %9s %9s %9s' target executions exec/s covered new findings)"
for target in "${targets[@]}"; do
  has_failed=0
  if [[ -e "$scratch/failed-$target" ]]; then has_failed=1; fi
  line="$(row "$target" "$has_failed")" || failed+=("$target")
  table+=$'\n'"$line"
  echo "$line" >>"$rows"
done
echo "$table"
for target in "${failed[@]}"; do
  verdict=1
  log="$out/logs/$target.log"
  why="$(grep -m 1 -E 'check failed|ERROR:|runtime error' "$log" || tail -n 1 "$log")"
  echo "-- $target: $why"
  find "$out/findings/$target" -type f ! -name 'slow-unit-*'
done
if ((verdict == 0 && ${#targets[@]} == ${#all[@]})); then
  python3 scripts/fuzz_result.py "$seconds" "$jobs" <"$rows"
fi
exit "$verdict"
