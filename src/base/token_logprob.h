// TokenLogprob: a token and how likely it was, as it is sampled, handed off and reported. Pure
// value.
#ifndef BATON_BASE_TOKEN_LOGPROB_H_
#define BATON_BASE_TOKEN_LOGPROB_H_

#include "src/base/ids.h"

namespace baton {

// A token and the natural logarithm of its probability.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // <= 0

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

}  // namespace baton

#endif  // BATON_BASE_TOKEN_LOGPROB_H_
