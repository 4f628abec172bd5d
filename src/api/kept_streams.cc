#include "src/api/kept_streams.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "src/base/random.h"

namespace baton::api {

using http::HttpResponder;
using obs::MetricsRegistry;

KeptStreams::KeptStreams(MetricsRegistry* registry, const Clock& clock,
                         const KeptStreamsLimits& limits)
    : clock_(clock),
      limits_(limits),
      num_kept_(registry->AddGauge(
          {"baton_resumable_streams", "Resumable streams that are kept, running and finished."})),
      num_unread_(registry->AddGauge(
          {"baton_resumable_streams_unread", "Running resumable streams that nobody reads."})),
      num_kept_bytes_(registry->AddGauge(
          {"baton_resumable_stream_bytes", "Memory of all kept resumable streams."})),
      num_resumed_(registry->AddCounter(
          {"baton_resumable_reads_total", "Reads of GET /v1/streams/STREAM that were answered."})),
      num_given_up_(registry->AddCounter(
          {"baton_resumable_given_up_total",
           "Answers that were cancelled because nobody read their resumable stream."})) {
  for (size_t i = 0; i < kEvictionReasonNames.size(); ++i) {
    num_evicted_[i] = registry->AddCounter(
        {"baton_resumable_evictions_total", "Resumable streams that are not kept any more."},
        {{"reason", std::string(kEvictionReasonNames[i])}});
  }
}

// Streams give their memory back to this when they go.
KeptStreams::~KeptStreams() {
  Stop();
  MutexLock lock(mutex_);
  const Table table = std::exchange(table_, {});
  const std::deque<Unread> unread = std::exchange(unread_, {});
  lock.Unlock();
}

std::shared_ptr<ResumableStream> KeptStreams::Make(std::string tenant,
                                                   std::shared_ptr<HttpResponder> reader) {
  auto stream =
      std::make_shared<ResumableStream>(this, RandomRequestUid().ToHex(), std::move(tenant));
  stream->SetFirstReader(std::move(reader));
  return stream;
}

std::shared_ptr<ResumableStream> KeptStreams::Find(const std::string& name) {
  Sweep();
  MutexLock lock(mutex_);
  const auto found = table_.find(name);
  return found == table_.end() ? nullptr : found->second;
}

void KeptStreams::Add(std::shared_ptr<ResumableStream> stream) {
  MutexLock lock(mutex_);
  const std::string name = stream->name();
  table_.emplace(name, std::move(stream));
  ShowLocked();
  lock.Unlock();
  changed_.NotifyAll();
}

void KeptStreams::Remove(const std::string& name) {
  std::shared_ptr<ResumableStream> removed;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  DropUnreadLocked(name, std::numeric_limits<uint64_t>::max());
  const auto finished = std::find_if(finished_.begin(), finished_.end(),
                                     [&](const Finished& entry) { return entry.name == name; });
  removed = finished == finished_.end() ? TakeLocked(name) : TakeFinishedLocked(finished);
  ShowLocked();
}

std::shared_ptr<ResumableStream> KeptStreams::TakeLocked(const std::string& name) {
  const auto found = table_.find(name);
  if (found == table_.end()) return nullptr;
  std::shared_ptr<ResumableStream> taken = std::move(found->second);
  table_.erase(found);
  return taken;
}

void KeptStreams::OnLost(std::shared_ptr<ResumableStream> stream, uint64_t reader) {
  const std::shared_ptr<ResumableStream> lost = stream;
  Unread first{stream, reader};
  MutexLock lock(mutex_);
  // It may have ended meanwhile, or lost its text: then nobody waits for it here.
  if (!table_.contains(stream->name())) return;
  if (!is_draining_) {
    ++shares_[stream->tenant()].num_unread;
    unread_.push_back({std::move(stream), reader, clock_.NowUs()});
    first = {};
    if (unread_.size() > limits_.max_unread) first = TakeUnreadOfLargestLocked();
    ShowLocked();
  }
  lock.Unlock();
  if (first.stream != nullptr) first.stream->GiveUpUnread(first.reader);
  // Its end, or its next reader, may have been told of before this.
  if (!lost->IsUnread(reader)) OnFound(lost->name(), reader + 1);
}

// A reader that came and went may be told of before the one that it replaced: only what is older
// than the reader goes.
void KeptStreams::OnFound(const std::string& name, uint64_t reader) {
  MutexLock lock(mutex_);
  DropUnreadLocked(name, reader);
  ShowLocked();
}

void KeptStreams::DropUnreadLocked(const std::string& name, uint64_t before) {
  std::erase_if(unread_, [&](const Unread& entry) BATON_REQUIRES(mutex_) {
    const bool drops = entry.stream->name() == name && entry.reader < before;
    if (drops) --shares_[entry.stream->tenant()].num_unread;
    return drops;
  });
}

KeptStreams::Unread KeptStreams::TakeUnreadLocked(std::deque<Unread>::iterator entry) {
  Unread taken = std::move(*entry);
  unread_.erase(entry);
  --shares_[taken.stream->tenant()].num_unread;
  return taken;
}

KeptStreams::Unread KeptStreams::TakeUnreadOfLargestLocked() {
  auto largest = unread_.begin();
  size_t most = 0;
  for (auto entry = unread_.begin(); entry != unread_.end(); ++entry) {
    const size_t num_unread = shares_[entry->stream->tenant()].num_unread;
    if (num_unread > most) largest = entry;
    most = std::max(most, num_unread);
  }
  return TakeUnreadLocked(largest);
}

std::shared_ptr<ResumableStream> KeptStreams::TakeFinishedLocked(
    std::deque<Finished>::iterator entry) {
  std::shared_ptr<ResumableStream> taken = TakeLocked(entry->name);
  --entry->share->num_finished;
  finished_.erase(entry);
  return taken;
}

// A stream that somebody still reads would not give its memory back at once.
std::shared_ptr<ResumableStream> KeptStreams::TakeFinishedOfLargestLocked() {
  auto largest = finished_.end();
  for (auto entry = finished_.begin(); entry != finished_.end(); ++entry) {
    const bool holds_more =
        largest == finished_.end() || entry->share->num_bytes > largest->share->num_bytes;
    if (holds_more && table_.at(entry->name).use_count() == 1) largest = entry;
  }
  return largest == finished_.end() ? nullptr : TakeFinishedLocked(largest);
}

void KeptStreams::DropEmptySharesLocked() {
  std::erase_if(shares_, [](const auto& entry) {
    const Share& share = entry.second;
    return share.num_bytes == 0 && share.num_unread == 0 && share.num_finished == 0;
  });
}

void KeptStreams::OnFinished(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = table_.find(name);
  if (found == table_.end()) return;
  DropUnreadLocked(name, std::numeric_limits<uint64_t>::max());
  Share& share = shares_[found->second->tenant()];
  ++share.num_finished;
  finished_.push_back({name, clock_.NowUs(), &share});
  ShowLocked();
}

bool KeptStreams::TryGrow(const std::string& tenant, size_t num_bytes) {
  while (true) {
    std::shared_ptr<ResumableStream> evicted;  // gives its memory back before the next turn
    MutexLock lock(mutex_);
    if (num_bytes_ + num_bytes <= limits_.max_bytes) {
      num_bytes_ += num_bytes;
      shares_[tenant].num_bytes += num_bytes;
      ShowLocked();
      return true;
    }
    evicted = TakeFinishedOfLargestLocked();
    if (evicted == nullptr) return false;
    ShowLocked();
    lock.Unlock();
    CountEviction(EvictionReason::kRoom);
  }
}

void KeptStreams::Shrink(const std::string& tenant, size_t num_bytes) {
  MutexLock lock(mutex_);
  num_bytes_ -= num_bytes;
  shares_[tenant].num_bytes -= num_bytes;
  ShowLocked();
}

void KeptStreams::ShowLocked() {
  num_kept_->Set(static_cast<double>(table_.size()));
  num_unread_->Set(static_cast<double>(unread_.size()));
  num_kept_bytes_->Set(static_cast<double>(num_bytes_));
}

void KeptStreams::Sweep() {
  const int64_t now_us = clock_.NowUs();
  std::vector<Unread> due;
  std::vector<std::shared_ptr<ResumableStream>> old;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  while (!unread_.empty() && unread_.front().since_us + limits_.unread_us <= now_us) {
    due.push_back(TakeUnreadLocked(unread_.begin()));
  }
  while (!finished_.empty() && finished_.front().at_us + limits_.keep_us <= now_us) {
    old.push_back(TakeFinishedLocked(finished_.begin()));
  }
  DropEmptySharesLocked();
  if (!due.empty() || !old.empty()) ShowLocked();
  lock.Unlock();
  for (size_t i = 0; i < old.size(); ++i) CountEviction(EvictionReason::kAge);
  for (const Unread& entry : due) entry.stream->GiveUpUnread(entry.reader);
}

void KeptStreams::BeginDrain() {
  MutexLock lock(mutex_);
  is_draining_ = true;
  const std::deque<Unread> unread = std::exchange(unread_, {});
  for (const Unread& entry : unread) --shares_[entry.stream->tenant()].num_unread;
  ShowLocked();
  lock.Unlock();
  for (const Unread& entry : unread) entry.stream->GiveUpUnread(entry.reader);
}

void KeptStreams::Watch() {
  thread_ = Thread("streams", [this] { Run(); });
}

void KeptStreams::Run() {
  MutexLock lock(mutex_);
  while (!is_stopped_) {
    if (table_.empty()) {
      changed_.Wait(mutex_);
      continue;
    }
    changed_.WaitUntil(
        mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(kSweepIntervalMs));
    lock.Unlock();
    Sweep();
    lock.Lock();
  }
}

void KeptStreams::Stop() {
  MutexLock lock(mutex_);
  is_stopped_ = true;
  lock.Unlock();
  changed_.NotifyAll();
  thread_.Join();
}

}  // namespace baton::api
