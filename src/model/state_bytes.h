// The bytes of fixed states in the blocks that hold them (StateMap). Private to src/model; pure.
#ifndef BATON_MODEL_STATE_BYTES_H_
#define BATON_MODEL_STATE_BYTES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvcache/kv_layout.h"
#include "src/model/model_config.h"
#include "src/model/state_map.h"

namespace baton::model {

// Bytes [begin, end) of one slice of all blocks of a state, taken one after the other.
struct StateBytes {
  uint32_t slice = 0;
  size_t begin = 0;
  size_t end = 0;
};

inline StateBytes BytesOf(const StatePlace& place, const ModelConfig& config) {
  return {place.slice, place.offset, place.offset + config.delta.state_bytes()};
}

// Calls visit(block, first byte in its slice, bytes) for each block of the state
// that has some of them, by its place among them.
template <typename Visitor>
void ForEachPart(const kv::KvLayout& layout, const StateBytes& bytes, Visitor&& visit) {
  const size_t slice_bytes = layout.SliceBytes();
  for (size_t at = bytes.begin; at < bytes.end;) {
    const size_t within = at % slice_bytes;
    const size_t size = std::min(slice_bytes - within, bytes.end - at);
    visit(static_cast<uint32_t>(at / slice_bytes), within, size);
    at += size;
  }
}

// Every element is finite. Blocks hold whole elements.
inline bool HasNumbers(const std::byte* data, size_t size) {
  constexpr uint32_t kExponent = 0x7f80'0000;
  uint32_t num_bad = 0;
  for (size_t i = 0; i < size; i += sizeof(uint32_t)) {
    uint32_t bits;
    std::memcpy(&bits, data + i, sizeof(bits));
    num_bad += (bits & kExponent) == kExponent ? 1 : 0;
  }
  return num_bad == 0;
}

}  // namespace baton::model

#endif  // BATON_MODEL_STATE_BYTES_H_
