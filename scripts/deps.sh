#!/usr/bin/env bash
# Installs what building and testing Baton needs on Debian 12 and 13 and on Ubuntu 24.04, and says
# what it installs.
# Idempotent: a second run finds everything and installs nothing.
#   scripts/deps.sh            packages to build and run
#   scripts/deps.sh --tests    also what the tests use (formatter, promtool, Python clients, nvcc)
#   scripts/deps.sh --cuda     also nvcc 13.0 for the preset cuda, where no CUDA 13 is installed:
#                              Python wheels (500 MB) into build/cuda-venv
#   scripts/deps.sh --k8s      --tests, and etcd, containerd and what else the Kubernetes of
#                              tests/k8s runs on
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

with_tests=0
with_cuda=0
with_k8s=0
case "${1:-}" in
  "") ;;
  --tests) with_tests=1 with_cuda=1 ;;
  --cuda) with_cuda=1 ;;
  --k8s) with_tests=1 with_k8s=1 ;;
  *)
    echo "deps.sh: unknown argument '$1'; it is --tests, --cuda or --k8s" >&2
    exit 2
    ;;
esac

build_packages=(
  g++ cmake ninja-build ccache mold git ca-certificates pkg-config
  python3 python3-pip python3-venv unzip
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev
  libc-ares-dev libre2-dev zlib1g-dev libssl-dev libspdlog-dev libfmt-dev libxxhash-dev
  libyaml-cpp-dev libnuma-dev liburing-dev nlohmann-json3-dev libcli11-dev libedit-dev
  libgtest-dev libgmock-dev
  libbenchmark-dev)
test_packages=(prometheus iproute2 openssl curl xz-utils)
k8s_packages=(etcd-server containerd runc containernetworking-plugins iproute2 iptables openssl)

