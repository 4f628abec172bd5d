#include "src/model/state_map.h"

#include <algorithm>

namespace baton::model {

namespace {

// States of the fullest slice.
uint32_t MostStates(const ModelConfig& config) {
  const uint32_t num_states = config.num_delta_layers();
  if (num_states == 0) return 0;
  return (num_states - 1) / config.num_slices() + 1;
}

void PlaceStates(const ModelConfig& config, StateMap& map) {
  const uint32_t num_slices = config.num_slices();
  const uint64_t most = MostStates(config);
  uint32_t num_left = config.num_delta_layers();
  uint32_t slice = 0;
  uint32_t num_here = 0;
  const auto next_slice = [&] {
    ++slice;
    num_here = 0;
  };
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsDelta(layer)) continue;
    // A slice may be left with room only while the ones after it have room for all that is left.
    const uint32_t wanted = config.FirstSlice(layer);
    while (slice < wanted && (num_slices - slice - 1) * most >= num_left) next_slice();
    if (num_here == most) next_slice();
    map.places[layer] = {slice, num_here * config.delta.state_bytes()};
    map.used_bytes[slice] = ++num_here * config.delta.state_bytes();
    --num_left;
  }
}

}  // namespace

StateMap StateMapOf(const ModelConfig& config) {
  StateMap map;
  map.places.resize(config.num_layers);
  map.used_bytes.resize(config.num_slices());
  map.num_stored.resize(config.num_layers);
  PlaceStates(config, map);
  uint32_t next_slice = config.num_slices();  // of the states of later layers
  for (uint32_t layer = config.num_layers; layer-- > 0;) {
    map.num_stored[layer] = std::min(config.FirstSlice(layer + 1), next_slice);
    if (config.IsDelta(layer)) next_slice = map.places[layer].slice;
  }
  return map;
}

uint32_t StateBlocksOf(const ModelConfig& config, size_t slice_bytes) {
  const size_t bytes = MostStates(config) * config.delta.state_bytes();
  const uint64_t blocks = (bytes + slice_bytes - 1) / slice_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX));
}

}  // namespace baton::model
