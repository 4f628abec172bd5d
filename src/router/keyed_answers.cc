#include "src/router/keyed_answers.h"

#include <algorithm>
#include <utility>

#include "src/base/log.h"
#include "src/router/router_core.h"

namespace baton {

class KeyedAnswers::Recorder final : public ResponseSink {
 public:
  Recorder(KeyedAnswers* table, RequestUid generation) : table_(table), generation_(generation) {}
  void OnToken(const TokenOutput& token) override { table_->OnToken(generation_, token); }
  void OnFinished(const GenerateResult& result) override {
    table_->OnFinished(generation_, result);
  }
  void OnFailed(const RequestError& error) override { table_->OnFailed(generation_, error); }
  // The log takes everything at once; its size has limits of its own.
  size_t buffered_bytes() const override { return 0; }

 private:
  KeyedAnswers* const table_;
  const RequestUid generation_;
};

KeyedAnswers::KeyedAnswers(const KeyedAnswersLimits& limits, Generations* generations,
                           const BatonMetrics* metrics)
    : limits_(limits), generations_(generations), metrics_(metrics) {}

KeyedAnswers::~KeyedAnswers() = default;

void KeyedAnswers::Submit(RequestUid uid, GenerateRequest request,
                          std::shared_ptr<ResponseSink> sink, int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  const auto known = by_scope_.find(request.key->scope);
  Entry* const entry = known == by_scope_.end() ? nullptr : Find(known->second);
  if (entry != nullptr && entry->key->fingerprint != request.key->fingerprint) {
    metrics_->CountKeyed(KeyedResult::kConflict);
    return Refuse(*sink, FieldError(ErrorCode::kKeyReused, request.key->field,
                                    "a new one for each request, and the same for its retries"));
  }
  if (num_readers() >= limits_.max_readers) {
    return Refuse(*sink, PlainError(ErrorCode::kQueueFull));
  }
  if (entry == nullptr) {
    Start(uid, std::move(request), std::move(sink), now_us);
  } else {
    Reader reader;
    reader.uid = uid;
    reader.sink = std::move(sink);
    reader.deadline_us = request.received_us + request.timeout_us;
    Join(*entry, std::move(reader), now_us);
  }
  Report();
}

void KeyedAnswers::Refuse(ResponseSink& sink, const RequestError& error) {
  metrics_->CountRequest(HttpStatusOf(error.code));
  sink.OnFailed(error);
}

void KeyedAnswers::Start(RequestUid uid, GenerateRequest request,
                         std::shared_ptr<ResponseSink> sink, int64_t now_us) {
  metrics_->CountKeyed(KeyedResult::kNew);
  MakeRoom(limits_.max_entries - 1);
  auto entry = std::make_unique<Entry>();
  entry->uid = uid;
  entry->key = request.key;
  Reader& reader = entry->readers.emplace_back();
  reader.uid = uid;
  reader.sink = sink;
  reader.deadline_us = request.received_us + request.timeout_us;
  bytes_ += BaseBytes(*entry);
  by_scope_.emplace(entry->key->scope, uid);
  reader_generation_.emplace(uid, uid);
  sink->OnAccepted(entry->key->name);
  entries_.emplace(uid, std::move(entry));
  // May end at once, and the entry with it.
  generations_->StartGeneration(uid, std::move(request), std::make_shared<Recorder>(this, uid),
                                now_us);
}

void KeyedAnswers::Join(Entry& entry, Reader reader, int64_t now_us) {
  metrics_->CountKeyed(KeyedResult::kJoined);
  reader.sink->OnAccepted(entry.key->name);
  reader_generation_.emplace(reader.uid, entry.uid);
  // A finished answer moves to the end of those that are forgotten; an orphan has a reader again.
  SetState(entry, entry.state == KeyedState::kFinished ? KeyedState::kFinished : KeyedState::kLive,
           now_us);
  entry.readers.push_back(std::move(reader));
}

void KeyedAnswers::OnToken(RequestUid generation, const TokenOutput& token) {
  Entry& entry = *Find(generation);
  const uint64_t position = entry.log.end();
  const size_t before = entry.log.bytes();
  entry.log.Add(token);
  bytes_ += entry.log.bytes() - before;
  // Whoever lags behind goes on in Tick.
  for (Reader& reader : entry.readers) {
    if (reader.next == position) DeliverNext(entry, reader);
  }
  if (!entry.remembered) return Trim(entry);
  MakeRoom(limits_.max_entries);
  if (entry.log.bytes() > limits_.max_answer_bytes || bytes_ > limits_.max_bytes) LetGo(entry);
}

// False: the reader is paused.
bool KeyedAnswers::DeliverNext(Entry& entry, Reader& reader) {
  if (reader.paused) return false;
  const size_t bytes = reader.sink->buffered_bytes();
  if (bytes > kPauseBytes) {
    reader.paused = true;
    reader.paused_bytes = bytes;
    reader.paused_progress_us = now_us_;
    return false;
  }
  entry.log.Deliver(reader.next++, *reader.sink);
  return true;
}

void KeyedAnswers::OnFinished(RequestUid generation, const GenerateResult& result) {
  Entry& entry = *Find(generation);
  entry.log.Finish(result);
  SetState(entry, KeyedState::kFinished, now_us_);
  if (!entry.remembered && entry.readers.empty()) return Erase(generation);
  std::vector<Reader> done;
  for (const Reader& reader : entry.readers) {
    if (reader.next == entry.log.end()) done.push_back(reader);
  }
  for (const Reader& reader : done) {
    reader.sink->OnFinished(result);
    RemoveReader(entry, reader.uid, now_us_);  // of an entry without a key: the last one ends it
  }
  Report();
}

void KeyedAnswers::OnFailed(RequestUid generation, const RequestError& error) {
  const std::vector<Reader> readers = std::move(Find(generation)->readers);
  Erase(generation);
  for (const Reader& reader : readers) {
    reader_generation_.erase(reader.uid);
    reader.sink->OnFailed(error);
  }
  Report();
}

bool KeyedAnswers::Leave(RequestUid uid, int64_t now_us) {
  const auto found = reader_generation_.find(uid);
  if (found == reader_generation_.end()) return false;
  now_us_ = std::max(now_us_, now_us);
  Entry& entry = *Find(found->second);
  FindReader(entry, uid)->sink->OnFailed(PlainError(ErrorCode::kCancelled));
  RemoveReader(entry, uid, now_us_);
  Report();
  return true;
}

// May erase the entry.
void KeyedAnswers::RemoveReader(Entry& entry, RequestUid uid, int64_t now_us) {
  reader_generation_.erase(uid);
  std::erase_if(entry.readers, [&](const Reader& reader) { return reader.uid == uid; });
  if (!entry.readers.empty()) return;
  const bool runs = entry.state != KeyedState::kFinished;
  if (!entry.remembered) {
    return runs ? generations_->StopGeneration(entry.uid) : Erase(entry.uid);
  }
  if (!runs) return;
  SetState(entry, KeyedState::kOrphaned, now_us);
  if (orphans_.size() <= limits_.max_orphans) return;
  metrics_->CountKeyedLoss(KeyedLoss::kAbandoned);
  generations_->StopGeneration(orphans_.front());
}

void KeyedAnswers::SetState(Entry& entry, KeyedState state, int64_t now_us) {
  if (entry.state == KeyedState::kOrphaned) orphans_.erase(entry.place);
  if (entry.state == KeyedState::kFinished) finished_.erase(entry.place);
  entry.state = state;
  entry.since_us = now_us;
  if (state == KeyedState::kOrphaned) entry.place = orphans_.insert(orphans_.end(), entry.uid);
  if (state == KeyedState::kFinished) entry.place = finished_.insert(finished_.end(), entry.uid);
}

void KeyedAnswers::Tick(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  while (!orphans_.empty()) {
    const RequestUid oldest = orphans_.front();
    if (now_us - Find(oldest)->since_us < limits_.grace_us) break;
    metrics_->CountKeyedLoss(KeyedLoss::kAbandoned);
    generations_->StopGeneration(oldest);
  }
  if (!reader_generation_.empty()) {
    std::vector<RequestUid> readers;
    readers.reserve(reader_generation_.size());
    for (const auto& [uid, generation] : reader_generation_) readers.push_back(uid);
    uint32_t budget = kReplayTokensPerTick;
    for (const RequestUid uid : readers) TickReader(uid, now_us, &budget);
  }
  for (auto it = finished_.begin(); it != finished_.end();) {
    const Entry& entry = *Find(*it++);
    if (now_us - entry.since_us < limits_.keep_us) break;
    if (entry.readers.empty()) Erase(entry.uid);
  }
  Report();
}

void KeyedAnswers::TickReader(RequestUid uid, int64_t now_us, uint32_t* budget) {
  const auto found = reader_generation_.find(uid);
  if (found == reader_generation_.end()) return;  // an earlier one ended its generation
  Entry& entry = *Find(found->second);
  Reader& reader = *FindReader(entry, uid);
  RequestError error;
  if (!CheckReader(entry, reader, now_us, &error)) {
    reader.sink->OnFailed(error);
    return RemoveReader(entry, uid, now_us);
  }
  *budget -= Replay(entry, reader, std::min(*budget, kReplayTokensPerReader));
  if (reader.next == entry.log.end() && entry.log.result().has_value()) {
    reader.sink->OnFinished(*entry.log.result());
    return RemoveReader(entry, uid, now_us);
  }
  if (!entry.remembered) Trim(entry);
}

// False: its time is over. Ends a pause when the client has caught up.
bool KeyedAnswers::CheckReader(Entry& entry, Reader& reader, int64_t now_us, RequestError* error) {
  if (now_us >= reader.deadline_us) {
    *error = PlainError(ErrorCode::kDeadlineExceeded);
    return false;
  }
  *error = PlainError(ErrorCode::kSlowClient);
  if (!entry.remembered && entry.log.end() - reader.next > kMaxPendingTokens) return false;
  if (!reader.paused) return true;
  const size_t bytes = reader.sink->buffered_bytes();
  if (bytes <= kResumeBytes) {
    reader.paused = false;
  } else if (bytes < reader.paused_bytes) {
    reader.paused_bytes = bytes;
    reader.paused_progress_us = now_us;
  }
  return !reader.paused || now_us - reader.paused_progress_us < limits_.slow_client_us;
}

// How many tokens were delivered.
uint32_t KeyedAnswers::Replay(Entry& entry, Reader& reader, uint32_t limit) {
  uint32_t num_delivered = 0;
  while (num_delivered < limit && reader.next < entry.log.end() && DeliverNext(entry, reader)) {
    ++num_delivered;
  }
  return num_delivered;
}

// Gives up the answers asked for longest ago until at most `num_entries` and max_bytes are left, or
// only such as somebody reads.
void KeyedAnswers::MakeRoom(size_t num_entries) {
  for (auto it = finished_.begin(); it != finished_.end();) {
    if (entries_.size() <= num_entries && bytes_ <= limits_.max_bytes) return;
    const Entry& entry = *Find(*it++);
    if (!entry.readers.empty()) continue;
    metrics_->CountKeyedLoss(KeyedLoss::kEvicted);
    Erase(entry.uid);
  }
}

// The answer is too large to be remembered: its key is free again. What nobody reads now ends with
// its grace: a generation cannot be stopped while it tells a token.
void KeyedAnswers::LetGo(Entry& entry) {
  BATON_LOG_WARN(
      "request {} ({}): its answer has more than {} bytes, or all answers more than {}; "
      "its idempotency key is forgotten",
      entry.uid, entry.key->name.request_id, limits_.max_answer_bytes, limits_.max_bytes);
  metrics_->CountKeyedLoss(KeyedLoss::kTooLarge);
  by_scope_.erase(entry.key->scope);
  entry.remembered = false;
  Trim(entry);
}

// Without a key nobody can come who needs what all readers have.
void KeyedAnswers::Trim(Entry& entry) {
  uint64_t next = entry.log.end();
  for (const Reader& reader : entry.readers) next = std::min(next, reader.next);
  const size_t before = entry.log.bytes();
  entry.log.DropBefore(next);
  bytes_ -= before - entry.log.bytes();
}

void KeyedAnswers::Erase(RequestUid generation) {
  Entry& entry = *Find(generation);
  if (entry.state == KeyedState::kOrphaned) orphans_.erase(entry.place);
  if (entry.state == KeyedState::kFinished) finished_.erase(entry.place);
  if (entry.remembered) by_scope_.erase(entry.key->scope);
  bytes_ -= BaseBytes(entry) + entry.log.bytes();
  entries_.erase(generation);
}

void KeyedAnswers::Shutdown() {
  while (!entries_.empty()) OnFailed(entries_.begin()->first, PlainError(ErrorCode::kDraining));
}

KeyedAnswers::Entry* KeyedAnswers::Find(RequestUid generation) {
  const auto found = entries_.find(generation);
  return found == entries_.end() ? nullptr : found->second.get();
}

KeyedAnswers::Reader* KeyedAnswers::FindReader(Entry& entry, RequestUid uid) {
  for (Reader& reader : entry.readers) {
    if (reader.uid == uid) return &reader;
  }
  return nullptr;
}

// An entry with its key and its places in the tables, without its log.
size_t KeyedAnswers::BaseBytes(const Entry& entry) {
  constexpr size_t kTables = 256;
  return sizeof(Entry) + sizeof(IdempotencyKey) + entry.key->scope.size() + kTables;
}

void KeyedAnswers::Report() {
  const auto set = [this](KeyedState state, size_t count) {
    metrics_->idempotency_answers[static_cast<size_t>(state)]->Set(static_cast<double>(count));
  };
  set(KeyedState::kLive, entries_.size() - orphans_.size() - finished_.size());
  set(KeyedState::kOrphaned, orphans_.size());
  set(KeyedState::kFinished, finished_.size());
  metrics_->idempotency_bytes->Set(static_cast<double>(bytes_));
}

}  // namespace baton
