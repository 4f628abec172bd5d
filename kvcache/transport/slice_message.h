// SliceMessageForm: the messages between two transports of device memory (SliceTransport). They are
// control messages of the connection between their endpoints. This is the form that all have;
// ipc/ipc_message.h and nccl/nccl_message.h say which messages there are. Encoding and decoding
// only. Pure; any thread.
//
// Little-endian: magic 16, kind u8, flag u8, 0 u16, number u32, link u64 (of forms with links),
// batch u64, then the payload. A control message of the transport's owner travels as it is, unless
// it begins with the magic. Then it is wrapped: the payload of kind 0, with all other fields 0.
//
// Invariant: the decoder reads only the bytes given and accepts only what the encoder can produce.
// The owner of the tables judges what the numbers refer to.
#ifndef BATON_KVCACHE_TRANSPORT_SLICE_MESSAGE_H_
#define BATON_KVCACHE_TRANSPORT_SLICE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/transport/transport_types.h"

namespace baton::kv {

// The messages of one transport.
struct SliceMessageForm {
  // 16 bytes, drawn once: no message of the hand-off begins like it but by intent.
  std::string_view magic;
  bool has_links = false;
  bool has_sources = false;  // a slice is 40 bytes with the prefill worker's block, else 32
  uint32_t max_slices = 0;   // of one message, which stays far below limits::kMaxControlBytes
};

// The fields that every message begins with, beside the magic.
struct SliceMessageHead {
  uint8_t kind = 0;  // 0 = wrapped
  uint8_t flag = 0;
  uint32_t number = 0;
  uint64_t link = 0;
  uint64_t batch = 0;
};

// Whether a control message has this form, well made or not.
bool IsSliceMessage(const SliceMessageForm& form, std::string_view bytes);

// The payload is appended to it.
std::string EncodeSliceHead(const SliceMessageForm& form, const SliceMessageHead& head);
void AppendSlices(const SliceMessageForm& form, std::span<const SliceRef> slices,
                  std::string* bytes);

// Takes the head off `bytes` and leaves the payload. DataLoss naming what is wrong.
StatusOr<SliceMessageHead> DecodeSliceHead(const SliceMessageForm& form, std::string_view* bytes);
// 1..max_slices of them, in forms without sources all of block 0; DataLoss for anything else.
StatusOr<std::vector<SliceRef>> DecodeSlices(const SliceMessageForm& form,
                                             std::string_view payload);

// A message of the owner that begins with the magic; and back, nullopt for every other message.
std::string WrapMessage(const SliceMessageForm& form, std::string_view bytes);
std::optional<std::string> UnwrapMessage(const SliceMessageForm& form, std::string_view bytes);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_SLICE_MESSAGE_H_
