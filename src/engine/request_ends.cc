#include "src/engine/request_ends.h"

#include <algorithm>
#include <vector>

namespace baton::engine {

void RequestEnds::Abandon(LiveRequest* request, RequestState state, const Status& status) {
  hub_->Cancel(*request, status.ToString());
  life_->End(request, state, status, FailedPart::kComputation);
}

void RequestEnds::AbandonAll(const Status& status) {
  std::vector<LiveRequest*> all;
  state_->requests.ForEach([&](LiveRequest& request) { all.push_back(&request); });
  for (LiveRequest* request : all) Abandon(request, RequestState::kFailed, status);
}

void RequestEnds::Cancel(const RequestKey& key) {
  LiveRequest* const request = state_->requests.Find(key.uid);
  if (request == nullptr || request->spec.key.attempt > key.attempt) return;
  Abandon(request, RequestState::kCancelled, Cancelled("cancelled by the router"));
}

void RequestEnds::CancelSession(SessionId session, std::string_view why) {
  std::vector<LiveRequest*> mine;
  state_->requests.ForEach([&](LiveRequest& request) {
    if (request.spec.session == session) mine.push_back(&request);
  });
  for (LiveRequest* request : mine) {
    Abandon(request, RequestState::kCancelled, Cancelled("{}", why));
  }
  leases_->Erase(session);
}

int64_t RequestEnds::NextDueUs() const {
  int64_t due_us = leases_->NextEndUs();
  state_->requests.ForEach([&](const LiveRequest& r) { due_us = std::min(due_us, r.deadline_us); });
  return due_us;
}

void RequestEnds::Expire() {
  const int64_t now_us = state_->now_us;
  if (NextDueUs() > now_us) return;  // the lists are made seldom
  std::vector<LiveRequest*> late;
  state_->requests.ForEach([&](LiveRequest& request) {
    if (request.deadline_us <= now_us) late.push_back(&request);
  });
  for (LiveRequest* request : late) {
    Abandon(request, RequestState::kFailed,
            DeadlineExceeded("the request's deadline of {} ms passed",
                             request->spec.deadline_us / 1000));
  }
  for (const SessionId session : leases_->Ended(now_us)) {
    CancelSession(session, "the router's lease on the request ended");
  }
}

}  // namespace baton::engine
