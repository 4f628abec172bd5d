// The short form of fuzzing, without clang: every target on its committed corpus and on mutations
// of it that follow from a printed seed. A target that stops the process leaves its input behind in
// the build folder, as BATON_BUILD_DIR/fuzz-failure-TARGET.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/log.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/test_seed.h"

// The sanitizers' runtimes have this function. They call `callback` before they end the process.
extern "C" void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

namespace baton::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

// Seventeen targets in about ten seconds; under a sanitizer each does fewer mutations in its time.
constexpr auto kMutationTime = std::chrono::milliseconds(400);
constexpr int kMaxMutations = 20'000;
// No input of a few kilobytes may take as long, on whatever machine, under whatever sanitizer.
constexpr auto kMaxTimeOfOne = std::chrono::seconds(30);
constexpr size_t kMaxInputBytes = 64 * 1024;

// The input that is being run, for the handler of a crash.
Input g_current;
char g_failure_path[512];

void SaveCurrent() {
  const int fd = open(g_failure_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return;
  (void)!write(fd, g_current.data(), g_current.size());
  close(fd);
  constexpr std::string_view kSaid = "the input is kept in ";
  (void)!write(STDERR_FILENO, kSaid.data(), kSaid.size());
  (void)!write(STDERR_FILENO, g_failure_path, std::char_traits<char>::length(g_failure_path));
  (void)!write(STDERR_FILENO, "\n", 1);
}

void OnSignal(int number) {
  SaveCurrent();
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

void CatchCrashes(std::string_view target) {
  const char* const folder = std::getenv("BATON_BUILD_DIR");
  const std::string path = std::string(folder != nullptr ? folder : ".") + "/fuzz-failure-";
  const std::string full = path + std::string(target);
  ASSERT_LT(full.size(), sizeof(g_failure_path));
  std::memcpy(g_failure_path, full.c_str(), full.size() + 1);
  (void)signal(SIGABRT, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(SaveCurrent);
  } else {
    (void)signal(SIGSEGV, OnSignal);
  }
}

// Gives the input to the target in memory of its exact size.
void RunOne(const Target& target, const Bytes& input, const std::string& name) {
  const Bytes exact(input);
  g_current = exact;
  const Clock::time_point begin = Clock::now();
  target.run(g_current);
  EXPECT_LT(Clock::now() - begin, kMaxTimeOfOne) << name << " of " << target.name;
  g_current = {};
}

std::vector<std::pair<std::string, Bytes>> ReadCorpus(std::string_view target) {
  const char* const root = std::getenv("BATON_SOURCE_DIR");
  const fs::path folder =
      fs::path(root != nullptr ? root : ".") / "tests/fuzz/corpus" / std::string(target);
  std::vector<std::pair<std::string, Bytes>> corpus;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    corpus.emplace_back(entry.path().filename().string(), Bytes(text.begin(), text.end()));
  }
  std::sort(corpus.begin(), corpus.end());
  return corpus;
}

constexpr std::array<uint64_t, 12> kInteresting = {
    0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 63, ~0ull};

// One change of the kinds that libFuzzer makes.
void MutateOnce(const Bytes& other, TestRandom* random, Bytes* input) {
  const size_t size = input->size();
  const size_t at = size == 0 ? 0 : random->Next() % size;
  const auto place = input->begin() + static_cast<std::ptrdiff_t>(at);
  const size_t length = std::min<size_t>(1 + random->Below(16), size - at);
  const uint32_t kind = size == 0 ? 4 : random->Below(8);
  if (kind == 0) {
    (*input)[at] ^= static_cast<uint8_t>(1u << random->Below(8));
  } else if (kind == 1) {
    (*input)[at] = static_cast<uint8_t>(random->Next());
  } else if (kind == 2) {
    input->erase(place, place + static_cast<std::ptrdiff_t>(length));
  } else if (kind == 3) {
    const Bytes copy(place, place + static_cast<std::ptrdiff_t>(length));
    input->insert(place, copy.begin(), copy.end());
  } else if (kind == 4) {
    input->insert(place, static_cast<uint8_t>(random->Next()));
  } else if (kind == 5) {
    uint64_t value = kInteresting[random->Below(kInteresting.size())];
    for (size_t i = 0; i < std::min<size_t>(1u << random->Below(4), size - at); ++i) {
      (*input)[at + i] = static_cast<uint8_t>(value);
      value >>= 8;
    }
  } else if (kind == 6) {
    input->resize(at);
  } else if (!other.empty()) {
    const size_t from = random->Next() % other.size();
    const size_t take = std::min<size_t>(1 + random->Below(64), other.size() - from);
    input->insert(place, other.begin() + static_cast<std::ptrdiff_t>(from),
                  other.begin() + static_cast<std::ptrdiff_t>(from + take));
  }
  if (input->size() > kMaxInputBytes) input->resize(kMaxInputBytes);
}

class CorpusTest : public testing::TestWithParam<Target> {
 protected:
  static void SetUpTestSuite() {
    const Status status = InitLog({.level = LogLevel::kOff});
    ASSERT_TRUE(status.ok()) << status;
  }
};

TEST_P(CorpusTest, HoldsOnTheCorpusAndItsMutations) {
  const Target& target = GetParam();
  CatchCrashes(target.name);
  const auto corpus = ReadCorpus(target.name);
  ASSERT_FALSE(corpus.empty()) << "no seed for " << target.name;
  for (const auto& [name, input] : corpus) RunOne(target, input, name);
  RunOne(target, {}, "the empty input");
  for (const uint64_t seed : TestSeeds(1)) {
    TestRandom random(seed);
    const Clock::time_point end = Clock::now() + kMutationTime / 2;
    int num_done = 0;
    while (num_done < kMaxMutations && Clock::now() < end) {
      Bytes input = corpus[random.Next() % corpus.size()].second;
      const Bytes& other = corpus[random.Next() % corpus.size()].second;
      for (uint32_t left = 1 + random.Below(5); left > 0; --left) {
        MutateOnce(other, &random, &input);
      }
      RunOne(target, input, "mutation " + std::to_string(num_done));
      ++num_done;
    }
    std::printf("%s: %zu seeds, %d mutations with seed %llu\n", std::string(target.name).c_str(),
                corpus.size(), num_done, static_cast<unsigned long long>(seed));
  }
}

std::vector<Target> SortedTargets() {
  std::vector<Target> targets = Targets();
  std::sort(targets.begin(), targets.end(),
            [](const Target& a, const Target& b) { return a.name < b.name; });
  return targets;
}

INSTANTIATE_TEST_SUITE_P(Targets, CorpusTest, testing::ValuesIn(SortedTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

// A folder without a target is a name that was mistyped, and its seeds are never run.
TEST(CorpusFolderTest, EveryFolderHasATarget) {
  const char* const root = std::getenv("BATON_SOURCE_DIR");
  uintmax_t num_bytes = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(root != nullptr ? root : ".") / "tests/fuzz/corpus")) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(std::any_of(Targets().begin(), Targets().end(), [&name](const Target& target) {
      return target.name == name;
    })) << name;
    for (const auto& seed : fs::directory_iterator(entry.path())) num_bytes += seed.file_size();
  }
  EXPECT_LT(num_bytes, 1'000'000u) << "the corpus is for the repository, not for an archive";
}

}  // namespace
}  // namespace baton::fuzz
