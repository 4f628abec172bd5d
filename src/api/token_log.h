// TokenLog: the log-probabilities of one choice whose answer is sent whole. Plain; one thread at a
// time.
//
// Memory: 20 bytes a token and 8 for each alternative, in chunks that never move, so that nothing
// is copied or held twice while an answer grows. The free end of the last chunk comes on top: an
// eighth of the alternatives before it, but at least 64 of them and at most 32 KiB. An earlier
// chunk has a free end only where later tokens have more alternatives than its first one.
#ifndef BATON_API_TOKEN_LOG_H_
#define BATON_API_TOKEN_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "src/base/ids.h"
#include "src/base/token_logprob.h"

namespace baton::api {

// One token with its log-probability and where its text begins; a view.
struct LoggedToken {
  TokenId token = 0;
  float logprob = 0.0f;
  std::span<const TokenLogprob> top_logprobs;  // 0..20, likeliest first
  // Code points of the echoed prompt and of the tokens before it, also of a stop text that the
  // choice's text leaves out; special tokens have none.
  uint32_t text_offset = 0;
};

// See the file comment.
class TokenLog {
 public:
  void Add(const LoggedToken& token);

  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  // Valid as long as this; `idx` < size().
  LoggedToken at(size_t idx) const;
  // With the free ends of chunks.
  size_t memory_bytes() const;
  // Bytes of a token with `num_top` alternatives, without the free ends of chunks.
  static constexpr size_t BytesOf(size_t num_top) { return 20 + 8 * num_top; }

 private:
  struct Row {
    TokenId token = 0;
    float logprob = 0.0f;
    uint32_t text_offset = 0;
    uint32_t chunk = 0;  // with alternatives
    uint16_t first = 0;
    uint16_t num_top = 0;
  };
  static_assert(sizeof(Row) == 20 && sizeof(TokenLogprob) == 8, "see BytesOf");

  std::deque<Row> rows_;
  std::vector<std::vector<TokenLogprob>> chunks_;  // each reserved once
};

}  // namespace baton::api

#endif  // BATON_API_TOKEN_LOG_H_
