#include "src/api/call_cancellation.h"

namespace baton::api {

using router::CancelCause;
using router::Submitter;

void CallCancellation::OnCancel(Submitter* submitter) {
  std::unique_lock lock(mutex_);
  cancelled_ = true;
  if (!uid_.has_value()) return;
  const RequestUid uid = *uid_;
  lock.unlock();
  submitter->Cancel(uid, CancelCause::kClientLeft);
}

void CallCancellation::OnSubmitted(Submitter* submitter, RequestUid uid) {
  std::unique_lock lock(mutex_);
  uid_ = uid;
  const bool cancelled = cancelled_;
  lock.unlock();
  if (cancelled) submitter->Cancel(uid, CancelCause::kClientLeft);
}

}  // namespace baton::api
