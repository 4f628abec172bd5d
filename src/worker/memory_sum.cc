#include "src/worker/memory_sum.h"

#include "fmt/format.h"

#include "kvcache/prefix_listener.h"
#include "kvcache/transport/kv_endpoint.h"
#include "scheduler/proposer.h"
#include "src/base/limits.h"
#include "src/base/size_text.h"
#include "src/engine/ngram_index.h"
#include "src/model/sampler.h"
#include "src/text/grammar_cache.h"

namespace baton::worker {

using engine::NgramIndex;
using kv::KvEndpointLimits;
using kv::PrefixChange;
using model::Sampler;
using scheduler::kMaxProposalRows;
using text::GrammarCache;

namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kTokenBytes = 4;
// A token for a router as a protobuf message, with kMaxTopLogprobs alternatives of 40 bytes.
constexpr uint64_t kQueuedEventBytes = kKiB;
static_assert(kQueuedEventBytes >= 200 + limits::kMaxTopLogprobs * 40);
// An order beside its prompt: 8 bytes a bias, 4 a stop token, and 256 of its own.
constexpr uint64_t kOrderBytes = limits::kMaxLogitBiases * 8 + limits::kMaxStopTokens * 4 + 256;
// A slice in a hand-off has a checksum (prefill worker) and a mark (decode worker).
constexpr uint64_t kSliceBytes = 8 + 1;
// Read buffer of a connection; with TLS also encrypted bytes and two records (kv_endpoint.h).
constexpr uint64_t kConnectionBytes = 64 * kKiB;
constexpr uint64_t kTlsConnectionBytes = 323 * kKiB;
constexpr uint64_t kQueuedSliceBytes = 48;

// Prompts of the requests that live, and tokens of their sequences.
uint64_t RequestBytes(uint64_t prompt_bytes) {
  const uint64_t num_sequences =
      uint64_t{limits::kMaxRunning} + limits::kMaxPrefilling + limits::kMaxWaiting;
  return limits::kMaxLiveRequests * (prompt_bytes + kOrderBytes) + num_sequences * prompt_bytes;
}

// Changes of the prefix cache that wait: in the journal, and for each router.
uint64_t PrefixBytes(const MemoryFacts& facts) {
  if (!facts.has_prefix_cache) return 0;
  const uint64_t in_journal = limits::kMaxChangesPerBlock * facts.num_blocks;
  const uint64_t for_router = 2 * facts.num_blocks + limits::kMaxPrefixChanges;
  return (in_journal + facts.num_routers * for_router) * sizeof(PrefixChange);
}

// Finds the guesses of each sequence that decodes.
uint64_t GuessBytes(const MemoryFacts& facts) {
  if (!facts.has_guesses) return 0;
  return limits::kMaxRunning * NgramIndex::BytesFor(facts.max_context);
}

uint64_t ConnectionBytes(const MemoryFacts& facts) {
  if (!facts.has_endpoint) return 0;
  const KvEndpointLimits kv;
  if (!facts.has_tls) return (kv.max_connections + kv.max_strangers) * kConnectionBytes;
  // Strangers in the TLS handshake are counted apart.
  return (kv.max_connections + 2 * uint64_t{kv.max_strangers}) * kTlsConnectionBytes;
}

// Words and slices that wait for peers, and the word of each peer that is being read.
uint64_t PeerQueueBytes(const MemoryFacts& facts) {
  if (!facts.has_endpoint) return 0;
  const KvEndpointLimits kv;
  const uint64_t of_connection = kv.max_queued_slices * kQueuedSliceBytes +
                                 kv.max_queued_control_bytes + limits::kMaxControlBytes;
  return kv.max_connections * of_connection + kv.max_parked_peers * kv.max_queued_control_bytes;
}

}  // namespace

std::vector<MemoryNeed> MemoryNeeds(const MemoryFacts& facts) {
  const uint64_t prompt_bytes = facts.max_context * kTokenBytes;
  const uint64_t num_logits =
      (uint64_t{limits::kMaxRunning} + limits::kMaxPrefilling + limits::kMaxPromptLogRows +
       (facts.has_guesses ? kMaxProposalRows : 0)) *
      (uint64_t{facts.vocab_size} + facts.hidden_size);
  std::vector<MemoryNeed> needs = {
      {facts.shares_weights ? "shared weights" : "weights", facts.weight_bytes},
      {"activations", facts.workspace_bytes},
      {"KV pool", facts.num_blocks * facts.block_bytes},
      {"its copy on the host", facts.host_copy_bytes},
      {"KV staging", facts.staging_bytes},
      {"logits", num_logits * sizeof(float)},
      {"sampling", facts.num_threads * Sampler::BytesFor(facts.vocab_size)},
      {"tokenizer", facts.tokenizer_bytes},
      {"requests", RequestBytes(prompt_bytes), true},
      {"inbox", limits::kMaxInboxEvents * (prompt_bytes + kOrderBytes), true},
      {"hand-offs", facts.num_blocks * facts.num_layers * kSliceBytes, true},
      {"prefix changes", PrefixBytes(facts), true},
      {"guesses", GuessBytes(facts), true},
      {"grammars", GrammarCache::kMaxBytes, true},
      {"tokens for routers", facts.num_routers * limits::kMaxQueuedEvents * kQueuedEventBytes,
       true},
      {"gRPC messages", limits::kMaxGrpcMemoryBytes, true},
      {"KV connections", ConnectionBytes(facts), true},
      {"queues of KV peers", PeerQueueBytes(facts), true},
  };
  std::erase_if(needs, [](const MemoryNeed& need) { return need.bytes == 0; });
  return needs;
}

std::string MemoryText(const std::vector<MemoryNeed>& needs) {
  uint64_t at_start = 0;
  uint64_t sum = 0;
  std::string start_parts;
  std::string queue_parts;
  for (const MemoryNeed& need : needs) {
    sum += need.bytes;
    if (!need.is_queue) at_start += need.bytes;
    std::string& parts = need.is_queue ? queue_parts : start_parts;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", need.name, FormatSize(need.bytes));
  }
  return fmt::format("{} at start ({}) and at most {} with every queue full ({})",
                     FormatSize(at_start), start_parts, FormatSize(sum), queue_parts);
}

}  // namespace baton::worker
