// The sealed arena, the view of a peer's arena, and how much memory there is.
#include "kvcache/kv_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kvcache/available_memory.h"
#include "src/base/memory_file.h"

namespace baton::kv {
namespace {

using testing::HasSubstr;

KvLayout Layout() {
  KvLayout layout;
  layout.num_layers = 3;
  layout.num_kv_heads = 2;
  layout.head_dim = 32;
  layout.block_size = 16;
  return layout;
}

std::unique_ptr<KvArena> MakeArena(uint32_t num_blocks) {
  auto arena = KvArena::Create(Layout(), num_blocks);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

UniqueFd Duplicate(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(KvArenaTest, BlocksLieAtTheirStrideAndAreZero) {
  const auto arena = MakeArena(5);
  EXPECT_EQ(arena->size_bytes(), 5 * Layout().BlockStride());
  EXPECT_EQ(arena->Block(BlockIndex(2)) - arena->base(), 2 * Layout().BlockStride());
  EXPECT_EQ(arena->Slice(BlockIndex(2), 1) - arena->Block(BlockIndex(2)),
            static_cast<ptrdiff_t>(Layout().SliceBytes()));
  for (uint64_t i = 0; i < arena->size_bytes(); ++i) ASSERT_EQ(arena->base()[i], std::byte{0});
}

TEST(KvArenaTest, EveryPageExistsAfterCreate) {
  const auto arena = MakeArena(64);
  struct stat info;
  ASSERT_EQ(fstat(arena->fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), arena->size_bytes());
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, arena->size_bytes());
}

TEST(KvArenaTest, NobodyElseCanWriteShrinkOrGrow) {
  const auto arena = MakeArena(4);
  const int fd = arena->fd();
  const size_t size = arena->size_bytes();
  EXPECT_EQ(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_NE(ftruncate(fd, static_cast<off_t>(size) * 2), 0);
  EXPECT_LT(write(fd, "x", 1), 0);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  // The owner still can write, and a peer sees it.
  auto peer = PeerArena::Map(Duplicate(fd), Layout(), 4);
  ASSERT_TRUE(peer.ok()) << peer.status();
  std::memset(arena->Slice(BlockIndex(3), 2), 0x77, Layout().SliceBytes());
  EXPECT_EQ((*peer)->Slice(BlockIndex(3), 2)[100], std::byte{0x77});
  EXPECT_EQ((*peer)->Slice(BlockIndex(3), 2)[101], std::byte{0x77});
}

// Bytes of a range that are in this process's page table.
uint64_t MappedBytes(const std::byte* begin, uint64_t size_bytes) {
  constexpr uint64_t kPageBytes = 4096;
  const UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::vector<uint64_t> entries(size_bytes / kPageBytes);
  const auto first = reinterpret_cast<uintptr_t>(begin) / kPageBytes;
  const ssize_t got = pread(pagemap.get(), entries.data(), entries.size() * sizeof(entries[0]),
                            static_cast<off_t>(first * sizeof(entries[0])));
  EXPECT_EQ(got, static_cast<ssize_t>(entries.size() * sizeof(entries[0])));
  return kPageBytes * static_cast<uint64_t>(std::count_if(entries.begin(), entries.end(),
                                                          [](uint64_t e) { return e >> 63 != 0; }));
}

TEST(KvArenaTest, AReaderOfEveryBlockOfAPeerCarriesOnlyPartOfIt) {
  KvLayout layout = Layout();
  layout.num_layers = 32;
  layout.num_kv_heads = 8;
  layout.head_dim = 128;
  const auto num_blocks = static_cast<uint32_t>((uint64_t{192} << 20) / layout.BlockStride());
  const auto arena = KvArena::Create(layout, num_blocks);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto peer = PeerArena::Map(Duplicate((*arena)->fd()), layout, num_blocks);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const std::byte* const begin = (*peer)->Slice(BlockIndex(0), 0);
  volatile std::byte sink{};
  uint64_t most = 0;
  for (uint32_t block = 0; block < num_blocks; ++block) {
    (*peer)->NoteRead(BlockIndex(block));
    for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      const std::byte* const slice = (*peer)->Slice(BlockIndex(block), layer);
      for (uint64_t i = 0; i < layout.SliceBytes(); i += 4096) sink = slice[i];
    }
    if (block % 8 == 7) most = std::max(most, MappedBytes(begin, (*arena)->size_bytes()));
  }
  static_cast<void>(sink);
  EXPECT_GT(most, uint64_t{64} << 20);
  EXPECT_LE(most, uint64_t{129} << 20);
}

TEST(KvArenaTest, RefusesWhatMemoryCannotHoldAndSaysBoth) {
  // A pebibyte, far more than any test machine has.
  const auto num_blocks = static_cast<uint32_t>((uint64_t{1} << 50) / (uint64_t{1} << 30));
  KvLayout huge = Layout();
  huge.num_layers = 1024;
  huge.num_kv_heads = 128;
  huge.head_dim = 128;
  ASSERT_GE(huge.BlockStride(), uint64_t{1} << 29);
  const auto arena = KvArena::Create(huge, num_blocks);
  ASSERT_EQ(arena.status().code(), StatusCode::kResourceExhausted) << arena.status();
  const std::string need = std::to_string(num_blocks * uint64_t{huge.BlockStride()});
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr(need));
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("available"));
  EXPECT_EQ(KvArena::Create(Layout(), 0).status().code(), StatusCode::kInvalidArgument);
  KvLayout bad = Layout();
  bad.num_layers = 0;
  EXPECT_EQ(KvArena::Create(bad, 4).status().code(), StatusCode::kInvalidArgument);
  KvArenaOptions options;
  options.reserve_bytes = uint64_t{1} << 50;
  EXPECT_EQ(KvArena::Create(Layout(), 4, options).status().code(), StatusCode::kResourceExhausted);
}

// An arena of which Create makes only some blocks ready. `available`: what the system says each
// time that it is asked.
std::unique_ptr<KvArena> MakeLateArena(uint32_t num_blocks, uint32_t num_ready,
                                       std::function<StatusOr<uint64_t>()> available = nullptr) {
  KvArenaOptions options;
  options.num_ready = num_ready;
  options.available_bytes = std::move(available);
  auto arena = KvArena::Create(Layout(), num_blocks, options);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return *std::move(arena);
}

TEST(KvArenaTest, BlocksBecomeReadyFromTheFirstOn) {
  const auto arena = MakeLateArena(64, 3);
  EXPECT_EQ(arena->ready(), (ReadyBlocks{3, 64}));
  const uint64_t stride = Layout().BlockStride();
  EXPECT_GE(AllocatedBytes(arena->fd()), 3 * stride);
  EXPECT_LT(AllocatedBytes(arena->fd()), 5 * stride);
  EXPECT_EQ(arena->Extend(2), (ReadyBlocks{3, 64}));
  EXPECT_EQ(arena->Extend(7), (ReadyBlocks{7, 64}));
  EXPECT_GE(AllocatedBytes(arena->fd()), 7 * stride);
  EXPECT_EQ(arena->Extend(1000), (ReadyBlocks{64, 64}));
  EXPECT_EQ(AllocatedBytes(arena->fd()), arena->size_bytes());
  // The seals were there before the memory was.
  EXPECT_NE(fallocate(arena->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

TEST(KvArenaTest, EndsWhereTheSystemHasNoMoreMemory) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  uint64_t available = 1024 * kMiB;
  const auto num_blocks = static_cast<uint32_t>(128 * kMiB / Layout().BlockStride());
  const auto arena = MakeLateArena(num_blocks, 2, [&] { return available; });
  const ReadyBlocks before = arena->Extend(10);
  EXPECT_EQ(before, (ReadyBlocks{10, num_blocks}));
  // 256 MiB stay free, and 64 MiB are looked for at a time.
  available = 300 * kMiB;
  const ReadyBlocks after = arena->Extend(num_blocks);
  EXPECT_TRUE(after.is_final());
  EXPECT_GE(after.num_ready, 10u);
  EXPECT_LE(after.num_ready, 64 * kMiB / Layout().BlockStride() + 10);
  EXPECT_THAT(std::string(arena->shortage().message()), HasSubstr(std::to_string(available)));
  EXPECT_EQ(arena->shortage().code(), StatusCode::kResourceExhausted);
  available = 1024 * kMiB;
  EXPECT_EQ(arena->Extend(num_blocks), after) << "for good: the pool has been told";
  std::memset(arena->Block(BlockIndex(after.num_ready - 1)), 1, Layout().BlockStride());
}

TEST(KvArenaTest, IsRefusedWhenItsWholeSizeIsNotAvailableAtStart) {
  KvArenaOptions options;
  options.num_ready = 1;
  options.available_bytes = [&] { return options.reserve_bytes + 3 * Layout().BlockStride(); };
  EXPECT_TRUE(KvArena::Create(Layout(), 3, options).ok());
  EXPECT_EQ(KvArena::Create(Layout(), 4, options).status().code(), StatusCode::kResourceExhausted);
  options.available_bytes = [] { return StatusOr<uint64_t>(Unavailable("no /proc")); };
  EXPECT_EQ(KvArena::Create(Layout(), 3, options).status().code(), StatusCode::kUnavailable);
}

TEST(PeerArenaTest, ReadsOnlyBlocksThatThePeerHasTakenMemoryFor) {
  const auto arena = MakeLateArena(64, 3);
  auto peer = PeerArena::Map(Duplicate(arena->fd()), Layout(), 64);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE((*peer)->HasMemory(BlockIndex(2)));
  EXPECT_FALSE((*peer)->HasMemory(BlockIndex(20)));
  (void)arena->Extend(21);
  std::memset(arena->Slice(BlockIndex(20), 2), 0x55, Layout().SliceBytes());
  ASSERT_TRUE((*peer)->HasMemory(BlockIndex(20)));
  EXPECT_EQ((*peer)->Slice(BlockIndex(20), 2)[7], std::byte{0x55});
  EXPECT_FALSE((*peer)->HasMemory(BlockIndex(63)));
  (void)arena->Extend(64);
  EXPECT_TRUE((*peer)->HasMemory(BlockIndex(63)));
  EXPECT_FALSE((*peer)->HasMemory(BlockIndex(64))) << "it has no such block";
  EXPECT_FALSE((*peer)->HasMemory(BlockIndex(0xffffffff)));
}

TEST(PeerArenaTest, RefusesEveryFileThatCouldHarmTheReader) {
  const size_t size = 4 * Layout().BlockStride();
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  const auto make = [&](size_t bytes, int seals) {
    UniqueFd fd(memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  const auto reason = [&](UniqueFd fd) {
    const auto mapped = PeerArena::Map(std::move(fd), Layout(), 4);
    EXPECT_TRUE(mapped.ok() || mapped.status().code() == StatusCode::kFailedPrecondition);
    return mapped.ok() ? "" : std::string(mapped.status().message());
  };
  EXPECT_EQ(reason(make(size, kAll)), "");
  EXPECT_THAT(reason(make(size, kAll & ~F_SEAL_SHRINK)), HasSubstr("seals"));
  EXPECT_THAT(reason(make(size, kAll & ~F_SEAL_GROW)), HasSubstr("seals"));
  EXPECT_THAT(reason(make(size, kAll & ~F_SEAL_FUTURE_WRITE)), HasSubstr("seals"));
  EXPECT_THAT(reason(make(size - 4096, kAll)), HasSubstr("bytes"));
  EXPECT_THAT(reason(make(size + 4096, kAll)), HasSubstr("bytes"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd other(ends[1]);
  EXPECT_THAT(reason(UniqueFd(ends[0])), HasSubstr("memory file"));
  EXPECT_THAT(reason(UniqueFd()), HasSubstr("memory file"));
  EXPECT_FALSE(PeerArena::Map(make(size, kAll), Layout(), 0).ok());
  EXPECT_FALSE(PeerArena::Map(make(size, kAll), Layout(), 0xffffffff).ok());
}

// A file system root with only what the reader of memory limits looks at.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = testing::TempDir() + "baton-root-XXXXXX";
    path_ = mkdtemp(name.data());
    Write("/proc/meminfo", "MemTotal: 64000 kB\nMemAvailable:    4096 kB\n");
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = path_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  uint64_t Available() const { return AvailableMemoryBytes(path_).value_or(0); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(AvailableMemoryTest, IsTheTightestOfHostAndControlGroups) {
  FakeRoot root;
  EXPECT_EQ(root.Available(), 4096u * 1024);
  root.Write("/proc/self/cgroup", "0::/pod/worker\n");
  EXPECT_EQ(root.Available(), 4096u * 1024);
  root.Write("/sys/fs/cgroup/pod/worker/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/pod/worker/memory.current", "100\n");
  EXPECT_EQ(root.Available(), 4096u * 1024);
  root.Write("/sys/fs/cgroup/pod/memory.max", "1000000\n");
  root.Write("/sys/fs/cgroup/pod/memory.current", "600000\n");
  EXPECT_EQ(root.Available(), 400000u);
  root.Write("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\nactive_file 1000\n");
  EXPECT_EQ(root.Available(), 501000u);
  root.Write("/sys/fs/cgroup/pod/memory.current", "2000000\n");
  EXPECT_EQ(root.Available(), 0u);
}

TEST(AvailableMemoryTest, KnowsVersionOneAndSaysWhenNothingCanBeRead) {
  FakeRoot root;
  root.Write("/proc/self/cgroup", "7:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  root.Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
  EXPECT_EQ(root.Available(), 2000000u);
  std::filesystem::remove_all(root.path() + "/proc");
  EXPECT_EQ(AvailableMemoryBytes(root.path()).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::kv
