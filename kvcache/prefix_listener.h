// PrefixListener: hears which blocks and states enter and leave a PrefixIndex, on its thread.
#ifndef BATON_KVCACHE_PREFIX_LISTENER_H_
#define BATON_KVCACHE_PREFIX_LISTENER_H_

#include "kvcache/hash_chain.h"

namespace baton::kv {

// The name of the fixed state after the block of this link.
constexpr ChainLink StateLink(const ChainLink& link) { return {~link.hi, ~link.lo}; }

// A full block, or the state after it, entered a prefix index or left it.
struct PrefixChange {
  ChainLink link;  // of the block, or its StateLink
  bool added = true;
  uint32_t ordinal = 0;  // of the block in its prompt

  friend bool operator==(const PrefixChange&, const PrefixChange&) = default;
};

// See the file comment.
class PrefixListener {
 public:
  virtual ~PrefixListener() = default;
  virtual void OnPrefixChange(const PrefixChange& change) = 0;
};

}  // namespace baton::kv

#endif  // BATON_KVCACHE_PREFIX_LISTENER_H_
