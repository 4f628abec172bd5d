// IpcMessage: the messages between two IpcTransports, in the form of
// kvcache/transport/slice_message.h, whose invariant they have. P is the prefill worker, D the
// decode worker. Pure; any thread.
//
//   P                                          D
//   Offer {batch, slices}              ->      judges each slice, copies it out of P's pool
//                                              into its own block, hashes what it stored
//                                      <-      Done {batch}: nothing of it is read any more
#ifndef BATON_KVCACHE_TRANSPORT_IPC_IPC_MESSAGE_H_
#define BATON_KVCACHE_TRANSPORT_IPC_IPC_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/slice_message.h"

namespace baton::kv {

// The kinds of message.
enum class IpcMessageKind : uint8_t { kOffer = 1, kDone = 2 };

// One message. Fields that its kind does not use are 0 or empty.
struct IpcMessage {
  IpcMessageKind kind = IpcMessageKind::kDone;
  uint64_t batch = 0;            // numbered by who offers
  std::vector<SliceRef> slices;  // kOffer: 1..kMaxIpcOfferSlices
};

inline constexpr uint32_t kMaxIpcOfferSlices = 1u << 10;
inline constexpr SliceMessageForm kIpcForm = {.magic = {"\x9b\x0f"
                                                        "BatonCuIpc1\x00\x5d\xa8",
                                                        16},
                                              .has_sources = true,
                                              .max_slices = kMaxIpcOfferSlices};

std::string EncodeIpcMessage(const IpcMessage& message);
// DataLoss naming the field for anything that EncodeIpcMessage cannot have written.
StatusOr<IpcMessage> DecodeIpcMessage(std::string_view bytes);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_IPC_IPC_MESSAGE_H_