installed() { [[ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" == "install ok installed" ]]; }

wanted=("${build_packages[@]}")
[[ $with_tests -eq 1 ]] && wanted+=("${test_packages[@]}")
[[ $with_k8s -eq 1 ]] && wanted+=("${k8s_packages[@]}")
missing=()

# A package that apt could install; its lists are read again where there are none.
has_candidate() {
  [[ "$(LC_ALL=C apt-cache policy "$1" 2>/dev/null)" == *"Candidate: "[^\(]* ]]
}
# The archive of OpenSSL 3.2 and later needs that of zstd.
openssl_needs_zstd() {
  local version
  version="$(LC_ALL=C apt-cache policy libssl-dev 2>/dev/null | sed -n 's/^ *Candidate: //p')"
  dpkg --compare-versions "${version:-0}" ge 3.2
}
# The newest Boost from 1.81 on that apt knows: 1.81 on Debian 12, 1.83 on Ubuntu 24.04.
newest_boost() {
  LC_ALL=C apt-cache search --names-only '^libboost1\.[0-9]+-dev$' 2>/dev/null |
    sed -n 's/^libboost1\.\([0-9]*\)-dev .*/\1/p' | sort -rn | while read -r minor; do
      if [[ $minor -ge 81 ]] && has_candidate "libboost1.$minor-dev"; then
        echo "libboost1.$minor-dev"
        break
      fi
    done
}
installed_boost() {
  dpkg-query -W -f '${Package} ${Status}\n' 'libboost1.*-dev' 2>/dev/null |
    sed -n 's/^libboost1\.\([0-9]*\)-dev install ok installed$/\1/p' | sort -rn | head -n 1
}
as_root=()
if [[ "$(id -u)" -ne 0 ]] && command -v sudo >/dev/null; then as_root=(sudo); fi
# A machine that has just started updates itself: its locks are waited for, five minutes each. For
# dpkg's apt-get does; for that of the lists it fails.
update_lists() {
  local said
  for _ in {1..60}; do
    if said="$("${as_root[@]}" env LC_ALL=C apt-get update 2>&1)"; then return 0; fi
    echo "$said"
    [[ "$said" == *"Could not get lock"* ]] || return 1
    sleep 5
  done
  return 1
}

boost_minor="$(command -v dpkg-query >/dev/null && installed_boost || true)"
if command -v apt-get >/dev/null; then
  if [[ "${boost_minor:-0}" -lt 81 ]]; then
    boost="$(newest_boost)"
    if [[ -z "$boost" ]]; then
      # A fresh machine has no lists of packages.
      update_lists >&2 || echo "deps.sh: apt-get update failed; see above" >&2
      boost="$(newest_boost)"
    fi
    if [[ -z "$boost" ]]; then
      echo "deps.sh: apt knows no libboost1.81-dev or newer; install Boost by hand" >&2
      exit 1
    fi
    missing+=("$boost")
  fi
  # Other releases format otherwise: the check of the format is left out where this one is missing.
  if [[ $with_tests -eq 1 ]] && ! installed clang-format-14; then
    if has_candidate clang-format-14; then
      missing+=(clang-format-14)
    else
      echo "deps.sh: apt knows no clang-format-14; the check of the format will be skipped"
    fi
  fi
  if openssl_needs_zstd; then wanted+=(libzstd-dev); fi
  for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
  done
else
  echo "deps.sh: no apt-get here: have the packages named in this file installed" >&2
fi

# Rust: the toolchain on PATH if it is new enough for the libraries, else the newest of apt: cargo,
# else a package named by its version (Ubuntu), else cargo-web (Debian 12).
min_cargo_minor="$(scripts/find_cargo.sh --minimum)"
if ! scripts/find_cargo.sh >/dev/null 2>&1 && command -v apt-get >/dev/null; then
  candidate_minor="$(LC_ALL=C apt-cache policy cargo 2>/dev/null |
    sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\(0\|1\)\.\([0-9]*\).*/\3/p')"
  newest_minor="$(apt-cache pkgnames cargo-1. | sed -n 's/^cargo-1\.\([0-9]*\)$/\1/p' |
    sort -n | tail -n 1)"
  versioned=
  if [[ "${newest_minor:-0}" -ge $min_cargo_minor ]]; then versioned="1.$newest_minor"; fi
  if [[ "${candidate_minor:-0}" -ge $min_cargo_minor ]]; then
    missing+=(cargo rustc)
  elif [[ -n "$versioned" ]]; then
    missing+=("cargo-$versioned" "rustc-$versioned")
  else
    installed cargo-web || missing+=(cargo-web)
    installed rustc-web || missing+=(rustc-web)
  fi
fi

if [[ ${#missing[@]} -eq 0 ]]; then
  if command -v apt-get >/dev/null; then echo "deps.sh: all packages are installed"; fi
else
  if [[ "$(id -u)" -ne 0 && ${#as_root[@]} -eq 0 ]]; then
    echo "deps.sh: run as root, or install sudo; missing: ${missing[*]}" >&2
    exit 1
  fi
  for package in "${missing[@]}"; do
    if [[ "$package" == libboost1.*-dev ]] && installed libboost1.74-dev; then
      echo "deps.sh: $package replaces libboost1.74-dev (its Asio fails as C++20)"
    fi
  done
  echo "deps.sh: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  log="$(mktemp)"
  # Also after Ctrl-C during apt: the policy must not outlive this script.
  policy=/usr/sbin/policy-rc.d
  made_policy=0
  clean_up() {
    rm -f "$log"
    if [[ $made_policy -eq 1 ]]; then "${as_root[@]}" rm -f "$policy"; fi
    made_policy=0
  }
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  # Some packages come with a service we do not want started: policy-rc.d refuses starts while we
  # install, and an administrator's own policy stays as it is.
  if [[ $((with_tests + with_k8s)) -gt 0 && ! -e $policy ]]; then
    made_policy=1
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod +x "$policy"
  fi
  status=0
  { update_lists && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 || status=$?
  if [[ $status -ne 0 ]]; then
    tail -n 20 "$log" >&2
    echo "deps.sh: apt-get could not install: ${missing[*]}" >&2
    exit 1
  fi
  clean_up
fi

# The Python clients of the end-to-end tests, in an environment of the project's own.
if [[ $with_tests -eq 1 && -f tests/e2e/requirements.txt ]]; then
  venv=build/venv
  stamp="$venv/installed.txt"
  mapfile -t requirement_files < <(ls tests/*/requirements.txt)
  if ! cat "${requirement_files[@]}" | cmp -s - "$stamp"; then
    echo "deps.sh: installing Python packages into $venv (${requirement_files[*]})"
    mkdir -p build
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    arguments=(--quiet --disable-pip-version-check)
    for file in "${requirement_files[@]}"; do arguments+=(-r "$file"); done
    if ! "$venv/bin/python" -m pip install "${arguments[@]}"; then
      echo "deps.sh: pip could not install ${requirement_files[*]}; see above" >&2
      exit 1
    fi
    cat "${requirement_files[@]}" >"$stamp"
  fi
fi

# The CUDA compiler and NCCL, with every part pinned: the wheels' own dependencies are not, and
# parts of different releases do not work together (ptxas stops at "Unsupported .version").
cuda_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-nvtx==13.0.85
  nvidia-nccl-cu13==2.28.9  # nccl.h is compared with our declarations
  nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)  # read what 13.0 makes
has_cuda_13() {
  local nvcc
  nvcc="$(PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v nvcc)" || return 1
  "$nvcc" --version | grep -q 'release 13\.'
}
if [[ $with_cuda -eq 1 ]] && ! has_cuda_13; then
  venv=build/cuda-venv
  stamp="$venv/installed.txt"
  if ! printf '%s\n' "${cuda_wheels[@]}" | cmp -s - "$stamp"; then
    echo "deps.sh: installing ${cuda_wheels[*]} into $venv"
    mkdir -p build
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
      "${cuda_wheels[@]}"; then
      echo "deps.sh: pip could not install the CUDA compiler; see above" >&2
      exit 1
    fi
    # nvcc looks for its libraries in lib64.
    for toolkit in "$venv"/lib/python3*/site-packages/nvidia/cu13; do
      ln -sfn lib "$toolkit/lib64"
    done
    printf '%s\n' "${cuda_wheels[@]}" >"$stamp"
  fi
fi
