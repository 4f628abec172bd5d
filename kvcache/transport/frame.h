// The bytes on a data connection: a 64-byte little-endian header, then `payload_bytes` of payload.
// Encoding and decoding only, no sockets. Pure; any thread.
//
//   offset  bytes  field
//        0      4  magic "BTKV", first in every message, the first one too
//        4      2  format of this header, 1
//        6      1  kind
//        7      1  0
//        8      8  connection epoch (0 until the accepting side has named it)
//       16      8  transfer id         (slices)
//       24      4  attempt             (slices)
//       28      4  block ordinal       (slices)
//       32      4  layer               (slices)
//       36      4  generation of the destination block (slices)
//       40      4  source block        (slices by reference)
//       44      4  payload bytes in this frame
//       48      8  XXH3-64: of the payload, or of the slice named by reference
//       56      8  XXH3-64 of bytes 0..55
//
// Introduction, bounded by one deadline: dialler Hello (its arena's descriptor beside it for shm)
// -> HelloAck (nonce, proof) -> HelloProof -> Welcome. Both proofs are HMAC-SHA256 with the cluster
// secret over both introductions, under different labels, so neither can be replayed or reflected.
// After Welcome both sides send Control, SliceInline, SliceReference and Close in any order.
//
// Invariants
//  1. Decoding reads only the bytes given and accepts only what Encode can produce; a field that
//     the kind does not use must be 0.
//  2. No size from the wire is used before it was compared with the cap of its kind.
//  3. Numbers that index tables (transfer, ordinal, layer, block) are not judged here: the owner of
//     the table does that.
#ifndef BATON_KVCACHE_TRANSPORT_FRAME_H_
#define BATON_KVCACHE_TRANSPORT_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/transport/transport_types.h"
#include "src/base/status.h"
#include "src/base/wire_versions.h"

namespace baton::kv {

inline constexpr size_t kFrameHeaderBytes = 64;
inline constexpr uint32_t kFrameMagic = 0x564b5442;  // "BTKV" in memory order
inline constexpr uint16_t kFrameFormat = 1;

// The kinds of message.
enum class FrameKind : uint8_t {
  kHello = 1,           // dialler: who I am, my nonce
  kHelloAck = 2,        // acceptor: who I am, my nonce, my proof, the epoch
  kHelloProof = 3,      // dialler: my proof
  kWelcome = 4,         // acceptor: ready
  kControl = 5,         // opaque bytes for the sink
  kSliceInline = 6,     // the payload is the slice
  kSliceReference = 7,  // no payload: the slice lies in the sender's mapped arena
  kClose = 8,           // why the sender hangs up
};

// The header as values; fields that the kind does not use are 0.
struct FrameHeader {
  FrameKind kind = FrameKind::kClose;
  uint64_t epoch = 0;
  TransferId transfer;
  uint32_t attempt = 0;
  uint32_t ordinal = 0;
  uint32_t layer = 0;
  uint32_t generation = 0;
  BlockIndex source;
  uint32_t payload_bytes = 0;
  uint64_t checksum = 0;

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

void EncodeFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out);
// DataLoss naming the field for anything that EncodeFrameHeader cannot have written.
StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

// The header of a slice frame; `inline_bytes` 0 = by reference.
FrameHeader SliceFrameHeader(const SliceRef& slice, uint64_t epoch, uint32_t inline_bytes);

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
using HelloNonce = std::array<uint8_t, kNonceBytes>;
using HelloProof = std::array<uint8_t, kProofBytes>;

// The facts that each side tells about itself in Hello and HelloAck.
struct Introduction {
  WireRange wire = kWireVersions;
  Incarnation incarnation;
  Incarnation expected;  // whom the dialler wants to reach; the acceptor repeats the dialler's
  uint64_t layout_id = 0;
  uint64_t numerics_id = 0;  // XXH3-64 of the numerics text
  uint64_t epoch = 0;        // drawn by the acceptor; 0 from the dialler
  uint32_t num_blocks = 0;   // of the dialler's arena when it passes one, else 0
  bool allow_inexact = false;
  bool has_pools = false;  // slices lie in a pool of the transport above, not in an arena
  std::string worker_id;   // 1..limits::kMaxWorkerIdBytes of [a-z0-9-]
  HelloNonce nonce{};

  friend bool operator==(const Introduction&, const Introduction&) = default;
};

inline constexpr size_t kIntroductionBytes = 160;
void EncodeIntroduction(const Introduction& intro, std::span<std::byte, kIntroductionBytes> out);
// The versions stand first in every version's introduction, whatever its size. DataLoss when it is
// too short for them or they contradict each other.
StatusOr<WireRange> DecodeWireRange(std::span<const std::byte> introduction);
// DataLoss naming the field.
StatusOr<Introduction> DecodeIntroduction(std::span<const std::byte, kIntroductionBytes> bytes);

// The proof of knowing `secret`: HMAC-SHA256 over a label per side and the two introductions as
// sent.
HelloProof MakeHelloProof(std::string_view secret, bool by_acceptor,
                          std::span<const std::byte, kIntroductionBytes> hello,
                          std::span<const std::byte, kIntroductionBytes> ack);
// Takes the same time wherever they differ.
bool SameProof(const HelloProof& a, const HelloProof& b);

// Payload sizes of the fixed kinds.
inline constexpr size_t kHelloAckBytes = kIntroductionBytes + kProofBytes;
inline constexpr size_t kCloseBytes = 4;  // CloseReason as u32
// Bytes that a Hello or HelloAck of another version may have, so that it is refused for its
// version. They are six times today's. The header is the same in all versions; it carries the
// refusals too.
inline constexpr uint32_t kMaxIntroductionFrameBytes = 1024;
// Largest payload of `kind`.
uint32_t MaxPayloadBytes(FrameKind kind);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_FRAME_H_
