#!/usr/bin/env bash
# Writes the packages of a program that was built: a tarball, a .deb, a Python wheel, the SBOM and
# SHA256SUMS, into build/packages. The images have a script of their own (deploy/container).
#   scripts/package.sh [--binary FILE] [--out FOLDER]
# FILE lies in its build folder. Default: the static program of the release build, which needs no
# library of the machine that runs it; else build/baton. SOURCE_DATE_EPOCH is the time of all files;
# default: that of the commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

binary=""
out=build/packages
while [[ $# -gt 0 ]]; do
  case "$1" in
    --binary | --out)
      if [[ $# -lt 2 ]]; then
        echo "package.sh: $1 takes a value" >&2
        exit 2
      fi
      if [[ "$1" == --binary ]]; then binary="$2"; else out="$2"; fi
      shift 2
      ;;
    *)
      echo "package.sh: unknown argument '$1'; it takes --binary FILE and --out FOLDER" >&2
      exit 2
      ;;
  esac
done
if [[ -z "$binary" ]]; then
  binary=build/release/baton-static
  [[ -x "$binary" ]] || binary=build/baton
fi
if [[ ! -x "$binary" ]]; then
  echo "package.sh: there is no $binary; scripts/build.sh release baton_static builds it" >&2
  exit 1
fi
for tool in python3 ninja g++ strip readelf objdump dpkg-query; do
  if ! command -v "$tool" >/dev/null; then
    echo "package.sh: $tool is missing; run scripts/deps.sh" >&2
    exit 1
  fi
done
echo "package.sh: packing $binary" >&2
exec python3 -B deploy/packages/build_packages.py --binary "$binary" --out "$out"
