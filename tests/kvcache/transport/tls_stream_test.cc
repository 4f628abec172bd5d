// TlsStream over a socket pair, without a connection around it.
#include "kvcache/transport/tls_stream.h"

#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/frame.h"
#include "src/base/unique_fd.h"
#include "tests/test_seed.h"
#include "tests/tls/test_certs.h"

namespace baton::kv::test {

using tls::TlsIdentity;
using tls::test::TempFolder;
using tls::test::TestAuthority;

namespace {

// One call with a turn that is long enough.
IoOutcome ReceiveFrom(TlsStream* stream, std::span<iovec> parts) {
  int64_t turn_bytes = int64_t{4} << 20;
  return stream->Receive(parts, &turn_bytes);
}

iovec PartOf(std::vector<std::byte>& bytes, size_t offset, size_t size) {
  return {bytes.data() + offset, size};
}

std::vector<std::byte> RandomData(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class TlsStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto identity = TlsIdentity::Load(authority_.Issue(folder_, "worker"));
    ASSERT_TRUE(identity.ok()) << identity.status();
    identity_ = *identity;
    MakeSockets();
  }
  void MakeSockets(int size = 8192) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a_fd_.reset(fds[0]);
    b_fd_.reset(fds[1]);
    // Small by default, so that every stream blocks now and then.
    for (const int fd : fds) {
      ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
    }
  }
  void MakeStreams(uint64_t records_per_key = TlsStream::kRecordsPerKey) {
    a_ = std::make_unique<TlsStream>(*identity_, a_fd_.get(), true, records_per_key);
    b_ = std::make_unique<TlsStream>(*identity_, b_fd_.get(), false, records_per_key);
  }
  // Everything that is under way to b_, and the call that failed if one did.
  IoOutcome DrainB(std::vector<std::byte>* room) {
    iovec part = PartOf(*room, 0, room->size());
    IoOutcome outcome = ReceiveFrom(b_.get(), {&part, 1});
    while (outcome.result == IoResult::kDone) outcome = ReceiveFrom(b_.get(), {&part, 1});
    return outcome;
  }
  // Both sides by turns.
  void Shake() {
    for (int i = 0; i < 100; ++i) {
      const TlsStep a = a_->Handshake();
      const TlsStep b = b_->Handshake();
      ASSERT_NE(a, TlsStep::kFailed) << a_->failure()->status;
      ASSERT_NE(b, TlsStep::kFailed) << b_->failure()->status;
      if (a == TlsStep::kDone && b == TlsStep::kDone) return;
    }
    FAIL() << "the handshake did not end";
  }

  const TempFolder folder_;
  const TestAuthority authority_;
  std::shared_ptr<const TlsIdentity> identity_;
  UniqueFd a_fd_;
  UniqueFd b_fd_;
  std::unique_ptr<TlsStream> a_;
  std::unique_ptr<TlsStream> b_;
};

// One direction of a stream under random cuts.
struct Flow {
  TlsStream* from;
  TlsStream* to;
  std::vector<std::byte> data;
  std::vector<std::byte> arrived;
  size_t sent = 0;
  size_t received = 0;

  bool done() const { return received == data.size(); }
};

