#!/usr/bin/env bash
# usage: cargo.sh build OUT.a | cargo.sh test
# Builds the release library and copies it to OUT.a, or runs the crate's own tests. All build
# folders of a user share one cargo target folder (BATON_CARGO_TARGET, else cargo-target in
# ${BATON_HOME:-~/.cache/baton}), so only the first one compiles the dependencies (about a minute).
# The lock covers the copy: two checkouts write the same file name there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${BATON_HOME:-${HOME:-/root}/.cache/baton}
export CARGO_TARGET_DIR=${BATON_CARGO_TARGET:-$home/cargo-target}
mkdir -p "$CARGO_TARGET_DIR"
exec 9>"$CARGO_TARGET_DIR/baton.lock"
flock 9
case ${1:-} in
  build)
    cargo build --release --locked --quiet --manifest-path "$here/Cargo.toml"
    cmp -s "$CARGO_TARGET_DIR/release/libbaton_text.a" "$2" ||
      cp "$CARGO_TARGET_DIR/release/libbaton_text.a" "$2"
    touch "$2"
    ;;
  test)
    cargo test --release --locked --manifest-path "$here/Cargo.toml"
    ;;
  *)
    echo "usage: cargo.sh build OUT.a | cargo.sh test" >&2
    exit 2
    ;;
esac
