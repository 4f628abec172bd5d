// The bytes of a data connection: one shipped Connection over a socket pair, accepting or dialling,
// introduced or not, shared memory or inline slices, with a transfer open. The input is what the
// peer says; checksums may be mended, so that bytes get past them.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kvcache/transport/connection.h"
#include "kvcache/transport/socket_io.h"
#include "src/base/limits.h"
#include "src/base/unique_fd.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using limits::kMaxControlBytes;

using namespace kv;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::byte kUntouched{0xA5};
constexpr uint32_t kNumBlocks = 6;
constexpr uint64_t kConnectionId = 16;
constexpr uint64_t kPeerIncarnation = 7;
constexpr uint64_t kOwnIncarnation = 9;
constexpr TransferId kTransfer(1);
// The blocks that the transfer may fill: ordinals 0 and 1, generations 7 and 8.
constexpr uint32_t kFirstDest = 2;
constexpr uint32_t kNumDest = 2;

KvLayout TinyLayout() {
  KvLayout layout;
  layout.num_layers = 2;
  layout.num_kv_heads = 1;
  layout.head_dim = 4;
  layout.block_size = 16;
  return layout;
}

std::unique_ptr<KvArena> MakeTinyArena() {
  auto arena = KvArena::Create(TinyLayout(), kNumBlocks);
  BATON_CHECK(arena.ok(), "{}", arena.status().ToString());
  return *std::move(arena);
}

// How one run is set up, by the first byte of the input.
struct RunMode {
  bool introduced = false;
  bool mends_headers = false;
  bool mends_payloads = false;
  bool dialled = false;
  bool shm = false;
  bool abandons = false;  // the receive is closed in the middle
};

RunMode ModeOf(uint8_t bits) {
  return {(bits & 1) != 0, (bits & 2) != 0,  (bits & 4) != 0,
          (bits & 8) != 0, (bits & 16) != 0, (bits & 32) != 0};
}

// Checks the order and the numbers of what a receiver is told.
class CheckingSink final : public KvTransportSink {
 public:
  void OnPeerUp(const PeerUp&) override {}
  void OnPeerDown(Incarnation, const Status&) override {}
  void OnControl(Incarnation, std::string) override {}
  void OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) override {
    BATON_CHECK(transfer == kTransfer && !closed && slices_done > done,
                "progress of transfer {}: {} after {}", transfer, slices_done, done);
    done = slices_done;
    BATON_CHECK(complete == (done == kNumDest * TinyLayout().num_layers), "{} slices are {}", done,
                complete ? "complete" : "incomplete");
  }
  void OnBadSlice(const BadSlice& slice) override {
    BATON_CHECK(slice.transfer == kTransfer && !closed, "a bad slice of transfer {}",
                slice.transfer);
  }
  void OnReceiveClosed(TransferId) override { closed = true; }
  void OnSendClosed(Incarnation, TransferId) override {}

  uint32_t done = 0;
  bool closed = false;
};

// Counts what the connection delivers.
class CountingOwner final : public ConnectionOwner {
 public:
  void OnReady(Connection*) override { ++num_ready; }
  bool HasRoomFor(const Connection&) override { return true; }
  void OnControl(Connection* connection, std::string bytes) override {
    BATON_CHECK(connection->ready() && bytes.size() <= kMaxControlBytes, "{} bytes", bytes.size());
    ++num_controls;
  }

  uint32_t num_ready = 0;
  uint64_t num_controls = 0;
};

