// PoolExchange: what an endpoint hands over and takes in place of arenas, when the blocks of its
// transport lie somewhere else (in the memory of a device). Only who dials hands one over.
#ifndef BATON_KVCACHE_TRANSPORT_POOL_EXCHANGE_H_
#define BATON_KVCACHE_TRANSPORT_POOL_EXCHANGE_H_

#include <cstdint>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton {

// See the file comment. The endpoint's thread.
class PoolExchange {
 public:
  virtual ~PoolExchange() = default;

  // The descriptor that goes with this side's introduction, and the blocks behind it.
  virtual int fd() const = 0;
  virtual uint32_t num_blocks() const = 0;
  // Takes that of a peer which is proven and has the same layout: OnPeerUp follows at once when
  // this is OK, and otherwise the connection is refused (CloseReason::kArena). The descriptor may
  // be anything, or invalid.
  virtual Status Take(Incarnation peer, uint32_t num_blocks, UniqueFd fd) = 0;
};

}  // namespace baton

#endif  // BATON_KVCACHE_TRANSPORT_POOL_EXCHANGE_H_
