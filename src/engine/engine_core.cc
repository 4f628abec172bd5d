// The loop: events, timers, turns.
#include "src/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "src/engine/engine_checks.h"

namespace baton::engine {

namespace {

// Requests whose grammar is compiled already start in the turn that they come in.
constexpr int64_t kStartGuideWaitUs = 2'000;

}  // namespace

Status EngineCore::CheckConfig(const EngineConfig& config, const EngineParts& parts) {
  return CheckEngine(config, parts);
}

EngineCore::EngineCore(const EngineConfig& config, const EngineParts& parts, EngineInbox* inbox)
    : state_(config, parts),
      supply_(&state_),
      events_(inbox, config.inbox_capacity),
      life_(&state_),
      guides_(&state_, inbox),
      tokens_(&state_),
      news_(&state_, &life_, &guides_, &tokens_),
      hub_(&state_, &news_),
      ends_(&state_, &life_, &hub_, &leases_),
      starts_({.state = &state_,
               .life = &life_,
               .guides = &guides_,
               .hub = &hub_,
               .leases = &leases_,
               .ends = &ends_}),
      steps_({.state = &state_,
              .events = &events_,
              .life = &life_,
              .guides = &guides_,
              .tokens = &tokens_,
              .hub = &hub_,
              .ends = &ends_}),
      report_(&state_, &hub_, &leases_) {
  report_.Publish();
}

bool EngineCore::Turn() {
  state_.now_us = state_.parts.clock->NowUs();
  events_.Take();
  const bool refilled = supply_.Refill();
  if (steps_.in_flight() && (!events_.empty() || state_.now_us >= NextDueUs())) steps_.Settle();
  guides_.Allow(kStartGuideWaitUs);
  state_.numbers.num_events +=
      events_.HandleAll([this](EngineEvent event) { Handle(std::move(event)); });
  hub_.Tick();
  ends_.Expire();
  state_.outbox.Flush();
  const bool ran = steps_.Run();
  state_.outbox.Flush();
  report_.Publish();
  return ran || refilled || !events_.empty() || events_.MoreWait();
}

int64_t EngineCore::NextDueUs() const {
  return std::min(
      {state_.now_us + state_.config.idle_wake_us, hub_.NextDueUs(), ends_.NextDueUs()});
}

void EngineCore::Handle(EngineEvent event) {
  if (auto* start = std::get_if<StartRequest>(&event)) {
    starts_.Start(std::move(start->spec));
  } else if (const auto* cancel = std::get_if<CancelRequest>(&event)) {
    ends_.Cancel(cancel->key);
  } else if (const auto* close = std::get_if<CloseSession>(&event)) {
    ends_.CancelSession(close->session, "the router's session ended");
  } else if (const auto* renew = std::get_if<RenewSession>(&event)) {
    leases_.Renew(renew->session, state_.now_us + renew->lease_us);
  } else if (std::holds_alternative<BeginDrain>(event)) {
    state_.draining = true;
  } else if (const auto* fail = std::get_if<FailAll>(&event)) {
    ends_.AbandonAll(fail->status);
  } else if (const auto* ready = std::get_if<MaskReady>(&event)) {
    starts_.OnMaskReady(ready->uid);
  } else if (const auto* debug = std::get_if<DebugRequest>(&event)) {
    report_.Answer(debug->query.get());
  } else {
    hub_.Handle(event);
  }
}

}  // namespace baton::engine
