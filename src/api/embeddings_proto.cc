#include "src/api/embeddings_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/schema.h"

namespace baton::api {

using router::ErrorCode;
using router::GenerateResult;
using router::RequestError;

namespace {

// The text parameters of the table, in the order of the message.
bool StoreTexts(const v1::EmbeddingRequest& message, ApiParams* params, RequestError* error) {
  const std::pair<const char*, const std::string*> texts[] = {
      {"model", &message.model()},
      {"user", &message.user()},
      {"cache_salt", &message.cache_salt()},
      {"request_id", &message.request_id()}};
  for (const auto& [name, text] : texts) {
    if (text->empty()) continue;
    if (!StoreString(*FindParam(Endpoint::kCompletion, name), *text, params, error)) return false;
  }
  return true;
}

// Its number parameters.
bool StoreNumbers(const v1::EmbeddingRequest& message, ApiParams* params, RequestError* error) {
  const auto store = [&](const char* name, int32_t value) {
    return StoreInteger(*FindParam(Endpoint::kCompletion, name), value, params, error);
  };
  if (message.has_timeout_ms() && !store("timeout_ms", message.timeout_ms())) return false;
  return !message.has_priority() || store("priority", message.priority());
}

}  // namespace

bool ReadEmbeddingRequest(const v1::EmbeddingRequest& message, ApiParams* params,
                          RequestError* error) {
  if (!StoreTexts(message, params, error) || !StoreNumbers(message, params, error)) return false;
  const bool has_texts = message.input_size() > 0;
  if (has_texts == (message.input_token_ids_size() > 0)) {
    return Fail(error, has_texts ? ErrorCode::kConflict : ErrorCode::kMissingField, "input",
                "one of input and input_token_ids is set");
  }
  std::vector<ApiPrompt> prompts(
      static_cast<size_t>(has_texts ? message.input_size() : message.input_token_ids_size()));
  if (!CheckPromptCount(prompts.size(), error)) return false;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto idx = static_cast<int>(i);
    if (has_texts) {
      if (message.input(idx).empty()) {
        return Fail(error, ErrorCode::kInvalidValue, fmt::format("input[{}]", i),
                    "at least one token long");
      }
      prompts[i].text = message.input(idx);
    } else {
      const auto& ids = message.input_token_ids(idx).ids();
      prompts[i].token_ids.assign(ids.begin(), ids.end());
    }
  }
  params->max_tokens = 1;
  params->embeds = true;
  if (message.has_dimensions()) params->dimensions = message.dimensions();
  return StorePrompts(std::move(prompts), params, error);
}

void FillResponse(const AnswerPlan& plan, const AnswerCollector& answer,
                  const GenerateResult& result, v1::EmbeddingResponse* out) {
  uint32_t index = 0;
  for (const std::vector<float>& vector : answer.embeddings()) {
    v1::Embedding* const row = out->add_data();
    row->set_index(index++);
    row->mutable_embedding()->Add(vector.begin(), vector.end());
  }
  out->set_model(plan.model->name());
  out->mutable_usage()->set_prompt_tokens(result.num_prompt_tokens);
  out->mutable_usage()->set_total_tokens(result.num_prompt_tokens);
}

}  // namespace baton::api
