#!/usr/bin/env bash
# The long forms: everything of test.sh, then a million simulated requests and twenty more seeds,
# the suite under AddressSanitizer + UndefinedBehaviorSanitizer, our own threads under
# ThreadSanitizer, clang-tidy, the long fault run, the long exploration of the hand-off and its
# mutation test, and a minute of search for each fuzz target.
#   scripts/test_full.sh [release|sim|asan|tsan|tidy|chaos|closure|mutation|fuzz ...]   only these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tier_names="release sim asan tsan tidy chaos closure mutation fuzz"
tiers=("$@")
[[ ${#tiers[@]} -gt 0 ]] || read -ra tiers <<<"$tier_names"
jobs="${BATON_TEST_JOBS:-$(nproc)}"
report=()

run_tier() {
  case "$1" in
    release) BATON_E2E_PROMPTS=64 scripts/test.sh ;;
    sim) run_simulations ;;
    # Sanitizers slow the code five to fifteen times: limits on time are raised, and fewer prompts
    # go through the comparison of paths, which looks for other bits, not for other memory.
    asan) scripts/build.sh asan && BATON_E2E_START_LIMIT_S=300 BATON_E2E_PROMPTS=8 \
      ctest --preset asan -j "$jobs" --timeout 3600 -LE no_sanitizer ;;
    tsan) scripts/build.sh tsan tsan_tests && BATON_E2E_START_LIMIT_S=300 \
      ctest --preset tsan -j "$jobs" --timeout 3600 -L tsan ;;
    tidy) run_clang_tidy ;;
    chaos) scripts/build.sh release && scripts/chaos.sh --json build/chaos.json ;;
    closure) scripts/build.sh release kvcache_closure_test &&
      BATON_CLOSURE=long build/release/tests/kvcache/kvcache_closure_test ;;
    mutation) scripts/mutate_handoff.py --jobs "$jobs" ;;
    fuzz) scripts/fuzz.sh 60 ;;
    *)
      echo "test_full.sh: unknown tier '$1'; one of: $tier_names" >&2
      exit 2
      ;;
  esac
}

# The whole promise in the long form: a million requests twice, which must be the same run, and
# twenty seeds more.
run_simulations() {
  scripts/build.sh release baton || return 1
  local first again
  first="$(build/baton sim --seed 1 --requests 1000000 --faults all)" || {
    echo "$first"
    return 1
  }
  echo "$first"
  again="$(build/baton sim --seed 1 --requests 1000000 --faults all | grep '^digest')" || return 1
  if ! grep -qFx "$again" <<<"$first"; then
    echo "test_full.sh: the same seed gave another run: $again" >&2
    return 1
  fi
  local seed
  for seed in {2..21}; do
    build/baton sim --seed "$seed" --requests 50000 --faults all >build/sim.txt || {
      cat build/sim.txt
      return 1
    }
    echo "seed $seed: $(grep '^digest' build/sim.txt)"
  done
}

run_clang_tidy() {
  local tool
  tool="$(command -v clang-tidy-14 || command -v clang-tidy || true)"
  if [[ -z "$tool" ]]; then
    echo "test_full.sh: clang-tidy is missing (apt-get install clang-tidy-14)" >&2
    return 1
  fi
  # Called from an `if`, where bash ignores -e: without the return a stale build would be judged.
  scripts/build.sh dev || return 1
  # The sources of ours that the dev build compiles; generated code is not ours.
  git ls-files 'src/*.cc' 'kernels/*.cc' 'kvcache/*.cc' 'scheduler/*.cc' |
    xargs -P "$jobs" -n 4 "$tool" -p build/dev --quiet
}

for tier in "${tiers[@]}"; do
  echo "==== $tier"
  begin=$SECONDS
  if (run_tier "$tier"); then verdict=passed; else verdict=FAILED; fi
  report+=("$(printf '%-8s %-7s %4d s' "$tier" "$verdict" $((SECONDS - begin)))")
done
echo "==== summary"
printf '%s\n' "${report[@]}"
[[ "${report[*]}" != *FAILED* ]]
