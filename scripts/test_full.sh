#!/usr/bin/env bash
# The long forms: everything of test.sh, the label long too, and 10,000 faults of NCCL; the build
# with CUDA, which has to serve without a driver too; a million simulated requests and twenty more
# seeds; the suite under AddressSanitizer + UndefinedBehaviorSanitizer; our own threads under
# ThreadSanitizer; clang-tidy; a link of the product that refuses two definitions of one name;
# clang's proof that each guarded member is used with its mutex; the preset quick; the long fault
# run; the long exploration of the hand-off and its mutation test; the CUDA kernels compiled for
# other architectures than the one that is served; a minute of search for each fuzz target; clusters
# of this build and the release before it; prompts of each architecture on every path, whose answers
# must have the same bits; answers with schemas and tools whose worker dies at each token; folders
# that an old and a new release of transformers save; the page at /ui in Chromium; schemathesis
# against /openapi.json; two thousand guesses at what another tenant has in the cache; the packages,
# installed and removed; `baton mcp` with the protocol's own client; the examples and client
# libraries; and the Helm chart on a real Kubernetes of two nodes.
#   scripts/test_full.sh [release|cuda|sim|asan|tsan|tidy|odr|locks|quick|chaos|closure|mutation|
#     archs|fuzz|wire|bits|guided|saves|templates|ui|openapi|timing|packages|mcp|clients|k8s ...]
# only these. BATON_WIRE_OLD=COMMIT: what the tier `wire` takes for the release before.
# BATON_GUIDED=long: more kills in the tier `guided`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tier_names="release cuda sim asan tsan tidy odr locks quick chaos closure mutation archs fuzz wire"
tier_names+=" bits guided saves templates ui openapi timing packages mcp clients k8s"
tiers=("$@")
[[ ${#tiers[@]} -gt 0 ]] || read -ra tiers <<<"$tier_names"
jobs="${BATON_TEST_JOBS:-$(nproc)}"
report=()
skipped=77  # exit status of a tier that cannot run here and has said why

run_tier() {
  case "$1" in
    # With seeds that nobody has seen yet (tests/test_seed.h).
    release) BATON_TEST_LONG=1 BATON_TEST_SEED=random BATON_E2E_PROMPTS=64 \
      BATON_NCCL_FAULTS=10000 scripts/test.sh ;;
    # All of it is compiled and linked; what tests devices, workers and whole clusters runs.
    cuda) scripts/deps.sh --tests && scripts/deps.sh --cuda && scripts/build.sh cuda &&
      build/cuda/baton pull smollm2:135m >/dev/null && BATON_TEST_SEED=random \
        ctest --preset cuda -j "$jobs" -R \
          '^(e2e|cuda_(both|device|shared)|green|model_(device|fast)|device|worker|gpu_check)_' ;;
    sim) run_simulations ;;
    # Sanitizers slow the code five to fifteen times: limits on time are raised, and fewer prompts
    # go through the comparison of paths, which looks for other bits, not for other memory.
    asan) scripts/deps.sh --tests && scripts/build.sh asan &&
      build/asan/baton pull smollm2:135m >/dev/null &&
      build/asan/baton pull gemma3:270m >/dev/null &&
      BATON_TEST_SEED=random BATON_E2E_START_LIMIT_S=300 BATON_E2E_PROMPTS=8 \
        ctest --preset asan -j "$jobs" --timeout 3600 -LE no_sanitizer ;;
    tsan) scripts/build.sh tsan tsan_tests && BATON_TEST_SEED=random BATON_E2E_START_LIMIT_S=300 \
      ctest --preset tsan -j "$jobs" --timeout 3600 -L tsan ;;
    tidy) run_clang_tidy ;;
    # The linker compares the definitions of a name in all sources; a compiler sees one source.
    odr) scripts/build.sh odr baton ;;
    locks) check_locks ;;
    quick) check_quick_build ;;
    chaos) scripts/build.sh release && scripts/chaos.sh --json build/chaos.json ;;
    closure) scripts/build.sh release kvcache_closure_test &&
      BATON_CLOSURE=long build/release/tests/kvcache/kvcache_closure_test ;;
    mutation) scripts/mutate_handoff.py --jobs "$jobs" ;;
    archs) compile_for_architectures ;;
    fuzz) scripts/fuzz.sh 60 ;;
    wire) run_mixed_releases ;;
    bits) compare_paths ;;
    guided) kill_guided_answers ;;
    saves) scripts/build.sh release baton && scripts/save_table.py ;;
    k8s) run_on_kubernetes ;;
    templates) compare_templates ;;
    ui) look_at_the_page ;;
    openapi) ask_by_the_description ;;
    timing) guess_caches ;;
    packages) install_packages ;;
    mcp) talk_mcp ;;
    clients) drive_clients ;;
    *)
      echo "test_full.sh: unknown tier '$1'; one of: $tier_names" >&2
      exit 2
      ;;
  esac
}

