// SamplerState: what the sampler must remember of one choice: which tokens its prompt held and how
// often each was output. A pure function of (params, prompt, output), so that it can be rebuilt
// anywhere. Owned by one thread.
#ifndef BATON_MODEL_SAMPLER_STATE_H_
#define BATON_MODEL_SAMPLER_STATE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/ids.h"
#include "src/wire/sampling_params.h"

namespace baton::model {

// History of one choice; see the file comment. Keeps nothing but a counter when no penalty is set.
class SamplerState {
 public:
  // A token that the choice has seen.
  struct Seen {
    TokenId token = 0;
    uint32_t num_output = 0;  // times it was output; 0 = in the prompt only
  };

  // Takes all memory that Append will ever need: `max_output` tokens may be appended.
  SamplerState(const wire::SamplingParams& params, std::span<const TokenId> prompt,
               uint32_t max_output);

  // Records an output token. No allocation. At most max_output times.
  void Append(TokenId token);

  uint32_t num_output() const { return num_output_; }  // = output index of the next token
  // Each token once, in order of first appearance; empty when no penalty is set.
  std::span<const Seen> seen() const { return seen_; }

 private:
  // The entry of `token`, added when absent.
  Seen& Find(TokenId token);

  bool keeps_tokens_;
  uint32_t num_output_ = 0;
  std::vector<Seen> seen_;
  // Open-addressing index of seen_: slot -> index + 1, 0 = empty; a power of two, at most half
  // full.
  std::vector<uint32_t> slots_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_SAMPLER_STATE_H_
