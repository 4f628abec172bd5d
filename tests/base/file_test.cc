#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

#include "src/base/regular_file.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

TEST(RegularFileTest, GivesAllBytesOrSaysWhyNot) {
  const std::string folder = ::testing::TempDir() + "/regular_file_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string path = folder + "/file";
  const std::string bytes("a\0b\n", 4);
  std::ofstream(path, std::ios::binary) << bytes;
  fs::create_symlink(path, folder + "/link");
  EXPECT_EQ(ReadRegularFile(path, 4).value(), bytes);
  EXPECT_EQ(ReadRegularFile(folder + "/link", 4).value(), bytes);
  const Status large = ReadRegularFile(path, 3).status();
  EXPECT_EQ(large.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(large.message(), "4 bytes, more than 3");
  fs::resize_file(path, 0);
  EXPECT_EQ(ReadRegularFile(path, 4).value(), "");

  // Nobody writes into it: reading it would wait for ever.
  ASSERT_EQ(::mkfifo((folder + "/fifo").c_str(), 0600), 0);
  for (const std::string& other : {folder, folder + "/fifo", std::string("/dev/zero")}) {
    const Status status = ReadRegularFile(other, 100).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << other;
    EXPECT_EQ(status.message(), "no regular file") << other;
  }
  for (const std::string& missing : {folder + "/none", path + "/below"}) {
    EXPECT_EQ(ReadRegularFile(missing, 100).status().code(), StatusCode::kNotFound) << missing;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace baton