// One connection with everything around it, and the peer's end of its socket.
class Wire {
 public:
  explicit Wire(const RunMode& mode)
      : mode_(mode),
        inbox_(TransportInboxLimits{}, [] {}),
        receives_(OwnArena().memory(), &counters_),
        zeroes_(TinyLayout().SliceBytes()) {
    std::memset(OwnArena().base(), std::to_integer<int>(kUntouched), OwnArena().size_bytes());
    int ends[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    peer_.reset(ends[1]);
    options_.worker_id = "own";
    options_.incarnation = Incarnation(kOwnIncarnation);
    options_.cluster_secret = "secret";
    services_ = {&options_, &OwnArena(), &zeroes_, &receives_, &inbox_, &counters_, &owner_};
    receives_.set_sink(&sink_);
    ConnectionStart start;
    start.id = kConnectionId;
    start.fd.reset(ends[0]);
    start.kind = mode.shm ? TransportKind::kShm : TransportKind::kTcp;
    start.dialled = mode.dialled;
    start.expected = Incarnation(mode.dialled ? kPeerIncarnation : 0);
    connection_ = std::make_unique<Connection>(services_, std::move(start), now_us_);
    ReceiveSpec spec{.transfer = kTransfer, .attempt = 1, .peer = Incarnation(kPeerIncarnation)};
    for (uint32_t i = 0; i < kNumDest; ++i) {
      spec.blocks.push_back({BlockIndex(kFirstDest + i), 7 + i});
    }
    spec.layers_per_group = 1;
    BATON_CHECK(ReceiveTable::Validate(spec, OwnArena().memory()).ok());
    receives_.Open(std::move(spec), 0);
    if (mode.dialled) Turn(EPOLLOUT);
  }

  static const KvArena& OwnArena() {
    static const std::unique_ptr<KvArena> arena = MakeTinyArena();
    return *arena;
  }
  static const KvArena& PeerSide() {
    static const std::unique_ptr<KvArena> arena = MakeTinyArena();
    return *arena;
  }

  // The peer writes, and the connection reads it.
  void Say(std::string_view bytes, int pass_fd = -1) {
    while (!bytes.empty() && !connection_->closed()) {
      const iovec part{const_cast<char*>(bytes.data()), std::min<size_t>(bytes.size(), 16384)};
      const IoOutcome outcome =
          SendParts(peer_.get(), {&part, 1}, std::span<const int>(&pass_fd, pass_fd >= 0 ? 1 : 0));
      BATON_CHECK(outcome.result == IoResult::kDone, "errno {}", outcome.error);
      bytes.remove_prefix(outcome.bytes);
      pass_fd = -1;
      Turn(EPOLLIN);
    }
  }
  void SayFrame(FrameHeader header, const std::vector<std::byte>& payload, int pass_fd = -1) {
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    if (!payload.empty()) header.checksum = Xxh3Hash64(payload.data(), payload.size());
    std::array<std::byte, kFrameHeaderBytes> bytes;
    EncodeFrameHeader(header, bytes);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.append(reinterpret_cast<const char*>(payload.data()), payload.size());
    Say(text, pass_fd);
  }
  // Returns the bytes that the connection wrote and nobody has read yet.
  std::string Hear() {
    std::string heard;
    while (true) {
      char bytes[4096];
      const ssize_t size = recv(peer_.get(), bytes, sizeof(bytes), 0);
      if (size <= 0) return heard;
      heard.append(bytes, static_cast<size_t>(size));
    }
  }

  // Both sides prove that they know the secret.
  void Introduce();
  // The receive of the transfer ends; from now on its blocks are somebody else's.
  void CloseReceive() {
    connection_->AbandonReceive(kTransfer);
    receives_.Close(kTransfer);
    for (uint32_t i = 0; i < kNumDest; ++i) {
      std::memset(OwnArena().Block(BlockIndex(kFirstDest + i)), std::to_integer<int>(kUntouched),
                  OwnArena().layout().BlockStride());
    }
  }
  // The peer closes its half; whatever it said before, the connection ends.
  void HangUp() {
    (void)shutdown(peer_.get(), SHUT_WR);
    for (int turn = 0; turn < 64 && !connection_->closed(); ++turn) Turn(EPOLLIN);
    receives_.FlushProgress(now_us_ + 10'000'000);
  }
  void CheckAfterwards() const;

  Connection* connection() { return connection_.get(); }

 private:
  void Turn(uint32_t events) {
    now_us_ += 10;
    connection_->OnEvents(events, now_us_);
    for (int i = 0; i < 64 && !connection_->closed() && connection_->has_work(); ++i) {
      connection_->Work(now_us_);
    }
    connection_->CheckDeadlines(now_us_);
    receives_.FlushProgress(now_us_);
  }
  bool IsUntouched(uint32_t block) const {
    const std::byte* const begin = OwnArena().Block(BlockIndex(block));
    return std::all_of(begin, begin + OwnArena().layout().BlockStride(),
                       [](std::byte byte) { return byte == kUntouched; });
  }

  const RunMode mode_;
  int64_t now_us_ = 1'000'000;
  UniqueFd peer_;
  KvEndpointOptions options_;
  TransportCounters counters_;
  TransportInbox inbox_;
  CheckingSink sink_;
  CountingOwner owner_;
  ReceiveTable receives_;
  const std::vector<std::byte> zeroes_;
  ConnectionServices services_;
  std::unique_ptr<Connection> connection_;
};

// The frames in `heard`, which a well-behaved side wrote.
std::vector<std::pair<FrameKind, std::vector<std::byte>>> FramesOf(std::string_view heard) {
  std::vector<std::pair<FrameKind, std::vector<std::byte>>> frames;
  while (!heard.empty()) {
    BATON_CHECK(heard.size() >= kFrameHeaderBytes, "half a header was written");
    const auto* const data = reinterpret_cast<const std::byte*>(heard.data());
    const auto header =
        DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes>(data, kFrameHeaderBytes));
    BATON_CHECK(header.ok() && heard.size() >= kFrameHeaderBytes + header->payload_bytes,
                "a bad frame was written: {}", header.status().ToString());
    const std::byte* const payload = data + kFrameHeaderBytes;
    frames.emplace_back(header->kind,
                        std::vector<std::byte>(payload, payload + header->payload_bytes));
    heard.remove_prefix(kFrameHeaderBytes + header->payload_bytes);
  }
  return frames;
}

