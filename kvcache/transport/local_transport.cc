#include "kvcache/transport/local_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kvcache/transport/local_port.h"
#include "src/base/log.h"

namespace baton::kv {

LocalCore::LocalCore(bool own_thread, const Clock* clock) : clock_(clock) {
  if (own_thread) thread_ = Thread("kv-transport", [this] { Loop(); });
}

void LocalCore::StopThread() {
  {
    MutexLock lock(wake_mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

void LocalCore::Wake() {
  {
    MutexLock lock(wake_mutex_);
    work_ = true;
  }
  wake_.NotifyAll();
}

bool LocalCore::WaitForWork(int64_t due_us) {
  MutexLock lock(wake_mutex_);
  if (due_us == 0) {
    while (!work_ && !stop_) wake_.Wait(wake_mutex_);
  } else {
    const int64_t wait_us = std::max<int64_t>(due_us - clock_->NowUs(), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
    while (!work_ && !stop_ && wake_.WaitUntil(wake_mutex_, deadline)) {
    }
  }
  work_ = false;
  return !stop_;
}

void LocalCore::Loop() {
  int64_t due_us = 0;
  while (WaitForWork(due_us)) {
    const Turn turn = Serve();
    due_us = turn.due_us;
    // More may wait: a turn moves a bounded number of bytes.
    if (turn.did_work) Wake();
  }
}

void LocalCore::Join(LocalPort* port, KvTransportSink* sink) {
  {
    ServeLock lock(serve_mutex_);
    port->Join(sink);
    for (LocalPort* const other : ports_) {
      if (other->is_on_device() != port->is_on_device()) {
        BATON_LOG_WARN("{} and {} are not paired, the KV of only one lies on a device",
                       port->worker_id(), other->worker_id());
        continue;
      }
      if (other->layout() != port->layout()) {
        BATON_LOG_WARN("{} and {} are not paired, their KV layouts differ: {}", port->worker_id(),
                       other->worker_id(), KvLayout::Difference(port->layout(), other->layout()));
        continue;
      }
      const uint64_t epoch = next_epoch_++;
      port->Connect(other, epoch);
      other->Connect(port, epoch);
    }
    ports_.push_back(port);
  }
  Wake();
}

void LocalCore::Leave(LocalPort* port) {
  {
    ServeLock lock(serve_mutex_);
    if (std::erase(ports_, port) == 0) return;
    port->Leave();
    for (LocalPort* const other : ports_) other->Disconnect(port);
  }
  Wake();
}

LocalCore::Turn LocalCore::Serve() {
  ServeLock lock(serve_mutex_);
  Turn turn;
  // Everyone hears of its peers before it hears from them.
  for (LocalPort* const port : ports_) port->DeliverLinkEvents();
  for (LocalPort* const port : ports_) turn.did_work |= port->ExecuteCommands();
  const int64_t now_us = clock_->NowUs();
  for (LocalPort* const port : ports_) turn.did_work |= port->MoveSlices(now_us);
  for (LocalPort* const port : ports_) {
    const int64_t due_us = port->ServeTimers(clock_->NowUs());
    if (due_us != 0) turn.due_us = turn.due_us == 0 ? due_us : std::min(turn.due_us, due_us);
  }
  return turn;
}

LocalHub::LocalHub(bool own_thread, const Clock* clock)
    : core_(std::make_shared<LocalCore>(own_thread, clock)) {}

LocalHub::~LocalHub() { core_->StopThread(); }

std::unique_ptr<KvTransport> LocalHub::Attach(LocalWorker worker) {
  return std::make_unique<LocalPort>(core_, std::move(worker));
}

std::unique_ptr<KvTransport> LocalHub::Attach(std::string worker_id, Incarnation incarnation,
                                              const KvArena* arena) {
  return Attach({.worker_id = std::move(worker_id),
                 .incarnation = incarnation,
                 .memory = arena->memory(),
                 .puller = nullptr});
}

bool LocalHub::Pump() { return core_->Serve().did_work; }

}  // namespace baton::kv
