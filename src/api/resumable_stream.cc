#include "src/api/resumable_stream.h"

#include <algorithm>
#include <utility>

#include "src/api/kept_streams.h"

namespace baton::api {

using http::HttpClientGone;
using http::HttpHeaders;
using http::HttpResponder;
using http::HttpResponse;
using http::HttpRoom;

ResumableStream::~ResumableStream() {
  if (counted_bytes_ > 0) streams_->Shrink(tenant_, counted_bytes_);
}

std::string ResumableStream::content_type() const {
  MutexLock lock(mutex_);
  return content_type_;
}

void ResumableStream::SetFirstReader(std::shared_ptr<HttpResponder> reader) {
  MutexLock lock(mutex_);
  reader_.responder = reader;
  reader_.number = 1;
  lock.Unlock();
  Watch(reader, 1);
}

// Weak: the connection does not keep the stream, which keeps the connection.
void ResumableStream::Watch(const std::shared_ptr<HttpResponder>& reader, uint64_t number) {
  reader->OnClosed([weak = weak_from_this(), number](HttpClientGone how) {
    if (const auto self = weak.lock()) self->OnReaderClosed(number, how);
  });
}

ResumableStream::Entry ResumableStream::Attach(std::shared_ptr<HttpResponder> reader,
                                               HttpHeaders headers,
                                               std::string_view last_event_id) {
  MutexLock lock(mutex_);
  if (!CanBeReadLocked()) return Entry::kGone;
  // The sink's thread needs the lock for each event. It appends to a piece without moving its text,
  // so this thread searches what stands now without the lock.
  const std::vector<PieceText> texts = TextsLocked();
  lock.Unlock();
  const std::optional<uint64_t> begin = Find(texts, last_event_id);
  if (!begin.has_value()) return Entry::kNoSuchEvent;
  lock.Lock();
  if (!CanBeReadLocked()) return Entry::kGone;
  if (HasEndedLocked() && *begin == end_) return Entry::kNothingLeft;
  const std::shared_ptr<HttpResponder> before = std::move(reader_.responder);
  const uint64_t number = reader_.number + 1;
  headers.Set("Content-Type", content_type_);
  reader_ = {reader, number, std::move(headers), false, false, *begin};
  lock.Unlock();
  streams_->OnFound(name_, number);
  if (before != nullptr) before->Abort();
  Watch(reader, number);
  Pump();
  return Entry::kTaken;
}

std::vector<ResumableStream::PieceText> ResumableStream::TextsLocked() const {
  std::vector<PieceText> texts;
  texts.reserve(pieces_.size());
  for (const std::shared_ptr<Piece>& piece : pieces_) texts.push_back({piece, piece->text});
  return texts;
}

std::optional<uint64_t> ResumableStream::Find(std::span<const PieceText> texts,
                                              std::string_view last_event_id) {
  if (last_event_id.empty()) return 0;
  // JSON has no line break within itself: a line of this form is the id of an event.
  const std::string line = "id: " + std::string(last_event_id) + "\n";
  for (const PieceText& part : texts) {
    const std::string_view text = part.text;
    size_t at = text.find(line);
    while (at != text.npos && at > 0 && text[at - 1] != '\n') at = text.find(line, at + 1);
    if (at != text.npos) return part.piece->begin + text.find("\n\n", at) + 2;
  }
  return std::nullopt;
}

void ResumableStream::OnReaderClosed(uint64_t number, HttpClientGone how) {
  std::shared_ptr<HttpResponder> lost;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  if (reader_.number != number || reader_.responder == nullptr) return;
  lost = std::move(reader_.responder);
  const State state = state_;
  const bool is_kept = is_kept_;
  lock.Unlock();
  if (state > State::kRunning) return;
  if (state == State::kRunning && is_kept) return streams_->OnLost(shared_from_this(), number);
  GiveUp(how);
}

bool ResumableStream::IsUnreadLocked(uint64_t reader) const {
  return state_ == State::kRunning && reader_.number == reader && reader_.responder == nullptr;
}

bool ResumableStream::IsUnread(uint64_t reader) const {
  MutexLock lock(mutex_);
  return IsUnreadLocked(reader);
}

void ResumableStream::GiveUpUnread(uint64_t reader) { GiveUp(HttpClientGone::kLeft, reader); }

void ResumableStream::GiveUp(HttpClientGone how, std::optional<uint64_t> unread) {
  MutexLock lock(mutex_);
  if (HasEndedLocked() || (unread.has_value() && !IsUnreadLocked(*unread))) return;
  const bool was_running = state_ == State::kRunning;
  state_ = State::kGone;
  gone_ = how;
  pieces_.clear();
  const size_t num_bytes = std::exchange(counted_bytes_, 0);
  const std::shared_ptr<HttpResponder> reader = std::move(reader_.responder);
  auto on_closed = std::exchange(on_closed_, nullptr);
  lock.Unlock();
  streams_->Shrink(tenant_, num_bytes);
  streams_->Remove(name_);
  if (was_running) streams_->num_given_up_->Add();
  if (reader != nullptr) reader->Abort();
  if (on_closed) on_closed(how);
}

bool ResumableStream::Respond(HttpResponse response) {
  MutexLock lock(mutex_);
  if (state_ != State::kWaiting) return false;
  state_ = State::kGone;
  const auto unused = std::exchange(on_closed_, nullptr);
  const std::shared_ptr<HttpResponder> reader = std::move(reader_.responder);
  lock.Unlock();
  return reader != nullptr && reader->Respond(std::move(response));
}

bool ResumableStream::StartStream(int status, const HttpHeaders& headers) {
  // First: a stream that is given up meanwhile takes itself out of the table.
  streams_->Add(shared_from_this());
  const bool has_room = streams_->TryGrow(tenant_, KeptStreams::kStreamOverhead);
  MutexLock lock(mutex_);
  if (has_room) counted_bytes_ += KeptStreams::kStreamOverhead;
  const bool is_waiting = state_ == State::kWaiting;
  if (is_waiting) {
    state_ = State::kRunning;
    status_ = status;
    content_type_ = headers.Find("Content-Type").value_or("");
    reader_.headers = headers;
  }
  lock.Unlock();
  if (!is_waiting) streams_->Remove(name_);
  if (!is_waiting) return false;
  if (!has_room) {
    streams_->CountEviction(EvictionReason::kRoom);
    LoseText();
  }
  Pump();
  return true;
}

bool ResumableStream::Write(std::string_view chunk) {
  if (chunk.empty()) return true;
  if (!Keep(chunk)) return false;
  Pump();
  return true;
}

bool ResumableStream::Keep(std::string_view text) {
  MutexLock lock(mutex_);
  if (state_ != State::kRunning) return false;
  if (AppendLocked(text)) return true;
  // The sink alone makes the stream longer, so that nothing else needs this room.
  const size_t num_bytes = std::max(kPieceBytes, text.size());
  const bool was_kept = is_kept_;
  const bool fits = counted_bytes_ + num_bytes <= streams_->limits().max_stream_bytes;
  lock.Unlock();
  const bool has_room = was_kept && fits && streams_->TryGrow(tenant_, num_bytes);
  if (was_kept && !has_room) {
    streams_->CountEviction(fits ? EvictionReason::kRoom : EvictionReason::kSize);
    LoseText();
  }
  lock.Lock();
  const bool is_running = state_ == State::kRunning;
  if (is_running) {
    auto piece = std::make_shared<Piece>();
    piece->begin = end_;
    piece->text.reserve(num_bytes);
    pieces_.push_back(std::move(piece));
    AppendLocked(text);
    if (has_room) counted_bytes_ += num_bytes;
  }
  lock.Unlock();
  if (has_room && !is_running) streams_->Shrink(tenant_, num_bytes);
  return is_running;
}

bool ResumableStream::AppendLocked(std::string_view text) {
  if (pieces_.empty()) return false;
  std::string& last = pieces_.back()->text;
  if (last.size() + text.size() > last.capacity()) return false;
  last.append(text);
  end_ += text.size();
  return true;
}

// The stream cannot be resumed any more. Without a reader nobody is left to get the rest.
void ResumableStream::LoseText() {
  MutexLock lock(mutex_);
  is_kept_ = false;
  DropReadLocked();
  const size_t num_bytes = std::exchange(counted_bytes_, 0);
  const bool has_reader = reader_.responder != nullptr;
  lock.Unlock();
  streams_->Shrink(tenant_, num_bytes);
  streams_->Remove(name_);
  if (!has_reader) GiveUp(HttpClientGone::kLeft);
}

void ResumableStream::DropReadLocked() {
  while (!pieces_.empty() &&
         pieces_.front()->begin + pieces_.front()->text.size() <= reader_.read) {
    pieces_.pop_front();
  }
}

void ResumableStream::KeepAlive(std::string filler, int64_t silence_ms) {
  MutexLock lock(mutex_);
  filler_ = filler;
  silence_ms_ = silence_ms;
  const std::shared_ptr<HttpResponder> reader = reader_.is_open ? reader_.responder : nullptr;
  lock.Unlock();
  if (reader != nullptr) reader->KeepAlive(std::move(filler), silence_ms);
}

bool ResumableStream::End(State state) {
  MutexLock lock(mutex_);
  if (state_ != State::kRunning) return false;
  state_ = state;
  const auto unused = std::exchange(on_closed_, nullptr);
  lock.Unlock();
  streams_->OnFinished(name_);
  Pump();
  return true;
}

void ResumableStream::Abort() {
  MutexLock lock(mutex_);
  if (HasEndedLocked()) return;
  state_ = State::kGone;
  pieces_.clear();
  const auto unused = std::exchange(on_closed_, nullptr);
  const size_t num_bytes = std::exchange(counted_bytes_, 0);
  const std::shared_ptr<HttpResponder> reader = std::move(reader_.responder);
  lock.Unlock();
  streams_->Shrink(tenant_, num_bytes);
  streams_->Remove(name_);
  if (reader != nullptr) reader->Abort();
}

size_t ResumableStream::buffered_bytes() const {
  MutexLock lock(mutex_);
  const std::shared_ptr<HttpResponder> reader = reader_.responder;
  const size_t num_unread = end_ - reader_.read;
  lock.Unlock();
  return reader == nullptr ? 0 : num_unread + reader->buffered_bytes();
}

HttpRoom ResumableStream::NotifyBelow(size_t /*limit_bytes*/,
                                      absl::AnyInvocable<void()> /*callback*/) {
  MutexLock lock(mutex_);
  return HasEndedLocked() ? HttpRoom::kGone : HttpRoom::kNow;
}

void ResumableStream::OnClosed(absl::AnyInvocable<void(HttpClientGone)> callback) {
  MutexLock lock(mutex_);
  if (!HasEndedLocked()) {
    std::swap(on_closed_, callback);
    return;
  }
  if (state_ != State::kGone) return;
  const HttpClientGone how = gone_;
  lock.Unlock();
  callback(how);
}

// The text that the reader has not had, up to the end of its piece; "" = it has all.
std::string ResumableStream::TakeUnreadLocked() {
  if (!is_kept_) DropReadLocked();
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), reader_.read,
                       [](uint64_t at, const auto& piece) { return at < piece->begin; });
  if (after == pieces_.begin() || reader_.read == end_) return {};
  const Piece& piece = **std::prev(after);
  std::string text = piece.text.substr(reader_.read - piece.begin);
  reader_.read += text.size();
  return text;
}

