#include "src/api/token_log.h"

#include <algorithm>

namespace baton::api {
namespace {

// Entries of a chunk: as many as there are already, so that a short answer takes little.
constexpr size_t kMinChunk = 64;
constexpr size_t kMaxChunk = 4096;

}  // namespace

void TokenLog::Add(const LoggedToken& token) {
  const size_t num_top = token.top_logprobs.size();
  if (chunks_.empty() || chunks_.back().capacity() - chunks_.back().size() < num_top) {
    const size_t wanted = std::clamp(rows_.size() * num_top, kMinChunk, kMaxChunk);
    chunks_.emplace_back().reserve(std::max(wanted, num_top));
  }
  std::vector<TokenLogprob>& chunk = chunks_.back();
  rows_.push_back({.token = token.token,
                   .logprob = token.logprob,
                   .text_offset = token.text_offset,
                   .chunk = static_cast<uint32_t>(chunks_.size() - 1),
                   .first = static_cast<uint16_t>(chunk.size()),
                   .num_top = static_cast<uint16_t>(num_top)});
  chunk.insert(chunk.end(), token.top_logprobs.begin(), token.top_logprobs.end());
}

LoggedToken TokenLog::at(size_t idx) const {
  const Row& row = rows_[idx];
  const std::span<const TokenLogprob> chunk(chunks_[row.chunk]);
  return {row.token, row.logprob, chunk.subspan(row.first, row.num_top), row.text_offset};
}

}  // namespace baton::api
