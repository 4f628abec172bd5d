// What two NcclTransports tell each other, beside the bytes that NCCL carries: control messages of
// the connection between their endpoints. Encoding and decoding only. Pure; any thread.
//
//   P                                              D
//   Greeting {NCCL's version}                  <->     the peer is up once both are equal
//   Connect {link, NCCL's version, unique id}  ->      both sides build a communicator
//                                              <-  Accept {link, slices a batch at most}
//   gathers; Offer {link, batch, slices}       ->      judges each slice
//                                              <-  Grant {link, batch}: the receive is posted
//   sends the batch over NCCL              <-  Done {link, batch}: the bytes are there
//                                                      verifies, scatters
//                                              <-  instead of Grant, Deny {link, batch}: no slice
//                                              is wanted
//   Drop {link, why}                           <->     the communicator is aborted on both sides
//
// Little-endian: magic 16, kind u8, flag u8, 0 u16, number u32, link u64, batch u64, then the
// payload. A message of the owner of the transport travels as it is, unless it begins with the
// magic; then it is wrapped (kWrapped).
//
// Invariant: Decode reads only the bytes given and accepts only what Encode can produce. What the
// numbers refer to is judged by who owns the tables.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_MESSAGE_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/nccl/nccl_api.h"
#include "kvcache/transport/transport_types.h"

namespace baton {

// Which message.
enum class NcclMessageKind : uint8_t {
  kWrapped = 0,
  kConnect = 1,
  kAccept = 2,
  kOffer = 3,
  kGrant = 4,
  kDeny = 5,
  kDrop = 6,
  kDone = 7,
  kGreeting = 8,
};

// Why a communicator is given up.
enum class NcclDropReason : uint8_t {
  kNone = 0,
  kFailed = 1,    // a call or an operation failed
  kDeadline = 2,  // built or moved too slowly
  kUnknown = 3,   // the message was for one that does not exist (any more)
  kEvicted = 4,   // another peer needed its place
  kVersion = 5,   // the NCCL versions differ; `number` is the speaker's
  kBusy = 6,      // no place for one more
  kProtocol = 7,  // a message out of turn
};
inline constexpr uint8_t kNumNcclDropReasons = 8;
std::string_view NcclDropReasonName(NcclDropReason reason);

// One message. Fields that its kind does not use are 0 or empty.
struct NcclMessage {
  NcclMessageKind kind = NcclMessageKind::kConnect;
  // kDrop: the speaker is the one that sends slices over this link.
  bool by_sender = false;
  NcclDropReason reason = NcclDropReason::kNone;
  // kGreeting, kConnect, kDrop: NCCL's version; kAccept: slices a batch.
  uint32_t number = 0;
  uint64_t link = 0;   // a communicator, numbered by who sends slices over it
  uint64_t batch = 0;  // kOffer, kGrant, kDeny, kDone
  nccl::UniqueId id{};
  std::vector<SliceRef> slices;  // kOffer; `source` stays at home
  std::string wrapped;           // kWrapped
};

// Slices of one Offer at most: 32 bytes each, far below a control message's limit.
inline constexpr uint32_t kMaxOfferSlices = 1u << 14;

// Whether a control message is one of these.
bool IsNcclMessage(std::string_view bytes);
std::string EncodeNcclMessage(const NcclMessage& message);
// DataLoss naming the field for anything that EncodeNcclMessage cannot have written.
StatusOr<NcclMessage> DecodeNcclMessage(std::string_view bytes);

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_MESSAGE_H_
