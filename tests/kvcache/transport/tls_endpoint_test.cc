// Endpoints with TLS: who gets in, what becomes of everybody else, and that those who are in do not
// notice.
#include <openssl/ssl.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/frame.h"
#include "kvcache/transport/tls_stream.h"
#include "tests/kvcache/transport/raw_peer.h"
#include "tests/kvcache/transport/test_rig.h"
#include "tests/test_seed.h"
#include "tests/tls/test_certs.h"

namespace baton::kv::test {

using tls::TlsFiles;
using tls::TlsIdentity;
using tls::test::ReplaceText;
using tls::test::TempFolder;
using tls::test::TestAuthority;
using tls::test::TextOf;

namespace {

// A decode worker with TLS and a prefill worker that is connected to it; each test brings somebody
// else, and the two must not notice.
class TlsEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    rig_.tweak = [this](KvEndpointOptions* options) {
      options->tls = next_files_;
      if (next_hello_us_ > 0) options->timers.hello_us = next_hello_us_;
      if (!next_secret_.empty()) options->cluster_secret = next_secret_;
    };
  }
  void StartPair() {
    d_ = rig_.MakeDecode("decode-0");
    next_hello_us_ = 0;
    p_ = rig_.MakePrefill("prefill-0", {&d_});
    ASSERT_TRUE(p_.sink->WaitUp(1));
    ASSERT_TRUE(d_.sink->WaitUp(1));
  }
  void ExpectPairUndisturbed() {
    ExpectTransferWorks(&p_, &d_, ++next_transfer_);
    EXPECT_TRUE(p_.sink->Snapshot().downs.empty());
    EXPECT_TRUE(d_.sink->Snapshot().downs.empty());
    EXPECT_EQ(d_.transport->Stats().connections, 1u);
  }
  // A prefill worker that shows `files` to the decode worker.
  Worker Intruder(const TlsFiles& files) {
    next_files_ = files;
    Worker intruder = rig_.MakePrefill("prefill-9", {&d_});
    next_files_ = good_;
    return intruder;
  }
  // The first bytes that a dialler of this cluster sends.
  std::vector<std::byte> ClientHello() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const UniqueFd near(fds[0]);
    const UniqueFd far(fds[1]);
    TlsStream stream(**TlsIdentity::Load(good_), near.get(), true);
    EXPECT_EQ(stream.Handshake(), TlsStep::kGoesOn);
    std::vector<std::byte> bytes(4096);
    const ssize_t size = recv(far.get(), bytes.data(), bytes.size(), 0);
    EXPECT_GT(size, 100);
    bytes.resize(static_cast<size_t>(size));
    return bytes;
  }

  const TempFolder folder_;
  const TestAuthority authority_;
  const TestAuthority stranger_;
  const TlsFiles good_ = authority_.Issue(folder_, "good");
  const TlsFiles foreign_ = stranger_.Issue(folder_, "foreign");
  TlsFiles next_files_ = good_;
  int64_t next_hello_us_ = 0;
  std::string next_secret_;
  Rig rig_{TransportKind::kTcp};
  Worker d_;
  Worker p_;
  uint64_t next_transfer_ = 0;
};

