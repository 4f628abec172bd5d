// PromptLogs: the log-probabilities of a stream's prompts, from the worker's word until every
// choice of their prompt has its first event. They are brought into the stream's own form T once
// for all choices of a prompt; large ones on a thread of the API's (ApiWorkers::Write).
//
// Router's thread, but for is_building, which any thread may ask, and the building itself. While it
// is true the sink says that much is buffered, so that the router waits with the first token.
#ifndef BATON_API_PROMPT_LOGS_H_
#define BATON_API_PROMPT_LOGS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/api/answer_budget.h"
#include "src/api/api_workers.h"
#include "src/api/build_request.h"
#include "src/router/submit.h"

namespace baton::api {

// See the file comment.
template <typename T>
class PromptLogs {
 public:
  // Makes the form of one prompt; `log` null: the prompt is one token. Any thread, at most one call
  // for each prompt.
  using Build = std::function<T(uint32_t prompt, const router::PromptLogprobs* log)>;

  // `plan` and `workers` outlive this.
  PromptLogs(const AnswerPlan& plan, ApiWorkers* workers, Build build)
      : plan_(plan),
        workers_(workers),
        build_(std::move(build)),
        prompts_(plan.prompts.size()),
        num_unopened_prompts_(plan.prompts.size()) {
    for (Prompt& prompt : prompts_) prompt.num_unopened = plan.num_choices;
  }

  // Takes what is reserved for all prompts, until all choices are open.
  void Keep(AnswerRoom room) { room_ = std::move(room); }

  // `keeper` owns this and what `build` reads.
  void Set(uint32_t prompt, std::shared_ptr<const router::PromptLogprobs> log,
           std::shared_ptr<const void> keeper) {
    const size_t num_bytes = (log->rows.size() + log->top.size()) * kBytesOfEntry;
    const auto built = std::make_shared<Built>();
    built->log = std::move(log);
    prompts_[prompt].built = built;
    num_building_.fetch_add(1);
    workers_->Write(num_bytes, [this, prompt, built, keeper = std::move(keeper)] {
      Get(prompt, *built);
      num_building_.fetch_sub(1);
    });
  }
  // True: a build is to be waited for.
  bool is_building() const { return num_building_.load() > 0; }

  // The log-probabilities of the prompt of a choice that opens; valid until OnOpened.
  T& Of(uint32_t prompt) {
    Prompt& found = prompts_[prompt];
    if (found.built == nullptr) found.built = std::make_shared<Built>();
    return Get(prompt, *found.built);
  }
  // One choice of the prompt is left without its first event.
  bool IsLast(uint32_t prompt) const { return prompts_[prompt].num_unopened == 1; }
  // A choice of the prompt has its first event. What is kept goes with the last one.
  void OnOpened(uint32_t prompt) {
    if (--prompts_[prompt].num_unopened > 0) return;
    prompts_[prompt].built = nullptr;
    if (--num_unopened_prompts_ == 0) room_ = {};
  }

 private:
  // About that of a log-probability in both forms: 70 bytes and its token's text.
  static constexpr size_t kBytesOfEntry = 128;

  struct Built {
    std::once_flag once;
    std::shared_ptr<const router::PromptLogprobs> log;  // null: there is none, or it is built
    T form;
  };
  struct Prompt {
    std::shared_ptr<Built> built;  // from Set, or the first choice that opens, until all are open
    uint32_t num_unopened = 0;     // choices without a first event
  };

  T& Get(uint32_t prompt, Built& built) {
    std::call_once(built.once, [&] {
      if (plan_.logs_prompt()) built.form = build_(prompt, built.log.get());
      built.log = nullptr;
    });
    return built.form;
  }

  const AnswerPlan& plan_;
  ApiWorkers* const workers_;
  const Build build_;
  std::vector<Prompt> prompts_;
  size_t num_unopened_prompts_;  // with a choice without a first event
  AnswerRoom room_;
  std::atomic<int> num_building_{0};
};

}  // namespace baton::api

#endif  // BATON_API_PROMPT_LOGS_H_
