// ResumableStream: a stream that outlives its connection. It keeps the events of one answer, and
// gives them to one reader at a time: the client that asked, then whoever resumes the stream.
//
// To the sink of the answer it is the HttpResponder of the call. Any thread; the sink calls one
// function at a time.
//
// Invariants
//  1. Every reader gets the same bytes, from the event after the one that it names. Comments that
//     fill a silence are not kept.
//  2. A new reader takes over: the connection of the one before it is closed. A client may thus
//     come back before the server has noticed that its old connection broke.
//  3. A reader that is slow has at most kReaderBytes unsent. The rest waits here, counts as
//     buffered_bytes, and so pauses the answer, as that of any slow client.
//  4. A running answer without a reader is given up after KeptStreamsLimits::unread_us: OnClosed
//     tells the producer. Before its header is out it is given up with its connection: nobody knows
//     its name.
//  5. Kept text is at most KeptStreamsLimits::max_stream_bytes, and counted by KeptStreams. A
//     longer stream is not kept any more: its present reader gets the rest, and nobody can resume
//     it.
#ifndef BATON_API_RESUMABLE_STREAM_H_
#define BATON_API_RESUMABLE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"

#include "src/base/mutex.h"
#include "src/http/http_responder.h"

namespace baton::api {

class KeptStreams;

// See the file comment.
class ResumableStream final : public http::HttpResponder,
                              public std::enable_shared_from_this<ResumableStream> {
 public:
  // Unsent bytes at which a reader waits for its client.
  static constexpr size_t kReaderBytes = size_t{256} << 10;
  // Kept text is allocated in pieces of at least so much: 64 tokens of a chat.
  static constexpr size_t kPieceBytes = size_t{16} << 10;

  // The outcome for a reader that came.
  enum class Entry : uint8_t {
    kTaken,
    kNothingLeft,  // the stream has ended with the event that it names
    kNoSuchEvent,  // no event of the stream has this id
    kGone,         // the stream is not kept any more
  };

  // KeptStreams::Make makes one. `streams` outlives it; `tenant` is "" without keys.
  ResumableStream(KeptStreams* streams, std::string name, std::string tenant)
      : streams_(streams), name_(std::move(name)), tenant_(std::move(tenant)) {}
  ~ResumableStream() override;

  const std::string& name() const { return name_; }
  const std::string& tenant() const { return tenant_; }
  std::string content_type() const;

  // The connection on which the stream was asked for; called once, before everything else.
  void SetFirstReader(std::shared_ptr<http::HttpResponder> reader);
  // Another reader takes over. `headers`: of its answer. `last_event_id`: the last event that it
  // has; "" = it has none. Unless it is taken, `reader` is as it was. Costs a search of the text.
  Entry Attach(std::shared_ptr<http::HttpResponder> reader, http::HttpHeaders headers,
               std::string_view last_event_id);
  // Gives the answer up, unless another reader than `reader` has come since.
  void GiveUpUnread(uint64_t reader);
  // It runs, and nobody has come since it lost `reader`.
  bool IsUnread(uint64_t reader) const;

  // The sink's side.
  bool Respond(http::HttpResponse response) override;
  bool StartStream(int status, const http::HttpHeaders& headers) override;
  bool Write(std::string_view chunk) override;  // whole events
  bool Finish() override { return End(State::kFinished); }
  bool FinishAndClose() override { return End(State::kFailed); }
  void KeepAlive(std::string filler, int64_t silence_ms) override;
  void Abort() override;
  // Bytes that the present reader has not sent; 0 without one.
  size_t buffered_bytes() const override;
  // Writing never has to wait: kNow, or kGone after the end.
  http::HttpRoom NotifyBelow(size_t limit_bytes, absl::AnyInvocable<void()> callback) override;
  void OnClosed(absl::AnyInvocable<void(http::HttpClientGone)> callback) override;

 private:
  enum class State : uint8_t {
    kWaiting,   // the header is not out
    kRunning,   // events come
    kFinished,  // it is whole
    kFailed,    // its last event is an error
    kGone,      // given up, or answered without a stream
  };
  // A part of the text; whole events.
  struct Piece {
    uint64_t begin = 0;  // its place in the stream, bytes
    std::string text;    // grows at its end alone, within its first capacity: bytes never move
  };
  // A piece and what it held at some moment; read without the lock.
  struct PieceText {
    std::shared_ptr<const Piece> piece;
    std::string_view text;
  };
  // The connection that reads.
  struct Reader {
    std::shared_ptr<http::HttpResponder> responder;  // null: there is none
    uint64_t number = 0;                             // of readers so far
    http::HttpHeaders headers;
    bool has_begun = false;  // Pump gives it the headers, or has
    bool is_open = false;    // the headers are out
    uint64_t read = 0;       // its place in the stream, bytes
  };

  bool End(State state);
  // Tells the stream when this reader's connection closes.
  void Watch(const std::shared_ptr<http::HttpResponder>& reader, uint64_t number);
  void OnReaderClosed(uint64_t number, http::HttpClientGone how);
  // `unread`: only if the stream IsUnread by this reader.
  void GiveUp(http::HttpClientGone how, std::optional<uint64_t> unread = std::nullopt);
  // Gives the reader what it has not had. One thread at a time does it; others leave it to that
  // thread.
  void Pump();
  // Whether the reader can be given more; kLater: it calls Pump when it can.
  http::HttpRoom RoomOf(const std::shared_ptr<http::HttpResponder>& reader);
  // True: `text` is kept. False: it found no room.
  bool Keep(std::string_view text);
  void LoseText();

  std::string TakeUnreadLocked() BATON_REQUIRES(mutex_);
  bool AppendLocked(std::string_view text) BATON_REQUIRES(mutex_);
  void DropReadLocked() BATON_REQUIRES(mutex_);
  std::vector<PieceText> TextsLocked() const BATON_REQUIRES(mutex_);
  // The place after the event with this id; 0 for "", nullopt where no event has it.
  static std::optional<uint64_t> Find(std::span<const PieceText> texts,
                                      std::string_view last_event_id);
  bool CanBeReadLocked() const BATON_REQUIRES(mutex_) {
    return state_ != State::kWaiting && state_ != State::kGone && is_kept_;
  }
  bool IsUnreadLocked(uint64_t reader) const BATON_REQUIRES(mutex_);
  bool HasEndedLocked() const BATON_REQUIRES(mutex_) { return state_ > State::kRunning; }

  KeptStreams* const streams_;
  const std::string name_;
  const std::string tenant_;

  mutable Mutex mutex_;  // guards what follows
  State state_ BATON_GUARDED_BY(mutex_) = State::kWaiting;
  int status_ BATON_GUARDED_BY(mutex_) = 200;
  std::string content_type_ BATON_GUARDED_BY(mutex_);
  std::string filler_ BATON_GUARDED_BY(mutex_);  // "" = none
  int64_t silence_ms_ BATON_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Piece>> pieces_ BATON_GUARDED_BY(mutex_);
  uint64_t end_ BATON_GUARDED_BY(mutex_) = 0;          // bytes written so far
  size_t counted_bytes_ BATON_GUARDED_BY(mutex_) = 0;  // by streams_
  bool is_kept_ BATON_GUARDED_BY(mutex_) = true;       // the pieces are the whole stream so far
  Reader reader_ BATON_GUARDED_BY(mutex_);
  bool is_pumping_ BATON_GUARDED_BY(mutex_) = false;
  bool must_look_again_ BATON_GUARDED_BY(mutex_) = false;  // Pump was called while one was busy
  http::HttpClientGone gone_ BATON_GUARDED_BY(mutex_) = http::HttpClientGone::kLeft;
  absl::AnyInvocable<void(http::HttpClientGone)> on_closed_ BATON_GUARDED_BY(mutex_);
};

}  // namespace baton::api

#endif  // BATON_API_RESUMABLE_STREAM_H_
