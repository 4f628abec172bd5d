#include "src/api/call_end_limit.h"

#include "grpc/support/time.h"

namespace baton::api {

CallEndLimit::CallEndLimit(grpc::CallbackServerContext* context, int64_t limit_us)
    : limit_us_(limit_us), call_(std::make_shared<Call>()) {
  call_->context = context;
}

void CallEndLimit::Begin(size_t num_bytes) {
  const auto num_bytes_us =
      static_cast<int64_t>(num_bytes) * 1'000'000 / static_cast<int64_t>(kLeastClientBytesPerS);
  const gpr_timespec wait = gpr_time_from_micros(limit_us_ + num_bytes_us, GPR_TIMESPAN);
  alarm_.Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), wait), [call = call_](bool is_over) {
    if (!is_over) return;
    // gRPC never runs OnDone within TryCancel: reactors that are not its own get it on its threads.
    MutexLock lock(call->mutex);
    if (call->context != nullptr) call->context->TryCancel();
  });
}

void CallEndLimit::OnDone() {
  {
    MutexLock lock(call_->mutex);
    call_->context = nullptr;
  }
  alarm_.Cancel();
}

}  // namespace baton::api
