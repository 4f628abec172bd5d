#include "kvcache/transport/frame.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/check.h"
#include "src/base/limits.h"
#include "src/base/worker_id.h"
#include "src/base/xxh3.h"

namespace baton::kv {

using limits::kMaxControlBytes;
using limits::kMaxSliceBytes;
using limits::kMaxWorkerIdBytes;

namespace {

// Offsets of the header; see the table in frame.h.
constexpr size_t kHeaderChecksumOffset = 56;
static_assert(kHeaderChecksumOffset + 8 == kFrameHeaderBytes);

// Offsets of an introduction.
constexpr uint32_t kFlagAllowInexact = 1;
constexpr uint32_t kFlagHasPools = 2;  // since cuda_ipc: an older peer refuses it
constexpr size_t kIntroNonceOffset = 56;
constexpr size_t kIntroIdBytesOffset = kIntroNonceOffset + kNonceBytes;
constexpr size_t kIntroIdOffset = kIntroIdBytesOffset + 1;
constexpr size_t kIntroIdEnd = kIntroIdOffset + kMaxWorkerIdBytes;
static_assert(kIntroIdEnd <= kIntroductionBytes);
static_assert(kHelloAckBytes <= kMaxIntroductionFrameBytes);

// Byte by byte, so that the format does not depend on the host's order; compilers make one move of
// it.
template <typename T>
void Store(std::byte* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Load(const std::byte* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(in[i])) << (8 * i));
  }
  return value;
}

bool IsSlice(FrameKind kind) {
  return kind == FrameKind::kSliceInline || kind == FrameKind::kSliceReference;
}

// Fields that only slices carry must be absent elsewhere. A reference has no payload, an inline
// slice no source.
Status CheckFields(const FrameHeader& header) {
  const bool has_slice_fields = header.transfer.value() != 0 || header.attempt != 0 ||
                                header.ordinal != 0 || header.layer != 0 || header.generation != 0;
  if (!IsSlice(header.kind) && has_slice_fields) {
    return DataLoss("a frame of kind {} names a slice", static_cast<int>(header.kind));
  }
  if (header.kind != FrameKind::kSliceReference && header.source.value() != 0) {
    return DataLoss("a frame of kind {} names source block {}", static_cast<int>(header.kind),
                    header.source);
  }
  const uint32_t max_payload = MaxPayloadBytes(header.kind);
  if (header.payload_bytes > max_payload) {
    return DataLoss("a frame of kind {} has {} payload bytes, at most {}",
                    static_cast<int>(header.kind), header.payload_bytes, max_payload);
  }
  return OkStatus();
}

}  // namespace

uint32_t MaxPayloadBytes(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
    case FrameKind::kHelloAck:
      return kMaxIntroductionFrameBytes;
    case FrameKind::kHelloProof:
      return kProofBytes;
    case FrameKind::kControl:
      return kMaxControlBytes;
    case FrameKind::kSliceInline:
      return kMaxSliceBytes;
    case FrameKind::kClose:
      return kCloseBytes;
    case FrameKind::kWelcome:
    case FrameKind::kSliceReference:
      return 0;
  }
  return 0;
}

void EncodeFrameHeader(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out) {
  std::byte* const p = out.data();
  Store<uint32_t>(p + 0, kFrameMagic);
  Store<uint16_t>(p + 4, kFrameFormat);
  Store<uint8_t>(p + 6, static_cast<uint8_t>(header.kind));
  Store<uint8_t>(p + 7, 0);
  Store<uint64_t>(p + 8, header.epoch);
  Store<uint64_t>(p + 16, header.transfer.value());
  Store<uint32_t>(p + 24, header.attempt);
  Store<uint32_t>(p + 28, header.ordinal);
  Store<uint32_t>(p + 32, header.layer);
  Store<uint32_t>(p + 36, header.generation);
  Store<uint32_t>(p + 40, header.source.value());
  Store<uint32_t>(p + 44, header.payload_bytes);
  Store<uint64_t>(p + 48, header.checksum);
  Store<uint64_t>(p + kHeaderChecksumOffset, Xxh3Hash64(p, kHeaderChecksumOffset));
}

StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  const std::byte* const p = bytes.data();
  if (Load<uint32_t>(p) != kFrameMagic) return DataLoss("magic {:#x}", Load<uint32_t>(p));
  if (Load<uint16_t>(p + 4) != kFrameFormat) {
    return DataLoss("frame format {}, known is {}", Load<uint16_t>(p + 4), kFrameFormat);
  }
  const uint64_t checksum = Xxh3Hash64(p, kHeaderChecksumOffset);
  if (Load<uint64_t>(p + kHeaderChecksumOffset) != checksum) return DataLoss("header checksum");
  const uint8_t kind = Load<uint8_t>(p + 6);
  if (kind < static_cast<uint8_t>(FrameKind::kHello) ||
      kind > static_cast<uint8_t>(FrameKind::kClose) || Load<uint8_t>(p + 7) != 0) {
    return DataLoss("frame kind {} flags {}", kind, Load<uint8_t>(p + 7));
  }
  FrameHeader header;
  header.kind = static_cast<FrameKind>(kind);
  header.epoch = Load<uint64_t>(p + 8);
  header.transfer = TransferId(Load<uint64_t>(p + 16));
  header.attempt = Load<uint32_t>(p + 24);
  header.ordinal = Load<uint32_t>(p + 28);
  header.layer = Load<uint32_t>(p + 32);
  header.generation = Load<uint32_t>(p + 36);
  header.source = BlockIndex(Load<uint32_t>(p + 40));
  header.payload_bytes = Load<uint32_t>(p + 44);
  header.checksum = Load<uint64_t>(p + 48);
  BATON_RETURN_IF_ERROR(CheckFields(header));
  return header;
}

