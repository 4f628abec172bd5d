#include "src/text/merge_list.h"

#include <string>

#include "absl/container/flat_hash_set.h"

#include "src/base/quoted_text.h"

namespace baton::text {
namespace {

StatusOr<MergeRule> ParseMerge(std::string_view text, size_t rank, const TokenIndex& index) {
  const auto id_of = [&](std::string_view token) -> StatusOr<uint32_t> {
    const auto found = index.find(token);
    if (found != index.end()) return found->second;
    return InvalidArgument("tokenizer merges[{}] is {}, but {} is not a token", rank,
                           QuotedForMessage(text), QuotedForMessage(token));
  };
  // The search begins at 1: the left part may itself begin with a space.
  const size_t space = text.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == text.size()) {
    return InvalidArgument("tokenizer merges[{}] is {}, not two tokens and a space", rank,
                           QuotedForMessage(text));
  }
  const std::string_view left = text.substr(0, space);
  const std::string_view right = text.substr(space + 1);
  MergeRule merge;
  BATON_ASSIGN_OR_RETURN(merge.left, id_of(left));
  BATON_ASSIGN_OR_RETURN(merge.right, id_of(right));
  BATON_ASSIGN_OR_RETURN(merge.result, id_of(std::string(left) + std::string(right)));
  return merge;
}

}  // namespace

StatusOr<std::vector<MergeRule>> ReadMerges(const TokenizerSpec& spec, const TokenIndex& index) {
  std::vector<MergeRule> merges;
  merges.reserve(spec.merges.size());
  absl::flat_hash_set<uint64_t> seen;
  seen.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    BATON_ASSIGN_OR_RETURN(const MergeRule merge, ParseMerge(spec.merges[rank], rank, index));
    if (seen.insert(uint64_t{merge.left} << 32 | merge.right).second) merges.push_back(merge);
  }
  return merges;
}

}  // namespace baton::text
