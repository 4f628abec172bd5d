// Snapshots of the router's state for /v1/topology and /debug/requests. Plain values; any thread.
#ifndef BATON_ROUTER_TOPOLOGY_H_
#define BATON_ROUTER_TOPOLOGY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/ids.h"

namespace baton::router {

// How KV crosses between two workers; the numbers are TransportKind's in common.proto.
enum class LinkKind : uint8_t {
  kUnspecified = 0,
  kLocal = 1,
  kShm = 2,
  kTcp = 3,
  kNccl = 4,
  kCudaIpc = 5,
};
inline constexpr int kLastLinkKind = 5;
inline std::string_view LinkKindName(LinkKind kind) {
  constexpr std::array<std::string_view, kLastLinkKind + 1> kNames = {"",    "local", "shm",
                                                                      "tcp", "nccl",  "cuda_ipc"};
  return kNames[static_cast<size_t>(kind)];
}

// A data connection between two workers.
struct LinkView {
  std::string to;              // worker id of the decode worker
  Incarnation to_incarnation;  // the life of it that the connection leads to
  LinkKind kind = LinkKind::kUnspecified;
  uint64_t bytes_per_s = 0;
  bool up = false;
  std::string why;  // it is down, a clause; "" = not told
};

// A worker of the other role and the same model that gets no KV of this one.
struct UnpairedView {
  std::string with;  // its worker id
  std::string why;   // what differs, a clause
};

// One process: the router or a registered worker.
struct ProcessView {
  std::string role;  // "router", "prefill", "decode"
  std::string worker_id;
  std::string incarnation;  // 16 hexadecimal digits
  std::string model;        // "" for the router
  uint32_t pid = 0;
  std::string grpc;
  std::string http;  // the router only
  std::string admin;
  std::string kv;  // "" for the router
  bool ready = false;
  bool draining = false;  // workers only: it gets nothing new and will leave
  std::vector<std::pair<std::string, uint32_t>> kv_blocks;  // state name, blocks; workers only
  uint32_t running = 0;
  uint32_t waiting = 0;
  std::vector<LinkView> links;           // prefill workers only
  std::vector<UnpairedView> not_paired;  // prefill workers only
};

// An objective of --slo, and how the requests of all models fared by it.
struct ObjectiveView {
  std::string_view name;  // "ttft", "itl"
  int64_t limit_us = 0;
  uint64_t num_met = 0;
  uint64_t num_missed = 0;
};

// Everything the router knows of; the router's own row is first.
struct Topology {
  std::string model;                // the served model ids, joined by ','
  bool has_several_models = false;  // served or expected: each row says of which one it is
  std::vector<ProcessView> processes;
  std::vector<ObjectiveView> objectives;  // those that the router has
};

// One live choice of one request.
struct RequestView {
  RequestUid uid;
  std::string request_id;
  uint32_t choice = 0;
  uint32_t attempt = 0;
  std::string state;  // router state of kvcache/HANDOFF.md, upper case
  int64_t age_ms = 0;
  std::string prefill_worker;  // "" = none
  std::string decode_worker;   // "" = not placed
  uint32_t num_tokens = 0;     // received from the workers; the client may have fewer
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TOPOLOGY_H_