void ResumableStream::Pump() {
  MutexLock lock(mutex_);
  must_look_again_ = is_pumping_;
  if (is_pumping_ || state_ == State::kWaiting) return;
  is_pumping_ = true;
  while (reader_.responder != nullptr) {
    const std::shared_ptr<HttpResponder> reader = reader_.responder;
    if (!std::exchange(reader_.has_begun, true)) {
      const HttpHeaders headers = std::move(reader_.headers);
      const int status = status_;
      lock.Unlock();
      reader->StartStream(status, headers);
      lock.Lock();
      if (reader_.responder != reader) continue;
      reader_.is_open = true;
      const std::string filler = filler_;
      const int64_t silence_ms = silence_ms_;
      lock.Unlock();
      if (!filler.empty()) reader->KeepAlive(filler, silence_ms);
      lock.Lock();
      continue;
    }
    // Its callback may come, and find this thread busy, before this thread stops.
    must_look_again_ = false;
    lock.Unlock();
    const HttpRoom room = RoomOf(reader);
    lock.Lock();
    if (reader_.responder != reader || (room != HttpRoom::kNow && must_look_again_)) continue;
    if (room != HttpRoom::kNow) break;
    const std::string text = TakeUnreadLocked();
    const State state = state_;
    if (text.empty() && state <= State::kRunning) break;
    if (text.empty()) reader_.responder = nullptr;
    lock.Unlock();
    if (!text.empty()) {
      reader->Write(text);
    } else if (state == State::kFinished) {
      reader->Finish();
    } else {
      reader->FinishAndClose();
    }
    lock.Lock();
  }
  is_pumping_ = false;
}

// A reader that has to catch up calls Pump again. Its callback holds the stream, which may be kept
// by nobody else.
HttpRoom ResumableStream::RoomOf(const std::shared_ptr<HttpResponder>& reader) {
  if (reader->buffered_bytes() < kReaderBytes) return HttpRoom::kNow;
  return reader->NotifyBelow(kReaderBytes / 2, [self = shared_from_this()] { self->Pump(); });
}

}  // namespace baton::api
