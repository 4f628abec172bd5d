#include "src/api/call_cancellation.h"

namespace baton::api {

using router::CancelCause;
using router::Submitter;

void CallCancellation::OnCancel(Submitter* submitter) {
  MutexLock lock(mutex_);
  cancelled_ = true;
  if (!uid_.has_value()) return;
  const RequestUid uid = *uid_;
  lock.Unlock();
  submitter->Cancel(uid, CancelCause::kClientLeft);
}

void CallCancellation::OnSubmitted(Submitter* submitter, RequestUid uid) {
  MutexLock lock(mutex_);
  uid_ = uid;
  const bool cancelled = cancelled_;
  lock.Unlock();
  if (cancelled) submitter->Cancel(uid, CancelCause::kClientLeft);
}

}  // namespace baton::api
