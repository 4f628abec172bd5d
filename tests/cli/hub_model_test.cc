#include "src/cli/hub_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HubNameTest, ThreeForms) {
  const struct {
    const char* text;
    const char* repository;
    const char* file;
    const char* quant;
  } cases[] = {
      {"hf:o/r", "o/r", "", ""},
      {"hf:o/r:Q4_K_M", "o/r", "", "Q4_K_M"},
      {"hf:o/r/m.gguf", "o/r", "m.gguf", ""},
      {"hf:o/r/Q4/m-00001-of-00002.gguf", "o/r", "Q4/m-00001-of-00002.gguf", ""},
  };
  for (const auto& c : cases) {
    const StatusOr<HubName> name = ParseHubName(c.text);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(name->repository, c.repository);
    EXPECT_EQ(name->file, c.file);
    EXPECT_EQ(name->quant, c.quant);
  }
}

TEST(HubNameTest, OtherFormsAreRefusedWithTheRightOnes) {
  for (const char* text : {"hf:", "hf:o", "hf:/r", "hf:o/", "hf:o/r:", "hf:../r",
                           "hf:o/r/../m.gguf", "hf:o/r//m.gguf", "hf:o/r/", "hf:o/r\n", "hf:a--b/c",
                           "hf:a/b--c", "hf:a-/b", "hf:a/-b:Q4_0", "hf:o/r/m.bin"}) {
    const Status status = ParseHubName(text).status();
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("hf:ORG/REPO:QUANT")) << text;
  }
}

TEST(PartsTest, AnyPartNamesAllOfThem) {
  for (const char* name : {"a/m-00001-of-00003.gguf", "a/m-00003-of-00003.gguf"}) {
    const auto parts = PartsOf(name);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(*parts, ElementsAre("a/m-00001-of-00003.gguf", "a/m-00002-of-00003.gguf",
                                    "a/m-00003-of-00003.gguf"));
  }
  for (const char* name : {"m.gguf", "m-0001-of-0003.gguf", "m-00001-of-00003.bin",
                           "m-0000a-of-00003.gguf", "-00001-of-00002.gguf"}) {
    EXPECT_THAT(*PartsOf(name), ElementsAre(name));
  }
}

TEST(PartsTest, NumbersThatMakeNoSenseAreRefused) {
  for (const char* name : {"m-00000-of-00003.gguf", "m-00004-of-00003.gguf",
                           "m-00001-of-00000.gguf", "m-00001-of-99999.gguf"}) {
    EXPECT_EQ(PartsOf(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

const std::vector<std::string> kFiles = {
    "README.md",
    "mmproj-m-f16.gguf",
    "m.imatrix.gguf",
    "m-Q8_0.gguf",
    "m-Q4_K_M.gguf",
    "m-UD-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-BF16.gguf",
    "F16/m-F16-00001-of-00002.gguf",
    "F16/m-F16-00002-of-00002.gguf",
};

TEST(ChooseFileTest, TheTypeIsAWholeWordInAnyCase) {
  const struct {
    const char* quant;
    const char* file;
  } cases[] = {
      {"Q4_K_M", "m-Q4_K_M.gguf"},
      {"q4_k_s", "m-Q4_K_S.gguf"},
      {"UD-Q4_K_M", "m-UD-Q4_K_M.gguf"},
      {"bf16", "m-BF16.gguf"},
      {"f16", "F16/m-F16-00001-of-00002.gguf"},
  };
  for (const auto& c : cases) {
    const auto file = ChooseFile({.repository = "o/r", .file = "", .quant = c.quant}, kFiles);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(*file, c.file);
  }
}

TEST(ChooseFileTest, WithoutATypeTheOnlyModelOrThePreferredType) {
  const HubName name = {.repository = "o/r", .file = "", .quant = ""};
  EXPECT_EQ(*ChooseFile(name, {"a.txt", "only-IQ2_XS.gguf", "mmproj.gguf"}), "only-IQ2_XS.gguf");
  EXPECT_EQ(*ChooseFile(name, kFiles), "m-Q4_K_M.gguf");
  EXPECT_EQ(*ChooseFile(name, {"m-Q8_0.gguf", "m-Q2_K.gguf"}), "m-Q8_0.gguf");
}

TEST(ChooseFileTest, WhatCannotBeChosenIsListed) {
  const HubName any = {.repository = "o/r", .file = "", .quant = ""};
  const Status several = ChooseFile(any, {"a-Q2_K.gguf", "b-Q3_K.gguf", "x.md"}).status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(several.message()),
              testing::AllOf(HasSubstr("hf:o/r/a-Q2_K.gguf, hf:o/r/b-Q3_K.gguf"),
                             HasSubstr("hf:o/r:QUANT"), Not(HasSubstr("x.md"))));
  const Status none =
      ChooseFile({.repository = "o/r", .file = "", .quant = "Q4_K"}, kFiles).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("m-Q4_K_M.gguf"));
  EXPECT_EQ(ChooseFile(any, {"a.safetensors"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton::cli