TEST_F(TlsEndpointTest, APrefillWorkerWithoutTlsIsRefused) {
  StartPair();
  Worker plain = Intruder({});
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTlsMissing, 2)) << "it dials again and again";
  EXPECT_TRUE(WaitClose(plain, CloseReason::kTlsMissing)) << "and knows why it fails";
  EXPECT_TRUE(plain.sink->Snapshot().ups.empty());
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, ADecodeWorkerWithoutTlsIsNotUsed) {
  StartPair();
  next_files_ = {};
  Worker plain = rig_.MakeDecode("decode-9");
  rig_.SetDecodes(&p_, {&d_, &plain});
  EXPECT_TRUE(WaitClose(p_, CloseReason::kTlsMissing, 2));
  EXPECT_TRUE(WaitClose(plain, CloseReason::kTlsMissing, 2));
  EXPECT_TRUE(plain.sink->Snapshot().ups.empty());
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, ADialerOfAnotherAuthorityIsRefused) {
  StartPair();
  TlsFiles trusts_us = foreign_;
  trusts_us.ca = folder_.path() + "/both.ca";
  ReplaceText(trusts_us.ca, TextOf(foreign_.ca) + TextOf(good_.ca));
  Worker intruder = Intruder(trusts_us);
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTlsCertificate, 2));
  EXPECT_TRUE(WaitClose(intruder, CloseReason::kTlsCertificate)) << "the alert says why";
  EXPECT_TRUE(intruder.sink->Snapshot().ups.empty());
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, AListenerOfAnotherAuthorityIsNotUsed) {
  StartPair();
  TlsFiles trusts_us = foreign_;
  trusts_us.ca = folder_.path() + "/both.ca";
  ReplaceText(trusts_us.ca, TextOf(foreign_.ca) + TextOf(good_.ca));
  next_files_ = trusts_us;
  Worker impostor = rig_.MakeDecode("decode-9");
  rig_.SetDecodes(&p_, {&d_, &impostor});
  EXPECT_TRUE(WaitClose(p_, CloseReason::kTlsCertificate, 2));
  EXPECT_TRUE(WaitClose(impostor, CloseReason::kTlsCertificate));
  EXPECT_TRUE(impostor.sink->Snapshot().ups.empty());
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, ACertificateThatHasExpiredOpensNoConnection) {
  StartPair();
  const TlsFiles brief = authority_.Issue(folder_, "brief", {.end_s = 2});
  next_files_ = brief;
  Worker late = rig_.MakePrefill("prefill-9", {});
  ASSERT_TRUE(Eventually([&] { return !TlsIdentity::Load(brief).ok(); }));
  rig_.SetDecodes(&late, {&d_});
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTlsCertificate, 2));
  EXPECT_TRUE(late.sink->Snapshot().ups.empty());
  ExpectPairUndisturbed();
}

// TLS does not replace the cluster secret.
TEST_F(TlsEndpointTest, ACertificateWithoutTheSecretIsNotEnough) {
  StartPair();
  next_secret_ = "another secret";
  Worker intruder = Intruder(good_);
  EXPECT_TRUE(WaitClose(intruder, CloseReason::kWrongSecret));
  EXPECT_TRUE(intruder.sink->Snapshot().ups.empty());
  ExpectPairUndisturbed();
}

// A client made with OpenSSL alone that `set_up` changes; true when it got through the handshake
// and could read what only a peer is told.
bool ForeignClientGetsIn(const Worker& acceptor, const std::function<void(SSL_CTX*)>& set_up) {
  const std::string address = acceptor.endpoint->tcp_address();
  BIO* const socket = BIO_new_connect(address.c_str());
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  set_up(context);
  SSL* const ssl = SSL_new(context);
  SSL_set_bio(ssl, socket, socket);
  bool in = SSL_connect(ssl) == 1;
  char byte = 0;
  in = in && SSL_read(ssl, &byte, 1) == 1;
  SSL_free(ssl);
  SSL_CTX_free(context);
  return in;
}

