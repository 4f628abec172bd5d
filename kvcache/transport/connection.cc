#include "kvcache/transport/connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kvcache/transport/slice_copy.h"
#include "kvcache/transport/socket_io.h"
#include "src/base/check.h"
#include "src/base/errno_text.h"
#include "src/base/xxh3.h"

namespace baton::kv {
namespace {

// Payload bytes that one connection may move before the others get their turn: 4 MiB are 0.3 ms of
// copying at 15 GB/s.
constexpr int64_t kTurnBytes = int64_t{4} << 20;
// Counted for each frame beside its payload, so that frames which move nothing end a turn too.
constexpr int64_t kFrameTurnBytes = 512;
constexpr size_t kMaxParts = 256;

// Bytes that the kernel holds of what was written: not sent yet, or not confirmed by the peer.
int64_t NumHeldByKernel(int fd) {
  int num_bytes = 0;
  return ioctl(fd, SIOCOUTQ, &num_bytes) == 0 ? num_bytes : 0;
}

HandshakeOptions MakeHandshakeOptions(const ConnectionServices& services,
                                      const ConnectionStart& start) {
  const KvEndpointOptions& options = *services.options;
  HandshakeOptions result;
  result.cluster_secret = options.cluster_secret;
  result.self.incarnation = options.incarnation;
  result.self.expected = start.expected;
  result.self.layout_id = services.arena->layout().LayoutId();
  result.self.numerics_id = Xxh3Hash64(options.numerics_id);
  result.self.epoch = start.id;
  const bool passes_arena = start.dialled && start.kind == TransportKind::kShm;
  const uint32_t num_blocks =
      options.pools != nullptr ? options.pools->num_blocks() : services.arena->num_blocks();
  result.self.num_blocks = passes_arena ? num_blocks : 0;
  result.self.has_pools = options.pools != nullptr;
  result.self.allow_inexact = options.allow_inexact;
  result.self.worker_id = options.worker_id;
  return result;
}

// The reason that is noted here when the peer tells why it closes. Refusals keep their name, the
// rest is "it left".
CloseReason ToldReason(uint32_t told) {
  switch (static_cast<CloseReason>(told < kNumCloseReasons ? told : 0)) {
    case CloseReason::kWireVersion:
    case CloseReason::kWrongSecret:
    case CloseReason::kLayout:
    case CloseReason::kNumerics:
    case CloseReason::kWrongPeer:
    case CloseReason::kArena:
    case CloseReason::kCredentials:
    case CloseReason::kTooMany:
    case CloseReason::kTlsMissing:
      return static_cast<CloseReason>(told);
    default:
      return CloseReason::kPeerClosed;
  }
}

}  // namespace

Connection::Connection(const ConnectionServices& services, ConnectionStart start, int64_t now_us)
    : services_(services),
      id_(start.id),
      kind_(start.kind),
      dialled_(start.dialled),
      expected_(start.expected),
      state_(start.dialled ? State::kConnecting : State::kIntroducing),
      handshake_(MakeHandshakeOptions(services, start), start.dialled),
      reader_(start.kind == TransportKind::kShm),
      queue_(services.arena, services.zeroes),
      link_(std::make_shared<LinkCounters>()),
      begun_us_(now_us),
      last_read_us_(now_us),
      last_write_us_(now_us) {
  fd_ = std::move(start.fd);
  if (services.options->pools != nullptr) passed_.max = kMaxPassedFds;
  if (start.tls == nullptr) return;
  tls_ = std::make_unique<TlsStream>(*start.tls, fd_.get(), dialled_);
  if (!dialled_) state_ = State::kSecuring;
}

Connection::~Connection() = default;

uint32_t Connection::interest() const {
  if (state_ == State::kConnecting) return EPOLLOUT;
  return EPOLLIN | (write_blocked_ ? uint32_t{EPOLLOUT} : 0);
}

bool Connection::has_work() const {
  if (state_ != State::kReady && state_ != State::kIntroducing) return false;
  return unread_frames_ || (has_unsent() && !write_blocked_);
}

void Connection::OnEvents(uint32_t events, int64_t now_us) {
  if ((events & EPOLLOUT) != 0) write_blocked_ = false;
  if (state_ == State::kConnecting) {
    OnConnected(now_us);
  } else if (state_ == State::kSecuring) {
    Secure(now_us);
  } else if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0 && !closed()) {
    ReadFrames(now_us);
  }
  if (!closed()) Flush(now_us);
}

