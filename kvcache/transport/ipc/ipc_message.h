// What two IpcTransports tell each other: control messages of the connection between their
// endpoints. Encoding and decoding only. Pure; any thread.
//
//   P                                          D
//   Offer {batch, slices}              ->      judges each slice, copies it out of P's pool
//                                              into its own block, hashes what it stored
//                                      <-      Done {batch}: nothing of it is read any more
//
// Little-endian: magic 16, kind u8, 0 u8, 0 u16, 0 u32, batch u64, then the payload. A message of
// the owner of the transport travels as it is, unless it begins with the magic; then it is wrapped.
//
// Invariant: Decode reads only the bytes given and accepts only what Encode can produce. What the
// numbers refer to is judged by who owns the tables.
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_MESSAGE_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/transport_types.h"

namespace baton {

// Which message.
enum class IpcMessageKind : uint8_t { kWrapped = 0, kOffer = 1, kDone = 2 };

// One message. Fields that its kind does not use are 0 or empty.
struct IpcMessage {
  IpcMessageKind kind = IpcMessageKind::kDone;
  uint64_t batch = 0;            // kOffer, kDone: numbered by who offers
  std::vector<SliceRef> slices;  // kOffer: 1..kMaxIpcOfferSlices
  std::string wrapped;           // kWrapped
};

// 40 bytes each, far below a control message's limit.
inline constexpr uint32_t kMaxIpcOfferSlices = 1u << 10;

// Whether a control message is one of these.
bool IsIpcMessage(std::string_view bytes);
std::string EncodeIpcMessage(const IpcMessage& message);
// DataLoss naming the field for anything that EncodeIpcMessage cannot have written.
StatusOr<IpcMessage> DecodeIpcMessage(std::string_view bytes);

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_MESSAGE_H_
