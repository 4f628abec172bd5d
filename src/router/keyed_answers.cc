#include "src/router/keyed_answers.h"

#include <algorithm>
#include <utility>

#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/router/router_core.h"

namespace baton::router {

using limits::kMaxPendingTokens;
using obs::BatonMetrics;
using obs::KeyedLoss;
using obs::KeyedResult;
using obs::KeyedState;

class KeyedAnswers::Recorder final : public ResponseSink {
 public:
  Recorder(KeyedAnswers* table, RequestUid generation) : table_(table), generation_(generation) {}
  void OnTaken() override { table_->OnTaken(generation_); }
  void OnToken(const TokenOutput& token) override { table_->OnToken(generation_, token); }
  void OnFinished(const GenerateResult& result) override {
    table_->OnFinished(generation_, result);
  }
  void OnFailed(const RequestError& error) override { table_->OnFailed(generation_, error); }
  // The log takes everything at once; its size has limits of its own.
  size_t buffered_bytes() const override { return 0; }
  const RequestError* own_failure() const override { return table_->OwnFailure(generation_); }
  bool TriesAgain(const RequestError& error) override {
    return table_->TriesAgain(generation_, error);
  }

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
  const size_t num_of_key = entry == nullptr ? 0 : entry->readers.size();
  if (num_readers() >= limits_.max_readers || num_of_key >= limits_.max_readers_per_key) {
    return Refuse(*sink, PlainError(ErrorCode::kQueueFull));
  }
  Reader reader;
  reader.uid = uid;
  reader.sink = std::move(sink);
  reader.deadline_us =
      request.timeout_us > 0 ? request.received_us + request.timeout_us : INT64_MAX;
  reader.past_deadline = DeadlineError(request.fields.timeout, request.timeout_us);
  if (entry == nullptr) {
    Start(std::move(reader), std::move(request), now_us);
  } else {
    Join(*entry, std::move(reader), now_us);
  }
  Report();
}

void KeyedAnswers::Refuse(ResponseSink& sink, const RequestError& error) {
  if (!sink.TriesAgain(error)) metrics_->CountRequest(HttpStatusOf(error.code));
  sink.OnFailed(error);
}

void KeyedAnswers::Start(Reader reader, GenerateRequest request, int64_t now_us) {
  metrics_->CountKeyed(KeyedResult::kNew);
  MakeRoom(limits_.max_entries - 1);
  const RequestUid generation = RandomRequestUid();
  auto owned = std::make_unique<Entry>();
  Entry& entry = *owned;
  entry.uid = generation;
  entry.key = request.key;
  bytes_ += BaseBytes(entry);
  by_scope_.emplace(entry.key->scope, generation);
  entries_.emplace(generation, std::move(owned));
  AddReader(entry, std::move(reader));
  request.timeout_us = entry.key->timeout_us;
  // May end at once, and the entry with it.
  generations_->StartGeneration(generation, std::move(request),
                                std::make_shared<Recorder>(this, generation), now_us);
}

void KeyedAnswers::Join(Entry& entry, Reader reader, int64_t now_us) {
  metrics_->CountKeyed(KeyedResult::kJoined);
  // A finished answer moves to the end of those that are forgotten; an orphan has a reader again.
  SetState(entry, entry.state == KeyedState::kFinished ? KeyedState::kFinished : KeyedState::kLive,
           now_us);
  AddReader(entry, std::move(reader));
}

void KeyedAnswers::AddReader(Entry& entry, Reader reader) {
  reader.sink->OnAccepted(entry.key->name);
  if (entry.is_taken) reader.sink->OnTaken();
  reader.entry = &entry;
  reader.fed = num_ticks_;
  entry.readers.push_back(&readers_.emplace(reader.uid, std::move(reader)).first->second);
}

void KeyedAnswers::OnTaken(RequestUid generation) {
  Entry& entry = *Find(generation);
  entry.is_taken = true;
  for (Reader* reader : entry.readers) reader->sink->OnTaken();
}

void KeyedAnswers::OnToken(RequestUid generation, const TokenOutput& token) {
  Entry& entry = *Find(generation);
  const uint64_t position = entry.log.end();
  const size_t before = entry.log.bytes();
  entry.log.Add(token);
  bytes_ += entry.log.bytes() - before;
  // Whoever lags behind goes on in Tick.
  for (Reader* reader : entry.readers) {
    if (reader->next == position) DeliverNext(*reader);
  }
  if (!entry.remembered) return Trim(entry);
  MakeRoom(limits_.max_entries);
  if (entry.log.bytes() > limits_.max_answer_bytes || bytes_ > limits_.max_bytes) LetGo(entry);
}

// False: the reader is paused.
bool KeyedAnswers::DeliverNext(Reader& reader) {
  if (reader.pause.BeginIfSlow(reader.sink->buffered_bytes(), now_us_)) return false;
  reader.entry->log.Deliver(reader.next++, *reader.sink);
  return true;
}

void KeyedAnswers::OnFinished(RequestUid generation, const GenerateResult& result) {
  Entry& entry = *Find(generation);
  const size_t before = entry.log.bytes();
  entry.log.Finish(result);
  bytes_ += entry.log.bytes() - before;
  SetState(entry, KeyedState::kFinished, now_us_);
  if (!entry.remembered && entry.readers.empty()) return Erase(generation);
  std::vector<Reader*> done;
  for (Reader* reader : entry.readers) {
    if (reader->next == entry.log.end()) done.push_back(reader);
  }
  for (Reader* reader : done) {
    reader->sink->OnFinished(result);
    RemoveReader(*reader);  // of an entry without a key: the last one ends it
  }
  MakeRoom(limits_.max_entries);
  Report();
}

void KeyedAnswers::OnFailed(RequestUid generation, const RequestError& error) {
  std::vector<std::shared_ptr<ResponseSink>> sinks;
  for (Reader* reader : Find(generation)->readers) {
    const auto node = readers_.extract(reader->uid);
    sinks.push_back(node.mapped().sink);
  }
  Erase(generation);
  for (const auto& sink : sinks) sink->OnFailed(error);
  Report();
}

bool KeyedAnswers::TriesAgain(RequestUid generation, const RequestError& error) {
  const std::vector<Reader*>& readers = Find(generation)->readers;
  size_t num_again = 0;
  for (Reader* reader : readers) num_again += reader->sink->TriesAgain(error) ? 1 : 0;
  return num_again > 0 && num_again == readers.size();
}

const RequestError* KeyedAnswers::OwnFailure(RequestUid generation) {
  const Entry& entry = *Find(generation);
  if (entry.readers.size() == 1) return entry.readers.front()->sink->own_failure();
  return entry.readers.empty() && entry.refused ? &*entry.refused : nullptr;
}

bool KeyedAnswers::Leave(RequestUid uid, int64_t now_us) {
  const auto found = readers_.find(uid);
  if (found == readers_.end()) return false;
  now_us_ = std::max(now_us_, now_us);
  const RequestError* const own = found->second.sink->own_failure();
  found->second.entry->refused = own == nullptr ? std::nullopt : std::optional(*own);
  EndReader(found->second, PlainError(ErrorCode::kCancelled));
  Report();
  return true;
}

// May erase its entry.
void KeyedAnswers::EndReader(Reader& reader, const RequestError& error) {
  reader.sink->OnFailed(error);
  RemoveReader(reader);
}

// May erase its entry.
void KeyedAnswers::RemoveReader(Reader& reader) {
  Entry& entry = *reader.entry;
  std::erase(entry.readers, &reader);
  readers_.extract(reader.uid);  // not erase: the name lies in what goes
  if (!entry.readers.empty()) return;
  const bool runs = entry.state != KeyedState::kFinished;
  if (!entry.remembered) {
    return runs ? generations_->StopGeneration(entry.uid) : Erase(entry.uid);
  }
  if (!runs) return;
  SetState(entry, KeyedState::kOrphaned, now_us_);
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

void KeyedAnswers::ForgiveSilence(int64_t late_us) {
  for (auto& [uid, reader] : readers_) reader.pause.Forgive(late_us);
}

void KeyedAnswers::Tick(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  ++num_ticks_;
  while (!orphans_.empty()) {
    const RequestUid oldest = orphans_.front();
    if (now_us - Find(oldest)->since_us < limits_.grace_us) break;
    metrics_->CountKeyedLoss(KeyedLoss::kAbandoned);
    generations_->StopGeneration(oldest);
  }
  CheckReaders();
  FeedReaders();
  for (auto it = finished_.begin(); it != finished_.end();) {
    const Entry& entry = *Find(*it++);
    if (now_us - entry.since_us < limits_.keep_us) break;
    if (entry.readers.empty()) Erase(entry.uid);
  }
  Report();
}

// Ends those whose time is over, and the pauses of those who have caught up.
void KeyedAnswers::CheckReaders() {
  std::vector<std::pair<RequestUid, RequestError>> over;
  for (auto& [uid, reader] : readers_) {
    if (std::optional<RequestError> error = EndOf(reader))
      over.emplace_back(uid, *std::move(error));
  }
  for (const auto& [uid, error] : over) EndReader(readers_.at(uid), error);
}

std::optional<RequestError> KeyedAnswers::EndOf(Reader& reader) {
  const Entry& entry = *reader.entry;
  if (now_us_ >= reader.deadline_us) return reader.past_deadline;
  if (!entry.remembered && entry.log.end() - reader.next > kMaxPendingTokens) {
    return PlainError(ErrorCode::kSlowClient);
  }
  const bool reads = !reader.pause.on() || reader.pause.Look(reader.sink->buffered_bytes(), now_us_,
                                                             limits_.slow_client_us);
  if (reads) return std::nullopt;
  return PlainError(ErrorCode::kSlowClient);
}

// A reader that lags behind a live generation is a client that waits for its next token. A replay
// is late anyway. The quarter keeps the finished ones moving whatever the live ones do.
void KeyedAnswers::FeedReaders() {
  std::vector<Turn> of_live;
  std::vector<Turn> of_finished;
  for (const auto& [uid, reader] : readers_) {
    const AnswerLog& log = reader.entry->log;
    const bool is_finished = log.result().has_value();
    if (reader.pause.on() || (reader.next == log.end() && !is_finished)) continue;
    (is_finished ? of_finished : of_live).push_back({reader.fed, uid});
  }
  const uint32_t kept = of_finished.empty() ? 0 : kReplayPerTick / 4;
  const uint32_t left = Feed(std::move(of_live), kReplayPerTick - kept);
  Feed(std::move(of_finished), kept + left);
}

// Feeds readers in turn, and returns the part of the budget that is left.
uint32_t KeyedAnswers::Feed(std::vector<Turn> turns, uint32_t budget) {
  std::sort(turns.begin(), turns.end());
  const size_t equal_share = budget / std::max<size_t>(turns.size(), 1);
  const uint32_t share = std::max(static_cast<uint32_t>(equal_share), kReplayMinShare);
  for (const Turn& turn : turns) {
    if (budget == 0) break;
    // A token may cost more than is left.
    budget -= std::min(budget, Replay(readers_.at(turn.reader), std::min(share, budget)));
  }
  return budget;
}

// Feeds a reader until that cost `limit` or more; what it cost. The reader may end with it.
uint32_t KeyedAnswers::Replay(Reader& reader, uint32_t limit) {
  Entry& entry = *reader.entry;
  reader.fed = num_ticks_;
  uint32_t cost = 0;
  while (cost < limit && reader.next < entry.log.end()) {
    const uint32_t next_cost = entry.log.CostAt(reader.next);
    if (!DeliverNext(reader)) break;
    cost += next_cost;
  }
  if (reader.next == entry.log.end() && entry.log.result().has_value()) {
    reader.sink->OnFinished(*entry.log.result());
    RemoveReader(reader);
  } else if (!entry.remembered) {
    Trim(entry);
  }
  return cost;
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

// The answer is too large to be remembered: its key is free again. An answer that nobody reads now
// ends with its grace: a generation cannot be stopped while it tells a token.
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
  for (const Reader* reader : entry.readers) next = std::min(next, reader->next);
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

// An entry with its key, its names and its places in the tables, without its log's tokens.
size_t KeyedAnswers::BaseBytes(const Entry& entry) {
  // Nodes of two maps and a list, pointers to 16 readers, 576 bytes of an empty deque.
  constexpr size_t kTables = 1024;
  const IdempotencyKey& key = *entry.key;
  return sizeof(Entry) + sizeof(IdempotencyKey) + kTables + key.scope.capacity() +
         key.name.id.capacity() + key.name.request_id.capacity();
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

}  // namespace baton::router
