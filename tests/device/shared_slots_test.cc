// Memory that processes fill together: each slot once, by whoever comes first and lives.
#include "src/device/shared_slots.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/memory_file.h"

namespace baton::device {
namespace {

using ::testing::HasSubstr;
using State = SharedSlots::State;

// Small pages are enough: a machine without huge pages has the same slots.
SlotsWanted Wanted(std::vector<uint64_t> sizes = {5, 100, 3'000'000}) {
  return {.sizes = std::move(sizes), .identity = {1, 2}, .needs_huge_pages = false};
}

// One process's view of a file, and its pool.
class Member {
 public:
  explicit Member(int fd, const SlotsWanted& wanted = Wanted()) {
    auto slots = SharedSlots::Join(fd, wanted, pool_);
    EXPECT_TRUE(slots.ok()) << slots.status();
    if (slots.ok()) slots_ = *std::move(slots);
  }
  SharedSlots* operator->() { return slots_.get(); }

  StatusOr<State> FillWith(size_t idx, char value) {
    return slots_->TryFill(idx, [&](std::span<std::byte> out) {
      std::memset(out.data(), value, out.size());
      return OkStatus();
    });
  }
  // Whether all bytes of a slot are `value`.
  bool Has(size_t idx, char value) {
    const std::span<const std::byte> slot = slots_->slot(idx);
    return std::ranges::all_of(slot, [&](std::byte b) { return static_cast<char>(b) == value; });
  }

 private:
  ThreadPool pool_{1};
  std::unique_ptr<SharedSlots> slots_;
};

UniqueFd NewFile() {
  auto file = SharedSlots::CreateFile();
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

Status ErrorOfJoining(int fd, const SlotsWanted& wanted = Wanted()) {
  ThreadPool pool(1);
  return SharedSlots::Join(fd, wanted, pool).status();
}

TEST(SharedSlotsTest, EachSlotIsFilledOnceAndReadByAll) {
  const UniqueFd fd = NewFile();
  Member first(fd.get());
  Member second(fd.get());
  ASSERT_EQ(first->num_slots(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first->slot(i).size(), Wanted().sizes[i]);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first->slot(i).data()) % 64, 0u);
    EXPECT_FALSE(second->IsFilled(i));
    EXPECT_TRUE(second.Has(i, 0)) << "a slot begins as zeros";
  }
  EXPECT_EQ(*first.FillWith(0, 'a'), State::kFilledNow);
  EXPECT_EQ(*second.FillWith(0, 'b'), State::kFilledBefore);
  EXPECT_EQ(*second.FillWith(2, 'c'), State::kFilledNow);
  EXPECT_EQ(*first.FillWith(2, 'd'), State::kFilledBefore);
  EXPECT_EQ(*first.FillWith(1, 'e'), State::kFilledNow);
  Member late(fd.get());
  for (Member* member : {&first, &second, &late}) {
    EXPECT_TRUE(member->Has(0, 'a') && member->Has(1, 'e') && member->Has(2, 'c'));
    EXPECT_TRUE((*member)->Protect().ok());
  }
}

TEST(SharedSlotsTest, ASlotThatAnotherOneFillsIsBusyAndTheNextOneIsNot) {
  const UniqueFd fd = NewFile();
  Member first(fd.get());
  SlotsWanted hasty = Wanted();
  hasty.patience_us = 20'000;
  Member second(fd.get(), hasty);
  const auto none = [](std::span<std::byte>) { return OkStatus(); };
  const auto state = first->TryFill(0, [&](std::span<std::byte>) {
    EXPECT_EQ(*second.FillWith(0, 'b'), State::kBusy);
    EXPECT_EQ(*second.FillWith(1, 'b'), State::kFilledNow);
    EXPECT_EQ(*second->Fill(0, none), State::kBusy) << "patience ends";
    return OkStatus();
  });
  EXPECT_EQ(*state, State::kFilledNow);
  EXPECT_EQ(*second->Fill(0, none), State::kFilledBefore);
}

TEST(SharedSlotsTest, AnErrorLeavesTheSlotToTheNextOne) {
  const UniqueFd fd = NewFile();
  Member first(fd.get());
  Member second(fd.get());
  const auto failed = first->TryFill(1, [](std::span<std::byte> out) {
    std::memset(out.data(), 'x', out.size() / 2);
    return InvalidArgument("row 7");
  });
  EXPECT_EQ(failed.status(), InvalidArgument("row 7"));
  EXPECT_FALSE(second->IsFilled(1));
  EXPECT_EQ(*second.FillWith(1, 'b'), State::kFilledNow);
  EXPECT_TRUE(first->IsFilled(1) && first.Has(1, 'b'));
}

// A process that fills half of a slot and stands still.
pid_t StartHalfFilled(int fd, size_t idx) {
  std::array<int, 2> pipe = {};
  EXPECT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    Member child(fd);
    (void)child->TryFill(idx, [&](std::span<std::byte> out) {
      std::memset(out.data(), 'x', out.size() / 2);
      if (::write(pipe[1], "h", 1) == 1) ::pause();
      return OkStatus();
    });
    ::_exit(3);
  }
  ::close(pipe[1]);
  char byte = 0;
  EXPECT_EQ(::read(pipe[0], &byte, 1), 1) << "the child came to no slot";
  ::close(pipe[0]);
  return pid;
}

