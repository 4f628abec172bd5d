// The loopback does what its header says: between threads, between processes, with each fault.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/hex.h"
#include "tests/drawn_bytes.h"
#include "tests/nccl/loopback_pair.h"

namespace baton::kv::nccl_test {

using device::HostStream;

namespace {

using nccl::Comm;
using nccl::Result;

class LoopbackTest : public testing::Test {
 protected:
  ~LoopbackTest() override {
    const LoopbackCounts counts = Counts();
    EXPECT_EQ(counts.communicators, 0u);
    EXPECT_EQ(counts.operations, 0u);
    EXPECT_EQ(counts.unique_ids, 0u);
  }

  ScopedFaults no_faults_{""};
};

TEST_F(LoopbackTest, BytesArriveInOrder) {
  Pair pair;
  EXPECT_EQ(pair.Start(), nccl::kInProgress);
  ASSERT_TRUE(pair.WaitBuilt());
  // Smaller and larger than the ring of 1 MiB, several under way at once.
  const std::vector<size_t> sizes = {1, 64, 4097, 1 << 20, (3 << 20) + 7};
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  for (const size_t size : sizes) {
    sent.push_back(DrawnBytes(size, size));
    received.emplace_back(size);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(pair.Send(sent[i]), nccl::kSuccess);
    ASSERT_EQ(pair.Receive(&received[i]), nccl::kSuccess);
  }
  ASSERT_TRUE(Eventually([&] { return pair.IsDone(0) && pair.IsDone(1); }));
  for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(sent[i], received[i]) << sizes[i];
  for (Comm* const comm : pair.ranks) {
    EXPECT_EQ(LoopbackTable().ncclCommFinalize(comm), nccl::kSuccess);
    EXPECT_EQ(LoopbackTable().ncclCommDestroy(comm), nccl::kSuccess);
  }
}

TEST_F(LoopbackTest, ASideThatIsAloneIsNotBuilt) {
  nccl::UniqueId id;
  nccl::Config config = NonBlocking();
  Comm* comm = nullptr;
  ASSERT_EQ(LoopbackTable().ncclGetUniqueId(&id), nccl::kSuccess);
  ASSERT_EQ(LoopbackTable().ncclCommInitRankConfig(&comm, 2, id, 0, &config), nccl::kInProgress);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(PollOnce(comm), nccl::kInProgress);
  std::vector<std::byte> bytes(8);
  HostStream stream;
  EXPECT_EQ(LoopbackTable().ncclSend(bytes.data(), 8, nccl::kUint8, 1, comm, &stream),
            nccl::kInvalidArgument);
  EXPECT_EQ(PollOnce(comm), nccl::kInvalidArgument) << "as NCCL's, it does not recover";
  EXPECT_EQ(LoopbackTable().ncclCommAbort(comm), nccl::kSuccess);
  EXPECT_EQ(LoopbackTable().ncclCommAbort(comm), nccl::kInvalidArgument) << "freed already";
}

TEST_F(LoopbackTest, AnIdWhoseMakerIsGoneGivesAnError) {
  Pair pair;
  nccl::UniqueId id;
  nccl::Config config = NonBlocking();
  ASSERT_EQ(LoopbackTable().ncclGetUniqueId(&id), nccl::kSuccess);
  ASSERT_EQ(LoopbackTable().ncclCommInitRankConfig(&pair.ranks[0], 2, id, 0, &config),
            nccl::kInProgress);
  pair.Abort(0);
  ASSERT_EQ(LoopbackTable().ncclCommInitRankConfig(&pair.ranks[1], 2, id, 1, &config),
            nccl::kInProgress);
  EXPECT_EQ(PollOnce(pair.ranks[1]), nccl::kSystemError);
  pair.Abort(1);
}

TEST_F(LoopbackTest, AnAbortEndsWhatIsUnderWayAndIsTold) {
  Pair pair;
  pair.Start();
  ASSERT_TRUE(pair.WaitBuilt());
  std::vector<std::byte> bytes(64);
  ASSERT_EQ(pair.Receive(&bytes), nccl::kSuccess);
  EXPECT_FALSE(pair.IsDone(1));
  pair.Abort(1);
  EXPECT_TRUE(pair.IsDone(1)) << "the stream goes on";
  EXPECT_TRUE(Eventually([&] { return PollOnce(pair.ranks[0]) == nccl::kRemoteError; }));
  pair.Abort(0);
  EXPECT_EQ(Counts().aborts, 2u);
}

TEST_F(LoopbackTest, CallsThatNcclRefusesAreRefused) {
  Pair pair;
  pair.Start();
  ASSERT_TRUE(pair.WaitBuilt());
  const nccl::NcclTable& table = LoopbackTable();
  std::vector<std::byte> bytes(8);
  HostStream* const stream = &pair.streams[0];
  EXPECT_EQ(table.ncclSend(bytes.data(), 8, nccl::kUint8, 0, pair.ranks[0], stream),
            nccl::kInvalidArgument);
  EXPECT_EQ(table.ncclSend(bytes.data(), 8, nccl::kUint8, 1, pair.ranks[0], nullptr),
            nccl::kInvalidArgument);
  nccl::UniqueId id{};
  nccl::Config config = NonBlocking();
  Comm* comm = nullptr;
  EXPECT_EQ(table.ncclCommInitRankConfig(&comm, 2, id, 0, &config), nccl::kInvalidArgument);
  config.blocking = 1;
  EXPECT_EQ(table.ncclCommInitRankConfig(&comm, 2, id, 0, &config), nccl::kInvalidArgument);
  auto* const configure = LoopbackFunction<decltype(loopback_configure)>("loopback_configure");
  EXPECT_EQ(configure("hang=2"), -1);
  EXPECT_EQ(configure("no such key=1"), -1);
  pair.Abort(0);
  pair.Abort(1);
}

// A fault of one operation and what each side then sees.
struct FaultCase {
  const char* faults;
  uint64_t LoopbackCounts::*count;
  bool sender_ends;    // its stream gets on without an abort
  bool receiver_ends;  //
  Result sender;       // async error
  Result receiver;
};

TEST_F(LoopbackTest, EachFaultIsSeenAsItIsDescribed) {
  const FaultCase cases[] = {
      {"delay=1,delay_us=100", &LoopbackCounts::delays, true, true, nccl::kSuccess, nccl::kSuccess},
      {"hang=1", &LoopbackCounts::hangs, false, false, nccl::kSuccess, nccl::kSuccess},
      {"error=1", &LoopbackCounts::errors, false, false, nccl::kSystemError, nccl::kSystemError},
      {"remote=1", &LoopbackCounts::remote_errors, false, false, nccl::kRemoteError,
       nccl::kRemoteError},
      {"death=1", &LoopbackCounts::deaths, false, false, nccl::kSuccess, nccl::kSuccess},
      {"corrupt=1", &LoopbackCounts::corruptions, true, true, nccl::kSuccess, nccl::kSuccess},
  };
  const std::vector<std::byte> sent = DrawnBytes(size_t{3} << 20, 3);
  for (const FaultCase& c : cases) {
    Configure("");
    Pair pair;
    pair.Start();
    ASSERT_TRUE(pair.WaitBuilt());
    Configure(c.faults);
    std::vector<std::byte> received(sent.size());
    // With `remote` the second call may find the error of the first.
    (void)pair.Receive(&received);
    (void)pair.Send(sent);
    EXPECT_GT(Counts().*c.count, 0u) << c.faults;
    if (c.sender_ends && c.receiver_ends) {
      EXPECT_TRUE(Eventually([&] { return pair.IsDone(0) && pair.IsDone(1); })) << c.faults;
      EXPECT_EQ(sent == received, c.count != &LoopbackCounts::corruptions) << c.faults;
    }
    if (c.sender != nccl::kSuccess) {
      EXPECT_TRUE(Eventually([&] {
        return PollOnce(pair.ranks[0]) == c.sender || PollOnce(pair.ranks[1]) == c.receiver;
      })) << c.faults;
    }
    if (!c.receiver_ends) {
      for (int i = 0; i < 2000; ++i) (void)PollOnce(pair.ranks[1]);
      EXPECT_FALSE(pair.IsDone(1)) << c.faults;
    }
    pair.Abort(0);
    pair.Abort(1);
    EXPECT_TRUE(pair.IsDone(0) && pair.IsDone(1)) << c.faults;
  }
}

TEST_F(LoopbackTest, FaultsOfBuildingAndOfCalls) {
  {
    const ScopedFaults faults("init_hang=1");
    Pair pair;
    pair.Start();
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(PollOnce(pair.ranks[0]), nccl::kInProgress);
    pair.Abort(0);
    pair.Abort(1);
    EXPECT_EQ(Counts().init_hangs, 2u);
  }
  {
    const ScopedFaults faults("init_error=1");
    Pair pair;
    pair.Start();
    EXPECT_EQ(PollOnce(pair.ranks[0]), nccl::kSystemError);
    pair.Abort(0);
    pair.Abort(1);
  }
  {
    const ScopedFaults faults("call=1");
    nccl::UniqueId id;
    EXPECT_EQ(LoopbackTable().ncclGetUniqueId(&id), nccl::kInternalError);
    EXPECT_EQ(Counts().call_errors, 1u);
  }
  const ScopedFaults faults("silent=1");
  Pair pair;
  pair.Start();
  ASSERT_TRUE(pair.WaitBuilt());
  pair.Abort(1);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(PollOnce(pair.ranks[0]), nccl::kSuccess);
  pair.Abort(0);
  EXPECT_EQ(Counts().silent_aborts, 2u);
}

// The seed decides the faults: the same seed gives the same faults.
TEST_F(LoopbackTest, DrawsFollowTheSeed) {
  const auto draw = [](const std::string& faults) {
    const ScopedFaults scoped(faults);
    std::string calls;
    for (int i = 0; i < 64; ++i) {
      Pair pair;
      pair.Start();
      calls += PollOnce(pair.ranks[0]) == nccl::kSystemError ? 'x' : '.';
      pair.Abort(0);
      pair.Abort(1);
    }
    return calls;
  };
  const std::string first = draw("seed=5,init_error=0.5");
  EXPECT_EQ(first, draw("seed=5,init_error=0.5"));
  EXPECT_NE(first, draw("seed=6,init_error=0.5"));
  EXPECT_NE(first.find('x'), std::string::npos);
  EXPECT_NE(first.find('.'), std::string::npos);
}

// Rank 1 in a process of its own, which sends the bytes back, or dies in the middle.
pid_t StartChild(const nccl::UniqueId& id, const std::string& size) {
  const std::string program = BuiltLibrary("nccl_loopback_child");
  const std::string hex =
      HexFromBytes({reinterpret_cast<const uint8_t*>(id.internal), sizeof(id.internal)});
  std::vector<std::string> arguments = {program, hex, size};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  return child;
}

TEST_F(LoopbackTest, BytesCrossBetweenProcesses) {
  nccl::UniqueId id;
  nccl::Config config = NonBlocking();
  Comm* comm = nullptr;
  ASSERT_EQ(LoopbackTable().ncclGetUniqueId(&id), nccl::kSuccess);
  ASSERT_EQ(LoopbackTable().ncclCommInitRankConfig(&comm, 2, id, 0, &config), nccl::kInProgress);
  const size_t size = (size_t{5} << 20) + 3;
  const pid_t child = StartChild(id, std::to_string(size));
  ASSERT_TRUE(Eventually([&] { return PollOnce(comm) == nccl::kSuccess; }));
  const std::vector<std::byte> sent = DrawnBytes(size, 9);
  std::vector<std::byte> received(size);
  HostStream stream;
  ASSERT_EQ(LoopbackTable().ncclSend(sent.data(), size, nccl::kUint8, 1, comm, &stream),
            nccl::kSuccess);
  ASSERT_EQ(LoopbackTable().ncclRecv(received.data(), size, nccl::kUint8, 1, comm, &stream),
            nccl::kSuccess);
  ASSERT_TRUE(Eventually([&] { return stream.num_done.load() == 2; }));
  EXPECT_EQ(sent, received);
  EXPECT_EQ(LoopbackTable().ncclCommDestroy(comm), nccl::kSuccess);
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Nobody tells the survivor: it has to give up by itself.
TEST_F(LoopbackTest, AProcessThatIsKilledLeavesTheOtherWaiting) {
  nccl::UniqueId id;
  nccl::Config config = NonBlocking();
  Comm* comm = nullptr;
  ASSERT_EQ(LoopbackTable().ncclGetUniqueId(&id), nccl::kSuccess);
  ASSERT_EQ(LoopbackTable().ncclCommInitRankConfig(&comm, 2, id, 0, &config), nccl::kInProgress);
  const pid_t child = StartChild(id, "1000000");
  ASSERT_TRUE(Eventually([&] { return PollOnce(comm) == nccl::kSuccess; }));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const std::vector<std::byte> sent(size_t{4} << 20);
  HostStream stream;
  ASSERT_EQ(LoopbackTable().ncclSend(sent.data(), sent.size(), nccl::kUint8, 1, comm, &stream),
            nccl::kSuccess);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(PollOnce(comm), nccl::kSuccess);
  EXPECT_EQ(stream.num_done.load(), 0u);
  EXPECT_EQ(LoopbackTable().ncclCommAbort(comm), nccl::kSuccess);
  EXPECT_EQ(stream.num_done.load(), 1u);
}

}  // namespace
}  // namespace baton::kv::nccl_test
