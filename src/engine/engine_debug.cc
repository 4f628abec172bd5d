#include "src/engine/engine_debug.h"

#include <chrono>
#include <utility>

namespace baton::engine {

using kv::BlockInfo;

void DebugQuery::Answer(std::vector<RequestRow> requests, std::vector<BlockInfo> blocks) {
  {
    std::lock_guard lock(mutex_);
    requests_ = std::move(requests);
    blocks_ = std::move(blocks);
    answered_ = true;
  }
  answered_cv_.notify_all();
}

bool DebugQuery::Wait(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  return answered_cv_.wait_for(lock, std::chrono::microseconds(timeout_us),
                               [this] { return answered_; });
}

}  // namespace baton::engine
