#include "src/text/reasoning_splitter.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/text/utf8.h"
#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

// The whole text at once, by searching.
AnswerParts Reference(const std::string& text, bool inside) {
  const std::string blanks = " \t\r\n";
  const auto skip = [&blanks](const std::string& from) {
    const size_t begin = from.find_first_not_of(blanks);
    return begin == std::string::npos ? std::string() : from.substr(begin);
  };
  std::string rest = skip(text);
  if (!inside) {
    if (rest.rfind("<think>", 0) != 0) return {"", text};
    rest = skip(rest.substr(7));
  }
  while (rest.rfind("<think>", 0) == 0) rest = skip(rest.substr(7));
  const size_t close = rest.find("</think>");
  std::string thoughts = rest.substr(0, close);
  thoughts.erase(thoughts.find_last_not_of(blanks) + 1);
  if (close == std::string::npos) return {thoughts, ""};
  return {thoughts, skip(rest.substr(close + 8))};
}

// Pushes `text` cut at random places between characters; trailing blanks of unfinished thoughts are
// dropped like those before the closing tag.
AnswerParts Split(const std::string& text, bool inside, RandomText* random) {
  ReasoningSplitter splitter(inside);
  AnswerParts all;
  const auto add = [&all](const AnswerParts& parts) {
    for (const std::string* part : {&parts.reasoning, &parts.content}) {
      EXPECT_EQ(ValidUtf8Prefix(*part), part->size());
    }
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  };
  std::string piece;
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = CharacterSize(static_cast<uint8_t>(text[pos]));
    piece += text.substr(pos, size);
    pos += size;
    if (random == nullptr || random->Below(3) != 0) continue;
    add(splitter.Push(piece));
    piece.clear();
  }
  add(splitter.Push(piece));
  add(splitter.Flush());
  return all;
}

// A text, and what it is split into.
struct Case {
  const char* text;
  bool inside;
  const char* reasoning;
  const char* content;
};

TEST(ReasoningSplitterTest, KnownAnswersAreSplit) {
  const Case cases[] = {
      {"<think>\nOne.\nTwo.\n</think>\n\nHello.\n", false, "One.\nTwo.", "Hello.\n"},
      {"\nOne.\n</think>\n\nHello.", true, "One.", "Hello."},
      {"<think>\n\n</think>\n\nHello.", false, "", "Hello."},
      {"Hello <think>x</think>.", false, "", "Hello <think>x</think>."},
      {"  Hello", false, "", "  Hello"},
      {" \n<think>a</think>b", false, "a", "b"},
      {"<think>never ends", false, "never ends", ""},
      {"never ends </thin", true, "never ends </thin", ""},
      {"<think>a < b </ c</think>d", false, "a < b </ c", "d"},
      {"<think>a<</think></think>b", false, "a<", "</think>b"},
      {"<think>again</think>", true, "again", ""},
      {"<thin", false, "", "<thin"},
      {"<thinking>x", false, "", "<thinking>x"},
      {"</think>x", false, "", "</think>x"},
      {"</think>x", true, "", "x"},
      {"a</think> <think>b</think>", true, "a", "<think>b</think>"},
      {"", false, "", ""},
      {" \n", false, "", " \n"},
      {" \n", true, "", ""},
  };
  for (const Case& c : cases) {
    const AnswerParts parts = Split(c.text, c.inside, nullptr);
    EXPECT_EQ(parts.reasoning, c.reasoning) << c.text;
    EXPECT_EQ(parts.content, c.content) << c.text;
  }
}

TEST(ReasoningSplitterTest, AnyCutGivesTheSameParts) {
  RandomText random(TestSeed());
  const std::vector<std::string> parts = {"<think>", "</think>", "<",      "</",
                                          "think>",  "thin",     ">",      " ",
                                          "\n",      "a",        "\u00e9", "\U0001f600"};
  size_t num_both = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = random.Join(parts, 10);
    const bool inside = random.Below(2) == 0;
    const AnswerParts expected = Reference(text, inside);
    const AnswerParts actual = Split(text, inside, &random);
    EXPECT_EQ(actual.reasoning, expected.reasoning) << text;
    EXPECT_EQ(actual.content, expected.content) << text;
    num_both += !actual.reasoning.empty() && !actual.content.empty() ? 1 : 0;
  }
  EXPECT_GT(num_both, 500u);
}

TEST(ReasoningSplitterTest, TextGoesOutAsSoonAsItIsNoTag) {
  ReasoningSplitter splitter(false);
  EXPECT_EQ(splitter.Push("<think>").reasoning, "");
  EXPECT_TRUE(splitter.in_reasoning());
  EXPECT_EQ(splitter.Push("\nSo").reasoning, "So");
  EXPECT_EQ(splitter.Push(" ").reasoning, "");
  EXPECT_EQ(splitter.Push("on <").reasoning, " on");
  EXPECT_EQ(splitter.Push("/thin").reasoning, "");
  EXPECT_EQ(splitter.Push("g").reasoning, " </thing");
  EXPECT_EQ(splitter.Push("</think>\n").reasoning, "");
  EXPECT_FALSE(splitter.in_reasoning());
  EXPECT_EQ(splitter.Push("\nYes <").content, "Yes <");
}

TEST(ReasoningSplitterTest, OpenedMeansThatThereWasATag) {
  ReasoningSplitter splitter(false);
  splitter.Push("\n<thin");
  EXPECT_FALSE(splitter.opened());
  splitter.Push("k></think>");
  EXPECT_TRUE(splitter.opened());
  EXPECT_FALSE(splitter.in_reasoning());
  EXPECT_TRUE(ReasoningSplitter(true).opened());
  ReasoningSplitter plain(false);
  plain.Push("a <think>");
  EXPECT_FALSE(plain.opened()) << "later tags are content";
}

TEST(ReasoningSplitterTest, ThePromptSaysWhereTheAnswerBegins) {
  EXPECT_TRUE(PromptOpensReasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(PromptOpensReasoning("<think>"));
  EXPECT_FALSE(PromptOpensReasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(PromptOpensReasoning("<|im_start|>assistant\n"));
  EXPECT_FALSE(PromptOpensReasoning("<think>x"));
  EXPECT_FALSE(PromptOpensReasoning(""));
  EXPECT_TRUE(TemplateThinks("{% if x %}<think>\n{% endif %}"));
  EXPECT_TRUE(TemplateThinks("{{ content.split('</think>')[-1] }}"));
  EXPECT_FALSE(TemplateThinks("{{ content }}"));
}

}  // namespace
}  // namespace baton::text