TEST_F(TlsEndpointTest, ClientsWithoutACertificateOrWithOldTlsAreRefused) {
  StartPair();
  EXPECT_FALSE(ForeignClientGetsIn(d_, [](SSL_CTX*) {}));
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTlsCertificate, 1));
  EXPECT_FALSE(ForeignClientGetsIn(
      d_, [](SSL_CTX* context) { SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION); }));
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTlsHandshake, 1));
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, ATruncatedHandshakeIsAnEnd) {
  StartPair();
  const std::vector<std::byte> hello = ClientHello();
  uint64_t num_tries = 0;
  for (size_t size = 1; size < hello.size(); size += 13) {
    RawPeer peer(d_);
    peer.Send({hello.data(), size});
    peer.Hangup();
    ASSERT_TRUE(WaitClose(d_, CloseReason::kPeerClosed, ++num_tries)) << size << " bytes";
  }
  // Whole, and then not another word.
  RawPeer peer(d_);
  peer.Send(hello);
  peer.HalfClose();
  EXPECT_TRUE(WaitClose(d_, CloseReason::kPeerClosed, ++num_tries));
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, GarbageEndsOnlyItsOwnConnection) {
  StartPair();
  std::mt19937_64 random(TestSeed());
  const std::vector<std::byte> hello = ClientHello();
  const auto ended = [this] {
    return Closes(d_, CloseReason::kTlsHandshake) + Closes(d_, CloseReason::kTlsMissing) +
           Closes(d_, CloseReason::kPeerClosed) + Closes(d_, CloseReason::kTlsCertificate);
  };
  for (uint64_t round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes = hello;
    if (round % 2 == 0) {
      for (int i = 0; i < 8; ++i) {
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
      }
    } else {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    }
    RawPeer peer(d_);
    peer.Send(bytes);
    peer.HalfClose();
    ASSERT_TRUE(Eventually([&] { return ended() == round + 1; })) << "round " << round;
  }
  EXPECT_GT(Closes(d_, CloseReason::kTlsMissing), 0u);
  EXPECT_GT(Closes(d_, CloseReason::kTlsHandshake), 0u);
  ExpectPairUndisturbed();
}

TEST_F(TlsEndpointTest, AHandshakeThatStopsIsGivenUp) {
  next_hello_us_ = 500'000;
  StartPair();
  const std::vector<std::byte> hello = ClientHello();
  RawPeer silent(d_);
  RawPeer half(d_);
  half.Send({hello.data(), hello.size() / 2});
  RawPeer answered(d_);
  answered.Send(hello);
  EXPECT_TRUE(WaitClose(d_, CloseReason::kHelloTimeout, 3));
  EXPECT_TRUE(silent.WaitEnd());
  EXPECT_TRUE(half.WaitEnd());
  ExpectPairUndisturbed();
}

// Each costs the worker a signature; nobody leaves for a newcomer before it had its own.
TEST_F(TlsEndpointTest, WhoeverHasSpokenIsAnsweredBeforeOthersAreTaken) {
  StartPair();
  const std::vector<std::byte> hello = ClientHello();
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(std::make_unique<RawPeer>(d_));
    crowd.back()->Send(hello);
  }
  size_t num_answered = 0;
  for (const auto& peer : crowd) num_answered += peer->HasBytes() ? 1 : 0;
  EXPECT_EQ(num_answered, crowd.size());
  const KvEndpointLimits limits;
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTooMany, 200 - limits.max_strangers_per_address));
  ExpectTransferWorks(&p_, &d_, 1);
}

// The flood does not end before the member begins: it has to get in beside it.
TEST_F(TlsEndpointTest, AFloodOfHandshakesThatGoesOnShutsNoPeerOut) {
  StartPair();
  const std::vector<std::byte> hello = ClientHello();
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    std::deque<std::unique_ptr<RawPeer>> crowd;
    while (!stop) {
      crowd.push_back(std::make_unique<RawPeer>(d_));
      crowd.back()->Send(hello);
      if (crowd.size() > 100) crowd.pop_front();
    }
  });
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTooMany, 100));
  Worker after = rig_.MakePrefill("prefill-1", {&d_});
  EXPECT_TRUE(after.sink->WaitUp(1));
  ExpectTransferWorks(&p_, &d_, 1);
  ExpectTransferWorks(&after, &d_, 2);
  stop = true;
  flood.join();
  EXPECT_TRUE(p_.sink->Snapshot().downs.empty());
  EXPECT_TRUE(after.sink->Snapshot().downs.empty());
}

