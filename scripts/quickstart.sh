#!/usr/bin/env bash
# From a fresh machine to a chat: installs what is missing, builds, fetches the demo model, starts a
# router, a prefill and a decode process, and opens a chat.
#
#   scripts/quickstart.sh                    chat
#   scripts/quickstart.sh --prompt "..."     one answer, then exit
#   scripts/quickstart.sh --serve [flags]    stay up as a server (flags of `baton serve`)
#
# It builds the preset quick: the program alone. BATON_PRESET=release adds --device simt and tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model=smollm2:135m
step=start
say_what_failed() {
  local code=$?
  if [ $code -ne 0 ] && [ $code -ne 130 ]; then
    echo "quickstart: failed at step \"$step\" (exit $code); the lines above say why" >&2
  fi
}
trap say_what_failed EXIT

usage() { sed -n '2,10p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; }

mode=run
args=()
while [ $# -gt 0 ]; do
  case "$1" in
    --serve) mode=serve ;;
    -h | --help) usage; exit 0 ;;
    *) args+=("$1") ;;
  esac
  shift
done

step="install packages"
scripts/deps.sh
step="build"
scripts/build.sh --progress "${BATON_PRESET:-quick}" baton
step="fetch the model"
build/baton pull "$model" >/dev/null
step="$mode"
trap - EXIT
exec build/baton "$mode" "$model" ${args[@]+"${args[@]}"}
