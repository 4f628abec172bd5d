#include "src/cli/foreign_flags.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace baton::cli {
namespace {

constexpr std::string_view kListen =
    "the address and port of the API are one flag: --http HOST:PORT";
constexpr std::string_view kKeys =
    "keys stand in a file by their SHA-256, never on a command line: --api-keys FILE";
constexpr std::string_view kPositional =
    "the model is the first argument, without a flag: a .gguf file, a Hugging Face folder, "
    "smollm2:135m or hf:ORG/REPO:QUANT";
constexpr std::string_view kRequest = "not a server's setting here: each request says it";
constexpr std::string_view kFileSays = "not supported: the model file says it";
constexpr std::string_view kToCome = "not supported in this build";

constexpr ForeignFlag kFlags[] = {
    {"--host --port --hostname --bind --address --listen", "--http", kListen},
    {"--uds --root-path --api-prefix --path", "--http",
     "not supported: --http HOST:PORT, and the paths of the API are fixed"},
    {"--api-key --api-key-file", "--api-keys", kKeys},
    {"--ssl-keyfile --ssl-certfile --ssl-key-file --ssl-cert-file --ssl-ca-certs "
     "--ssl-cert-reqs --enable-ssl-refresh",
     "--tls-http",
     "certificate, key and authority are --tls-cert, --tls-key and --tls-ca; they encrypt gRPC and "
     "KV, and the HTTP port with --tls-http on"},
    {"--allowed-origins --cors-allow-origins", "--cors-origins",
     "web pages that may send requests are --cors-origins A,B"},
    {"--model -m --model-path --model-id --hf-repo -hf -hfr --hf-file -hff", "MODEL", kPositional},
    {"--model-url -mu", "", "not supported: fetch the file, and give its path as MODEL"},
    {"--tokenizer --tokenizer-mode --tokenizer-path --skip-tokenizer-init --trust-remote-code "
     "--load-format --config-format --revision",
     "",
     "not supported: weights, tokenizer and settings are those of MODEL, and no code of it runs"},
    {"--hf-token -hft", "", "a token for the hub is the environment's HF_TOKEN"},
    {"--download-dir --cache-dir --hf-home --models-dir", "",
     "the folder of models is the environment's BATON_HOME"},
    {"--alias -a", "--served-model-name", "names that clients may use are --served-model-name A,B"},
    {"--ctx-size -c --max-model-len --context-length --num-ctx --max-seq-len --max-total-tokens "
     "--max-input-tokens",
     "--max-context", "the longest sequence is --max-context N"},
    {"-n --n-predict --predict --num-predict --max-new-tokens --max-tokens", "",
     "not a server's setting here: a request says max_tokens, and a chat --max-tokens N"},
    {"--temp --temperature --seed --top-p --top-k --min-p --repeat-penalty --presence-penalty "
     "--frequency-penalty --ignore-eos --generation-config --override-generation-config",
     "", kRequest},
    {"--parallel -np --max-num-seqs --max-running-requests --max-concurrent-requests "
     "--max-batch-size",
     "--max-batch", "the most sequences that a worker runs at once is --max-batch N, 256 at most"},
    {"--max-num-batched-tokens --batch-size -b --ubatch-size -ub --chunked-prefill-size "
     "--max-prefill-tokens --enable-chunked-prefill --long-prefill-token-threshold",
     "", "not supported: prompts are always computed in chunks, and a step's size is not set"},
    {"--cont-batching -cb --continuous-batching", "", "not needed: batching is always continuous"},
    {"--gpu-memory-utilization --mem-fraction-static --kv-cache-memory-bytes --fit-target "
     "--num-gpu-blocks-override --cuda-memory-fraction",
     "--kv-memory", "the memory of the KV pool is --kv-memory SIZE, such as 4GiB"},
    {"--swap-space --cpu-offload-gb --cache-ram --kv-offloading-size", "",
     "not supported: KV is in one pool, --kv-memory SIZE, and weights are where they compute"},
    {"--block-size --page-size", "", "not supported: KV blocks have 16 tokens, on devices 64"},
    {"--kv-cache-dtype --cache-type-k --cache-type-v -ctk -ctv", "--kv-dtype",
     "the type of stored K and V is --kv-dtype"},
    {"--enable-prefix-caching --no-enable-prefix-caching --disable-radix-cache --cache-prompt "
     "--cache-reuse",
     "--prefix-cache", "prompts that begin alike share KV unless --prefix-cache off is given"},
    {"--tensor-parallel-size -tp --tp --tp-size --split-mode -sm --tensor-split -ts --num-shard "
     "--sharded",
     "--tensor-parallel", "GPUs of one model are --tensor-parallel 2, 4 or 8"},
    {"--pipeline-parallel-size -pp --pp-size --enable-expert-parallel --expert-parallel-size", "",
     "not supported: a model is divided by --tensor-parallel only"},
    {"--data-parallel-size -dp --dp-size --workers --replicas", "--decode",
     "numbers of workers are --prefill N and --decode N"},
    {"--disaggregation-mode --kv-transfer-config --pd-disaggregation", "--mode",
     "prompts and tokens are split unless --mode aggregated is given; on several hosts start "
     "`baton router`, `baton prefill` and `baton decode`"},
    {"--disaggregation-transfer-backend", "--transport", "the way of KV is --transport"},
    {"--n-gpu-layers -ngl --gpu-layers --num-gpu", "--device",
     "not supported: all layers are on one device, --device auto, cpu or cuda"},
    {"--main-gpu -mg --device-id --gpus --gpu-id --base-gpu-id", "",
     "not supported: the environment's CUDA_VISIBLE_DEVICES chooses the GPU"},
    {"-t --threads-batch -tb --num-threads --cpu-threads", "--threads",
     "compute threads of all workers together are --threads N"},
    {"--dtype --torch-dtype", "",
     "not supported: each weight type has one arithmetic; `baton convert` writes another type"},
    {"--quantization -q --quantize", "",
     "not supported: the file says its types; `baton convert SRC DST --type TYPE` writes q8_0, "
     "q4_0 "
     "or q4_1"},
    {"--rope-scaling --rope-freq-base --rope-theta --hf-overrides --override-kv", "", kFileSays},
    {"--chat-template --chat-template-file", "",
     "not supported: the template is that of the model file"},
    {"--jinja --no-jinja", "", "not needed: the model file's template is always rendered"},
    {"--reasoning-parser --enable-reasoning", "--reasoning-format",
     "whether thoughts are split from answers is --reasoning-format"},
    {"--tool-call-parser --tool-parser-plugin", "--tool-parser",
     "how tool calls are read from answers is --tool-parser"},
    {"--enable-auto-tool-choice", "", "not needed: tools may be called unless a request says none"},
    {"--guided-decoding-backend --structured-outputs-config --grammar-backend", "",
     "not needed: one engine serves all forms of answers (schemas, regular expressions, grammars)"},
    {"--grammar --grammar-file --json-schema --json-schema-file", "",
     "not a server's setting here: each request says the form of its answer, by response_format or "
     "structured_outputs"},
    {"--lora --lora-modules --enable-lora --lora-paths --control-vector", "",
     "not supported: one model without adapters"},
    {"--mmproj -mm --limit-mm-per-prompt", "", "not supported: text only"},
    {"--embedding --embeddings --is-embedding", "",
     "not needed: every model answers /v1/embeddings beside chats, pooled as its files say"},
    {"--reranking --pooling --task --runner", "",
     "not supported: vectors are pooled as the model's files say, and nothing is ranked"},
    {"--speculative-config --speculative-algorithm --spec-type --lookup", "--speculate",
     "--speculate ngram guesses from the request's own text; draft models are not supported"},
    {"--speculative-model --model-draft --draft-model -md --draft --draft-max", "",
     "not supported: --speculate guesses from the request's own text, without a draft model"},
    {"--kv-ram --kv-file --kv-file-size --kv-store", "",
     "not supported in this build: KV is in one pool, --kv-memory SIZE"},
    {"--record --receipts --receipt-key", "", kToCome},
    {"--flash-attn -fa --attention-backend --enforce-eager --disable-cuda-graph "
     "--compilation-config -O",
     "", "not needed: each device has one way to compute, and nothing is compiled at the start"},
    {"--mlock --no-mmap --numa", "", "not supported: weights are read from the file's mapping"},
    {"--timeout -to", "--request-timeout",
     "the longest silence of a request is --request-timeout S; an idle connection has "
     "--idle-timeout S"},
    {"--keep-alive --ttl --sleep-idle-seconds", "", "not needed: the model stays loaded"},
    {"--metrics --enable-metrics", "--admin", "not needed: metrics are always on, at --admin"},
    {"--log-file --log-dir", "--run-dir", "each process writes a log into --run-dir DIR"},
    {"--verbose -v --debug --log-verbosity --uvicorn-log-level --log-disable "
     "--disable-log-requests",
     "--log-level", "what is logged is --log-level debug, info, warn or error"},
    {"--daemon -d --detach --background", "",
     "not supported: it runs in the foreground; use a service manager, or a shell's &"},
    {"--otlp-traces-endpoint", "--otlp-endpoint", "the collector is --otlp-endpoint"},
    {"--no-webui --webui", "--ui", "the page /ui is there or not by --ui on|off"},
};

}  // namespace

std::span<const ForeignFlag> ForeignFlags() { return kFlags; }

void AddForeignHints(FlagSet& flags, std::string_view elsewhere) {
  for (const ForeignFlag& row : kFlags) {
    const bool is_there = row.ours.empty() || flags.Has(std::string(row.ours));
    if (!is_there && elsewhere.empty()) continue;
    const std::string text = fmt::format("{}{}", is_there ? "" : elsewhere, row.text);
    const std::vector<std::string> names = absl::StrSplit(std::string(row.names), ' ');
    for (const std::string& name : names) {
      if (!flags.Has(name)) flags.AddHint(name, text);
    }
  }
}

}  // namespace baton::cli
