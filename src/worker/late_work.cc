#include "src/worker/late_work.h"

#include <utility>

namespace baton::worker {
namespace {

// A tenth of the time that a step's thread gets on the same processor: 100 MiB of a pool a second.
constexpr int kLateNice = 10;

}  // namespace

LateWork::LateWork(std::vector<Task> tasks) : tasks_(std::move(tasks)) {
  thread_ = Thread("late-work", [this] { Run(); });
}

LateWork::~LateWork() {
  stops_.store(true, std::memory_order_relaxed);
  thread_.Join();
}

void LateWork::Run() {
  LowerThisThread(kLateNice);
  for (const Task& task : tasks_) {
    while (!stops_.load(std::memory_order_relaxed) && task(stops_)) {
    }
  }
}

}  // namespace baton::worker
