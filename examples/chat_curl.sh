#!/usr/bin/env bash
# The HTTP API by hand: the models, a whole answer, a stream of server-sent events.
#   examples/chat_curl.sh [http://HOST:PORT]
set -euo pipefail
url="${1:-http://127.0.0.1:8080}"

ask() {  # PATH BODY [OPTIONS OF CURL]
  curl -sS --fail-with-body "$url$1" -H 'Content-Type: application/json' -d "$2" "${@:3}"
  echo
}

echo "== models"
curl -sS --fail-with-body "$url/v1/models"
echo
echo "== a whole answer; its timings say which workers made it"
ask /v1/chat/completions '{
  "messages": [{"role": "user", "content": "Why is the sky blue?"}],
  "temperature": 0, "max_completion_tokens": 24}'
echo "== a stream: one event a token, then [DONE]"
ask /v1/chat/completions '{
  "messages": [{"role": "user", "content": "Count to five."}], "stream": true,
  "stream_options": {"include_usage": true}, "temperature": 0, "max_completion_tokens": 8}' -N
echo "== an answer that must match a regular expression"
ask /v1/completions '{
  "prompt": "A date of the year 1999, as YYYY-MM-DD: ",
  "structured_outputs": {"regex": "1999-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"}}'
