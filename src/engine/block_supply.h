// BlockSupply: keeps free blocks with memory ahead of the steps that need them, while a pool still
// gets its memory. A thread of the worker gives it in the background (src/worker/late_work.h). When
// requests take blocks faster, the engine thread gives some itself, so that nothing waits for that
// thread. Engine thread.
#ifndef BATON_ENGINE_BLOCK_SUPPLY_H_
#define BATON_ENGINE_BLOCK_SUPPLY_H_

#include <cstdint>

#include "src/engine/engine_state.h"

namespace baton::engine {

// See the file comment.
class BlockSupply {
 public:
  // As many blocks stay ahead as are ready now.
  explicit BlockSupply(EngineState* state);

  // Tells the pool which blocks have got memory since. True: fewer than stay ahead were free with
  // memory, and up to 16 MiB more have memory now, which took about 5 ms.
  bool Refill();

 private:
  EngineState* const state_;
  const uint32_t num_ahead_;
  const uint32_t num_per_refill_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_BLOCK_SUPPLY_H_
