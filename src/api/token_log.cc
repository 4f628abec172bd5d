#include "src/api/token_log.h"

#include <algorithm>

namespace baton::api {
namespace {

constexpr size_t kMinChunk = 64;
constexpr size_t kMaxChunk = 4096;

// Entries of the next chunk: an eighth of those that there are already, so that the answers of many
// choices have small free ends; and whole tokens.
size_t ChunkEntries(size_t num_tokens, size_t num_top) {
  const size_t wanted = std::clamp(num_tokens * num_top / 8, kMinChunk, kMaxChunk);
  return (wanted + num_top - 1) / num_top * num_top;
}

}  // namespace

void TokenLog::Add(const LoggedToken& token) {
  const size_t num_top = token.top_logprobs.size();
  Row& row = rows_.emplace_back();
  row.token = token.token;
  row.logprob = token.logprob;
  row.text_offset = token.text_offset;
  if (num_top == 0) return;
  if (chunks_.empty() || chunks_.back().capacity() - chunks_.back().size() < num_top) {
    chunks_.emplace_back().reserve(ChunkEntries(rows_.size() - 1, num_top));
  }
  std::vector<TokenLogprob>& chunk = chunks_.back();
  row.chunk = static_cast<uint32_t>(chunks_.size() - 1);
  row.first = static_cast<uint16_t>(chunk.size());
  row.num_top = static_cast<uint16_t>(num_top);
  chunk.insert(chunk.end(), token.top_logprobs.begin(), token.top_logprobs.end());
}

LoggedToken TokenLog::at(size_t idx) const {
  const Row& row = rows_[idx];
  LoggedToken token{row.token, row.logprob, {}, row.text_offset};
  if (row.num_top > 0) {
    token.top_logprobs = std::span(chunks_[row.chunk]).subspan(row.first, row.num_top);
  }
  return token;
}

size_t TokenLog::memory_bytes() const {
  size_t bytes = rows_.size() * sizeof(Row) + chunks_.capacity() * sizeof(chunks_.front());
  for (const auto& chunk : chunks_) bytes += chunk.capacity() * sizeof(TokenLogprob);
  return bytes;
}

}  // namespace baton::api
