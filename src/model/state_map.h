// StateMap: where the fixed states of a sequence lie in its state blocks (KvLayout::state_blocks),
// and when a slice of all its blocks is final. Plain data; any thread.
//
// Slice l of the state blocks, taken one after the other, holds whole states of some layers, which
// follow one another from the slice's first byte on.
//
// Invariants
//  1. No slice has more than ceil(states / slices) of them, so a state takes as few blocks as
//     possible whatever the order of the layers is.
//  2. The states of later layers lie in the same slice or in later ones. As far as that and
//     invariant 1 allow, a state lies near the slice of the next layer of attention. Where none
//     follows, it lies near the last slice.
#ifndef BATON_MODEL_STATE_MAP_H_
#define BATON_MODEL_STATE_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/model/model_config.h"

namespace baton::model {

// Where the state of one layer begins.
struct StatePlace {
  uint32_t slice = 0;
  size_t offset = 0;  // bytes, within that slice of all state blocks

  friend bool operator==(const StatePlace&, const StatePlace&) = default;
};

// See the file comment.
struct StateMap {
  std::vector<StatePlace> places;    // [num_layers]; of a layer without a state {}
  std::vector<size_t> used_bytes;    // [num_slices]: of all states of the slice
  std::vector<uint32_t> num_stored;  // [num_layers]: slices that are final once it has stored
};

// The map of any model; without fixed states num_stored alone says something.
StateMap StateMapOf(const ModelConfig& config);

// KvLayout::state_blocks for slices of so many bytes; 0 without fixed states.
uint32_t StateBlocksOf(const ModelConfig& config, size_t slice_bytes);

}  // namespace baton::model

#endif  // BATON_MODEL_STATE_MAP_H_
