// TensorReader: the bytes of files in the order in which they were announced, past the page cache
// or from it, and what becomes of files that cannot be read.
#include "src/model/tensor_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/test_seed.h"

namespace baton::model {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Ranges = std::vector<std::span<const std::byte>>;

// A file of random bytes, mapped; removed at the end.
class TestFile {
 public:
  TestFile(const std::string& path, size_t size, uint64_t seed = TestSeed()) : path_(path) {
    TestRandom random(seed);
    for (size_t i = 0; i < size; ++i) bytes_.push_back(static_cast<std::byte>(random.Below(256)));
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(size));
    // Bytes that are not written yet cannot leave the page cache.
    const UniqueFd fd(::open(path_.c_str(), O_RDONLY));
    EXPECT_EQ(::fsync(fd.get()), 0);
    EXPECT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    mapping_ = *FileMapping::Open(path_);
  }
  ~TestFile() { fs::remove(path_); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;

  const std::string& path() const { return path_; }
  const FileMapping* mapping() const { return &mapping_; }
  std::span<const std::byte> Range(size_t begin, size_t count) const {
    return mapping_.bytes().subspan(begin, count);
  }
  // Whether the file held these bytes; does not read the file.
  bool Holds(size_t begin, std::span<const std::byte> bytes) const {
    return std::memcmp(bytes_.data() + begin, bytes.data(), bytes.size()) == 0;
  }

 private:
  const std::string path_;
  std::vector<std::byte> bytes_;
  FileMapping mapping_;
};

std::string TempPath(const char* name) {
  return fmt::format("{}baton_reader_{}", ::testing::TempDir(), name);
}

// Reads when it is waited for, the newest first, and gives results that a test names by the number
// of the read.
class FaultyQueue final : public ReadQueue {
 public:
  using Results = std::map<size_t, int64_t>;
  explicit FaultyQueue(Results results) : results_(std::move(results)) {}

  absl::Status Submit(std::span<const ReadRequest> requests) override {
    under_way_.insert(under_way_.end(), requests.begin(), requests.end());
    return OkStatus();
  }
  absl::StatusOr<ReadResult> Wait() override {
    const ReadRequest request = under_way_.back();
    under_way_.pop_back();
    const auto fault = results_.find(num_reads_++);
    if (fault != results_.end() && fault->second < 0) return ReadResult{request.id, fault->second};
    const int64_t got = ::pread(request.file, request.to.data(), request.to.size(),
                                static_cast<off_t>(request.offset));
    return ReadResult{request.id, fault == results_.end() ? got : std::min(got, fault->second)};
  }

