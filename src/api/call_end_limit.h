// CallEndLimit: the time that a client has to take the rest of a call that has ended. Messages that
// it does not take would wait in gRPC for ever, and the status after them. A call that is still
// there when the time is over is cancelled, and its client sees CANCELLED.
//
// Invariants
//  1. The context is not touched after OnDone has returned.
//  2. gRPC's timer holds nothing of the call: the call may be destroyed at any time after OnDone.
//
// Threads: Begin once, before Finish; OnDone by the call's own OnDone.
#ifndef BATON_API_CALL_END_LIMIT_H_
#define BATON_API_CALL_END_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"

#include "src/base/mutex.h"

namespace baton::api {

// The slowest client that gets a large answer whole. 64 KiB a second is 4 s more for all that a
// stream has left when it was never paused. It is 64 s for a message of 4 MiB, the most that gRPC's
// clients take by default.
inline constexpr size_t kLeastClientBytesPerS = size_t{64} << 10;

// See the file comment.
class CallEndLimit {
 public:
  // `limit_us`: what a client gets for an answer of no bytes.
  CallEndLimit(grpc::CallbackServerContext* context, int64_t limit_us);

  // The call ends now and `num_bytes` of it may not be taken yet. About a microsecond.
  void Begin(size_t num_bytes);
  // gRPC is done with the call.
  void OnDone();

 private:
  // The part of a call that the timer's callback holds.
  struct Call {
    Mutex mutex;  // keeps the context while the call is cancelled
    // Null once gRPC is done.
    grpc::CallbackServerContext* context BATON_GUARDED_BY(mutex) = nullptr;
  };

  const int64_t limit_us_;
  const std::shared_ptr<Call> call_;
  grpc::Alarm alarm_;
};

}  // namespace baton::api

#endif  // BATON_API_CALL_END_LIMIT_H_
