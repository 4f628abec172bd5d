#include "src/api/call_cancellation.h"

namespace baton::api {

using router::CancelCause;
using router::Submitter;

void CallCancellation::OnCancel(Submitter* submitter, CancelCause cause) {
  MutexLock lock(mutex_);
  if (!cause_.has_value()) cause_ = cause;
  const std::vector<RequestUid> uids = uids_;
  lock.Unlock();
  for (const RequestUid uid : uids) submitter->Cancel(uid, cause);
}

void CallCancellation::OnSubmitted(Submitter* submitter, RequestUid uid) {
  MutexLock lock(mutex_);
  uids_.push_back(uid);
  const std::optional<CancelCause> cause = cause_;
  lock.Unlock();
  if (cause.has_value()) submitter->Cancel(uid, *cause);
}

bool CallCancellation::is_cancelled() const {
  MutexLock lock(mutex_);
  return cause_.has_value();
}

}  // namespace baton::api
