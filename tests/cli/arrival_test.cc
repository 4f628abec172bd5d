// The end of a download, and what is remembered of it.
#include "src/cli/arrival.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

#include "src/cli/known_digest.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

class ArrivalTest : public ::testing::Test {
 protected:
  ArrivalTest() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ArrivalTest() override { fs::remove_all(folder_); }

  // Puts a file there as a download does.
  void Publish(std::string_view sha256) {
    StatusOr<PartFile> part = PartFile::Take(path_, {.is_done = [] { return false; }});
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(part->Append("12345").ok());
    ASSERT_TRUE(PublishChecked(*part, path_, sha256).ok());
  }

  const std::string folder_ = ::testing::TempDir() + "/arrival_test";
  const std::string path_ = folder_ + "/m.gguf";
  // printf 12345 | sha256sum
  const std::string sha256_ = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5";
};

TEST_F(ArrivalTest, ADigestThatNobodyNamedIsRememberedAsUnchecked) {
  Publish("");
  const StatusOr<KnownDigest> unchecked = DigestOf(path_);
  ASSERT_TRUE(unchecked.ok()) << unchecked.status();
  EXPECT_EQ(unchecked->sha256, sha256_);
  EXPECT_TRUE(unchecked->is_remembered());
  EXPECT_FALSE(unchecked->is_checked());
  // Touched: the same bytes at another time, and still unchecked.
  fs::last_write_time(path_, fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_TRUE(DigestOf(path_)->is_remembered());
  EXPECT_FALSE(DigestOf(path_)->is_checked());
  fs::remove(path_);
  Publish(sha256_);
  EXPECT_TRUE(DigestOf(path_)->is_checked());
}

TEST_F(ArrivalTest, AFileCountsOnceItsRecordIsThere) {
  const Arrival arrival(path_, "");
  EXPECT_FALSE(arrival.IsThere());
  std::ofstream(path_) << "12345";
  EXPECT_FALSE(arrival.IsThere()) << "it came by hand";
  RememberDigest(path_, path_, {.sha256 = sha256_});
  EXPECT_TRUE(arrival.IsThere());
  std::ofstream(path_) << "other bytes";
  EXPECT_FALSE(arrival.IsThere());
}

TEST_F(ArrivalTest, ARecordThatCannotBeReadIsLookedAtAgain) {
  Publish("");
  const Arrival arrival(path_, "");
  const bool is_root = ::geteuid() == 0;  // root reads every file
  fs::permissions(folder_, fs::perms::all);
  fs::permissions(DigestRecordOf(path_), fs::perms::none);
  if (is_root) {
    ASSERT_EQ(::seteuid(12345), 0);
  }
  const bool is_there_unread = arrival.IsThere();
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(DigestRecordOf(path_), fs::perms::owner_all);
  EXPECT_FALSE(is_there_unread);
  EXPECT_TRUE(arrival.IsThere());
}

TEST_F(ArrivalTest, AKnownDigestNeedsNoRecord) {
  const Arrival arrival(path_, sha256_);
  std::ofstream(path_) << "12345";
  EXPECT_TRUE(arrival.IsThere());
}

}  // namespace
}  // namespace baton::cli