void Connection::Work(int64_t now_us) {
  if (unread_frames_) ReadFrames(now_us);
  if (closed() || state_ == State::kConnecting) return;
  Flush(now_us);
}

void Connection::OnConnected(int64_t now_us) {
  const int error = ConnectError(fd_.get());
  if (error != 0) {
    EndWith(CloseReason::kUnreachable, Unavailable("connect: {}", ErrnoText(error)));
    return;
  }
  if (kind_ == TransportKind::kShm) {
    const StatusOr<uint32_t> user = PeerUserId(fd_.get());
    if (!user.ok() || *user != geteuid()) {
      EndWith(CloseReason::kCredentials, PermissionDenied("the listener runs as another user"));
      return;
    }
    pass_arena_ = true;
  }
  begun_us_ = last_read_us_ = last_write_us_ = now_us;
  if (tls_ == nullptr) return BeginIntroduction();
  state_ = State::kSecuring;
  Secure(now_us);
}

void Connection::BeginIntroduction() {
  state_ = State::kIntroducing;
  if (!dialled_) return;
  Handshake::Reply hello = handshake_.Start();
  queue_.PushFrame({.kind = hello.kind}, hello.payload);
}

void Connection::Secure(int64_t now_us) {
  // Only accepted connections have this limit. This side chooses whom it dials, and dials few; and
  // a dialler has to speak first.
  if (!dialled_ && services_.tls_steps_left != nullptr) {
    // The socket stays readable, so the next turn comes here again.
    if (*services_.tls_steps_left <= 0) return;
    --*services_.tls_steps_left;
  }
  switch (tls_->Handshake()) {
    case TlsStep::kGoesOn:
      return;
    case TlsStep::kFailed:
      EndUnsecured(*tls_->failure());
      return;
    case TlsStep::kDone:
      BeginIntroduction();
      // Bytes that came after the handshake are not announced again.
      ReadFrames(now_us);
      return;
  }
}

void Connection::EndUnsecured(TlsFailure failure) {
  if (failure.reason != CloseReason::kTlsMissing) {
    EndWith(failure.reason, std::move(failure.status));
    return;
  }
  // A worker without TLS is told in the words it understands; nothing else is ever said in them.
  tls_.reset();
  state_ = State::kIntroducing;
  Close(failure.reason, std::move(failure.status));
}

IoOutcome Connection::Send(std::span<const iovec> parts) {
  if (tls_ != nullptr) return tls_->Send(parts);
  if (!pass_arena_) return SendParts(fd_.get(), parts);
  const PoolExchange* const pools = services_.options->pools;
  return SendParts(fd_.get(), parts,
                   pools != nullptr ? pools->fds() : std::vector<int>{services_.arena->fd()});
}

IoOutcome Connection::Receive(std::span<iovec> parts, int64_t* turn_bytes) {
  if (tls_ != nullptr) return tls_->Receive(parts, turn_bytes);
  PassedFds* const passed = state_ == State::kIntroducing ? &passed_ : nullptr;
  const IoOutcome outcome = ReceiveParts(fd_.get(), parts, passed);
  *turn_bytes -= static_cast<int64_t>(outcome.bytes);
  return outcome;
}

void Connection::EndOnError(const char* what, const IoOutcome& outcome) {
  if (tls_ != nullptr && !tls_->failure().has_value()) {
    // A peer that refuses our certificate says so and hangs up, and we may be writing then.
    std::byte unused{};
    iovec part{&unused, 1};
    int64_t turn_bytes = TlsStream::kStepBytes;
    (void)tls_->Receive({&part, 1}, &turn_bytes);
  }
  if (tls_ != nullptr && tls_->failure().has_value()) {
    EndWith(tls_->failure()->reason, tls_->failure()->status);
  } else {
    EndWith(CloseReason::kPeerClosed, Unavailable("{}: {}", what, ErrnoText(outcome.error)));
  }
}

void Connection::ReadFrames(int64_t now_us) {
  int64_t turn_bytes = kTurnBytes;
  HandleFrames(&turn_bytes, now_us);
  while (!closed() && turn_bytes > 0) {
    iovec parts[2];
    const int num_parts = reader_.Prepare(parts);
    const IoOutcome outcome = Receive({parts, static_cast<size_t>(num_parts)}, &turn_bytes);
    if (outcome.result == IoResult::kWouldBlock) return;
    if (outcome.result == IoResult::kEndOfFile) {
      EndWith(CloseReason::kPeerClosed, Unavailable("the peer closed the connection"));
      return;
    }
    if (outcome.result == IoResult::kError) return EndOnError("receive", outcome);
    last_read_us_ = now_us;
    reader_.Commit(outcome.bytes);
    HandleFrames(&turn_bytes, now_us);
  }
}

