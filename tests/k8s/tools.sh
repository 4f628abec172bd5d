#!/usr/bin/env bash
# Builds what tests/k8s needs and no distribution has, from Go modules, once: helm 3 and helm 4,
# CoreDNS and Kubernetes (one program for all parts). Prints the folder. About 7 minutes cold on 2
# cores.
#   tests/k8s/tools.sh [helm]      only helm3 and helm4, for the tests of the chart alone
# BATON_K8S_BIN: another folder than ~/.cache/baton/k8s.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
bin="${BATON_K8S_BIN:-$HOME/.cache/baton/k8s}"
kubernetes=1.34.2
helm3=v3.19.2
helm4=v4.3.1
coredns=v1.12.4

if ! command -v go >/dev/null; then
  echo "tools.sh: go is missing (1.24 or newer; it fetches the newer one that helm 4 needs)" >&2
  exit 1
fi
mkdir -p "$bin"

install_module() {  # NAME MODULE@VERSION [LINKER FLAGS]
  if [[ -x "$bin/$1" ]]; then return; fi
  echo "tools.sh: building $1" >&2
  local fresh
  fresh="$(mktemp -d "$bin/new.XXXXXX")"
  trap 'rm -rf "$fresh"' RETURN
  GOBIN="$fresh" CGO_ENABLED=0 go install -ldflags="-s -w ${3:-}" "$2"
  mv "$fresh"/* "$bin/$1"
}

# k8s.io/kubernetes requires its own parts as v0.0.0: each is replaced by its release.
write_module() {
  local parts=(api apiextensions-apiserver apimachinery apiserver cli-runtime client-go
    cloud-provider cluster-bootstrap code-generator component-base component-helpers
    controller-manager cri-api cri-client csi-translation-lib dynamic-resource-allocation
    endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy
    kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver
    sample-cli-plugin sample-controller)
  printf 'module controlplane\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n\n' "$kubernetes"
  local part
  for part in "${parts[@]}"; do
    printf 'replace k8s.io/%s => k8s.io/%s v0.%s\n' "$part" "$part" "${kubernetes#1.}"
  done
}

build_kubernetes() {
  if [[ -x "$bin/kube-$kubernetes" ]]; then return; fi
  echo "tools.sh: building Kubernetes $kubernetes" >&2
  local source version=k8s.io/component-base/version
  source="$(mktemp -d)"
  trap 'rm -rf "$source"' RETURN
  cp "$here/control_plane/main.go" "$source/"
  write_module >"$source/go.mod"
  (
    cd "$source"
    go mod tidy 2>tidy.log || { cat tidy.log >&2; exit 1; }
    CGO_ENABLED=0 go build -o "$bin/kube-$kubernetes" -ldflags="-s -w \
      -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=34" .
  )
  local part
  for part in apiserver controller-manager scheduler proxy; do
    ln -sfn "kube-$kubernetes" "$bin/kube-$part"
  done
  ln -sfn "kube-$kubernetes" "$bin/kubelet"
  ln -sfn "kube-$kubernetes" "$bin/kubectl"
}

# helm 3 takes this for the cluster's version where it asks none; without these flags it takes 1.20.
rules=""
for package in chartutil lint/rules; do
  rules+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMajor=1"
  rules+=" -X helm.sh/helm/v3/pkg/$package.k8sVersionMinor=34"
done
install_module helm3 "helm.sh/helm/v3/cmd/helm@$helm3" "$rules"
install_module helm4 "helm.sh/helm/v4/cmd/helm@$helm4"
if [[ "${1:-}" != helm ]]; then
  build_kubernetes
  install_module coredns "github.com/coredns/coredns@$coredns"
fi
echo "$bin"
