#!/usr/bin/env bash
# Packs what scripts/gpu_check.sh needs on a machine with a GPU that has no network and no compiler:
# the built programs, the scripts and the commit, in one archive of at most 64 MiB.
#   scripts/gpu_bundle.sh [--out FILE] [--preset P | --program FILE [--baton FILE]] [--max-mib N]
#     --out      build/gpu_bundle.tar.xz
#     --preset   cuda, for a Hopper, or cuda-all; its programs are built
#     --program  a built baton_gpu_check instead
#     --baton    a built baton for stage 9, which does not run without it
#     --max-mib  where less may travel; 64
# There:  tar xf gpu_bundle.tar.xz && gpu_bundle/run.sh [options of gpu_check.sh]
#         gpu_bundle/real.sh MODELS_DIR --json FILE [options of real_check.py]
#         gpu_bundle/scripts/gpu_pieces.py join ...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

max_mib=64
out=build/gpu_bundle.tar.xz
preset=""
program=""
baton=""
not_built=""  # a suffix of the commit's name: the program may be of another commit

fail() {
  echo "gpu_bundle.sh: $1" >&2
  exit "${2:-1}"
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --out | --preset | --program | --baton | --max-mib)
      [[ $# -ge 2 ]] || fail "$1 needs a value" 2
      name="${1#--}"
      printf -v "${name/-/_}" '%s' "$2"
      shift
      ;;
    -h | --help)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' scripts/gpu_bundle.sh
      exit 0
      ;;
    *) fail "unknown argument '$1'; it is --out, --preset, --program, --baton or --max-mib" 2 ;;
  esac
  shift
done
[[ "$max_mib" =~ ^[1-9][0-9]*$ && "$max_mib" -le 64 ]] ||
  fail "--max-mib $max_mib is not in [1, 64]" 2
[[ -z "$baton" || -n "$program" ]] || fail "--baton needs --program" 2
[[ -z "$preset" || -z "$program" ]] || fail "--preset and --program exclude each other" 2
preset="${preset:-cuda}"
[[ "$preset" =~ ^cuda(-all)?$ ]] || fail "--preset $preset is not cuda or cuda-all" 2
if [[ -z "$program" ]]; then
  scripts/build.sh "$preset" baton_gpu_check baton
  program="build/$preset/tests/kernels/gpu_check/baton_gpu_check"
  baton="build/$preset/baton"
else
  not_built=-not-built
fi
for file in "$program" ${baton:+"$baton"}; do
  [[ -x "$file" ]] || fail "$file is no program"
done
commit="$(git describe --always --dirty --exclude='*' 2>/dev/null || true)$not_built"
if [[ "$commit" == *-dirty* ]]; then
  echo "gpu_bundle.sh: the tree has changes that no commit names" >&2
fi

rm -f "$out"  # of another commit, if this one fails
stage="$(mktemp -d)"
trap 'rm -rf "$stage" "$out.part"' EXIT
root="$stage/gpu_bundle"
mkdir -p "$root/bin" "$root/scripts" "$root/tests/kernels/gpu_check"
strip -o "$root/bin/baton_gpu_check" "$program"
cp scripts/gpu_check.sh scripts/gpu_pieces.py "$root/scripts/"
cp tests/kernels/gpu_check/{torch_peers,product_check,real_check}.py \
  "$root/tests/kernels/gpu_check/"
if [[ -n "$baton" ]]; then
  strip -o "$root/bin/baton" "$baton"
  mkdir -p "$root/tests/golden"
  cp tests/golden/tiny_head*.gguf tests/golden/perplexity.txt "$root/tests/golden/"
fi
echo "$commit" >"$root/COMMIT"
cat >"$root/run.sh" <<'RUN'
#!/usr/bin/env bash
# scripts/gpu_check.sh with the programs of this bundle.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
baton=()
if [[ -x "$here/bin/baton" ]]; then baton=(--baton "$here/bin/baton"); fi
exec "$here/scripts/gpu_check.sh" --program "$here/bin/baton_gpu_check" "${baton[@]}" \
  --out "$here/results" "$@"
RUN
cat >"$root/real.sh" <<'REAL'
#!/usr/bin/env bash
# tests/kernels/gpu_check/real_check.py with the baton of this bundle:
#   real.sh MODELS_DIR --json FILE [--device simt] [more of its options]
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
models="${1:?usage: real.sh MODELS_DIR --json FILE [options]}"
shift
exec python3 -B "$here/tests/kernels/gpu_check/real_check.py" --baton "$here/bin/baton" \
  --models "$models" --device cuda "$@"
REAL
chmod +x "$root/run.sh" "$root/real.sh"
# Libraries that every machine with our C library has; anything else would be missing there. baton
# takes its compiler's from the machine, as its SBOM says: without them stage 9 fails alone.
for file in "$root"/bin/*; do
  known="libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 ld-linux-x86-64.so.2"
  if [[ "${file##*/}" == baton ]]; then known+=" libstdc++.so.6 libgcc_s.so.1"; fi
  needed="$(readelf -d "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')"
  for library in $needed; do
    [[ " $known " == *" $library "* ]] ||
      fail "${file##*/} needs $library, which may be missing there"
  done
done
mkdir -p "$(dirname "$out")"
tar -C "$stage" --sort=name --owner=0 --group=0 --mtime=@0 -cf - gpu_bundle |
  xz -T0 -3 >"$out.part"
bytes="$(stat -c %s "$out.part")"
if [[ $bytes -gt $((max_mib << 20)) ]]; then
  fail "the archive would have $bytes bytes, $max_mib MiB may travel"
fi
mv "$out.part" "$out"  # only when it is whole
versions="$(for file in "$root"/bin/*; do readelf -V "$file"; done |
  grep -o 'GLIBC_2\.[0-9]*' | sort -uV)"
echo "wrote $out, $bytes bytes; it needs ${versions##*$'\n'} or newer"
