#!/usr/bin/env bash
# usage: cargo.sh build OUT.a [CRATE] | cargo.sh test [CRATE [TEST OPTION...]]
# Builds the release library of the folder CRATE (default: this one) and copies it to OUT.a, or runs
# the crate's own tests. All build
# folders of a user share one cargo target folder (BATON_CARGO_TARGET, else cargo-target in
# ${BATON_HOME:-~/.cache/baton}), so only the first one compiles the dependencies (about a minute).
# The lock covers the copy: two checkouts write the same file name there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${BATON_HOME:-${HOME:-/root}/.cache/baton}
export CARGO_TARGET_DIR=${BATON_CARGO_TARGET:-$home/cargo-target}
cargo_folder="$("$here/../../../scripts/find_cargo.sh")"
export PATH="$cargo_folder:$PATH"
mkdir -p "$CARGO_TARGET_DIR"
exec 9>"$CARGO_TARGET_DIR/baton.lock"
flock 9
# cargo takes the same crate of two checkouts for one and compares times alone. The library built
# last may be the other checkout's, though newer than these sources: their sum decides.
mark_if_changed() {
  local sum stamp
  sum=$(cd "$1" && find . -name '*.rs' -o -name 'Cargo.*' | LC_ALL=C sort | xargs cat | cksum)
  stamp=$CARGO_TARGET_DIR/$2-$(sed -n 's/^name = "\(.*\)"$/\1/p' "$1/Cargo.toml" | head -n 1).sum
  [[ "$sum" == "$(cat "$stamp" 2>/dev/null)" ]] && return
  touch "$1/src/lib.rs"
  echo "$sum" >"$stamp"
}
case ${1:-} in
  build)
    crate=${3:-$here}
    mark_if_changed "$crate" build
    name=$(sed -n 's/^name = "\(.*\)"$/\1/p' "$crate/Cargo.toml" | head -n 1)
    cargo build --release --locked --quiet --manifest-path "$crate/Cargo.toml"
    cmp -s "$CARGO_TARGET_DIR/release/lib$name.a" "$2" ||
      cp "$CARGO_TARGET_DIR/release/lib$name.a" "$2"
    touch "$2"
    ;;
  test)
    crate=${2:-$here}
    shift $(($# < 2 ? $# : 2))
    mark_if_changed "$crate" test
    cargo test --release --locked --manifest-path "$crate/Cargo.toml" -- "$@"
    ;;
  *)
    echo "usage: cargo.sh build OUT.a [CRATE] | cargo.sh test [CRATE [TEST OPTION...]]" >&2
    exit 2
    ;;
esac