bool Connection::PeerSpeaksTls() const {
  return tls_ == nullptr && state_ == State::kIntroducing && LooksLikeTls(reader_.unread());
}

void Connection::HandleFrames(int64_t* turn_bytes, int64_t now_us) {
  unread_frames_ = false;
  while (!closed()) {
    if (*turn_bytes <= 0) {
      // Whole frames may wait in the buffer, or the end of a payload that nobody will wake us for.
      unread_frames_ = true;
      return;
    }
    switch (reader_.Next()) {
      case FrameReader::Event::kNeedBytes:
        return;
      case FrameReader::Event::kBad:
        if (PeerSpeaksTls()) {
          // Told in plaintext: that is how a peer with TLS sees what is wrong.
          Close(CloseReason::kTlsMissing,
                FailedPrecondition("the peer speaks TLS, this worker does not (--tls-cert, "
                                   "--tls-key, --tls-ca)"));
          return;
        }
        Close(CloseReason::kProtocol, reader_.error());
        return;
      case FrameReader::Event::kHeader:
        *turn_bytes -= kFrameTurnBytes;
        if (reader_.header().kind == FrameKind::kSliceReference) {
          *turn_bytes -= static_cast<int64_t>(services_.arena->layout().SliceBytes());
        }
        OnHeader(now_us);
        break;
      case FrameReader::Event::kPayload:
        OnPayload(now_us);
        break;
    }
  }
}

void Connection::OnHeader(int64_t now_us) {
  const FrameHeader& header = reader_.header();
  const bool is_slice =
      header.kind == FrameKind::kSliceInline || header.kind == FrameKind::kSliceReference;
  const bool is_common = header.kind == FrameKind::kClose;
  const bool fits_state = is_common || ready() == (is_slice || header.kind == FrameKind::kControl);
  if (!fits_state) {
    Close(CloseReason::kProtocol,
          DataLoss("frame kind {} out of turn", static_cast<int>(header.kind)));
    return;
  }
  if (header.kind == FrameKind::kSliceReference) {
    OnSliceReference(header, now_us);
  } else if (header.kind == FrameKind::kSliceInline) {
    OnInlineSlice(header);
  } else if (header.payload_bytes > 0) {
    reader_.ReadIntoBuffer();
  } else {
    OnWholeFrame(header, {});
  }
}

void Connection::OnInlineSlice(const FrameHeader& header) {
  if (header.payload_bytes == 0) {
    Close(CloseReason::kProtocol, DataLoss("an inline slice without bytes"));
    return;
  }
  place_ = services_.receives->Admit(peer(), epoch(), header);
  if (place_ == nullptr) {
    reader_.Discard();
  } else {
    reader_.ReadInto(place_);
  }
}

void Connection::OnSliceReference(const FrameHeader& header, int64_t now_us) {
  if (peer_arena_ == nullptr) {
    Close(CloseReason::kProtocol, DataLoss("a slice by reference, but no arena was passed"));
    return;
  }
  if (!peer_arena_->HasMemory(header.source)) {
    services_.counters->AddBadSlice(BadSliceReason::kOutOfRange);
    return;
  }
  std::byte* const dest = services_.receives->Admit(peer(), epoch(), header);
  if (dest == nullptr) return;
  const size_t slice_bytes = services_.arena->layout().SliceBytes();
  const std::byte* const source = peer_arena_->Slice(header.source, header.layer);
  const uint64_t checksum = CopyAndChecksum(dest, source, slice_bytes);
  peer_arena_->NoteRead(header.source);
  if (services_.receives->Finish(header, checksum, now_us)) link_->bytes_received.Add(slice_bytes);
}

void Connection::OnPayload(int64_t now_us) {
  const FrameHeader header = reader_.header();
  if (header.kind != FrameKind::kSliceInline) {
    OnWholeFrame(header, reader_.payload());
    return;
  }
  if (place_ == nullptr) return;
  // The bytes came through the cache a moment ago.
  const uint64_t checksum = SliceChecksum(place_, header.payload_bytes);
  place_ = nullptr;
  if (services_.receives->Finish(header, checksum, now_us)) {
    link_->bytes_received.Add(header.payload_bytes);
    if (tls_ != nullptr) services_.counters->tls_bytes_received.Add(header.payload_bytes);
  }
}