 private:
  const Results results_;
  std::deque<ReadRequest> under_way_;
  size_t num_reads_ = 0;
};

TensorReaderOptions Direct() { return {.uses_page_cache = false}; }
TensorReaderOptions WithFaults(FaultyQueue::Results results) {
  TensorReaderOptions options = Direct();
  options.open_queue = [results]() -> absl::StatusOr<std::unique_ptr<ReadQueue>> {
    return std::make_unique<FaultyQueue>(results);
  };
  return options;
}

// Pieces of every length and alignment, among them the file's first and last byte; some overlap.
std::vector<std::pair<size_t, size_t>> OddPieces(size_t file_size) {
  std::vector<std::pair<size_t, size_t>> out = {{0, 1},    {4095, 2},          {4096, 4096},
                                                {1, 4096}, {file_size - 1, 1}, {0, file_size}};
  TestRandom random(TestSeed());
  for (int i = 0; i < 200; ++i) {
    const size_t begin = random.Below(file_size - 1);
    const size_t most = i % 4 == 0 ? file_size - begin : std::min<size_t>(file_size - begin, 700);
    out.push_back({begin, 1 + random.Below(most)});
  }
  return out;
}

void ExpectPieces(const TestFile& file, const TensorReaderOptions& options, bool is_direct) {
  const std::vector<std::pair<size_t, size_t>> pieces = OddPieces(file.mapping()->bytes().size());
  const std::vector<std::byte> made(100, std::byte{7});  // of no file
  Ranges ranges;
  for (const auto& [begin, count] : pieces) {
    ranges.push_back(file.Range(begin, count));
    ranges.push_back(made);
  }
  const FileMapping* const files[] = {file.mapping()};
  TensorReader reader(files, ranges, options);
  size_t total = 0;
  for (const auto& [begin, count] : pieces) {
    const auto bytes = reader.Next();
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    ASSERT_EQ(bytes->size(), count);
    ASSERT_TRUE(file.Holds(begin, *bytes)) << count << " bytes from " << begin;
    EXPECT_EQ(reader.Next()->data(), made.data());
    total += count;
  }
  EXPECT_EQ(reader.report().direct_bytes, is_direct ? total : 0);
  EXPECT_EQ(reader.report().bytes, total + pieces.size() * made.size());
}

// Why the folder of temporary files, or this system, cannot read directly; empty when it can.
std::string WhyNotDirect(const TestFile& file, const TensorReaderOptions& options) {
  const FileMapping* const files[] = {file.mapping()};
  return TensorReader(files, {file.Range(0, 1)}, options).refusal();
}

TEST(TensorReaderTest, PastThePageCacheAnyPiecesAreTheFiles) {
  // No whole number of blocks, and more than a request.
  const TestFile file(TempPath("direct"), (3 << 20) + 1234);
  if (const std::string why = WhyNotDirect(file, Direct()); !why.empty()) GTEST_SKIP() << why;
  for (const uint32_t num_slots : {2, 3, 7}) {
    TensorReaderOptions options = Direct();
    options.num_slots = num_slots;
    ExpectPieces(file, options, /*is_direct=*/true);
  }
}

TEST(TensorReaderTest, ReadsMayEndInAnyOrderAndInParts) {
  const TestFile file(TempPath("order"), (3 << 20) + 1234);
  if (const std::string why = WhyNotDirect(file, WithFaults({})); !why.empty()) {
    GTEST_SKIP() << why;
  }
  ExpectPieces(file, WithFaults({}), /*is_direct=*/true);
  // Some blocks of a request of several; that it is tried again.
  const FileMapping* const files[] = {file.mapping()};
  TensorReader reader(files, {file.Range(10, 3 << 20)},
                      WithFaults({{0, 4096}, {1, 8192}, {3, 4096}}));
  const auto bytes = reader.Next();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_TRUE(file.Holds(10, *bytes));
}

TEST(TensorReaderTest, AFileInThePageCacheIsTakenFromThere) {
  const TestFile file(TempPath("cached"), 300'000);
  std::ifstream in(file.path(), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  ASSERT_EQ(text.size(), 300'000u);
  ExpectPieces(file, {}, /*is_direct=*/false);
  EXPECT_EQ(WhyNotDirect(file, {}), "");
}

TEST(TensorReaderTest, WhatCannotBeReadDirectlyIsTakenFromTheMappingAndSaysWhy) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const TestFile in_memory("/dev/shm/baton_reader_memory", 20'000);
  ExpectPieces(in_memory, {}, /*is_direct=*/false);
  EXPECT_THAT(WhyNotDirect(in_memory, {}), HasSubstr("baton_reader_memory lies in memory"));
}

TEST(TensorReaderTest, ASystemWithoutIoUringReadsTheMapping) {
  const TestFile file(TempPath("no_uring"), 20'000);
  TensorReaderOptions options = Direct();
  options.open_queue = []() -> absl::StatusOr<std::unique_ptr<ReadQueue>> {
    return FailedPrecondition("io_uring: Operation not permitted");
  };
  const std::string why = WhyNotDirect(file, options);
  EXPECT_TRUE(why == "io_uring: Operation not permitted" ||
              why.find("lies in memory") != std::string::npos)
      << why;
  ExpectPieces(file, options, /*is_direct=*/false);
}

// The mapping still is the old file, whose directory was checked.
TEST(TensorReaderTest, AFileThatWasReplacedIsReadAsItWas) {
  const TestFile file(TempPath("replaced"), 20'000, 1);
  const TestFile other(TempPath("other"), 20'000, 2);
  fs::rename(other.path(), file.path());
  EXPECT_THAT(WhyNotDirect(file, {}), HasSubstr("is another file than the one that was opened"));
  ExpectPieces(file, {}, /*is_direct=*/false);
}

TEST(TensorReaderTest, SeveralFilesAreToldApart) {
  const TestFile a(TempPath("a"), 10'001, 1);
  const TestFile b(TempPath("b"), 5'003, 2);
  const FileMapping* const files[] = {a.mapping(), b.mapping()};
  TensorReader reader(files, {b.Range(5'000, 3), a.Range(10'000, 1), b.Range(0, 4'097)}, Direct());
  EXPECT_TRUE(b.Holds(5'000, *reader.Next()));
  EXPECT_TRUE(a.Holds(10'000, *reader.Next()));
  EXPECT_TRUE(b.Holds(0, *reader.Next()));
}

// ---- Errors.

TEST(TensorReaderErrorTest, ADiskErrorNamesFileAndByteAndStays) {
  const TestFile file(TempPath("eio"), 3 << 20);
  if (const std::string why = WhyNotDirect(file, WithFaults({})); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const FileMapping* const files[] = {file.mapping()};
  const Ranges ranges = {file.Range(0, 1 << 20), file.Range(1 << 20, 100)};
  {
    // The newest is read first: the second range.
    TensorReader reader(files, ranges, WithFaults({{0, -EIO}}));
    const auto bytes = reader.Next();
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(bytes.status().message()),
        HasSubstr(fmt::format("reading {} at byte 1048576: Input/output error", file.path())));
    EXPECT_EQ(reader.Next().status(), bytes.status());
  }
  // An end within the second block is seen once that is asked for again.
  const std::pair<int64_t, FaultyQueue::Results> ends[] = {
      {0, {{0, 0}}}, {100, {{0, 100}}}, {5000, {{0, 5000}, {1, 904}}}};
  for (const auto& [end, results] : ends) {
    TensorReader reader(files, {file.Range(0, 10'000)}, WithFaults(results));
    const auto bytes = reader.Next();
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(bytes.status().message()),
                HasSubstr(fmt::format("there is no byte {}, of 3145728 when it was opened", end)));
  }
}

TEST(TensorReaderErrorTest, WhatTheSystemCutOrDidNotBeginIsAskedForAgainButNotForEver) {
  const TestFile file(TempPath("again"), 3 << 20);
  if (const std::string why = WhyNotDirect(file, WithFaults({})); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const FileMapping* const files[] = {file.mapping()};
  {
    TensorReader reader(files, {file.Range(0, 10'000)},
                        WithFaults({{0, 5000}, {1, -EAGAIN}, {2, -EINTR}, {3, 4097}}));
    const auto bytes = reader.Next();
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_TRUE(file.Holds(0, *bytes));
  }
  FaultyQueue::Results never;
  for (size_t i = 0; i < 1000; ++i) never[i] = -EAGAIN;
  TensorReader reader(files, {file.Range(0, 10'000)}, WithFaults(never));
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kDataLoss);
}

TEST(TensorReaderErrorTest, AFileThatWasShortenedIsAnErrorNotASignal) {
  for (const bool is_direct : {true, false}) {
    const TestFile file(TempPath("short"), 3 << 20);
    if (!is_direct) {
      std::ifstream in(file.path(), std::ios::binary);
      const std::string text(std::istreambuf_iterator<char>(in), {});
    }
    const FileMapping* const files[] = {file.mapping()};
    TensorReaderOptions options = {.num_slots = 2, .uses_page_cache = !is_direct};
    if (is_direct && !WhyNotDirect(file, options).empty()) continue;
    TensorReader reader(files,
                        {file.Range(0, 1000), file.Range(500'000, 1000), file.Range(2 << 20, 1000),
                         file.Range((2 << 20) + 5000, 1000)},
                        options);
    ASSERT_TRUE(reader.Next().ok());
    fs::resize_file(file.path(), 1'000'000);
    absl::Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) status = reader.Next().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << is_direct;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file.path()));
    EXPECT_THAT(std::string(status.message()), HasSubstr("3145728 when it was opened"));
  }
}

}  // namespace
}  // namespace baton::model
