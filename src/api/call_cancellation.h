// CallCancellation: cancels the request of one call, whenever the reason comes: before, while or
// after the request is submitted. Any thread.
#ifndef BATON_API_CALL_CANCELLATION_H_
#define BATON_API_CALL_CANCELLATION_H_

#include <optional>

#include "src/base/ids.h"
#include "src/base/mutex.h"
#include "src/router/submit.h"

namespace baton::api {

// See the file comment.
class CallCancellation {
 public:
  // Nobody wants the answer any more: the client has gone, or the answer has no room.
  void OnCancel(router::Submitter* submitter);
  // The request was submitted under this name.
  void OnSubmitted(router::Submitter* submitter, RequestUid uid);

 private:
  Mutex mutex_;
  bool cancelled_ BATON_GUARDED_BY(mutex_) = false;
  std::optional<RequestUid> uid_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::api

#endif  // BATON_API_CALL_CANCELLATION_H_
