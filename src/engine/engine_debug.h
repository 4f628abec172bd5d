// Rows of /debug/requests and /debug/blocks, and the question that an admin thread puts to an
// engine to get them: such lists are long, so they are made only when asked for.
#ifndef BATON_ENGINE_ENGINE_DEBUG_H_
#define BATON_ENGINE_ENGINE_DEBUG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/block_pool.h"
#include "src/base/mutex.h"
#include "src/engine/engine_types.h"

namespace baton::engine {

// One live request or open hand-off.
struct RequestRow {
  RequestKey key;
  RequestKind kind = RequestKind::kLocal;
  std::string state;  // of the request, or "transfer <state>" of what remains of it
  int64_t age_us = 0;
  uint32_t num_prompt_tokens = 0;
  uint32_t num_output_tokens = 0;  // over all choices
  uint32_t num_choices = 0;
  Incarnation peer;  // 0 when local
};

// A question and its answer. The asker waits, the engine thread fills it in between two steps.
class DebugQuery {
 public:
  enum class Kind : uint8_t { kRequests, kBlocks };
  explicit DebugQuery(Kind kind) : kind_(kind) {}

  Kind kind() const { return kind_; }
  // The engine thread, once.
  void Answer(std::vector<RequestRow> requests, std::vector<kv::BlockInfo> blocks);
  // The asker; false when there was no answer within `timeout_us`.
  bool Wait(int64_t timeout_us);
  // After Wait returned true.
  std::vector<RequestRow>& requests() { return requests_; }
  std::vector<kv::BlockInfo>& blocks() { return blocks_; }

 private:
  const Kind kind_;
  Mutex mutex_;
  CondVar answered_cv_;
  bool answered_ BATON_GUARDED_BY(mutex_) = false;
  // Written before answered_ is set, read only by the asker who has seen it set.
  std::vector<RequestRow> requests_;
  std::vector<kv::BlockInfo> blocks_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_ENGINE_DEBUG_H_
