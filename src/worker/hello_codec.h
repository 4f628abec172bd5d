// The hello of a worker: from the worker's own words about itself to worker.proto. Pure; any
// thread.
#ifndef BATON_WORKER_HELLO_CODEC_H_
#define BATON_WORKER_HELLO_CODEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "kvcache/transport/transport_types.h"
#include "src/base/ids.h"
#include "src/base/wire_versions.h"
#include "src/base/worker_role.h"

namespace baton::worker {

// The contents of a hello; each field is described in worker.proto.
struct HelloFacts {
  std::string worker_id;
  Incarnation incarnation;
  WorkerRole role = WorkerRole::kDecode;
  WireRange wire = kWireVersions;
  uint64_t layout_id = 0;
  std::string weights_id;
  uint64_t tokenizer_id = 0;
  std::string numerics_id;
  std::string layout_text;
  std::string numerics_text;
  bool varies_with_batch = false;
  std::string grpc_address;
  std::string admin_address;
  std::string kv_address;
  std::string kv_unix;
  std::string host_id;
  uint32_t pid = 0;
  std::string model_id;
  uint32_t max_context = 0;
  uint32_t block_size = 0;
  uint32_t state_blocks = 0;
  uint32_t window_blocks = 0;
  uint64_t kv_bytes_per_token = 0;
  uint32_t num_blocks = 0;
  uint32_t max_running = 0;
  uint64_t core_budget = 0;
  uint32_t home_cores = 0;
  std::string tokenizer;
  std::vector<kv::TransportKind> transports;  // best first
  bool allow_inexact = false;
  uint32_t vocab_size = 0;
  uint64_t chain_check = 0;
  uint32_t grammar_version = 0;
  bool logs_prompts = false;
  uint32_t embedding_size = 0;
  std::string embedding_refusal;
  int64_t loaded_unix_s = 0;
};

void ToProto(const HelloFacts& facts, v1::WorkerHello* out);

}  // namespace baton::worker

#endif  // BATON_WORKER_HELLO_CODEC_H_
