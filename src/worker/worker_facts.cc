#include "src/worker/worker_facts.h"

#include <unistd.h>

#include <string>

#include "kvcache/hash_chain.h"
#include "src/wire/answer_grammar.h"
#include "src/worker/worker_schedule.h"

namespace baton::worker {

using engine::SpeculateMode;
using kv::ChainKeyCheck;
using kv::DeriveChainKey;
using kv::HostId;
using kv::kDefaultTenant;
using kv::KvEndpoint;
using kv::KvMemory;
using model::LoadedModel;
using model::Model;
using model::ModelConfig;

HelloFacts HelloFactsOf(const WorkerConfig& config, const WorkerModel& model, const KvParts& kv) {
  const LoadedModel& loaded = *model.loaded;
  HelloFacts facts;
  facts.worker_id = config.worker_id;
  facts.role = config.role;
  facts.layout_id = loaded.layout().LayoutId();
  facts.weights_id = loaded.weights_id();
  facts.tokenizer_id = model.text.tokenizer_id;
  facts.numerics_id = loaded.numerics_id();
  facts.layout_text = loaded.layout().ToString();
  facts.numerics_text = loaded.numerics_text();
  facts.varies_with_batch = !loaded.is_deterministic();
  if (const KvEndpoint* endpoint = kv.endpoint()) facts.kv_unix = endpoint->unix_name();
  facts.host_id = HostId();
  facts.pid = static_cast<uint32_t>(::getpid());
  facts.model_id = config.model_id;
  facts.max_context = loaded.max_context();
  facts.block_size = loaded.layout().block_size;
  facts.state_blocks = loaded.layout().state_blocks;
  facts.window_blocks = SchedulerOf(config, model).WindowBlocks();
  facts.kv_bytes_per_token = loaded.layout().BytesPerToken();
  facts.num_blocks = kv.store()->memory().num_blocks;
  facts.max_running = config.max_batch;
  if (model.SharesCores()) {
    facts.core_budget = model.cores->budget_id();
    facts.home_cores = model.cores->num_home_cores();
  }
  facts.tokenizer = model.text.tokenizer;
  facts.transports = kv.kinds();
  facts.allow_inexact = config.allow_inexact;
  facts.vocab_size = loaded.config().vocab_size;
  if (config.prefix_cache) {
    facts.chain_check = ChainKeyCheck(DeriveChainKey(config.cluster_secret, kDefaultTenant));
  }
  facts.grammar_version = wire::kAnswerGrammarVersion;
  facts.logs_prompts = true;
  const ModelConfig& shape = loaded.config();
  if (GivesVector(shape.pooling)) {
    facts.embedding_size = shape.hidden_size;
  } else {
    facts.embedding_refusal = std::string(PoolingName(shape.pooling));
  }
  facts.loaded_unix_s = model.loaded_unix_s;
  return facts;
}

MemoryFacts MemoryFactsOf(const WorkerConfig& config, const WorkerModel& model, const KvParts& kv,
                          bool owns_weights) {
  const LoadedModel& loaded = *model.loaded;
  const KvMemory& memory = kv.store()->memory();
  MemoryFacts facts;
  facts.weight_bytes = owns_weights ? loaded.weight_bytes() : 0;
  if (const auto* on_cpu = dynamic_cast<const Model*>(&loaded)) {
    facts.workspace_bytes = on_cpu->workspace_bytes();
    facts.shares_weights = on_cpu->sharing().shared_bytes > 0;
  }
  facts.num_blocks = memory.num_blocks;
  facts.block_bytes = memory.layout.BlockStride();
  facts.host_copy_bytes = kv.host_copy_bytes();
  facts.staging_bytes = kv.staging_bytes();
  facts.tokenizer_bytes = model.text.tokenizer.size();
  facts.num_layers = memory.layout.num_layers;
  facts.max_context = loaded.max_context();
  facts.vocab_size = loaded.config().vocab_size;
  facts.hidden_size = loaded.config().hidden_size;
  facts.num_threads = model.SamplingPool() == nullptr ? 1 : model.SamplingPool()->num_threads();
  facts.num_routers = config.routers.size();
  facts.has_prefix_cache = config.prefix_cache;
  facts.has_guesses = config.role == WorkerRole::kDecode && config.speculate != SpeculateMode::kOff;
  facts.has_endpoint = kv.endpoint() != nullptr;
  facts.has_tls = !config.tls.empty();
  return facts;
}

}  // namespace baton::worker
