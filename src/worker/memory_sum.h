// The memory that a worker's limits allow: a sum of named needs, for one line of the log at start.
// Every queue counts as full, so a worker usually takes less. The sum leaves out code, stacks, the
// memory of libraries, and activations on a device. Pure; any thread.
#ifndef BATON_WORKER_MEMORY_SUM_H_
#define BATON_WORKER_MEMORY_SUM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::worker {

// The settings of a worker on which its memory depends.
struct MemoryFacts {
  uint64_t weight_bytes = 0;    // 0 = another worker of the process holds the weights
  bool shares_weights = false;  // other processes hold the same bytes
  uint64_t num_blocks = 0;      // of the KV pool
  uint64_t block_bytes = 0;
  uint64_t workspace_bytes = 0;  // activations and tables of a model on the processor
  uint64_t host_copy_bytes = 0;  // arena of a pool that lies on a device
  uint64_t staging_bytes = 0;    // of NCCL
  uint64_t tokenizer_bytes = 0;  // serialised, for the hello
  uint32_t num_layers = 0;
  uint32_t max_context = 0;  // tokens
  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;  // of rows whose hidden states may be wanted beside their logits
  uint32_t num_threads = 0;  // that sample rows of logits, the engine's included
  size_t num_routers = 1;
  bool has_prefix_cache = true;
  bool has_guesses = false;  // --speculate
  bool has_endpoint = true;  // a KvEndpoint, with the default KvEndpointLimits
  bool has_tls = false;
};

// One part of the sum.
struct MemoryNeed {
  std::string_view name;
  uint64_t bytes = 0;
  bool is_queue = false;  // grows with the load; else it is taken at start

  friend bool operator==(const MemoryNeed&, const MemoryNeed&) = default;
};

// All needs that are not 0, in the order of the line.
std::vector<MemoryNeed> MemoryNeeds(const MemoryFacts& facts);

// "1.1 GiB at start (weights 92.4 MiB, KV pool 1 GiB) and at most 8.6 GiB with every queue full
// (requests 26.6 MiB, inbox 132 MiB)".
std::string MemoryText(const std::vector<MemoryNeed>& needs);

}  // namespace baton::worker

#endif  // BATON_WORKER_MEMORY_SUM_H_
