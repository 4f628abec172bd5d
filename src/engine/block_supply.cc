#include "src/engine/block_supply.h"

#include <algorithm>

namespace baton::engine {

using kv::BlockPool;
using kv::ReadyBlocks;

namespace {

// A prompt's step takes longer than giving so much memory, and fills less of it.
constexpr uint64_t kRefillBytes = uint64_t{16} << 20;

uint32_t BlocksPerRefill(const kv::KvLayout& layout) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, kRefillBytes / layout.BlockStride()));
}

}  // namespace

BlockSupply::BlockSupply(EngineState* state)
    : state_(state),
      num_ahead_(state->pool.ready().num_ready),
      num_per_refill_(BlocksPerRefill(*state->kv_view.layout)) {}

bool BlockSupply::Refill() {
  BlockPool& pool = state_->pool;
  if (pool.ready().is_final()) return false;
  ReadyBlocks ready = state_->parts.kv->ready();
  const uint32_t num_new = ready.num_ready - pool.ready().num_ready;
  const bool is_short = pool.num_ready_free() + num_new < num_ahead_ && !ready.is_final();
  if (is_short) ready = state_->parts.kv->Extend(ready.num_ready + num_per_refill_);
  pool.SetReady(ready);
  return is_short;
}

}  // namespace baton::engine
