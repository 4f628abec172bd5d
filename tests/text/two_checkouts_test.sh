#!/usr/bin/env bash
# usage: two_checkouts_test.sh CARGO.SH
# Two checkouts that share cargo's folder each get the library of their own sources, also when the
# other one was built after these were written.
set -euo pipefail
cargo_sh=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export BATON_CARGO_TARGET=$folder/target
for name in first second; do
  crate=$folder/$name
  mkdir -p "$crate/src"
  printf '[package]\nname = "toy"\nversion = "0.1.0"\nedition = "2021"\n[lib]\n%s\n' \
    'crate-type = ["staticlib"]' >"$crate/Cargo.toml"
  printf 'version = 3\n[[package]]\nname = "toy"\nversion = "0.1.0"\n' >"$crate/Cargo.lock"
  echo "#[no_mangle] pub extern \"C\" fn written_in_$name() {}" >"$crate/src/lib.rs"
  find "$crate" -type f -exec touch -d '1 hour ago' {} +
done
for name in first second first; do
  "$cargo_sh" build "$folder/$name.a" "$folder/$name"
  if ! grep -q "written_in_$name" "$folder/$name.a"; then
    echo "the library of the checkout '$name' is not made from its sources" >&2
    exit 1
  fi
done
