#include "src/router/served_names.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ServedNamesTest, NamesAreForTheirModelOrForTheOnlyOne) {
  const auto served = ServedNames::Parse("gpt-4,org/Model-7B,toy:1=toy,small");
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_THAT(served->NamesOf("any", true), ElementsAre("gpt-4", "org/Model-7B"));
  EXPECT_THAT(served->NamesOf("toy:1", true), ElementsAre("gpt-4", "org/Model-7B", "toy", "small"));
  EXPECT_THAT(served->NamesOf("toy:1", false), ElementsAre("toy", "small"));
  EXPECT_THAT(served->NamesOf("any", false), IsEmpty());
  EXPECT_THAT(served->Models(), ElementsAre("toy:1"));
  EXPECT_TRUE(ServedNames::Parse("")->empty());
}

TEST(ServedNamesTest, WhatIsNoNameIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {",", "no name"},      {"a,", "missing"},   {",a", "no name"},      {"a,,b", "no name"},
      {"a b", "no name"},    {"a\tb", "no name"}, {"m=", "no name"},      {"=a", "before '='"},
      {"a,default", "only"}, {"a,b,a", "twice"},  {"\xc3\xa9", "no name"}};
  for (const auto& [text, words] : cases) {
    const auto served = ServedNames::Parse(text);
    ASSERT_FALSE(served.ok()) << text;
    EXPECT_THAT(std::string(served.status().message()), HasSubstr(words)) << text;
  }
  EXPECT_FALSE(ServedNames::Parse(std::string(257, 'n')).ok());
  EXPECT_FALSE(ServedNames::Parse("a,m=a").ok()) << "one name, two models";
  std::string many = "n0";
  for (int i = 1; i <= 64; ++i) many += ",n" + std::to_string(i);
  EXPECT_THAT(std::string(ServedNames::Parse(many).status().message()), HasSubstr("at most 64"));
}

}  // namespace
}  // namespace baton::router
