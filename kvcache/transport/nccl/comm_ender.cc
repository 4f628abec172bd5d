#include "kvcache/transport/nccl/comm_ender.h"

#include <iterator>
#include <utility>

#include "src/base/check.h"

namespace baton {

CommEnder::CommEnder(Accelerator* device) : device_(device) {
  thread_ = Thread("kv-nccl-end", [this] { Run(); });
}

void CommEnder::Stop() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_one();
  thread_.Join();
}

CommEnder::End CommEnder::Add(std::unique_ptr<NcclComm> comm, bool agrees) {
  if (comm == nullptr) return End();
  const auto now = std::chrono::steady_clock::now();
  auto is_over = std::make_shared<std::atomic<bool>>(false);
  num_ending_.fetch_add(1);
  {
    std::lock_guard lock(mutex_);
    BATON_CHECK(!stops_, "a communicator is ended after all others");
    const auto give_up = agrees ? now + std::chrono::microseconds(kFinishUs) : now;
    added_.push_back({std::move(comm), give_up, is_over});
  }
  wake_.notify_one();
  return End(std::move(is_over));
}

void CommEnder::Run() {
  device_->MakeCurrent();
  std::vector<Ending> endings;
  std::unique_lock lock(mutex_);
  while (!stops_ || !added_.empty() || !endings.empty()) {
    const auto has_news = [this] { return stops_ || !added_.empty(); };
    if (endings.empty()) {
      wake_.wait(lock, has_news);
    } else {
      wake_.wait_for(lock, kPause, has_news);
    }
    endings.insert(endings.end(), std::make_move_iterator(added_.begin()),
                   std::make_move_iterator(added_.end()));
    added_.clear();
    const bool stops = stops_;
    lock.unlock();
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(endings, [&](Ending& ending) {
      if (!stops && now < ending.give_up && !ending.comm->Finish()) return false;
      ending.comm.reset();  // aborts what has not finished
      num_ending_.fetch_sub(1, std::memory_order_acq_rel);
      num_ended_.fetch_add(1, std::memory_order_acq_rel);
      ending.is_over->store(true, std::memory_order_release);
      return true;
    });
    lock.lock();
  }
}

}  // namespace baton
