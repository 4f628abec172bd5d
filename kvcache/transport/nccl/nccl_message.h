// NcclMessage: the messages between two NcclTransports, beside the bytes that NCCL carries. They
// have the form of kvcache/transport/slice_message.h and its invariant. P is the prefill worker, D
// the decode worker. Pure; any thread.
//
//   P                                              D
//   Greeting {NCCL's version}                  <->     the peer is up once both are equal
//   Connect {link, NCCL's version}             ->      takes a place for a communicator
//                                              <-  Accept {link, slices a batch at most}
//   Start {link, unique id}                    ->      both sides build it
//   gathers; Offer {link, batch, slices}       ->      judges each slice
//                                              <-  Grant {link, batch}: the receive is posted
//   sends the batch over NCCL              <-  Done {link, batch}: the bytes are there
//                                                      verifies, scatters
//                                              <-  instead of Grant, Deny {link, batch}: no slice
//                                              is wanted
//   Drop {link, why}                           <->     the communicator is aborted on both sides
//
// The flag of a Drop is reason * 2 + by_sender.
#ifndef BATON_KVCACHE_TRANSPORT_NCCL_NCCL_MESSAGE_H_
#define BATON_KVCACHE_TRANSPORT_NCCL_NCCL_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/nccl/nccl_api.h"
#include "kvcache/transport/slice_message.h"

namespace baton::kv {

// The kinds of message.
enum class NcclMessageKind : uint8_t {
  kConnect = 1,
  kAccept = 2,
  kOffer = 3,
  kGrant = 4,
  kDeny = 5,
  kDrop = 6,
  kDone = 7,
  kGreeting = 8,
  kStart = 9,
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
  uint64_t link = 0;             // a communicator, numbered by who sends slices over it
  uint64_t batch = 0;            // kOffer, kGrant, kDeny, kDone
  nccl::UniqueId id{};           // kStart
  std::vector<SliceRef> slices;  // kOffer: 1..kMaxOfferSlices; `source` stays at home
};

inline constexpr uint32_t kMaxOfferSlices = 1u << 14;
inline constexpr SliceMessageForm kNcclForm = {.magic = {"\x9b\x0f"
                                                         "BatonNccl2\x00\xe1\x77\xc4",
                                                         16},
                                               .has_links = true,
                                               .max_slices = kMaxOfferSlices};

std::string EncodeNcclMessage(const NcclMessage& message);
// DataLoss naming the field for anything that EncodeNcclMessage cannot have written.
StatusOr<NcclMessage> DecodeNcclMessage(std::string_view bytes);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_NCCL_NCCL_MESSAGE_H_
