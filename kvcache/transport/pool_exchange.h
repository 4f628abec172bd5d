// PoolExchange: what an endpoint hands over and takes in place of arenas, when the blocks of its
// transport lie somewhere else (in the memory of a device). Only who dials hands one over.
#ifndef BATON_KVCACHE_TRANSPORT_POOL_EXCHANGE_H_
#define BATON_KVCACHE_TRANSPORT_POOL_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::kv {

// See the file comment. The endpoint's thread.
class PoolExchange {
 public:
  virtual ~PoolExchange() = default;

  // The descriptors that go with this side's introduction, at most kMaxPassedFds, and the blocks
  // behind them.
  virtual std::vector<int> fds() const = 0;
  virtual uint32_t num_blocks() const = 0;
  // Takes that of a peer which is proven and has the same layout: OnPeerUp follows at once when
  // this is OK, and otherwise the connection is refused (CloseReason::kArena). The descriptors may
  // be anything, as many as kMaxPassedFds, or none.
  virtual Status Take(Incarnation peer, uint32_t num_blocks, std::vector<UniqueFd> fds) = 0;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_POOL_EXCHANGE_H_
