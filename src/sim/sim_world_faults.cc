// Faults: how each kind happens.
#include <algorithm>
#include <utility>

#include "src/sim/sim_world.h"

namespace baton::sim {
namespace {

// How long a connection stays without an answer before both ends give it up: a router's stream by
// keepalive, a data connection by its write limit.
constexpr int64_t kStreamBreakUs = 3'000'000;
constexpr int64_t kLinkBreakUs = 2'000'000;

}  // namespace

SimWorker* SimWorld::WorkerOf(uint32_t process) const {
  return workers_[options_.shape.Worker(process)].get();
}

void SimWorld::FaultNext() {
  const SimFault fault = plan_.Get(next_fault_++);
  events_.At(events_.now_us() + fault.after_us, [this, fault] {
    if (faults_over_) return;
    const bool wanted = !options_.only_faults || options_.only_faults->count(fault.index) > 0;
    if (wanted && Apply(fault)) {
      ++report_.faults[static_cast<size_t>(fault.kind)];
      applied_.push_back(fault.index);
    }
    FaultNext();
  });
}

bool SimWorld::Apply(const SimFault& fault) {
  SimProcess& process = *processes_[fault.a];
  if (!process.alive()) return false;
  switch (fault.kind) {
    case FaultKind::kKill:
      return Kill(fault);
    case FaultKind::kFreeze:
      process.Freeze(fault.for_us);
      return true;
    case FaultKind::kOneWay:
      Partition(fault.a, fault.b, fault.for_us);
      return true;
    case FaultKind::kTwoWay:
      Partition(fault.a, fault.b, fault.for_us);
      Partition(fault.b, fault.a, fault.for_us);
      return true;
    case FaultKind::kMemory:
      WorkerOf(fault.a)->TakeBlocks(fault.size, fault.for_us);
      return true;
    case FaultKind::kClockJump:
      process.JumpClock(static_cast<int64_t>(fault.size));
      return true;
    case FaultKind::kDrain:
      return Drain(fault);
    case FaultKind::kFlap:
      Flap(fault.a, fault.b, static_cast<int64_t>(fault.size), events_.now_us() + fault.for_us);
      return true;
    default:
      Disturb(fault);
      return true;
  }
}

bool SimWorld::Kill(const SimFault& fault) {
  SimProcess* const process = processes_[fault.a].get();
  if (options_.shape.IsRouter(fault.a)) {
    // The only router is the cluster's client face: without it nothing is tested.
    if (options_.shape.num_routers < 2) return false;
    std::vector<std::shared_ptr<SimClient>> lost;
    for (const auto& [number, client] : live_) {
      if (client->router == fault.a) lost.push_back(client);
    }
    for (const auto& client : lost) client->OnRouterDied();
    routers_[fault.a]->Kill();
    events_.At(events_.now_us() + fault.for_us, [this, process, router = fault.a] {
      process->Revive();
      routers_[router]->Boot();
    });
    return true;
  }
  SimWorker* const worker = WorkerOf(fault.a);
  worker->Kill();
  events_.At(events_.now_us() + fault.for_us, [process, worker] {
    process->Revive();
    worker->Boot();
  });
  return true;
}

bool SimWorld::Drain(const SimFault& fault) {
  SimWorker* const worker = WorkerOf(fault.a);
  if (worker->leaving()) return false;
  if (fault.size == 0) {
    worker->process().Post(events_.now_us(),
                           [worker, down_us = fault.for_us] { worker->Leave(down_us); });
    return true;
  }
  SimRouter* const router = routers_[fault.index % options_.shape.num_routers].get();
  if (!router->process().alive()) return false;
  router->process().Post(events_.now_us(),
                         [router, name = worker->name()] { router->AskToLeave(name); });
  return true;
}

void SimWorld::Partition(uint32_t from, uint32_t to, int64_t for_us) {
  SimChannel& channel = network_.Channel(from, to);
  channel.blocked_until_us = std::max(channel.blocked_until_us, events_.now_us() + for_us);
  const bool is_stream = options_.shape.IsRouter(from) || options_.shape.IsRouter(to);
  const int64_t break_us = is_stream ? kStreamBreakUs : kLinkBreakUs;
  if (for_us < break_us) return;
  events_.At(events_.now_us() + break_us, [this, from, to] { BreakIfStillBlocked(from, to); });
}

// Both ends hear of it.
void SimWorld::BreakDataLink(uint32_t from, uint32_t to, std::string_view why) {
  SimWorker* const one = WorkerOf(from);
  SimWorker* const other = WorkerOf(to);
  const uint64_t epoch = std::max(one->transport().EpochOf(other->incarnation()),
                                  other->transport().EpochOf(one->incarnation()));
  if (epoch == 0) return;
  processes_[from]->Post(events_.now_us(),
                         [one, other, epoch, why] { one->BreakLink(other, epoch, why); });
  processes_[to]->Post(events_.now_us(),
                       [one, other, epoch, why] { other->BreakLink(one, epoch, why); });
}

void SimWorld::Flap(uint32_t from, uint32_t to, int64_t every_us, int64_t until_us) {
  BreakDataLink(from, to, "connection reset");
  const int64_t next_us = events_.now_us() + every_us;
  if (next_us >= until_us || faults_over_) return;
  events_.At(next_us, [=, this] { Flap(from, to, every_us, until_us); });
}

void SimWorld::BreakIfStillBlocked(uint32_t from, uint32_t to) {
  if (!network_.IsBlocked(from, to)) return;
  const ClusterShape& shape = options_.shape;
  constexpr std::string_view kWhy = "the peer does not answer";
  if (!shape.IsRouter(from) && !shape.IsRouter(to)) return BreakDataLink(from, to, kWhy);
  const uint32_t router_idx = shape.IsRouter(from) ? from : to;
  SimRouter* const router = routers_[router_idx].get();
  SimWorker* const worker = WorkerOf(shape.IsRouter(from) ? to : from);
  router->process().Post(events_.now_us(),
                         [router, worker, kWhy] { router->BreakWith(worker, kWhy); });
  worker->process().Post(events_.now_us(),
                         [router, worker, kWhy] { worker->BreakWith(router, kWhy); });
}

// Applies a fault to the messages on a link, in both directions.
void SimWorld::Disturb(const SimFault& fault) {
  const int64_t until_us = events_.now_us() + fault.for_us;
  const ChannelFault faulty{until_us, 0.4, std::max<int64_t>(1, static_cast<int64_t>(fault.size))};
  for (const auto& [from, to] : {std::pair(fault.a, fault.b), std::pair(fault.b, fault.a)}) {
    SimChannel& channel = network_.Channel(from, to);
    switch (fault.kind) {
      case FaultKind::kDelay:
        channel.delay = faulty;
        break;
      case FaultKind::kDuplicate:
        channel.duplicate = faulty;
        break;
      case FaultKind::kReorder:
        channel.reorder = faulty;
        break;
      case FaultKind::kBitFlip:
        channel.flip = {until_us, fault.size, 1};
        break;
      case FaultKind::kSlowLink:
        channel.slow_until_us = until_us;
        channel.slow_factor = fault.size;
        break;
      default:
        break;
    }
  }
}

}  // namespace baton::sim
