#include "src/engine/engine_debug.h"

#include <chrono>
#include <utility>

namespace baton::engine {

using kv::BlockInfo;

void DebugQuery::Answer(std::vector<RequestRow> requests, std::vector<BlockInfo> blocks) {
  {
    MutexLock lock(mutex_);
    requests_ = std::move(requests);
    blocks_ = std::move(blocks);
    answered_ = true;
  }
  answered_cv_.NotifyAll();
}

bool DebugQuery::Wait(int64_t timeout_us) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  MutexLock lock(mutex_);
  while (!answered_ && answered_cv_.WaitUntil(mutex_, deadline)) {
  }
  return answered_;
}

}  // namespace baton::engine