void Step(Flow* flow, std::mt19937_64* random) {
  std::vector<iovec> parts;
  size_t offset = flow->sent;
  for (int i = 0; i < 5 && offset < flow->data.size(); ++i) {
    const size_t size = std::min<size_t>(1 + (*random)() % 40'000, flow->data.size() - offset);
    parts.push_back(PartOf(flow->data, offset, size));
    offset += size;
  }
  const IoOutcome sent = flow->from->Send(parts);
  ASSERT_NE(sent.result, IoResult::kError);
  flow->sent += sent.bytes;
  // Whatever was taken is encrypted: the place may change.
  std::fill(flow->data.begin(), flow->data.begin() + static_cast<ptrdiff_t>(flow->sent),
            std::byte{0});
  const size_t left = flow->data.size() - flow->received;
  const size_t first = std::min<size_t>(left, (*random)() % 30'000);
  iovec rooms[2] = {
      PartOf(flow->arrived, flow->received, first),
      PartOf(flow->arrived, flow->received + first, std::min<size_t>(left - first, 64))};
  const IoOutcome got = ReceiveFrom(flow->to, rooms);
  ASSERT_NE(got.result, IoResult::kError);
  flow->received += got.bytes;
}

TEST_F(TlsStreamTest, BytesArriveInBothDirectionsWhateverTheCutsAndKeys) {
  std::mt19937_64 random(TestSeed());
  MakeStreams(4);
  Shake();
  const std::vector<std::byte> forth = RandomData(3'000'000, 1);
  const std::vector<std::byte> back = RandomData(1'000'000, 2);
  Flow flows[] = {{a_.get(), b_.get(), forth, std::vector<std::byte>(forth.size())},
                  {b_.get(), a_.get(), back, std::vector<std::byte>(back.size())}};
  for (int i = 0; i < 100'000 && !(flows[0].done() && flows[1].done()); ++i) {
    for (Flow& flow : flows) {
      if (!flow.done()) Step(&flow, &random);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  EXPECT_EQ(flows[0].arrived, forth);
  EXPECT_EQ(flows[1].arrived, back);
  EXPECT_GT(a_->num_key_updates(), 10u);
  EXPECT_GT(b_->num_key_updates(), 10u);
}

TEST_F(TlsStreamTest, WhatCrossesIsNotWhatWasSent) {
  MakeStreams();
  Shake();
  std::string marker = "the KV of somebody else, in the clear";
  iovec part{marker.data(), marker.size()};
  ASSERT_EQ(a_->Send({&part, 1}).bytes, marker.size());
  std::string wire(4096, '\0');
  const ssize_t size = recv(b_fd_.get(), wire.data(), wire.size(), MSG_PEEK);
  ASSERT_GT(size, static_cast<ssize_t>(marker.size()));
  EXPECT_EQ(wire.find(marker), std::string::npos);
  std::string arrived(marker.size(), '\0');
  iovec room{arrived.data(), arrived.size()};
  EXPECT_EQ(ReceiveFrom(b_.get(), {&room, 1}).bytes, marker.size());
  EXPECT_EQ(arrived, marker);
}

TEST_F(TlsStreamTest, OutputIsBoundedWhileThePeerDoesNotRead) {
  MakeStreams();
  Shake();
  std::vector<std::byte> data = RandomData(4'000'000, 3);
  iovec part = PartOf(data, 0, data.size());
  size_t taken = 0;
  IoOutcome outcome = a_->Send({&part, 1});
  while (outcome.result == IoResult::kDone && taken < data.size()) {
    taken += outcome.bytes;
    outcome = a_->Send({&part, 1});
  }
  EXPECT_EQ(outcome.result, IoResult::kWouldBlock);
  EXPECT_GE(taken, TlsStream::kMaxOutputBytes);
  EXPECT_LT(taken, 3 * TlsStream::kMaxOutputBytes) << "its own bound and the socket's";
  EXPECT_TRUE(a_->has_output());
  EXPECT_EQ(a_->Send({}).result, IoResult::kWouldBlock);
}

TEST_F(TlsStreamTest, ItsBuffersAreThoseOfTheStart) {
  MakeStreams();
  const size_t at_start = a_->buffer_bytes();
  Shake();
  std::vector<std::byte> data = RandomData(4'000'000, 5);
  std::vector<std::byte> arrived(100'000);
  for (size_t sent = 0; sent < data.size();) {
    iovec part = PartOf(data, sent, data.size() - sent);
    const IoOutcome outcome = a_->Send({&part, 1});
    ASSERT_NE(outcome.result, IoResult::kError);
    sent += outcome.bytes;
    if (outcome.result == IoResult::kWouldBlock) (void)DrainB(&arrived);
  }
  EXPECT_EQ(a_->buffer_bytes(), at_start);
  EXPECT_EQ(b_->buffer_bytes(), at_start);
  EXPECT_LT(at_start, size_t{232} << 10) << "the sum in kv_endpoint.h";
}

TEST_F(TlsStreamTest, ATurnEndsThoughTheSocketHasMore) {
  MakeSockets(1 << 20);
  MakeStreams();
  Shake();
  std::vector<std::byte> data = RandomData(400'000, 6);
  for (size_t sent = 0; sent < data.size();) {
    iovec part = PartOf(data, sent, data.size() - sent);
    sent += a_->Send({&part, 1}).bytes;
  }
  std::vector<std::byte> arrived(data.size());
  iovec whole = PartOf(arrived, 0, arrived.size());
  int64_t turn_bytes = 0;
  EXPECT_EQ(b_->Receive({&whole, 1}, &turn_bytes).result, IoResult::kWouldBlock);
  constexpr int64_t kTurn = 100'000;
  turn_bytes = kTurn;
  const IoOutcome first = b_->Receive({&whole, 1}, &turn_bytes);
  EXPECT_EQ(first.result, IoResult::kDone);
  EXPECT_GE(first.bytes, 60'000u);
  EXPECT_LE(first.bytes, static_cast<size_t>(kTurn) + (64 << 10));
  EXPECT_LE(turn_bytes, kTurn - static_cast<int64_t>(first.bytes)) << "and it is told";
  iovec rest = PartOf(arrived, first.bytes, arrived.size() - first.bytes);
  EXPECT_EQ(ReceiveFrom(b_.get(), {&rest, 1}).bytes, rest.iov_len);
  EXPECT_EQ(arrived, data) << "nothing is lost between turns";
}

TEST_F(TlsStreamTest, TinyRecordsUseATurnUp) {
  MakeSockets(1 << 20);
  MakeStreams();
  Shake();
  std::byte byte{1};
  iovec part{&byte, 1};
  constexpr int kRecords = 1000;
  for (int i = 0; i < kRecords; ++i) ASSERT_EQ(a_->Send({&part, 1}).bytes, 1u);
  std::vector<std::byte> arrived(2 * kRecords);
  iovec room = PartOf(arrived, 0, arrived.size());
  int64_t turn_bytes = 100'000;
  EXPECT_EQ(b_->Receive({&room, 1}, &turn_bytes).bytes, static_cast<size_t>(kRecords));
  EXPECT_LT(turn_bytes, 100'000 - kRecords * TlsStream::kRecordTurnBytes) << "they cost time";
  EXPECT_EQ(a_->Send({&part, 1}).bytes, 1u);
  EXPECT_EQ(b_->Receive({&room, 1}, &turn_bytes).result, IoResult::kWouldBlock);
}

// A peer of ours takes a new key after 2^22 records.
TEST_F(TlsStreamTest, APeerThatChangesItsKeyTooOftenIsRefused) {
  a_ = std::make_unique<TlsStream>(*identity_, a_fd_.get(), true, 4);
  b_ = std::make_unique<TlsStream>(*identity_, b_fd_.get(), false);
  Shake();
  std::vector<std::byte> data = RandomData(1000, 7);
  iovec part = PartOf(data, 0, data.size());
  std::vector<std::byte> arrived(data.size());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(a_->Send({&part, 1}).bytes, data.size());
  ASSERT_EQ(DrainB(&arrived).result, IoResult::kWouldBlock);
  ASSERT_EQ(a_->Send({&part, 1}).bytes, data.size());
  EXPECT_EQ(a_->num_key_updates(), 1u);
  EXPECT_EQ(DrainB(&arrived).result, IoResult::kError);
  ASSERT_TRUE(b_->failure().has_value());
  EXPECT_EQ(b_->failure()->reason, CloseReason::kTlsHandshake);
  EXPECT_EQ(b_->failure()->status.message(), "TLS: the peer changes its key too often");
}

// OpenSSL's own idea of a server sends tickets, and its client may ask for a new key of ours.
TEST_F(TlsStreamTest, OtherMessagesBehindTheHandshakeAreRefused) {
  for (const bool asks_for_key : {false, true}) {
    MakeSockets();
    MakeStreams();
    SSL* const ssl = SSL_new(identity_->ssl_context());
    SSL_set_num_tickets(ssl, asks_for_key ? 0 : 1);
    SSL_set_fd(ssl, a_fd_.get());
    SSL_set_accept_state(ssl);
    b_ = std::make_unique<TlsStream>(*identity_, b_fd_.get(), true);
    for (int i = 0; i < 10; ++i) {
      ASSERT_NE(b_->Handshake(), TlsStep::kFailed) << b_->failure()->status;
      (void)SSL_do_handshake(ssl);
    }
    if (asks_for_key) {
      ASSERT_EQ(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED), 1);
      ASSERT_EQ(SSL_do_handshake(ssl), 1);
    }
    std::vector<std::byte> arrived(1000);
    EXPECT_EQ(DrainB(&arrived).result, IoResult::kError);
    ASSERT_TRUE(b_->failure().has_value());
    EXPECT_EQ(b_->failure()->status.message(),
              asks_for_key ? "TLS: the peer wants a new key of ours"
                           : "TLS: a message that no peer of a cluster sends");
    SSL_free(ssl);
  }
}

TEST_F(TlsStreamTest, ADamagedRecordEndsTheStream) {
  MakeStreams();
  Shake();
  std::vector<std::byte> data = RandomData(1000, 4);
  iovec part = PartOf(data, 0, data.size());
  ASSERT_EQ(a_->Send({&part, 1}).bytes, data.size());
  std::vector<std::byte> wire(4096);
  const ssize_t size = recv(b_fd_.get(), wire.data(), wire.size(), 0);
  ASSERT_GT(size, 1000);
  wire[500] ^= std::byte{1};
  ASSERT_EQ(send(a_fd_.get(), wire.data(), static_cast<size_t>(size), 0), size);
  std::vector<std::byte> arrived(1000);
  iovec room = PartOf(arrived, 0, arrived.size());
  EXPECT_EQ(ReceiveFrom(b_.get(), {&room, 1}).result, IoResult::kError);
  ASSERT_TRUE(b_->failure().has_value());
  EXPECT_EQ(b_->failure()->reason, CloseReason::kTlsHandshake);
  EXPECT_EQ(b_->Send({&room, 1}).result, IoResult::kError) << "after a failure every call fails";
}

TEST_F(TlsStreamTest, TheEndOfTheSocketIsNoFailureOfTls) {
  MakeStreams();
  Shake();
  a_.reset();
  a_fd_.reset();
  std::byte room{};
  iovec part{&room, 1};
  EXPECT_EQ(ReceiveFrom(b_.get(), {&part, 1}).result, IoResult::kError);
  ASSERT_TRUE(b_->failure().has_value());
  EXPECT_EQ(b_->failure()->reason, CloseReason::kPeerClosed);
}

TEST_F(TlsStreamTest, OnlyTlsLooksLikeTls) {
  MakeStreams();
  ASSERT_EQ(a_->Handshake(), TlsStep::kGoesOn);
  std::vector<std::byte> hello(4096);
  const ssize_t size = recv(b_fd_.get(), hello.data(), hello.size(), 0);
  ASSERT_GT(size, 64);
  EXPECT_TRUE(LooksLikeTls(hello));
  EXPECT_FALSE(LooksLikeTls({hello.data(), 1}));
  std::vector<std::byte> frame(kFrameHeaderBytes);
  EncodeFrameHeader({}, std::span<std::byte, kFrameHeaderBytes>(frame));
  EXPECT_FALSE(LooksLikeTls(frame));
}

}  // namespace
}  // namespace baton::kv::test