void Connection::OnWholeFrame(const FrameHeader& header, std::span<const std::byte> payload) {
  const uint64_t checksum = payload.empty() ? 0 : Xxh3Hash64(payload.data(), payload.size());
  if (checksum != header.checksum) {
    Close(CloseReason::kControlCorrupt,
          DataLoss("the checksum of a frame of kind {} and {} bytes is wrong",
                   static_cast<int>(header.kind), payload.size()));
  } else if (header.kind == FrameKind::kClose) {
    OnCloseFrame(payload);
  } else if (!ready()) {
    OnIntroductionFrame(header, payload);
  } else if (header.epoch != epoch()) {
    Close(CloseReason::kProtocol,
          DataLoss("a control frame of epoch {:x} in {:x}", header.epoch, epoch()));
  } else {
    services_.counters->controls_received.Add();
    services_.owner->OnControl(
        this, std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
  }
}

void Connection::OnCloseFrame(std::span<const std::byte> payload) {
  if (payload.size() != kCloseBytes) {
    EndWith(CloseReason::kProtocol, DataLoss("Close of {} bytes", payload.size()));
    return;
  }
  uint32_t told = 0;
  for (size_t i = 0; i < kCloseBytes; ++i) told |= std::to_integer<uint32_t>(payload[i]) << (8 * i);
  const std::string_view name = CloseReasonName(static_cast<CloseReason>(std::min(told, 255u)));
  EndWith(ToldReason(told), Unavailable("the peer hung up: {}", name));
}

void Connection::OnIntroductionFrame(const FrameHeader& header,
                                     std::span<const std::byte> payload) {
  const Status status = handshake_.OnFrame(header.kind, payload);
  if (!status.ok()) {
    Close(handshake_.reason(), status);
    return;
  }
  if (handshake_.has_reply()) {
    const Handshake::Reply reply = handshake_.TakeReply();
    queue_.PushFrame({.kind = reply.kind, .epoch = epoch()}, reply.payload);
  }
  if (handshake_.ready()) BecomeReady();
}

Status Connection::MapPeerArena() {
  PoolExchange* const pools = services_.options->pools;
  if (pools != nullptr) {
    return pools->Take(peer(), handshake_.peer().num_blocks, std::move(passed_.fds));
  }
  if (passed_.fds.empty()) return FailedPrecondition("the dialler passed no arena");
  BATON_ASSIGN_OR_RETURN(peer_arena_,
                         PeerArena::Map(std::move(passed_.fds[0]), services_.arena->layout(),
                                        handshake_.peer().num_blocks));
  return OkStatus();
}

void Connection::BecomeReady() {
  if (!dialled_) {
    if (!services_.owner->HasRoomFor(*this)) {
      Close(CloseReason::kTooMany, ResourceExhausted("all connections are taken"));
      return;
    }
    const Status mapped = kind_ == TransportKind::kShm ? MapPeerArena() : OkStatus();
    if (!mapped.ok()) {
      Close(CloseReason::kArena, mapped);
      return;
    }
    queue_.PushFrame({.kind = FrameKind::kWelcome, .epoch = epoch()}, {});
  }
  passed_.fds.clear();
  state_ = State::kReady;
  was_ready_ = true;
  queue_.SetUp(dialled_ && kind_ == TransportKind::kShm, epoch());
  services_.owner->OnReady(this);
}

void Connection::QueueControl(std::string bytes) {
  BATON_CHECK(ready(), "a control message for connection {}, which is not ready", id_);
  queue_.PushControl(std::move(bytes));
}

void Connection::QueueSlices(std::span<const SliceRef> slices) {
  BATON_CHECK(ready(), "slices for connection {}, which is not ready", id_);
  queue_.PushSlices(slices);
}

void Connection::DropSend(TransferId transfer) { Release(queue_.DropTransfer(transfer)); }

void Connection::AbandonReceive(TransferId transfer) {
  if (place_ == nullptr || reader_.header().transfer != transfer) return;
  place_ = nullptr;
  reader_.Discard();
}

void Connection::Flush(int64_t now_us) {
  int64_t turn_bytes = kTurnBytes;
  std::array<iovec, kMaxParts> parts;
  while (!write_blocked_ && turn_bytes > 0) {
    const size_t num_parts = queue_.Gather(parts, static_cast<size_t>(turn_bytes));
    if (num_parts == 0 && !has_unsent()) return;
    const IoOutcome outcome = Send({parts.data(), num_parts});
    if (outcome.result == IoResult::kWouldBlock) {
      // The stall is counted from here: before, nothing may have been waiting.
      last_write_us_ = now_us;
      num_unsent_ = NumHeldByKernel(fd_.get());
      write_blocked_ = true;
      return;
    }
    if (outcome.result == IoResult::kError) return EndOnError("send", outcome);
    pass_arena_ = false;
    turn_bytes -= static_cast<int64_t>(outcome.bytes);
    const SendQueue::Progress progress = queue_.Commit(outcome.bytes);
    services_.counters->slices_sent.Add(progress.slices);
    services_.counters->controls_sent.Add(progress.controls);
    link_->bytes_sent.Add(progress.slices * services_.arena->layout().SliceBytes());
    Release(progress);
  }
}

void Connection::Release(const SendQueue::Progress& progress) {
  services_.inbox->ReleaseSlices(peer(), progress.slices);
  services_.inbox->ReleaseControls(peer(), progress.controls, progress.control_bytes);
}

int64_t Connection::NextDeadlineUs() const {
  const KvEndpointTimers& timers = services_.options->timers;
  if (state_ == State::kConnecting) return begun_us_ + timers.connect_us;
  if (state_ == State::kSecuring || state_ == State::kIntroducing) {
    return begun_us_ + timers.hello_us;
  }
  if (state_ == State::kClosed) return 0;
  int64_t deadline_us = 0;
  if (reader_.inside_frame() && !unread_frames_) deadline_us = last_read_us_ + timers.frame_gap_us;
  if (has_unsent() && write_blocked_) {
    const int64_t stall_us = last_write_us_ + timers.write_stall_us;
    deadline_us = deadline_us == 0 ? stall_us : std::min(deadline_us, stall_us);
  }
  return deadline_us;
}

void Connection::CheckDeadlines(int64_t now_us) {
  const int64_t deadline_us = NextDeadlineUs();
  if (deadline_us == 0 || now_us < deadline_us) return;
  if (state_ == State::kConnecting) {
    EndWith(CloseReason::kUnreachable, DeadlineExceeded("no answer to connect"));
  } else if (state_ == State::kSecuring || state_ == State::kIntroducing) {
    Close(CloseReason::kHelloTimeout, DeadlineExceeded("no introduction in time"));
  } else if (reader_.inside_frame() &&
             deadline_us == last_read_us_ + services_.options->timers.frame_gap_us) {
    Close(CloseReason::kFrameGap, DeadlineExceeded("a frame was begun and not finished"));
  } else if (const int64_t held = NumHeldByKernel(fd_.get()); held < num_unsent_) {
    // A slow link: the socket has no room yet, and the peer reads.
    last_write_us_ = now_us;
    num_unsent_ = held;
  } else {
    EndWith(CloseReason::kWriteStall, DeadlineExceeded("the peer does not read"));
  }
}

void Connection::Close(CloseReason reason, Status status) {
  const bool can_tell = (state_ == State::kIntroducing || ready()) && !has_unsent();
  if (can_tell) {
    std::array<std::byte, kCloseBytes> payload{};
    payload[0] = static_cast<std::byte>(reason);
    queue_.PushFrame({.kind = FrameKind::kClose, .epoch = epoch()}, payload);
    std::array<iovec, 4> parts;
    const size_t num_parts = queue_.Gather(parts, 2 * kFrameHeaderBytes);
    // The close frame is tried once. When a socket takes 68 bytes only later, its peer learns of
    // the close from the end of the stream.
    const IoOutcome outcome = Send({parts.data(), num_parts});
    if (outcome.result == IoResult::kDone) (void)queue_.Commit(outcome.bytes);
  }
  EndWith(reason, std::move(status));
}

void Connection::EndWith(CloseReason reason, Status status) {
  if (closed()) return;
  if (was_ready_) Release(queue_.Remaining());
  state_ = State::kClosed;
  place_ = nullptr;
  close_reason_ = reason;
  close_status_ = std::move(status);
  services_.counters->AddClose(reason);
}

}  // namespace baton::kv
