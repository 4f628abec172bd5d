// The merges of a BPE vocabulary as token ids. Pure; any thread.
#ifndef BATON_TEXT_MERGE_LIST_H_
#define BATON_TEXT_MERGE_LIST_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "src/base/status.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {

// Token text -> id.
using TokenIndex = absl::flat_hash_map<std::string_view, uint32_t>;

// Two tokens and what they become.
struct MergeRule {
  uint32_t left = 0;
  uint32_t right = 0;
  uint32_t result = 0;
};

// `spec.merges` in order, without repetitions. `index` holds the spec's tokens. InvalidArgument
// names the first entry that is not two tokens and a space, or whose parts or result are not
// tokens. An empty part is refused with them: joining it would change nothing, for ever.
StatusOr<std::vector<MergeRule>> ReadMerges(const TokenizerSpec& spec, const TokenIndex& index);

}  // namespace baton::text

#endif  // BATON_TEXT_MERGE_LIST_H_