TEST(SharedSlotsTest, ASlotOfAKilledProcessIsFilledByTheNextOne) {
  const UniqueFd fd = NewFile();
  const pid_t pid = StartHalfFilled(fd.get(), 2);
  Member member(fd.get());
  EXPECT_EQ(*member.FillWith(2, 'b'), State::kBusy);
  EXPECT_EQ(*member.FillWith(1, 'b'), State::kFilledNow);
  // The lock is gone with the process, whether or not anybody has reaped it.
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  const auto fill = [](std::span<std::byte> out) {
    std::memset(out.data(), 'c', out.size());
    return OkStatus();
  };
  EXPECT_EQ(*member->Fill(2, fill), State::kFilledNow);
  EXPECT_TRUE(member.Has(2, 'c'));
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status));
}

// A process that is killed while it lays out the file leaves a size, and some memory.
TEST(SharedSlotsTest, ALayoutThatWasBegunIsDoneAgain) {
  const UniqueFd fd = NewFile();
  uint64_t size_bytes = 0;
  {
    const UniqueFd other = NewFile();
    Member member(other.get());
    size_bytes = member->size_bytes();
  }
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0);
  ASSERT_TRUE(AllocateMemoryFile(fd.get(), 0, size_bytes / 2).ok());
  Member member(fd.get());
  EXPECT_EQ(*member.FillWith(2, 'b'), State::kFilledNow);
}

TEST(SharedSlotsTest, TheFileIsSealedAndHasAllItsMemory) {
  const UniqueFd fd = NewFile();
  Member member(fd.get());
  EXPECT_EQ(::ftruncate(fd.get(), 4096), -1);
  EXPECT_EQ(::ftruncate(fd.get(), 1 << 30), -1);
  EXPECT_TRUE(member->size_bytes() % AlignedBuffer::kHugePageBytes == 0);
  EXPECT_LE(member->huge_bytes(), member->size_bytes());
}

TEST(SharedSlotsTest, ProtectedMemoryIsNotWritten) {
  const UniqueFd fd = NewFile();
  const UniqueFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  Member member(fd.get());
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(member.FillWith(i, 'a').ok());
  void* const slot = const_cast<std::byte*>(member->slot(1).data());
  EXPECT_EQ(::read(zeros.get(), slot, 1), 1);
  ASSERT_TRUE(member->Protect().ok());
  EXPECT_EQ(::read(zeros.get(), slot, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(*member.FillWith(1, 'b'), State::kFilledBefore);
}

TEST(SharedSlotsTest, RefusesWhatHoldsSomethingElse) {
  const UniqueFd fd = NewFile();
  Member member(fd.get());
  SlotsWanted other = Wanted();
  other.identity = {1, 3};
  EXPECT_THAT(ErrorOfJoining(fd.get(), other).ToString(), HasSubstr("filled from other files"));
  EXPECT_THAT(ErrorOfJoining(fd.get(), Wanted({5, 100})).ToString(),
              HasSubstr("has 3 slots in 4194304 bytes, wanted are 2 in 2097152"));
  Member again(fd.get());
  EXPECT_EQ(*again.FillWith(0, 'a'), State::kFilledNow) << "the file is as it was";
}

TEST(SharedSlotsTest, RefusesWhatIsNoFileOfSlots) {
  const UniqueFd null_file(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(ErrorOfJoining(null_file.get()).ToString(), HasSubstr("is no memory file"));
  EXPECT_THAT(ErrorOfJoining(-1).ToString(), HasSubstr("descriptor -1 is no memory file"));
  const UniqueFd empty = *CreateMemoryFile("empty", 0);
  EXPECT_THAT(ErrorOfJoining(empty.get()).ToString(), HasSubstr("has 0 bytes"));
  const UniqueFd zeros = *CreateMemoryFile("zeros", 1 << 21);
  EXPECT_THAT(ErrorOfJoining(zeros.get()).ToString(), HasSubstr("begins with 0x0"));
  const UniqueFd sealed = NewFile();
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_THAT(ErrorOfJoining(sealed.get()).ToString(), HasSubstr("is sealed at 4096 bytes"));
}

// A hole would be filled when it is read, by memory that may not be there.
TEST(SharedSlotsTest, RefusesAFileThatLostMemory) {
  const UniqueFd fd = NewFile();
  {
    Member member(fd.get());
    ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 21, 1 << 21),
              0);
  }
  EXPECT_THAT(ErrorOfJoining(fd.get()).ToString(), HasSubstr("blocks of 512"));
}

// A process without huge pages, as on a system that gives none.
TEST(SharedSlotsTest, SmallPagesServeWhoDoesNotNeedHugeOnes) {
  const UniqueFd fd = NewFile();
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) ::_exit(3);
    SlotsWanted wanted = Wanted();
    wanted.needs_huge_pages = true;
    const Status refused = ErrorOfJoining(fd.get(), wanted);
    if (refused.code() != StatusCode::kFailedPrecondition) ::_exit(4);
    if (refused.message().find("no huge pages") == std::string::npos) ::_exit(5);
    Member member(fd.get());
    ::_exit(member->huge_bytes() == 0 && *member.FillWith(2, 'a') == State::kFilledNow ? 0 : 6);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Member member(fd.get());
  EXPECT_TRUE(member->IsFilled(2) && member.Has(2, 'a'));
}

// The limit on the size of files stands for all that can keep memory from being there.
TEST(SharedSlotsTest, LeavesTheFileToOthersWhenMemoryIsShort) {
  const UniqueFd fd = NewFile();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 1 << 21, .rlim_max = 1 << 21};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(3);
    ::_exit(ErrorOfJoining(fd.get()).code() == StatusCode::kResourceExhausted ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Member member(fd.get());
  EXPECT_EQ(*member.FillWith(2, 'b'), State::kFilledNow);
}

}  // namespace
}  // namespace baton::device
