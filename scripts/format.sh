#!/usr/bin/env bash
# Formats all C++ sources in place; with --check only says which would change (exit 1).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool="$(command -v clang-format-14 || true)"
if [[ -z "$tool" ]]; then
  echo "format.sh: clang-format-14 is missing; run scripts/deps.sh --tests" >&2
  exit 1
fi
case "${1:-}" in
  "") mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *)
    echo "format.sh: unknown argument '$1'; the only one is --check" >&2
    exit 2
    ;;
esac
# Tracked and new files, not ignored ones.
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' |
  while IFS= read -r -d '' file; do if [[ -e "$file" ]]; then printf '%s\0' "$file"; fi; done |
  xargs -0 -r "$tool" "${mode[@]}"