void Wire::Introduce() {
  HandshakeOptions options;
  options.self.incarnation = Incarnation(kPeerIncarnation);
  options.self.expected = Incarnation(kOwnIncarnation);
  options.self.layout_id = TinyLayout().LayoutId();
  options.self.numerics_id = Xxh3Hash64(options_.numerics_id);
  options.self.worker_id = "peer";
  options.self.epoch = kConnectionId;
  options.self.num_blocks = mode_.shm && !mode_.dialled ? kNumBlocks : 0;
  options.cluster_secret = options_.cluster_secret;
  Handshake peer(options, !mode_.dialled);
  if (!mode_.dialled) {
    const Handshake::Reply hello = peer.Start();
    SayFrame({.kind = hello.kind}, hello.payload, mode_.shm ? PeerSide().fd() : -1);
  }
  while (!peer.ready()) {
    const auto frames = FramesOf(Hear());
    BATON_CHECK(!frames.empty(), "the introduction does not go on");
    for (const auto& [kind, payload] : frames) {
      const Status status = peer.OnFrame(kind, payload);
      BATON_CHECK(status.ok(), "{}", status.ToString());
      if (!peer.has_reply()) continue;
      const Handshake::Reply reply = peer.TakeReply();
      SayFrame({.kind = reply.kind, .epoch = peer.epoch()}, reply.payload);
    }
  }
  if (mode_.dialled) SayFrame({.kind = FrameKind::kWelcome, .epoch = kConnectionId}, {});
  BATON_CHECK(connection_->ready(), "introduced, and not ready");
}

