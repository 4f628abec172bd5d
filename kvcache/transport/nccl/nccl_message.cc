#include "kvcache/transport/nccl/nccl_message.h"

#include <array>
#include <cstring>

namespace baton::kv {
namespace {

Status CheckUnused(const SliceMessageHead& head, NcclMessageKind kind) {
  const bool has_number = kind == NcclMessageKind::kConnect || kind == NcclMessageKind::kAccept ||
                          kind == NcclMessageKind::kDrop || kind == NcclMessageKind::kGreeting;
  const bool has_batch = kind == NcclMessageKind::kOffer || kind == NcclMessageKind::kGrant ||
                         kind == NcclMessageKind::kDeny || kind == NcclMessageKind::kDone;
  const bool has_link = kind != NcclMessageKind::kGreeting;
  if ((!has_number && head.number != 0) || (!has_batch && head.batch != 0) ||
      (!has_link && head.link != 0)) {
    return DataLoss("a field that kind {} does not use is not 0", head.kind);
  }
  const bool has_flag = kind == NcclMessageKind::kDrop;
  if (has_flag ? head.flag / 2 >= kNumNcclDropReasons : head.flag != 0) {
    return DataLoss("flag {}", head.flag);
  }
  return OkStatus();
}

}  // namespace

std::string_view NcclDropReasonName(NcclDropReason reason) {
  static constexpr std::array<std::string_view, kNumNcclDropReasons> kNames = {
      "none", "failed", "deadline", "unknown", "evicted", "version", "busy", "protocol"};
  const auto index = static_cast<size_t>(reason);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string EncodeNcclMessage(const NcclMessage& message) {
  const int flag = static_cast<int>(message.reason) * 2 + (message.by_sender ? 1 : 0);
  std::string bytes = EncodeSliceHead(kNcclForm, {.kind = static_cast<uint8_t>(message.kind),
                                                  .flag = static_cast<uint8_t>(flag),
                                                  .number = message.number,
                                                  .link = message.link,
                                                  .batch = message.batch});
  if (message.kind == NcclMessageKind::kStart) {
    bytes.append(message.id.internal, sizeof(message.id.internal));
  }
  AppendSlices(kNcclForm, message.slices, &bytes);
  return bytes;
}

StatusOr<NcclMessage> DecodeNcclMessage(std::string_view bytes) {
  BATON_ASSIGN_OR_RETURN(const SliceMessageHead head, DecodeSliceHead(kNcclForm, &bytes));
  NcclMessage message{.kind = static_cast<NcclMessageKind>(head.kind),
                      .by_sender = head.flag % 2 != 0,
                      .reason = static_cast<NcclDropReason>(head.flag / 2),
                      .number = head.number,
                      .link = head.link,
                      .batch = head.batch};
  BATON_RETURN_IF_ERROR(CheckUnused(head, message.kind));
  switch (message.kind) {
    case NcclMessageKind::kOffer: {
      BATON_ASSIGN_OR_RETURN(message.slices, DecodeSlices(kNcclForm, bytes));
      return message;
    }
    case NcclMessageKind::kStart:
      if (bytes.size() != sizeof(message.id.internal)) break;
      std::memcpy(message.id.internal, bytes.data(), bytes.size());
      return message;
    case NcclMessageKind::kConnect:
    case NcclMessageKind::kAccept:
    case NcclMessageKind::kGrant:
    case NcclMessageKind::kDeny:
    case NcclMessageKind::kDrop:
    case NcclMessageKind::kDone:
    case NcclMessageKind::kGreeting:
      if (!bytes.empty()) break;
      return message;
  }
  return DataLoss("kind {} with {} bytes of payload", head.kind, bytes.size());
}

}  // namespace baton::kv
