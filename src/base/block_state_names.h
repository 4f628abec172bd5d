// The states of a KV block, as metrics, topology and debug pages name them.
#ifndef BATON_BASE_BLOCK_STATE_NAMES_H_
#define BATON_BASE_BLOCK_STATE_NAMES_H_

#include <array>
#include <string_view>

namespace baton {

// In the order of kv::BlockState, which is that of BlockCounts in worker.proto.
inline constexpr std::array<std::string_view, 9> kBlockStateNames = {
    "free",     "cached",    "computing", "bound",      "exported",
    "reserved", "receiving", "draining",  "quarantined"};

}  // namespace baton

#endif  // BATON_BASE_BLOCK_STATE_NAMES_H_
