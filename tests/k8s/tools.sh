#!/usr/bin/env bash
# Builds what tests/k8s needs and Debian does not have, from Go modules, once: helm. Prints its
# folder.
# BATON_K8S_BIN: another folder than ~/.cache/baton/k8s.
set -euo pipefail
bin="${BATON_K8S_BIN:-$HOME/.cache/baton/k8s}"
helm=v3.19.2

if ! command -v go >/dev/null; then
  echo "tools.sh: go is missing (1.24 or newer)" >&2
  exit 1
fi
mkdir -p "$bin"

install_module() {  # NAME MODULE@VERSION [LINKER FLAGS]
  if [[ ! -x "$bin/$1" ]]; then
    echo "tools.sh: building $1" >&2
    GOBIN="$bin" CGO_ENABLED=0 go install -ldflags="-s -w ${3:-}" "$2"
  fi
}

# What helm takes for the cluster's version where it asks none; without these flags it is 1.20.
rules=""
for package in chartutil lint/rules; do
  rules+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1"
  rules+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=34"
done
install_module helm "helm.sh/helm/v3/cmd/helm@$helm" "$rules"
echo "$bin"
