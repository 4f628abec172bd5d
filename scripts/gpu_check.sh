#!/usr/bin/env bash
# Checks our CUDA code on a machine with a GPU, in one call of at most 450 s after the build:
#   scripts/gpu_check.sh           bring its programs up to date (preset cuda, or cuda-all where the
#                                  GPU is no Hopper), run them
#   scripts/gpu_check.sh --simt    the same list with few values on the runner; needs no GPU
# Stages are processes of their own with a limit each: 0 machine 20 s; 1 primitives 20 s; 2 kernels
# 80 s; 3 bandwidth 20 s; 4 timings 50 s; 5 model 80 s; 6 transport 40 s; 7 sanitizer 40 s; 8 peers
# 40 s; 9 product 60 s. Each stage adds a line to DIR/gpu_check_STAGE.json after every check, so a
# stage that is stopped leaves what it had. A check may end its process: a fault on a GPU stays, and
# a check that takes a third of the stage's limit (10 s at least) is stopped. Such a check fails.
# The stage goes on after it in a new process, three times at most; the page says so. Stages 7 to 9
# share gpu_check_tools.json, because at most eight files of 16 MiB may come back; more is a
# failure. A call begins the files of its own stages anew and leaves the others, so stage 4 alone is
# held against what an earlier call measured in stage 3. A page of pass, FAIL and not run follows.
# "pass" means that what was computed is right; whether a time meets its target is counted beside it
# and fails nothing.
# The build comes before the clock of the call runs. Where it fails or takes too long, the program
# that is there is run, its commit marked "-not-built". A program that cannot start on this machine
# (its C library is too old, say) is built here where there are sources, one that --program names
# too: what is built is run in its place. In a bundle one line says what to do.
# Stage 9 serves by build/PRESET/baton, which is built too, or by --baton; beside --program it does
# not run without --baton.
# Options: --out DIR (build/gpu_check); --program FILE (another one is built and run where it cannot
# start); --baton FILE; --stages "0 1"; --limit SECONDS (of every stage); --total SECONDS;
# --build-limit SECONDS (of each program that is built here, 600); --cublaslt FILE; --nccl FILE;
# --sanitizer FILE; --python FILE (python3).
# Exit status: 0 everything that could run passed, 1 something failed or was stopped, or the program
# cannot start, 77 nothing could run (no GPU), 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

names=(machine primitives kernels bandwidth timings model transport sanitizer peers product)
limits=(20 20 80 20 50 80 40 40 40 60)
files=(machine primitives kernels bandwidth timings model transport tools tools tools)
out=build/gpu_check
program=""
stages="0 1 2 3 4 5 6 7 8 9"
limit=""
total=450
build_limit=600
max_files=8
max_mib=16
baton=""
cublaslt=""
nccl=""
sanitizer=""
python="$(command -v python3 || true)"
body=()
not_run=77
lost=76
max_restarts=3

usage="usage: scripts/gpu_check.sh [--simt] [--out DIR] [--program FILE] [--stages \"0 1\"] \
[--baton FILE] [--limit SECONDS] [--total SECONDS] [--build-limit SECONDS] [--cublaslt FILE] \
[--nccl FILE] [--sanitizer FILE] [--python FILE]"

usage() {
  echo "gpu_check.sh: $1; $usage" >&2
  exit 2
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --simt) body=(--simt) ;;
    --out | --program | --stages | --limit | --total | --build-limit | --baton | \
      --cublaslt | --nccl | --sanitizer | --python)
      [[ $# -ge 2 ]] || usage "$1 needs a value"
      name="${1#--}"
      printf -v "${name/-/_}" '%s' "$2"
      shift
      ;;
    -h | --help)
      echo "$usage"
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' scripts/gpu_check.sh
      exit 0
      ;;
    *) usage "unknown argument '$1'" ;;
  esac
  shift
done
given_program="$program"
given_baton="$baton"
for stage in $stages; do
  [[ "$stage" =~ ^[0-9]$ && -n "${names[$stage]:-}" ]] || usage "there is no stage '$stage'"
done
for number in "${limit:-1}" "$total" "$build_limit"; do
  [[ "$number" =~ ^[1-9][0-9]*$ ]] || usage "'$number' is no number of seconds"
done

