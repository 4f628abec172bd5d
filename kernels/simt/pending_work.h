// Work that goes on by itself in a launch on the runner: copies, and the products of warpgroups.
#ifndef BATON_KERNELS_SIMT_PENDING_WORK_H_
#define BATON_KERNELS_SIMT_PENDING_WORK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/simt/site.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace runner {

// A tile that a tensor copy brings.
struct MatrixTile {
  TensorShape shape;
  TileCorner corner;
};

// A copy that has been asked for: it moves `num_valid` bytes and zeroes the rest, or moves a tile.
struct PendingCopy {
  std::byte* to;
  const std::byte* from;
  uint32_t num_valid;
  uint32_t num_bytes;
  uint32_t group;  // of cp_async: how many commits came before, plus one
  const void* code;
  Site site;
  std::optional<MatrixTile> tile = {};
};

// A thread's sums that a wgmma not yet waited for adds to. In their place lie NaNs.
struct SumsInFlight {
  FragmentC* place;
  std::vector<FragmentC> values;
  uint32_t last_group;  // of the products that add to them
};

// The first operand of a wgmma that was not yet waited for, as one thread has it. Its registers
// must stay as they are.
struct OperandInFlight {
  const FragmentA* place;
  FragmentA value;
  uint32_t group;  // of the product
  Site site;
};

// A wgmma that was asked for: sums += a b^T of 16 columns of K, or sums += a b of columns. Group:
// how many commits came before, plus one.
struct PendingProduct {
  uint32_t group;
  uint32_t num_columns;
  const std::byte* a;  // null where the threads have it
  const std::byte* b;
  uint32_t b_tile_bytes;  // between tiles of 64 columns; 0 for rows along K
  bool adds;
  std::vector<FragmentC*> places;  // of each thread of the warpgroup
  std::vector<FragmentA> own_a;    // of each thread, where a is null
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_PENDING_WORK_H_
