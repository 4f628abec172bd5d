// Distinct integer types for ids, so that a block index cannot be passed as a sequence id. Pure
// values; any thread. All hash (absl and std), compare and format as their number.
#ifndef BATON_BASE_IDS_H_
#define BATON_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

#include "src/base/status.h"

namespace baton {

// An integer of type Rep that only equals integers of the same Tag.
template <class Tag, class Rep>
class StrongInt {
 public:
  using RepType = Rep;

  constexpr StrongInt() = default;
  explicit constexpr StrongInt(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }

  friend constexpr auto operator<=>(const StrongInt&, const StrongInt&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const StrongInt& id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Rep value_ = 0;
};

// A sequence inside one worker; never crosses a wire.
using SequenceId = StrongInt<struct SequenceIdTag, uint64_t>;
// Position of a block in its arena, [0, num_blocks).
using BlockIndex = StrongInt<struct BlockIndexTag, uint32_t>;
// One hand-off of one request between one pair of workers; the decode worker chooses it, unique in
// its incarnation.
using TransferId = StrongInt<struct TransferIdTag, uint64_t>;
// Random number drawn at process start; another incarnation voids every old handle.
using Incarnation = StrongInt<struct IncarnationTag, uint64_t>;
// A vocabulary entry, [0, vocab_size). A plain integer: it lives in hot arrays.
using TokenId = int32_t;

// 128-bit random name of a request, made by a router; with the attempt it fences stale messages.
struct RequestUid {
  uint64_t hi = 0;
  uint64_t lo = 0;

  friend constexpr auto operator<=>(const RequestUid&, const RequestUid&) = default;

  // 32 lower-case hexadecimal digits, hi first.
  std::string ToHex() const;
  // Inverse of ToHex; InvalidArgument for anything but 32 hexadecimal digits (either case).
  static StatusOr<RequestUid> FromHex(std::string_view text);

  template <typename H>
  friend H AbslHashValue(H state, const RequestUid& uid) {
    return H::combine(std::move(state), uid.hi, uid.lo);
  }
};

}  // namespace baton

template <class Tag, class Rep>
struct std::hash<baton::StrongInt<Tag, Rep>> {
  size_t operator()(const baton::StrongInt<Tag, Rep>& id) const {
    return std::hash<Rep>()(id.value());
  }
};

template <>
struct std::hash<baton::RequestUid> {
  // The halves are random already, so one of them mixed with the other is a good hash.
  size_t operator()(const baton::RequestUid& uid) const {
    return uid.hi ^ (uid.lo * 0x9e3779b97f4a7c15ull);
  }
};

template <class Tag, class Rep, class Char>
struct fmt::formatter<baton::StrongInt<Tag, Rep>, Char> : fmt::formatter<Rep, Char> {
  template <typename FormatContext>
  auto format(const baton::StrongInt<Tag, Rep>& id, FormatContext& context) const {
    return fmt::formatter<Rep, Char>::format(id.value(), context);
  }
};

template <>
struct fmt::formatter<baton::RequestUid> : fmt::formatter<std::string_view> {
  template <typename FormatContext>
  auto format(const baton::RequestUid& uid, FormatContext& context) const {
    return fmt::formatter<std::string_view>::format(uid.ToHex(), context);
  }
};

#endif  // BATON_BASE_IDS_H_
