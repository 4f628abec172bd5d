// The table of NCCL's functions: where a library is looked for, and what is said of one that will
// not do.
#include "kvcache/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/library.h"
#include "tests/nccl/loopback_library.h"
#include "tests/tls/test_certs.h"

namespace baton::kv::nccl {

namespace test = tls::test;

namespace {

using nccl_test::BuiltLibrary;
using nccl_test::LoopbackPath;
using nccl_test::ScopedFaults;
using testing::HasSubstr;
using testing::Not;

// A variable of the environment while it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* const name_;
};

std::string MessageOf(const StatusOr<NcclTable>& table) {
  return std::string(table.status().message());
}

TEST(NcclLibrary, TheFlagNamesALibraryAndEveryFunctionIsFound) {
  const ScopedVariable ignored("BATON_NCCL_LIBRARY", "/nowhere/else.so");
  const StatusOr<NcclTable> table = LoadNccl({.library = LoopbackPath()});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->path, LoopbackPath());
  EXPECT_EQ(table->version, 22809);
#define BATON_EXPECT(name) EXPECT_NE(table->name, nullptr) << #name;
  BATON_NCCL_FUNCTIONS(BATON_EXPECT, BATON_EXPECT)
#undef BATON_EXPECT
}

TEST(NcclLibrary, TheEnvironmentComesNext) {
  const ScopedVariable variable("BATON_NCCL_LIBRARY", LoopbackPath());
  const StatusOr<NcclTable> table = LoadNccl({});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->path, LoopbackPath());
}

TEST(NcclLibrary, PythonPackagesComeLast) {
  if (dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    GTEST_SKIP() << "the loader's path has an NCCL, which comes before";
  }
  const test::TempFolder folder;
  const std::filesystem::path packages = std::filesystem::path(folder.path()) / "site-packages";
  std::filesystem::create_directories(packages / "nvidia/nccl/lib");
  std::filesystem::create_symlink(LoopbackPath(), packages / "nvidia/nccl/lib/libnccl.so.2");
  const StatusOr<NcclTable> table = LoadNccl({.python_folders = {"/nowhere", packages.string()}});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->path, HasSubstr("site-packages/nvidia/nccl/lib/libnccl.so.2"));
}

TEST(NcclLibrary, AMissingLibraryIsNotFoundAndSaysWhereWasLooked) {
  const StatusOr<NcclTable> named = LoadNccl({.library = "/nowhere/libnccl.so"});
  EXPECT_EQ(named.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(named), HasSubstr("/nowhere/libnccl.so"));
  EXPECT_THAT(MessageOf(named), HasSubstr("--nccl-library"));
  // A user who names a library gets no other one.
  EXPECT_THAT(MessageOf(named), Not(HasSubstr("libnccl.so.2")));
  EXPECT_THAT(MessageOf(named), Not(HasSubstr("\n")));
  if (dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  const StatusOr<NcclTable> searched = LoadNccl({.python_folders = {"/packages-of-nobody"}});
  EXPECT_THAT(MessageOf(searched), HasSubstr("tried libnccl.so.2 ("));
  EXPECT_THAT(MessageOf(searched), HasSubstr("/packages-of-nobody/nvidia/*/lib/libnccl.so.2"));
}

TEST(NcclLibrary, ALibraryThatLacksFunctionsIsRefusedByTheirNames) {
  const StatusOr<NcclTable> table = LoadNccl({.library = BuiltLibrary("libbaton_nccl_partial.so")});
  EXPECT_EQ(table.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(table), HasSubstr("libbaton_nccl_partial.so"));
  EXPECT_THAT(MessageOf(table), HasSubstr("lacks ncclGetUniqueId, ncclCommInitRankConfig"));
  // A function that only newer versions have is no reason to refuse a library.
  EXPECT_THAT(MessageOf(table), Not(HasSubstr("ncclCommRegister")));
}

TEST(NcclLibrary, AnOldVersionIsRefusedByBothNumbers) {
  const ScopedFaults version("version=21705");
  const StatusOr<NcclTable> table = LoadNccl({.library = LoopbackPath()});
  EXPECT_EQ(table.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(table), HasSubstr("is version 2.17.5, the oldest that works is 2.18.0"));
}

TEST(NcclLibrary, VersionsAreReadAsNcclWritesThem) {
  EXPECT_EQ(VersionText(22809), "2.28.9");
  EXPECT_EQ(VersionText(23003), "2.30.3");
  EXPECT_EQ(VersionText(2708), "2.7.8");
}

TEST(NcclLibrary, AnErrorNamesTheCallAndNcclsWords) {
  const NcclTable& table = nccl_test::LoopbackTable();
  EXPECT_TRUE(ToStatus(table, "ncclSend", kSuccess).ok());
  EXPECT_TRUE(ToStatus(table, "ncclSend", kInProgress).ok());
  const Status status = ToStatus(table, "ncclSend", kInvalidUsage);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(std::string(status.message()), "ncclSend: invalid usage");
}

// NCCL itself starts without a GPU far enough to fill the table.
TEST(NcclLibrary, TheWheelsLibraryFillsTheTable) {
  const char* const source = std::getenv("BATON_SOURCE_DIR");
  const std::string venv = std::string(source == nullptr ? "." : source) + "/build/cuda-venv";
  const ScopedVariable variable("VIRTUAL_ENV", venv);
  std::string library;
  for (const std::string& folder : PythonFolders()) {
    const std::string path = folder + "/nvidia/nccl/lib/libnccl.so.2";
    if (library.empty() && std::filesystem::exists(path)) library = path;
  }
  if (library.empty()) GTEST_SKIP() << "no NCCL is installed (scripts/deps.sh --cuda)";
  const StatusOr<NcclTable> table = LoadNccl({.library = library});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_GE(table->version, kDeclaredVersion);
  EXPECT_NE(table->ncclCommRegister, nullptr);
}

}  // namespace
}  // namespace baton::kv::nccl
