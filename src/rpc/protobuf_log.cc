#include "src/rpc/protobuf_log.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/rpc/line_allowance.h"

namespace baton::rpc {
namespace {

// The assertion with which gRPC ends a process that got no thread for it.
constexpr std::string_view kNoThread = "worker->created()";
constexpr std::string_view kNoThreadHint =
    "; the system gives no more threads (ulimit -u, TasksMax or pids.max of the control group) or "
    "memory (ulimit -v): raise the limit";

// With this line gRPC stops listening on a port; it tells it in no other way.
constexpr std::string_view kLostPort = "Failed accept4";
std::atomic<bool> has_lost_port{false};

void OnLine(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
            const std::string& message) {
  BATON_LOG_DEBUG("protobuf: {}", message);
}

void OnGrpcLine(gpr_log_func_args* line) {
  // Never destroyed: gRPC's threads may log during exit.
  static auto& errors = *new LineAllowance(kMaxGrpcErrors, kGrpcErrorsUs);
  // Not in the middle of a line, where a peer's text may stand.
  if (line->severity == GPR_LOG_SEVERITY_ERROR &&
      std::string_view(line->message).starts_with(kLostPort)) {
    has_lost_port.store(true, std::memory_order_relaxed);
  }
  std::optional<uint64_t> num_held_back;
  if (line->severity == GPR_LOG_SEVERITY_ERROR) num_held_back = errors.Take(SystemClock().NowUs());
  if (!num_held_back) {
    BATON_LOG_DEBUG("gRPC: {}", line->message);
    return;
  }
  std::string text = LineForMessage(line->message, kMaxGrpcErrorBytes);
  if (text.find(kNoThread) != std::string::npos) text += kNoThreadHint;
  const std::string before =
      *num_held_back == 0 ? "" : fmt::format("; {} such lines were held back", *num_held_back);
  BATON_LOG_WARN("gRPC: {}{}", text, before);
}

}  // namespace

void TakeOverProtobufLog() { (void)google::protobuf::SetLogHandler(&OnLine); }

void TakeOverGrpcLog() { gpr_set_log_function(&OnGrpcLine); }

bool HasLostPort() { return has_lost_port.load(std::memory_order_relaxed); }

Status LostPort() {
  if (!HasLostPort()) return OkStatus();
  return Unavailable(
      "the gRPC port takes no connections any more, since one could not be accepted (the log has "
      "the reason, as \"Failed accept4\"): mostly too many for the limit of open files (ulimit -n, "
      "LimitNOFILE of a systemd unit)");
}

}  // namespace baton::rpc