# The preset quick compiles sources together, so it is built whole. It says how to get
# what it leaves out.
check_quick_build() {
  local said link
  link="$(readlink build/baton || true)"
  scripts/build.sh --progress quick baton || return 1
  [[ -z "$link" ]] || ln -sfn "$link" build/baton
  build/quick/baton run smollm2:135m --prompt Hello >/dev/null || return 1
  said="$(build/quick/baton run smollm2:135m --device simt --prompt Hello 2>&1)" && return 1
  grep -qF "scripts/build.sh release" <<<"$said" || {
    echo "test_full.sh: --device simt was refused with: $said" >&2
    return 1
  }
}

# Every chat template of three PyPI packages against jinja2 in transformers' environment, and the
# calls that those with tools write into a conversation.
compare_templates() {
  local venv=build/template-venv corpus="$PWD/build/template_corpus.json"
  python3 -m venv "$venv" && "$venv/bin/pip" -q install jinja2==3.1.6 transformers==5.23.0 &&
    "$venv/bin/python" tests/golden/make_template_corpus.py "$corpus" &&
    BATON_TEMPLATE_CORPUS="$corpus" src/text/hf/cargo.sh test &&
    scripts/build.sh release text_tool_parser_test &&
    BATON_TEMPLATE_CORPUS="$corpus" build/release/tests/text/text_tool_parser_test \
      --gtest_filter='ToolTemplateTest.*'
}

# The page at /ui in Debian's Chromium: what it does, axe's rules, and its looks.
look_at_the_page() {
  local venv=build/ui-venv
  if ! command -v "${BATON_CHROMIUM:-chromium}" >/dev/null; then
    echo "ui: skipped, chromium is missing (apt-get install chromium fonts-dejavu-core)"
    return "$skipped"
  fi
  scripts/build.sh release baton && build/baton pull smollm2:135m >/dev/null || return 1
  python3 -m venv "$venv" &&
    "$venv/bin/pip" -q install -r tests/e2e/requirements.txt -r tests/ui/browser_packages.txt &&
    BATON_BIN="$PWD/build/baton" PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -q -rs \
      -p no:cacheprovider tests/ui
}

# Thousands of bodies that /openapi.json allows, and as many that it does not: no answer may be a
# 5xx or have a status or a form that is not described.
ask_by_the_description() {
  local venv=build/openapi-venv
  scripts/build.sh release baton && build/baton pull smollm2:135m >/dev/null || return 1
  # It wants another pytest than the tests, so only what starts a server stands beside it.
  python3 -m venv "$venv" &&
    "$venv/bin/pip" -q install "$(grep '^grpcio==' tests/e2e/requirements.txt)" \
      schemathesis==4.32.5 &&
    BATON_BIN="$PWD/build/baton" PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" \
      tests/e2e/ask_by_openapi.py --schemathesis "$venv/bin/schemathesis"
}

