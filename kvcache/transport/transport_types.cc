#include "kvcache/transport/transport_types.h"

namespace baton::kv {

std::string_view TransportKindName(TransportKind kind) {
  switch (kind) {
    case TransportKind::kAuto:
      return "auto";
    case TransportKind::kLocal:
      return "local";
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kTcp:
      return "tcp";
    case TransportKind::kNccl:
      return "nccl";
    case TransportKind::kCudaIpc:
      return "cuda_ipc";
  }
  return "unknown";
}

StatusOr<TransportKind> ParseTransportKind(std::string_view text) {
  for (const TransportKind kind : {TransportKind::kAuto, TransportKind::kShm, TransportKind::kTcp,
                                   TransportKind::kNccl, TransportKind::kCudaIpc}) {
    if (text == TransportKindName(kind)) return kind;
  }
  return InvalidArgument("transport \"{}\" is not one of auto, shm, tcp, nccl, cuda_ipc", text);
}

std::string_view BadSliceReasonName(BadSliceReason reason) {
  static constexpr std::array<std::string_view, kNumBadSliceReasons> kNames = {
      "unknown_transfer", "wrong_peer",       "wrong_attempt", "wrong_epoch",
      "out_of_range",     "stale_generation", "duplicate",     "bad_checksum"};
  const auto index = static_cast<size_t>(reason);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view CloseReasonName(CloseReason reason) {
  static constexpr std::array<std::string_view, kNumCloseReasons> kNames = {"none",
                                                                            "peer_closed",
                                                                            "protocol",
                                                                            "frame_gap",
                                                                            "write_stall",
                                                                            "hello_timeout",
                                                                            "wire_version",
                                                                            "wrong_secret",
                                                                            "layout",
                                                                            "numerics",
                                                                            "wrong_peer",
                                                                            "arena",
                                                                            "credentials",
                                                                            "replaced",
                                                                            "removed",
                                                                            "shutdown",
                                                                            "unreachable",
                                                                            "too_many",
                                                                            "control_corrupt",
                                                                            "tls_missing",
                                                                            "tls_certificate",
                                                                            "tls_handshake"};
  const auto index = static_cast<size_t>(reason);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace baton::kv
