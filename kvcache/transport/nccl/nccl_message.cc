#include "kvcache/transport/nccl/nccl_message.h"

#include <array>
#include <cstring>

namespace baton {
namespace {

// Drawn once; no message of the hand-off begins like it but by intent.
constexpr std::string_view kMagic(
    "\x9b\x0f"
    "BatonNccl1\x00\xe1\x77\xc4",
    16);
constexpr size_t kHeadBytes = 40;
constexpr size_t kSliceBytes = 32;

// Fixed part of a message.
struct Head {
  char magic[16];
  uint8_t kind;
  uint8_t flag;  // kDrop: reason * 2 + by_sender
  uint16_t zero;
  uint32_t number;
  uint64_t link;
  uint64_t batch;
};
static_assert(sizeof(Head) == kHeadBytes);

// A slice of an Offer.
struct OfferedSlice {
  uint64_t transfer;
  uint64_t checksum;
  uint32_t attempt;
  uint32_t ordinal;
  uint32_t layer;
  uint32_t generation;
};
static_assert(sizeof(OfferedSlice) == kSliceBytes);

// What follows the head: its size, for kinds where it is fixed.
StatusOr<size_t> PayloadBytes(NcclMessageKind kind, size_t actual) {
  switch (kind) {
    case NcclMessageKind::kWrapped:
      return actual;
    case NcclMessageKind::kConnect:
      return sizeof(nccl::UniqueId);
    case NcclMessageKind::kOffer:
      if (actual == 0 || actual % kSliceBytes != 0 || actual / kSliceBytes > kMaxOfferSlices) {
        return DataLoss("an offer of {} bytes", actual);
      }
      return actual;
    case NcclMessageKind::kAccept:
    case NcclMessageKind::kGrant:
    case NcclMessageKind::kDeny:
    case NcclMessageKind::kDrop:
    case NcclMessageKind::kDone:
    case NcclMessageKind::kGreeting:
      return size_t{0};
  }
  return DataLoss("kind {}", static_cast<int>(kind));
}

Status CheckUnused(const Head& head, NcclMessageKind kind) {
  const bool has_number = kind == NcclMessageKind::kConnect || kind == NcclMessageKind::kAccept ||
                          kind == NcclMessageKind::kDrop || kind == NcclMessageKind::kGreeting;
  const bool has_link = kind != NcclMessageKind::kWrapped && kind != NcclMessageKind::kGreeting;
  const bool has_batch = kind == NcclMessageKind::kOffer || kind == NcclMessageKind::kGrant ||
                         kind == NcclMessageKind::kDeny || kind == NcclMessageKind::kDone;
  if (head.zero != 0 || (!has_number && head.number != 0) || (!has_batch && head.batch != 0) ||
      (!has_link && head.link != 0)) {
    return DataLoss("a field that kind {} does not use is not 0", static_cast<int>(kind));
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

bool IsNcclMessage(std::string_view bytes) { return bytes.starts_with(kMagic); }

std::string EncodeNcclMessage(const NcclMessage& message) {
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.kind = static_cast<uint8_t>(message.kind);
  head.flag = static_cast<uint8_t>(static_cast<int>(message.reason) * 2 + message.by_sender);
  head.number = message.number;
  head.link = message.link;
  head.batch = message.batch;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  if (message.kind == NcclMessageKind::kConnect) {
    bytes.append(message.id.internal, sizeof(message.id.internal));
  }
  for (const SliceRef& slice : message.slices) {
    const OfferedSlice offered = {slice.transfer.value(), slice.checksum, slice.attempt,
                                  slice.ordinal,          slice.layer,    slice.generation};
    bytes.append(reinterpret_cast<const char*>(&offered), sizeof(offered));
  }
  bytes += message.wrapped;
  return bytes;
}

StatusOr<NcclMessage> DecodeNcclMessage(std::string_view bytes) {
  if (bytes.size() < kHeadBytes || !IsNcclMessage(bytes)) return DataLoss("no message of NCCL");
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::string_view payload = bytes.substr(kHeadBytes);
  NcclMessage message;
  message.kind = static_cast<NcclMessageKind>(head.kind);
  BATON_ASSIGN_OR_RETURN(const size_t expected, PayloadBytes(message.kind, payload.size()));
  if (payload.size() != expected) {
    return DataLoss("{} bytes of payload, kind {} has {}", payload.size(), head.kind, expected);
  }
  BATON_RETURN_IF_ERROR(CheckUnused(head, message.kind));
  message.by_sender = head.flag % 2 != 0;
  message.reason = static_cast<NcclDropReason>(head.flag / 2);
  message.number = head.number;
  message.link = head.link;
  message.batch = head.batch;
  if (message.kind == NcclMessageKind::kConnect) {
    std::memcpy(message.id.internal, payload.data(), sizeof(message.id.internal));
  } else if (message.kind == NcclMessageKind::kWrapped) {
    message.wrapped = std::string(payload);
  } else {
    for (size_t at = 0; at < payload.size(); at += kSliceBytes) {
      OfferedSlice offered;
      std::memcpy(&offered, payload.data() + at, sizeof(offered));
      message.slices.push_back({.transfer = TransferId(offered.transfer),
                                .attempt = offered.attempt,
                                .ordinal = offered.ordinal,
                                .layer = offered.layer,
                                .generation = offered.generation,
                                .checksum = offered.checksum});
    }
  }
  return message;
}

}  // namespace baton