FrameHeader SliceFrameHeader(const SliceRef& slice, uint64_t epoch, uint32_t inline_bytes) {
  FrameHeader header;
  header.kind = inline_bytes > 0 ? FrameKind::kSliceInline : FrameKind::kSliceReference;
  header.epoch = epoch;
  header.transfer = slice.transfer;
  header.attempt = slice.attempt;
  header.ordinal = slice.ordinal;
  header.layer = slice.layer;
  header.generation = slice.generation;
  if (inline_bytes == 0) header.source = slice.source;
  header.payload_bytes = inline_bytes;
  header.checksum = slice.checksum;
  return header;
}

void EncodeIntroduction(const Introduction& intro, std::span<std::byte, kIntroductionBytes> out) {
  BATON_CHECK(!intro.worker_id.empty() && intro.worker_id.size() <= kMaxWorkerIdBytes,
              "worker id of {} bytes", intro.worker_id.size());
  std::byte* const p = out.data();
  std::fill(out.begin(), out.end(), std::byte{0});
  Store<uint32_t>(p + 0, intro.wire.min);
  Store<uint32_t>(p + 4, intro.wire.max);
  Store<uint64_t>(p + 8, intro.incarnation.value());
  Store<uint64_t>(p + 16, intro.expected.value());
  Store<uint64_t>(p + 24, intro.layout_id);
  Store<uint64_t>(p + 32, intro.numerics_id);
  Store<uint64_t>(p + 40, intro.epoch);
  Store<uint32_t>(p + 48, intro.num_blocks);
  Store<uint32_t>(p + 52, (intro.allow_inexact ? kFlagAllowInexact : 0) |
                              (intro.has_pools ? kFlagHasPools : 0));
  std::memcpy(p + kIntroNonceOffset, intro.nonce.data(), kNonceBytes);
  Store<uint8_t>(p + kIntroIdBytesOffset, static_cast<uint8_t>(intro.worker_id.size()));
  std::memcpy(p + kIntroIdOffset, intro.worker_id.data(), intro.worker_id.size());
}

StatusOr<WireRange> DecodeWireRange(std::span<const std::byte> introduction) {
  if (introduction.size() < 2 * sizeof(uint32_t)) {
    return DataLoss("an introduction of {} bytes", introduction.size());
  }
  const WireRange wire = {Load<uint32_t>(introduction.data()),
                          Load<uint32_t>(introduction.data() + 4)};
  if (wire.min == 0 || wire.min > wire.max) return DataLoss("wire versions {}", ToString(wire));
  return wire;
}

StatusOr<Introduction> DecodeIntroduction(std::span<const std::byte, kIntroductionBytes> bytes) {
  const std::byte* const p = bytes.data();
  Introduction intro;
  BATON_ASSIGN_OR_RETURN(intro.wire, DecodeWireRange(bytes));
  intro.incarnation = Incarnation(Load<uint64_t>(p + 8));
  if (intro.incarnation.value() == 0) return DataLoss("incarnation 0");
  intro.expected = Incarnation(Load<uint64_t>(p + 16));
  intro.layout_id = Load<uint64_t>(p + 24);
  intro.numerics_id = Load<uint64_t>(p + 32);
  intro.epoch = Load<uint64_t>(p + 40);
  intro.num_blocks = Load<uint32_t>(p + 48);
  const uint32_t flags = Load<uint32_t>(p + 52);
  if ((flags & ~(kFlagAllowInexact | kFlagHasPools)) != 0) return DataLoss("flags {:#x}", flags);
  intro.allow_inexact = (flags & kFlagAllowInexact) != 0;
  intro.has_pools = (flags & kFlagHasPools) != 0;
  std::memcpy(intro.nonce.data(), p + kIntroNonceOffset, kNonceBytes);
  const uint8_t id_bytes = Load<uint8_t>(p + kIntroIdBytesOffset);
  if (id_bytes == 0 || id_bytes > kMaxWorkerIdBytes)
    return DataLoss("worker id of {} bytes", id_bytes);
  intro.worker_id.assign(reinterpret_cast<const char*>(p + kIntroIdOffset), id_bytes);
  if (!IsWorkerId(intro.worker_id)) {
    return DataLoss("worker id has a character outside [a-z0-9-]");
  }
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (!std::all_of(p + kIntroIdOffset + id_bytes, p + kIntroductionBytes, is_zero)) {
    return DataLoss("bytes behind the worker id are not 0");
  }
  return intro;
}

HelloProof MakeHelloProof(std::string_view secret, bool by_acceptor,
                          std::span<const std::byte, kIntroductionBytes> hello,
                          std::span<const std::byte, kIntroductionBytes> ack) {
  const std::string_view label =
      by_acceptor ? "baton kv acceptor proof 1" : "baton kv dialler proof 1";
  std::vector<uint8_t> message(label.begin(), label.end());
  const auto append = [&message](std::span<const std::byte> part) {
    const auto* const data = reinterpret_cast<const uint8_t*>(part.data());
    message.insert(message.end(), data, data + part.size());
  };
  append(hello);
  append(ack);
  HelloProof proof{};
  unsigned int proof_bytes = 0;
  // A null key would mean "keep the former key" to OpenSSL.
  const char* const key = secret.empty() ? "" : secret.data();
  const unsigned char* const result =
      HMAC(EVP_sha256(), key, static_cast<int>(secret.size()), message.data(), message.size(),
           proof.data(), &proof_bytes);
  BATON_CHECK(result != nullptr && proof_bytes == kProofBytes, "HMAC-SHA256 gave {} bytes",
              proof_bytes);
  return proof;
}

bool SameProof(const HelloProof& a, const HelloProof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace baton::kv