void Wire::CheckAfterwards() const {
  BATON_CHECK(connection_->closed(), "half closed, and not over");
  BATON_CHECK(connection_->close_reason() != CloseReason::kNone);
  CheckRefusal(connection_->close_status());
  const TransportStats stats = counters_.Snapshot();
  const uint64_t closes = std::accumulate(stats.closes.begin(), stats.closes.end(), uint64_t{0});
  BATON_CHECK(closes == 1, "one end of a connection was counted {} times", closes);
  BATON_CHECK(stats.closes[static_cast<size_t>(connection_->close_reason())] == 1,
              "another reason was counted than {}", CloseReasonName(connection_->close_reason()));
  BATON_CHECK(owner_.num_controls == stats.controls_received, "{} control messages of {}",
              owner_.num_controls, stats.controls_received);
  BATON_CHECK(owner_.num_ready == (connection_->was_ready() ? 1u : 0u), "ready {} times",
              owner_.num_ready);
  BATON_CHECK(connection_->was_ready() || stats.slices_received + owner_.num_controls == 0,
              "something was taken from a stranger");
  BATON_CHECK(stats.slices_received <= uint64_t{kNumDest} * TinyLayout().num_layers,
              "{} slices of a transfer of {}", stats.slices_received, kNumDest);
  BATON_CHECK(sink_.closed || sink_.done == stats.slices_received, "{} slices, told were {}",
              stats.slices_received, sink_.done);
  for (uint32_t block = 0; block < kNumBlocks; ++block) {
    const bool is_open = !sink_.closed && block >= kFirstDest && block < kFirstDest + kNumDest;
    BATON_CHECK(is_open || IsUntouched(block), "block {} was written to", block);
  }
}

template <typename T>
void Put(std::string* bytes, size_t at, T value) {
  std::memcpy(bytes->data() + at, &value, sizeof(value));
}

template <typename T>
T Get(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Gives every header of the stream the right magic, format and checksum, and payloads theirs; where
// frames begin follows from the lengths in the headers.
std::string Mend(std::string bytes, bool payloads) {
  for (size_t at = 0; at + kFrameHeaderBytes <= bytes.size();) {
    Put<uint32_t>(&bytes, at, kFrameMagic);
    Put<uint16_t>(&bytes, at + 4, kFrameFormat);
    Put<uint8_t>(&bytes, at + 7, 0);
    const size_t size = Get<uint32_t>(bytes, at + 44);
    const bool is_whole = size <= bytes.size() - at - kFrameHeaderBytes;
    if (payloads && is_whole && size > 0) {
      Put<uint64_t>(&bytes, at + 48, Xxh3Hash64(bytes.data() + at + kFrameHeaderBytes, size));
    }
    Put<uint64_t>(&bytes, at + 56, Xxh3Hash64(bytes.data() + at, 56));
    if (!is_whole) break;
    at += kFrameHeaderBytes + size;
  }
  return bytes;
}

// Whatever decodes is what the encoder writes.
void CheckCodecs(std::string_view bytes) {
  const auto* const data = reinterpret_cast<const std::byte*>(bytes.data());
  if (bytes.size() >= kFrameHeaderBytes) {
    const auto header =
        DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes>(data, kFrameHeaderBytes));
    std::array<std::byte, kFrameHeaderBytes> out;
    if (header.ok()) EncodeFrameHeader(*header, out);
    BATON_CHECK(!header.ok() || std::equal(out.begin(), out.end(), data), "another header");
    if (!header.ok()) CheckRefusal(header.status());
  }
  if (bytes.size() >= kIntroductionBytes) {
    const auto intro = DecodeIntroduction(
        std::span<const std::byte, kIntroductionBytes>(data, kIntroductionBytes));
    std::array<std::byte, kIntroductionBytes> out;
    if (intro.ok()) EncodeIntroduction(*intro, out);
    BATON_CHECK(!intro.ok() || std::equal(out.begin(), out.end(), data), "another introduction");
    if (!intro.ok()) CheckRefusal(intro.status());
  }
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(kv_frames) {
  using namespace baton;        // NOLINT: the whole target
  using namespace baton::fuzz;  // NOLINT
  ByteSource source(input);
  const RunMode mode = ModeOf(source.U8());
  const size_t max_piece = size_t{1} << source.Below(14);
  std::string said(TextOf(source.rest()));
  CheckCodecs(said);
  if (mode.mends_headers) said = Mend(std::move(said), mode.mends_payloads);
  Wire wire(mode);
  if (mode.introduced) wire.Introduce();
  const auto pieces = CutPieces(said, max_piece);
  for (size_t i = 0; i < pieces.size() && !wire.connection()->closed(); ++i) {
    if (mode.abandons && i == pieces.size() / 2) wire.CloseReceive();
    wire.Say(pieces[i]);
    (void)wire.Hear();
  }
  wire.HangUp();
  wire.CheckAfterwards();
}
