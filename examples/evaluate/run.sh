#!/usr/bin/env bash
# Scores the server's model on a small task of this folder (pip install 'lm-eval[api]').
#   examples/evaluate/run.sh [http://HOST:PORT] [FURTHER ARGUMENTS OF lm_eval]
# The tokenizer is the server's own, over /tokenizer_info and /tokenize: nothing is downloaded.
# Scores come from log-probabilities of prompts (`echo` with `logprobs`), and have the same bits at
# any batch size.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
url="${1:-http://127.0.0.1:8080}"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
exec lm_eval run --model local-completions --tasks capitals --include_path . --batch_size 8 \
  --model_args "model=default,base_url=$url/v1/completions,tokenizer_backend=remote" "${@:2}"
