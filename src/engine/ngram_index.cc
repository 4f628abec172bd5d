#include "src/engine/ngram_index.h"

#include <algorithm>
#include <bit>

#include "src/base/check.h"

namespace baton::engine {
namespace {

// At most half of the slots are taken: there are at most `window` pairs.
size_t NumSlots(uint32_t window) { return std::bit_ceil(size_t{window} * 2); }

// Fibonacci hashing of a pair (Knuth, The Art of Computer Programming 3, 6.4).
size_t Hash(TokenId a, TokenId b) {
  const uint64_t pair = uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
  return static_cast<size_t>((pair * 0x9e3779b97f4a7c15u) >> 32);
}

}  // namespace

NgramIndex::NgramIndex(uint32_t window)
    : window_(std::min(window, kMaxWindow)), slots_(NumSlots(window_), 0), earlier_(window_, 0) {
  BATON_CHECK(window >= 4, "a window of {} tokens", window);
}

size_t NgramIndex::BytesFor(uint32_t window) {
  const uint32_t used = std::min(window, kMaxWindow);
  return (NumSlots(used) + used) * sizeof(uint32_t);
}

uint32_t& NgramIndex::SlotOf(std::span<const TokenId> tokens, uint32_t end) {
  const TokenId a = tokens[end - 2];
  const TokenId b = tokens[end - 1];
  const size_t mask = slots_.size() - 1;
  size_t slot = Hash(a, b) & mask;
  while (slots_[slot] != 0 && (tokens[slots_[slot] - 2] != a || tokens[slots_[slot] - 1] != b)) {
    slot = (slot + 1) & mask;
  }
  return slots_[slot];
}

void NgramIndex::Insert(std::span<const TokenId> tokens, uint32_t end) {
  uint32_t& latest = SlotOf(tokens, end);
  earlier_[end - first_end_] = latest;
  latest = end;
}

void NgramIndex::Shift(std::span<const TokenId> tokens) {
  std::fill(slots_.begin(), slots_.end(), 0u);
  first_end_ = next_end_ - window_ / 2;
  for (uint32_t end = first_end_; end < next_end_; ++end) Insert(tokens, end);
}

void NgramIndex::SkipTo(uint32_t size) {
  if (size <= first_end_) return;
  const uint32_t step = window_ - window_ / 2;  // first_end_ moves by so many in a Shift
  const uint32_t num_new = size - first_end_;   // ends that would be kept without a Shift
  if (num_new <= window_ + step) return;
  const uint32_t num_shifts = (num_new - window_ - 1) / step + 1;
  std::fill(slots_.begin(), slots_.end(), 0u);
  first_end_ += num_shifts * step;
  next_end_ = first_end_;
}

NgramIndex::Place NgramIndex::Find(std::span<const TokenId> tokens) {
  const auto size = static_cast<uint32_t>(tokens.size());
  Place best;
  uint32_t end = SlotOf(tokens, size);
  for (uint32_t visited = 0; end != 0 && visited < kMaxVisited; ++visited) {
    uint32_t match = 2;
    while (match < std::min(end, kMaxMatch) && tokens[end - 1 - match] == tokens[size - 1 - match])
      ++match;
    if (match > best.num_agreeing) best = {end, match};
    end = earlier_[end - first_end_];
  }
  return best;
}

uint32_t NgramIndex::Guess(std::span<const TokenId> tokens, uint32_t max_tokens,
                           std::vector<TokenId>* out) {
  const auto size = static_cast<uint32_t>(tokens.size());
  SkipTo(size);
  // The text's own end is not an earlier place: it is inserted once the text goes on.
  for (; next_end_ < size; ++next_end_) {
    if (next_end_ - first_end_ == window_) Shift(tokens);
    Insert(tokens, next_end_);
  }
  const Place place = size < 3 ? Place() : Find(tokens);
  if (place.end == 0) return 0;
  const size_t begin = out->size();
  for (uint32_t i = 0; i < max_tokens; ++i) {
    const uint32_t from = place.end + i;
    const TokenId guess = from < size ? tokens[from] : (*out)[begin + (from - size)];
    out->push_back(guess);
  }
  return place.num_agreeing;
}

}  // namespace baton::engine
