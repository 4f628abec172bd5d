// CallCancellation: cancels the requests of one call, whenever the reason comes: before, while or
// after they are submitted. Any thread.
#ifndef BATON_API_CALL_CANCELLATION_H_
#define BATON_API_CALL_CANCELLATION_H_

#include <optional>
#include <vector>

#include "src/base/ids.h"
#include "src/base/mutex.h"
#include "src/router/submit.h"

namespace baton::api {

// See the file comment.
class CallCancellation {
 public:
  // Nobody wants the answer any more: the client has gone, the answer has no room, or a part of it
  // has failed.
  void OnCancel(router::Submitter* submitter,
                router::CancelCause cause = router::CancelCause::kClientLeft);
  // A request was submitted under this name.
  void OnSubmitted(router::Submitter* submitter, RequestUid uid);
  bool is_cancelled() const;

 private:
  mutable Mutex mutex_;
  std::optional<router::CancelCause> cause_ BATON_GUARDED_BY(mutex_);  // of the cancellation
  std::vector<RequestUid> uids_ BATON_GUARDED_BY(mutex_);              // ended ones too
};

}  // namespace baton::api

#endif  // BATON_API_CALL_CANCELLATION_H_
