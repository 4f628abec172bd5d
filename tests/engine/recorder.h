// Recorder: an EngineListener that keeps what it hears by request; and TableWire, a wire format of
// one process. Any thread.
#ifndef BATON_TESTS_ENGINE_RECORDER_H_
#define BATON_TESTS_ENGINE_RECORDER_H_

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "src/engine/engine_types.h"
#include "tests/patience.h"

namespace baton::engine {

// A token as it was reported.
struct SeenToken {
  TokenId token = 0;
  float logprob = 0;
  scheduler::FinishReason finish = scheduler::FinishReason::kNone;
  std::vector<TokenLogprob> top;
  friend bool operator==(const SeenToken&, const SeenToken&) = default;
};

// The log-probability of one token of a prompt.
struct SeenPromptToken {
  uint32_t pos = 0;
  uint32_t rank = 0;
  SeenToken token;
  friend bool operator==(const SeenPromptToken&, const SeenPromptToken&) = default;
};

// Everything that was reported of one request.
struct Record {
  std::map<uint32_t, std::map<uint32_t, SeenToken>> choices;  // by choice, by index
  std::vector<SeenPromptToken> prompt_log;
  std::vector<PrefillProgress> progress;
  std::vector<RequestState> states;
  Status status;
  uint64_t kv_bytes = 0;
  uint32_t cached_tokens = 0;
  kv::TransportKind transport = kv::TransportKind::kAuto;
  uint32_t num_terminal = 0;
  uint32_t num_duplicates = 0;  // of a (choice, index)
  uint32_t retry_after_ms = 0;
  bool retargeted = false;
  FailedPart failed_part = FailedPart::kNotTold;
  std::vector<float> embedding;

  bool ended() const { return num_terminal > 0; }
  RequestState last() const { return states.empty() ? RequestState::kAccepted : states.back(); }
  bool Reached(RequestState state) const {
    return std::find(states.begin(), states.end(), state) != states.end();
  }
  std::vector<SeenToken> Tokens(uint32_t choice) const {
    std::vector<SeenToken> tokens;
    const auto it = choices.find(choice);
    if (it == choices.end()) return tokens;
    for (const auto& [index, token] : it->second) tokens.push_back(token);
    return tokens;
  }
};

inline std::vector<TokenId> IdsOf(const Record& record, uint32_t choice) {
  std::vector<TokenId> ids;
  for (const SeenToken& token : record.Tokens(choice)) ids.push_back(token.token);
  return ids;
}

// See the file comment.
class Recorder : public EngineListener {
 public:
  void OnStepEvents(std::span<const TokenEvent> events) override {
    std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      Record& record = records_[event.key];
      SeenToken seen{event.token, event.logprob, event.finish, {}};
      seen.top.assign(event.top_logprobs.begin(), event.top_logprobs.end());
      if (event.progress.num_tokens > 0) {
        record.progress.push_back(event.progress);
        continue;
      }
      if (event.prompt_pos > 0) {
        record.prompt_log.push_back({event.prompt_pos, event.rank, std::move(seen)});
        continue;
      }
      record.embedding.assign(event.embedding.begin(), event.embedding.end());
      if (!record.choices[event.choice].emplace(event.index, seen).second) ++record.num_duplicates;
      ++num_tokens_;
    }
    changed_.notify_all();
  }
  void OnRequestStatus(const RequestStatus& status) override {
    std::lock_guard lock(mutex_);
    Record& record = records_[status.key];
    record.states.push_back(status.state);
    if (IsTerminal(status.state)) {
      ++record.num_terminal;
      record.status = status.status;
      record.failed_part = status.failed_part;
      record.retry_after_ms = status.retry_after_ms;
    }
    record.retargeted = record.retargeted || status.retargeted;
    record.cached_tokens = std::max(record.cached_tokens, status.cached_tokens);
    if (status.state == RequestState::kVerified) {
      record.kv_bytes = status.kv_bytes;
      record.transport = status.transport;
    }
    changed_.notify_all();
  }

  Record Of(const RequestKey& key) const {
    std::lock_guard lock(mutex_);
    const auto it = records_.find(key);
    return it == records_.end() ? Record{} : it->second;
  }
  uint64_t num_tokens() const {
    std::lock_guard lock(mutex_);
    return num_tokens_;
  }
  // False after a minute, or its multiple in a sanitizer build.
  template <typename Condition>
  bool WaitFor(const RequestKey& key, Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(kPatienceFactor),
                             [&] { return condition(records_[key]); });
  }
  bool WaitEnded(const RequestKey& key) {
    return WaitFor(key, [](const Record& record) { return record.ended(); });
  }

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<RequestKey, Record> records_;
  uint64_t num_tokens_ = 0;
};

// Encodes a message as its number in a table that both ends share.
class TableWire : public HandoffWire {
 public:
  std::string Encode(const kv::HandoffMessage& message) const override {
    std::lock_guard lock(mutex_);
    messages_.push_back(message);
    return std::to_string(messages_.size() - 1);
  }
  StatusOr<kv::HandoffMessage> Decode(std::string_view bytes) const override {
    std::lock_guard lock(mutex_);
    const size_t number = std::stoul(std::string(bytes));
    if (number >= messages_.size()) return InvalidArgument("message {} is unknown", number);
    return messages_[number];
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<kv::HandoffMessage> messages_;
};

}  // namespace baton::engine

#endif  // BATON_TESTS_ENGINE_RECORDER_H_