# Before anything is built. A library may be a name that the loader looks for.
for option in program baton cublaslt nccl sanitizer python; do
  file="${!option}"
  if [[ "$file" == */* && ! -e "$file" ]]; then usage "--$option: there is no $file"; fi
done
mkdir -p "$out" || usage "--out: $out cannot be made"

# A bundle has neither repository nor compiler; its commit is in a file.
head_commit() { git describe --always --dirty --exclude='*' 2>/dev/null || true; }
if [[ -e COMMIT ]]; then
  commit="$(cat COMMIT)"
else
  commit="$(head_commit)"
fi
# The preset cuda has machine code for a Hopper alone.
preset_of_gpu() {
  local capability
  capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true)"
  if [[ -z "$capability" || "${capability%%$'\n'*}" == 9.0 ]]; then
    echo cuda
  else
    echo cuda-all
  fi
}
if [[ ${#body[@]} -gt 0 ]]; then preset=release; else preset="$(preset_of_gpu)"; fi
built="build/$preset/tests/kernels/gpu_check/baton_gpu_check"
why_not=""  # it was not built, where that was tried
build() {
  local code=0
  timeout -k 5 "$build_limit" scripts/build.sh "$preset" baton_gpu_check || code=$?
  case $code in
    0) return 0 ;;
    124 | 137) why_not="building it here was stopped after $build_limit s (--build-limit)" ;;
    *) why_not="building it here failed: install what scripts/deps.sh lists" ;;
  esac
  return 1
}
if [[ -z "$program" ]]; then
  program="$built"
  if ! command -v cmake >/dev/null; then
    why_not="there is no cmake"
  else
    build || true
    if [[ " $stages " == *" 9 "* && -z "$baton$why_not" ]]; then
      timeout -k 5 "$build_limit" scripts/build.sh "$preset" baton && baton="build/$preset/baton" ||
        echo "== baton could not be built: stage 9 does not run"
    fi
  fi
  if [[ -n "$why_not" ]]; then
    echo "== $why_not; $program is taken as it is, of whatever commit"
    if [[ -z "$baton" && -x "build/$preset/baton" ]]; then baton="build/$preset/baton"; fi
  fi
fi
# A program that cannot start prints the loader's words: a library, or a version of one.
fails_to_start() { ! why="$(timeout -k 2 20 "$program" --starts 2>&1 >/dev/null)"; }
cannot_start() {
  echo "gpu_check.sh: $program cannot start here${why:+ (${why%%$'\n'*})}; $1" >&2
  exit 1
}
if fails_to_start; then
  [[ -z "$why_not" ]] || cannot_start "$why_not"
  [[ -e CMakeLists.txt && -e scripts/build.sh ]] ||
    cannot_start "there are no sources to build it from: run scripts/gpu_check.sh in a checkout of \
${commit:-its commit} on this machine, or pack the bundle on one whose C library is no newer"
  echo "== $program cannot start here${why:+ (${why%%$'\n'*})}: building it" \
    "(at most $build_limit s)"
  build || cannot_start "$why_not"
  program="$built"
  commit="$(head_commit)"
  given_program=""
  if fails_to_start; then cannot_start "and it was built here"; fi
fi
# Results are a commit's only where the programs are: built here, or packed with its name.
if [[ -n "$why_not" || (! -e COMMIT && -n "$given_program$given_baton") ]]; then
  commit="${commit:-unknown}-not-built"
fi
# Read by NCCL when a process first uses it: as in a worker (src/model/compute_device.cc).
export NCCL_COMM_BLOCKING=0
for stage in $stages; do
  rm -f "$out/gpu_check_${files[$stage]}.json" "$out/gpu_check_${files[$stage]}.json.part"
done
# Code that comes as PTX is compiled by the driver, all of it at the first start (EAGER), which may
# take longer than a stage may. It keeps what it compiled.
if [[ "$preset" == cuda-all ]]; then
  echo "== first start: the driver compiles what comes as PTX (at most $build_limit s)"
  first="$(mktemp)"
  CUDA_MODULE_LOADING=EAGER timeout -k 2 "$build_limit" "$program" --stage 0 --json "$first" \
    >/dev/null 2>&1 || true
  rm -f "$first"
fi
started=$SECONDS

page=()
num_passed=0
num_failed=0
for stage in $stages; do
  name="${names[$stage]}"
  json="$out/gpu_check_${files[$stage]}.json"
  more=(--limits "$out/gpu_check_bandwidth.json" --timings "$out/gpu_check_timings.json"
    --peers tests/kernels/gpu_check/torch_peers.py
    --product-script tests/kernels/gpu_check/product_check.py --models tests/golden)
  for tool in baton cublaslt nccl sanitizer python; do
    if [[ -n "${!tool}" ]]; then more+=("--$tool" "${!tool}"); fi
  done
  how=()
  if [[ -e "$json" ]]; then how=(--append); fi
  left=$((total - (SECONDS - started)))
  seconds="${limit:-${limits[$stage]}}"
  if [[ $left -le 0 ]]; then
    page+=("$(printf '%s %-11s FAIL     0 s  %s' "$stage" "$name" "the $total s are over")")
    num_failed=$((num_failed + 1))
    continue
  fi
  if [[ $seconds -gt $left ]]; then seconds=$left; fi
  echo "== stage $stage, $name (at most $seconds s)"
  begin=$SECONDS
  # Read by the driver when a process first uses it: as in a worker that waits for others
  # (src/model/compute_device.cc). In stage 3 nothing does, and of cuBLASLt's thousands of kernels
  # it runs a few.
  export CUDA_MODULE_LOADING=EAGER
  if [[ "$name" == bandwidth ]]; then CUDA_MODULE_LOADING=LAZY; fi
  num_restarts=0
  stage_left=$seconds
  while true; do
    code=0
    timeout -k 2 "$stage_left" "$program" --stage "$stage" "${body[@]}" --json "$json" \
      --commit "$commit" --seconds "$stage_left" "${how[@]}" "${more[@]}" || code=$?
    # Lost, or ended by a signal that it made itself: one of a kill says nothing about a check.
    [[ "$code" == "$lost" || ("$code" -gt 128 && "$code" != 137) ]] || break
    stage_left=$((seconds - (SECONDS - begin)))
    [[ $num_restarts -lt $max_restarts && $stage_left -ge 2 && -s "$json" ]] || break
    num_restarts=$((num_restarts + 1))
    how=(--resume)
    echo "== stage $stage goes on behind the check that ended it (exit status $code)"
  done
  # A machine that is lent may be gone a moment later.
  if [[ -e "$json" ]]; then sync "$json" || true; fi
  if [[ "$code" == 0 && ! -s "$json" ]]; then code="0, but it has written no results"; fi
  if [[ "$code" == 137 && $((SECONDS - begin)) -lt $seconds ]]; then code="137, killed"; fi
  # A process that ended between two checks, or after the last one, has failed in none of them.
  if [[ $num_restarts -gt 0 && ("$code" == 0 || "$code" == "$not_run") ]]; then
    code="$code, but it ended by itself before"
  fi
  bytes="$(stat -c %s "$json" 2>/dev/null || echo 0)"
  if [[ $bytes -gt $((max_mib << 20)) ]]; then
    code="$code, and $json has $bytes bytes where $max_mib MiB may come back"
  fi
  case "$code" in
    0) verdict=pass detail="" num_passed=$((num_passed + 1)) ;;
    "$not_run") verdict="not run" detail="nothing of it could run to its end here" ;;
    124 | 137) verdict=FAIL detail="stopped after $seconds s" num_failed=$((num_failed + 1)) ;;
    *) verdict=FAIL detail="exit status $code" num_failed=$((num_failed + 1)) ;;
  esac
  if [[ $num_restarts -gt 0 ]]; then detail="$detail${detail:+, }restarts: $num_restarts"; fi
  # Also of a stage that was killed in the middle of a line, which makes its file whole again.
  checks="$(timeout -k 2 10 "$program" --results "$json" "$name" 2>/dev/null || true)"
  if [[ -n "$checks" ]]; then detail="$detail${detail:+; }$checks"; fi
  page+=("$(printf '%s %-11s %-7s %3d s  %s' "$stage" "$name" "$verdict" $((SECONDS - begin)) \
    "$detail")")
done

num_files="$(find "$out/" -maxdepth 1 -name 'gpu_check_*' | wc -l)"
if [[ $num_files -gt $max_files ]]; then
  page+=("FAIL: $num_files result files in $out, and $max_files may come back")
  num_failed=$((num_failed + 1))
fi
echo "== summary (${body[*]:-gpu}, commit ${commit:-unknown}, results in $out)"
printf '%s\n' "${page[@]}"
if [[ $num_failed -gt 0 ]]; then exit 1; fi
if [[ $num_passed -eq 0 ]]; then
  echo "gpu_check.sh: nothing could run; that is no pass"
  exit "$not_run"
fi
