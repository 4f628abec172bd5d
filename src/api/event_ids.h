// EventIds: the ids of a resumable stream's server-sent events, STREAM.CHOICE.TOKEN_INDEX. Plain;
// one thread at a time.
//
// Invariants
//  1. Two events of one stream never have the same id. A token's own event has its index (`7`).
//     Further events of that token, such as the role's chunk, the end of a choice or usage, have
//     more and more zeros before it (`07`, `007`): every id reads as a number.
//  2. `data: [DONE]` has no id. It ends the stream for whoever got it, and whoever did not gets it
//     again.
//  3. The ids depend on the tokens and the surface alone.
#ifndef BATON_API_EVENT_IDS_H_
#define BATON_API_EVENT_IDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::api {

// The answer header with the name of a stream that can be resumed.
inline constexpr std::string_view kStreamField = "X-Baton-Stream";

// See the file comment.
class EventIds {
 public:
  // `num_choices`: of all prompts. Events before the first token belong to token 0 of choice 0.
  EventIds(std::string stream, uint32_t num_choices)
      : stream_(std::move(stream)), places_(num_choices) {}

  // The next events belong to this token.
  void GoTo(uint32_t choice, uint32_t token_idx);
  // Gives the events of `events` from byte `begin` on their ids. `is_token`: the last of them is
  // the token's own event.
  void Insert(size_t begin, bool is_token, std::string* events);

  const std::string& stream() const { return stream_; }

 private:
  // Where a choice stands.
  struct Place {
    uint32_t token_idx = 0;
    uint32_t num_others = 0;  // events of this token that have an id, without its own
  };

  const std::string stream_;
  std::vector<Place> places_;  // by choice
  uint32_t choice_ = 0;
};

// True when `id` has the form of an id: a name, a choice and a token index, with dots between them.
bool IsEventId(std::string_view id);
// The STREAM of such an id.
std::string_view StreamOfEventId(std::string_view id);

}  // namespace baton::api

#endif  // BATON_API_EVENT_IDS_H_