# Whether the times of a tenant's answers tell what another tenant has in the prefix cache.
guess_caches() {
  scripts/deps.sh --tests && scripts/build.sh release baton || return 1
  build/baton pull smollm2:135m >/dev/null || return 1
  PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python tests/e2e/cache_timing.py \
    --json build/cache_timing.json
}

# Packages of the static program: made twice, installed where nothing was, run, removed.
install_packages() {
  scripts/deps.sh --tests && scripts/build.sh release baton baton_static || return 1
  build/baton pull smollm2:135m >/dev/null || return 1
  BATON_STATIC_BIN="$PWD/build/release/baton-static" PYTHONDONTWRITEBYTECODE=1 \
    build/venv/bin/python -m pytest -q -s -rs -p no:cacheprovider tests/packages
}

# `baton mcp` on a running server with the protocol's official client.
talk_mcp() {
  scripts/build.sh release baton && build/baton pull smollm2:135m >/dev/null || return 1
  python3 -m venv build/mcp-venv &&
    build/mcp-venv/bin/pip -q install -r tests/mcp/client_packages.txt &&
    BATON_BIN="$PWD/build/baton" PYTHONDONTWRITEBYTECODE=1 build/mcp-venv/bin/python -m pytest \
      -q -rs -p no:cacheprovider tests/mcp
}

# The examples, and the libraries that people talk to a server with, each of a pinned version:
# undisturbed, and again while workers are killed. Some want version 2 of the package openai and
# have a folder of their own. Node.js is a package too. tests/clients/RESULTS.md has the results.
drive_clients() {
  local venv=build/clients-venv venv2=build/clients-venv2 tools="$PWD/build/clients-tools" node=""
  scripts/build.sh release baton && build/baton pull smollm2:135m >/dev/null || return 1
  python3 -m venv "$venv" && "$venv/bin/pip" -q install -r tests/clients/packages.txt || return 1
  python3 -m venv "$venv2" &&
    "$venv2/bin/pip" -q install -r tests/clients/packages_openai2.txt || return 1
  if command -v npm >/dev/null; then
    node="$PWD/build/clients-node"
    mkdir -p "$node" && cp examples/node/package.json "$node/" || return 1
    xargs npm --prefix "$node" install --no-save --no-audit --no-fund --loglevel=error \
      <tests/clients/node_packages.txt || return 1
  else
    echo "clients: those of Node.js are skipped, npm is missing (apt-get install npm)"
  fi
  get_client_tools "$tools" || return 1
  export BATON_BIN="$PWD/build/baton" BATON_CLIENTS_NODE="$node" PYTHONDONTWRITEBYTECODE=1
  export BATON_CLIENTS_TOOLS="$tools" BATON_CLIENTS_RESULTS="$PWD/build/clients.json"
  export BATON_CLIENTS_ANSWERS="$PWD/build/clients_answers.json"
  rm -f "$BATON_CLIENTS_RESULTS" "$BATON_CLIENTS_ANSWERS"
  local seed failed=0
  for seed in "" "${BATON_CLIENTS_KILLS:-$((RANDOM * 32768 + RANDOM))}"; do
    BATON_CLIENTS_KILLS="$seed" "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider \
      tests/clients --ignore=tests/clients/test_openai2_users.py || failed=1
    BATON_CLIENTS_KILLS="$seed" "$venv2/bin/python" -m pytest -q -rs -p no:cacheprovider \
      tests/clients/test_openai2_users.py || failed=1
  done
  # A failed test is in the table too.
  cp "$BATON_CLIENTS_RESULTS" benchmarks/results/clients.json && scripts/readme_tables.py &&
    [[ $failed -eq 0 ]] || return 1
  # The clients of OpenAI, Anthropic and Ollama in their newest releases.
  "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider tests/e2e/test_openai_client.py
}

