#include "kvcache/transport/nccl/comm_ender.h"

#include <thread>

#include "src/base/check.h"

namespace baton::kv {

void CommEnder::Stop() {
  stops_.store(true, std::memory_order_release);
  endings_.clear();  // joins
}

CommEnder::End CommEnder::Add(std::unique_ptr<NcclComm> comm, bool agrees) {
  if (comm == nullptr) return End();
  BATON_CHECK(!stops_.load(), "a communicator is ended after all others");
  std::erase_if(endings_, [](const Ending& ending) { return ending.end.IsOver(); });
  auto is_over = std::make_shared<std::atomic<bool>>(false);
  End end(is_over);
  num_ending_.fetch_add(1, std::memory_order_acq_rel);
  Thread thread("kv-nccl-end", [this, comm = comm.release(), agrees, is_over] {
    Run(std::unique_ptr<NcclComm>(comm), agrees);
    num_ending_.fetch_sub(1, std::memory_order_acq_rel);
    num_ended_.fetch_add(1, std::memory_order_acq_rel);
    is_over->store(true, std::memory_order_release);
  });
  endings_.push_back({end, std::move(thread)});
  return end;
}

void CommEnder::Run(std::unique_ptr<NcclComm> comm, bool agrees) {
  device_->MakeCurrent();
  const auto give_up = std::chrono::steady_clock::now() + kFinishTime;
  while (agrees && !stops_.load(std::memory_order_acquire) &&
         std::chrono::steady_clock::now() < give_up) {
    if (comm->Finish()) return;
    std::this_thread::sleep_for(kPause);
  }
  comm.reset();  // aborts
}

}  // namespace baton::kv
