#!/usr/bin/env bash
# Renders base/baton.yaml from the chart, for those without helm. With --check only says whether the
# file has the documents that the chart gives. HELM: another helm than the one on PATH, 3 or 4: they
# differ in blank lines, which do not count.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

render() {
  echo "# Rendered by deploy/kustomize/render.sh: change deploy/helm/baton, not this file."
  "${HELM:-helm}" template baton ../helm/baton --namespace default --kube-version 1.34.0 \
    --skip-tests \
    -f ../helm/baton/profiles/cpu-demo.yaml --set clusterSecret.existingSecret=baton-cluster |
    sed -e '/helm\.sh\/chart:/d' -e '/^# Source:/d' \
      -e 's/managed-by: Helm/managed-by: kustomize/' -e 's/ *$//' -e '/^$/d'
}

# The documents without comments and blank lines, which do not count.
plain() { sed -e '/^ *#/d' -e 's/ *$//' -e '/^$/d' "$@"; }

if [[ "${1:-}" == --check ]]; then
  diff -u <(plain base/baton.yaml) <(render | plain) || {
    echo "render.sh: base/baton.yaml is not what the chart gives; run $0" >&2
    exit 1
  }
else
  render >base/baton.yaml.new
  mv base/baton.yaml.new base/baton.yaml
fi