# Programs that want an environment of their own, into one folder. guidellm brings PyTorch.
get_client_tools() {
  local tools="$1" name version
  mkdir -p "$tools" || return 1
  while read -r name version; do
    case "$name" in
      grpcurl)
        if command -v go >/dev/null; then
          GOBIN="$tools" go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$version" ||
            return 1
        else
          echo "clients: grpcurl is skipped, go is missing"
        fi
        ;;
      *)
        python3 -m venv "$tools/$name-venv" &&
          "$tools/$name-venv/bin/pip" -q install "$name==$version" &&
          ln -sfn "$name-venv/bin/$name" "$tools/$name" || return 1
        ;;
    esac
  done <tests/clients/tools.txt
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

# Ampere (whose code Ada runs), Hopper without its own instructions (the PTX of cuda-all), both
# Blackwells: no spills and no warnings. About 90 s of processor time each.
compile_for_architectures() {
  scripts/deps.sh --cuda || return 1
  local tools arch
  tools="$(echo "$PWD"/build/cuda-venv/lib/python3*/site-packages/nvidia/cu13/bin)"
  for arch in sm_80 sm_90 sm_100 sm_120; do
    python3 -B tests/kernels/cuda/cuda_resources.py "$tools/nvcc" "$tools/cuobjdump" \
      --arch "$arch" --no-baseline || return 1
  done
}

# The release before this one, built in a work tree of its own, mixed with this build.
run_mixed_releases() {
  local old="${BATON_WIRE_OLD:-}" folder="$PWD/build/wire"
  if [[ -z "$old" ]]; then old="$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || true)"; fi
  if [[ -z "$old" ]]; then
    echo "wire: skipped, there is no tag before this commit; BATON_WIRE_OLD=COMMIT names one"
    return "$skipped"
  fi
  if [[ ! -x build/venv/bin/python ]]; then
    echo "test_full.sh: build/venv is missing; run scripts/deps.sh --tests" >&2
    return 1
  fi
  echo "== this build with $(git log -1 --format='%h %s' "$old")"
  if [[ ! -d "$folder" ]]; then git worktree add --detach "$folder" "$old" || return 1; fi
  git -C "$folder" checkout -q --detach "$old" || return 1
  "$folder/scripts/build.sh" release baton || return 1
  scripts/build.sh release baton || return 1
  build/baton pull smollm2:135m >/dev/null || return 1
  PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python tests/e2e/wire_mix.py \
    "$folder/build/baton" "$PWD/build/baton"
}

compare_paths() {
  scripts/deps.sh --tests && scripts/build.sh release baton || return 1
  PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python tests/e2e/equal_bits.py \
    --json build/equal_bits.json
}

# A decode worker dies at each token of answers that follow schemas or call tools.
kill_guided_answers() {
  scripts/deps.sh --tests && scripts/build.sh release baton || return 1
  build/baton pull smollm2:135m >/dev/null || return 1
  local shard shards=4 failed=0 runs=()
  for ((shard = 1; shard <= shards; ++shard)); do
    PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python tests/e2e/kill_guided.py \
      --shard "$shard/$shards" --json "build/kill_guided_$shard.json" &
    runs+=($!)
  done
  for shard in "${runs[@]}"; do wait "$shard" || failed=1; done
  [[ "$failed" -eq 0 ]] && ask_by_the_schema_corpus
}

