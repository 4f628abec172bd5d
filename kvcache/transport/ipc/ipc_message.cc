#include "kvcache/transport/ipc/ipc_message.h"

#include <cstring>

namespace baton {
namespace {

// Drawn once; no message of the hand-off begins like it but by intent.
constexpr std::string_view kMagic(
    "\x9b\x0f"
    "BatonCuIpc1\x00\x5d\xa8",
    16);

// Fixed part of a message.
struct Head {
  char magic[16];
  uint8_t kind;
  uint8_t zero[7];
  uint64_t batch;
};
static_assert(sizeof(Head) == 32);

// A slice of an Offer.
struct OfferedSlice {
  uint64_t transfer;
  uint64_t checksum;
  uint32_t attempt;
  uint32_t ordinal;
  uint32_t layer;
  uint32_t generation;
  uint32_t source;
  uint32_t zero;
};
static_assert(sizeof(OfferedSlice) == 40);

Status DecodeSlices(std::string_view payload, std::vector<SliceRef>* slices) {
  const size_t count = payload.size() / sizeof(OfferedSlice);
  if (payload.size() % sizeof(OfferedSlice) != 0 || count == 0 || count > kMaxIpcOfferSlices) {
    return DataLoss("an offer of {} bytes", payload.size());
  }
  slices->reserve(count);
  for (size_t i = 0; i < count; ++i) {
    OfferedSlice offered;
    std::memcpy(&offered, payload.data() + i * sizeof(offered), sizeof(offered));
    if (offered.zero != 0) return DataLoss("slice {} of an offer ends in {}", i, offered.zero);
    slices->push_back({.transfer = TransferId(offered.transfer),
                       .attempt = offered.attempt,
                       .ordinal = offered.ordinal,
                       .layer = offered.layer,
                       .generation = offered.generation,
                       .source = BlockIndex(offered.source),
                       .checksum = offered.checksum});
  }
  return OkStatus();
}

}  // namespace

bool IsIpcMessage(std::string_view bytes) { return bytes.starts_with(kMagic); }

std::string EncodeIpcMessage(const IpcMessage& message) {
  Head head{};
  std::memcpy(head.magic, kMagic.data(), kMagic.size());
  head.kind = static_cast<uint8_t>(message.kind);
  head.batch = message.batch;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.reserve(sizeof(head) + message.slices.size() * sizeof(OfferedSlice) +
                message.wrapped.size());
  for (const SliceRef& slice : message.slices) {
    const OfferedSlice offered = {slice.transfer.value(),
                                  slice.checksum,
                                  slice.attempt,
                                  slice.ordinal,
                                  slice.layer,
                                  slice.generation,
                                  slice.source.value(),
                                  0};
    bytes.append(reinterpret_cast<const char*>(&offered), sizeof(offered));
  }
  bytes += message.wrapped;
  return bytes;
}

StatusOr<IpcMessage> DecodeIpcMessage(std::string_view bytes) {
  if (bytes.size() < sizeof(Head) || !IsIpcMessage(bytes))
    return DataLoss("no message of CUDA IPC");
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  for (const uint8_t zero : head.zero) {
    if (zero != 0) return DataLoss("a byte of the head is {}, not 0", zero);
  }
  const std::string_view payload = bytes.substr(sizeof(head));
  IpcMessage message;
  message.kind = static_cast<IpcMessageKind>(head.kind);
  message.batch = head.batch;
  switch (message.kind) {
    case IpcMessageKind::kWrapped:
      if (head.batch != 0) return DataLoss("a wrapped message of batch {}", head.batch);
      message.wrapped = std::string(payload);
      return message;
    case IpcMessageKind::kOffer:
      BATON_RETURN_IF_ERROR(DecodeSlices(payload, &message.slices));
      return message;
    case IpcMessageKind::kDone:
      if (!payload.empty()) return DataLoss("Done with {} bytes of payload", payload.size());
      return message;
  }
  return DataLoss("kind {}", head.kind);
}

}  // namespace baton
