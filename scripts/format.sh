#!/usr/bin/env bash
# Formats all C++ sources in place; with --check only says which would change (exit 1).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tool="$(command -v clang-format-14 || true)"
if [[ -z "$tool" && "${1:-}" == --check ]]; then
  echo "format.sh: skipped: clang-format-14 is missing, and other releases format otherwise" >&2
  exit 77  # ctest's word for a test that is skipped
fi
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
