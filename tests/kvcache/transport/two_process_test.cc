// Blocks that really cross between two processes, and what is left when one of them is killed.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/kvcache/transport/test_rig.h"

extern char** environ;

namespace baton::kv::test {
namespace {

constexpr uint64_t kSeed = 4711;

// A running prefill_child.
class Child {
 public:
  Child(TransportKind kind, const Worker& decode, Incarnation own) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> arguments = {(self.parent_path() / "prefill_child").string(),
                                          std::string(TransportKindName(kind)),
                                          std::to_string(decode.incarnation.value()),
                                          decode.endpoint->tcp_address(),
                                          decode.endpoint->unix_name(),
                                          std::to_string(own.value()),
                                          std::to_string(kSeed)};
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, raw[0], nullptr, nullptr, raw.data(), environ), 0);
  }
  ~Child() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    (void)kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Signal(int signal) const { (void)kill(pid_, signal); }
  // The exit status of a child that ends by itself.
  int Wait() {
    int status = 0;
    (void)waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
};

class TwoProcessTest : public testing::TestWithParam<TransportKind> {
 protected:
  TwoProcessTest() : rig_(GetParam(), ModelLayout(), 80), d_(rig_.MakeDecode("decode-0")) {}

  // Opens a transfer into blocks 40... and orders the child to fill it.
  Transfer Order(const std::string& verb, uint64_t id, Incarnation child) {
    const Transfer transfer = MakeTransfer(id, 32, 0, 40);
    EXPECT_TRUE(d_.transport->OpenReceive(SpecFor(transfer, child)).ok());
    EXPECT_TRUE(d_.transport->SendControl(child, verb + " " + std::to_string(id) + " 32").ok());
    return transfer;
  }
  // Compares the blocks with those of the child, made here from the same seed.
  void ExpectArrived(const Transfer& transfer) {
    const auto expected = MakeArena(ModelLayout(), 40);
    FillSource(transfer, expected->memory(), kSeed);
    EXPECT_TRUE(Arrived(transfer, expected->memory(), d_.blocks()));
  }

  Rig rig_;
  Worker d_;
};

TEST_P(TwoProcessTest, EveryByteArrivesFromAnotherProcess) {
  const Incarnation own(100);
  Child child(GetParam(), d_, own);
  ASSERT_TRUE(d_.sink->WaitUp(1));
  EXPECT_EQ(d_.sink->Snapshot().ups[0].kind, GetParam());
  const Transfer transfer = Order("send", 1, own);
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  ExpectArrived(transfer);
  EXPECT_TRUE(d_.sink->Snapshot().bad_slices.empty());
  d_.transport->Stop();
  EXPECT_EQ(child.Wait(), 0);
}

TEST_P(TwoProcessTest, AKilledPeerIsReportedAndItsArenaStaysReadable) {
  for (size_t round = 0; round < 4; ++round) {
    const Incarnation own(200 + round);
    Child child(GetParam(), d_, own);
    ASSERT_TRUE(d_.sink->WaitUp(2 * round + 1));
    const Transfer transfer = Order("flood", 10 + round, own);
    const uint64_t before = d_.transport->Stats().slices_received;
    ASSERT_TRUE(Eventually([&] { return d_.transport->Stats().slices_received > before; }));
    child.Kill();
    ASSERT_TRUE(d_.sink->WaitDown(2 * round + 1));
    EXPECT_EQ(d_.sink->Snapshot().downs.back().first, own);
    d_.transport->CloseReceive(transfer.id);
    ASSERT_TRUE(d_.sink->WaitReceiveClosed(transfer.id));
    for (const ReceiveBlock& block : transfer.dest) {
      SetBlock(d_.blocks(), block.index, std::byte{0xA5});
    }
    // The next life of the worker is served as if nothing had happened.
    const Incarnation next(300 + round);
    Child reborn(GetParam(), d_, next);
    const Transfer again = Order("send", 20 + round, next);
    ASSERT_TRUE(d_.sink->WaitComplete(again.id));
    ExpectArrived(again);
    d_.transport->CloseReceive(again.id);
    ASSERT_TRUE(d_.sink->WaitReceiveClosed(again.id));
    reborn.Kill();
    ASSERT_TRUE(d_.sink->WaitDown(2 * round + 2));
  }
}

TEST_P(TwoProcessTest, AStoppedProcessGoesOnWhereItWas) {
  const Incarnation own(400);
  Child child(GetParam(), d_, own);
  ASSERT_TRUE(d_.sink->WaitUp(1));
  child.Signal(SIGSTOP);
  const Transfer transfer = Order("send", 1, own);
  child.Signal(SIGCONT);
  ASSERT_TRUE(d_.sink->WaitComplete(transfer.id));
  ExpectArrived(transfer);
  EXPECT_TRUE(d_.sink->Snapshot().downs.empty());
}

INSTANTIATE_TEST_SUITE_P(Transports, TwoProcessTest,
                         testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         [](const auto& param_info) {
                           return std::string(TransportKindName(param_info.param));
                         });

}  // namespace
}  // namespace baton::kv::test
