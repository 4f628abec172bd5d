// Answers of OpenAI's Responses API: one object, or its named events. Plain; one thread at a time.
#ifndef BATON_API_RESPONSES_WRITER_H_
#define BATON_API_RESPONSES_WRITER_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/api/answer_writer.h"
#include "src/api/build_request.h"
#include "src/api/stored_items.h"

namespace baton::api {

// Members of an answer that repeat its request (responses_params.h).
using RepeatedFields = std::vector<std::pair<std::string_view, std::string>>;

// The form that a request gives its answer.
struct ResponsesForm {
  RepeatedFields repeated;
  bool summarizes = false;  // thoughts are the summary of their item, else its content
};

// The writer of one answer. Thoughts are an item of type reasoning with their text, the content is
// a message, and each call is an item of its own. Log-probabilities of a stream stand in its deltas
// alone. `items` gets each item before the client does; null: none is kept.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(AnswerPlan plan, ResponsesForm form,
                                                  std::shared_ptr<StoredItems> items = nullptr);

}  // namespace baton::api

#endif  // BATON_API_RESPONSES_WRITER_H_