// Shows the certificate of a member; the rest is not what a member does. Blocks.
class OpensslMember {
 public:
  OpensslMember(const Worker& acceptor, const TlsFiles& files)
      : context_(SSL_CTX_new(TLS_client_method())) {
    // OpenSSL's sockets write to peers that hung up.
    std::signal(SIGPIPE, SIG_IGN);
    SSL_CTX_use_certificate_chain_file(context_, files.cert.c_str());
    SSL_CTX_use_PrivateKey_file(context_, files.key.c_str(), SSL_FILETYPE_PEM);
    ssl_ = SSL_new(context_);
    BIO* const socket = BIO_new_connect(acceptor.endpoint->tcp_address().c_str());
    SSL_set_bio(ssl_, socket, socket);
    is_in_ = SSL_connect(ssl_) == 1;
  }
  ~OpensslMember() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  OpensslMember(const OpensslMember&) = delete;
  OpensslMember& operator=(const OpensslMember&) = delete;

  bool is_in() const { return is_in_; }
  bool Write(const std::string& text) {
    return SSL_write(ssl_, text.data(), static_cast<int>(text.size())) > 0;
  }
  bool ChangeKey() {
    return SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(ssl_) == 1;
  }

 private:
  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
  bool is_in_ = false;
};

TEST_F(TlsEndpointTest, NewcomersDoNotReplaceWhoShowedACertificate) {
  StartPair();
  OpensslMember member(d_, good_);
  ASSERT_TRUE(member.is_in());
  std::vector<std::unique_ptr<RawPeer>> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<RawPeer>(d_));
  const KvEndpointLimits limits;
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTooMany, 200 - limits.max_strangers_per_address));
  // It still has a connection to say something on, if only nonsense.
  EXPECT_TRUE(member.Write(std::string(kFrameHeaderBytes, 'x')));
  EXPECT_TRUE(WaitClose(d_, CloseReason::kProtocol));
}

// OpenSSL itself would handle them for as long as they come, inside one call.
TEST_F(TlsEndpointTest, KeyUpdatesWithoutDataHoldNobodyUp) {
  StartPair();
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    while (!stop) {
      OpensslMember member(d_, good_);
      while (!stop && member.is_in() && member.ChangeKey()) {
      }
    }
  });
  EXPECT_TRUE(WaitClose(d_, CloseReason::kTlsHandshake, 10)) << "each is refused, at once";
  ExpectPairUndisturbed();
  stop = true;
  flood.join();
}

TEST_F(TlsEndpointTest, ReplacedFilesCountForNewConnectionsOnly) {
  next_files_ = authority_.Issue(folder_, "mine");
  const TlsFiles mine = next_files_;
  d_ = rig_.MakeDecode("decode-0");
  next_files_ = good_;
  p_ = rig_.MakePrefill("prefill-0", {&d_});
  ASSERT_TRUE(p_.sink->WaitUp(1));
  Worker foreign = Intruder(foreign_);
  ASSERT_TRUE(WaitClose(foreign, CloseReason::kTlsCertificate));
  ReplaceText(mine.ca, TextOf(foreign_.ca));
  ReplaceText(mine.key, TextOf(foreign_.key));
  ReplaceText(mine.cert, TextOf(foreign_.cert));
  EXPECT_TRUE(foreign.sink->WaitUp(1)) << "it goes on dialling, and now it fits";
  ExpectTransferWorks(&foreign, &d_, 1);
  ExpectTransferWorks(&p_, &d_, 2);
  EXPECT_TRUE(p_.sink->Snapshot().downs.empty());
}

TEST_F(TlsEndpointTest, FilesThatCannotWorkStopTheStart) {
  const std::unique_ptr<KvArena> arena = MakeArena(SmallLayout(), 4);
  KvEndpointOptions options;
  options.worker_id = "decode-0";
  options.incarnation = Incarnation(1);
  options.tls = good_;
  options.tls.key = foreign_.key;
  const auto endpoint = KvEndpoint::Create(options, arena.get());
  EXPECT_EQ(endpoint.status().code(), StatusCode::kInvalidArgument);
  options.tls = {good_.cert, "", good_.ca};
  EXPECT_NE(KvEndpoint::Create(options, arena.get()).status().message().find("--tls-key"),
            std::string::npos);
}

}  // namespace
}  // namespace baton::kv::test