# The JSON Schema Test Suite comes in the source package of the validator that judges the answers.
# The long form (an hour) kills a worker for each schema, and at every token for 100 of them, in
# six shards side by side.
ask_by_the_schema_corpus() {
  local folder="build/schema_corpus" version=4.26.0 kills=100 each_token=0 shards=1
  if [[ "${BATON_GUIDED:-}" == long ]]; then kills=500 each_token=100 shards=6; fi
  if [[ ! -d "$folder/jsonschema-$version/json/tests" ]]; then
    mkdir -p "$folder" &&
      build/venv/bin/pip download -q --no-deps --no-binary :all: -d "$folder" \
        "jsonschema==$version" && tar -xzf "$folder/jsonschema-$version.tar.gz" -C "$folder" ||
      return 1
  fi
  [[ -x "$folder/venv/bin/python" ]] || python3 -m venv "$folder/venv" || return 1
  "$folder/venv/bin/pip" install -q "jsonschema==$version" -r tests/e2e/requirements.txt ||
    return 1
  local shard failed=0 runs=()
  for ((shard = 1; shard <= shards; ++shard)); do
    PYTHONDONTWRITEBYTECODE=1 "$folder/venv/bin/python" tests/e2e/schema_corpus.py \
      "$folder/jsonschema-$version/json/tests" --kills "$kills" --each-token "$each_token" \
      --shard "$shard/$shards" --json "build/schema_corpus_$shard.json" &
    runs+=($!)
  done
  for shard in "${runs[@]}"; do wait "$shard" || failed=1; done
  return "$failed"
}

# Its own Kubernetes, from packages and Go modules, in network namespaces of this machine.
run_on_kubernetes() {
  if [[ "$(id -u)" -ne 0 ]]; then
    echo "k8s: skipped, needs root (network namespaces, mounts, control groups)"
    return "$skipped"
  fi
  if ! command -v go >/dev/null; then
    echo "k8s: skipped, go is missing (1.24 or newer builds Kubernetes from its modules)"
    return "$skipped"
  fi
  scripts/deps.sh --k8s || return 1
  tests/k8s/tools.sh || return 1
  scripts/build.sh release baton baton_static || return 1
  build/baton pull smollm2:135m >/dev/null || return 1
  local test
  for test in chart alerts deploy_files upgrades; do
    BATON_BIN="$PWD/build/baton" PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python -m pytest -q -rs \
      -p no:cacheprovider "tests/k8s/test_$test.py" || return 1
  done
  PYTHONDONTWRITEBYTECODE=1 build/venv/bin/python tests/k8s/prove.py --json build/k8s.json
}

run_clang_tidy() {
  local tool
  tool="$(command -v clang-tidy-14 || command -v clang-tidy || true)"
  if [[ -z "$tool" ]]; then
    echo "test_full.sh: clang-tidy is missing (apt-get install clang-tidy-14)" >&2
    return 1
  fi
  # clang-tidy reads the commands of the dev build and the headers made of protos, not its objects.
  # Called from an `if`, where bash ignores -e: without the return stale headers would be judged.
  scripts/build.sh dev baton_proto baton_health_proto baton_otlp_proto baton_google_rpc_proto \
    baton_reflection_proto || return 1
  # Ours alone; generated code is not, nor what a build with CUDA adds, which dev knows no command
  # for. The commands are gcc's: clang does not know some warnings that they leave out.
  git ls-files 'src/*.cc' 'kernels/*.cc' 'kvcache/*.cc' 'scheduler/*.cc' |
    grep -v '^kernels/simt/gpu_' |
    xargs -P "$jobs" -n 4 "$tool" -p build/dev --quiet --extra-arg=-Wno-unknown-warning-option
}

# As run_clang_tidy: the commands of the dev build and the headers made of protos.
check_locks() {
  scripts/build.sh dev baton_proto baton_health_proto baton_otlp_proto baton_google_rpc_proto \
    baton_reflection_proto || return 1
  python3 -B scripts/thread_safety.py build/dev --jobs "$jobs"
}

for tier in "${tiers[@]}"; do
  echo "==== $tier"
  begin=$SECONDS
  code=0
  (run_tier "$tier") || code=$?
  case "$code" in
    0) verdict=passed ;;
    "$skipped") verdict=skipped ;;
    *) verdict=FAILED ;;
  esac
  report+=("$(printf '%-8s %-7s %4d s' "$tier" "$verdict" $((SECONDS - begin)))")
done
echo "==== summary"
printf '%s\n' "${report[@]}"
[[ "${report[*]}" != *FAILED* ]]
