// Tool calls in the text of answers: what each style gives, and that no cut of the text changes it.
#include "src/text/tools/tool_parser.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/text/tools/json_bytes.h"
#include "src/text/tools/tool_style.h"

namespace baton::text {
namespace {

// All parts of one answer.
class Joined {
 public:
  void Add(const ToolParts& parts) {
    reasoning += parts.reasoning;
    content += parts.content;
    for (const CallPiece& piece : parts.calls) {
      const bool begins = !piece.name.empty();
      is_orderly &= piece.index == (begins ? num_calls : num_calls - 1);
      is_orderly &= !begins || piece.arguments.empty();
      if (begins && num_calls++ > 0) calls += '\n';
      calls += begins ? piece.name + " " : piece.arguments;
    }
  }

  std::string reasoning;
  std::string content;
  std::string calls;  // "NAME ARGUMENTS", one a line
  uint32_t num_calls = 0;
  bool is_orderly = true;  // each call begins with its name alone, in order

  friend bool operator==(const Joined& a, const Joined& b) {
    return a.reasoning == b.reasoning && a.content == b.content && a.calls == b.calls &&
           a.is_orderly && b.is_orderly;
  }
};

const ToolRules& Rules() {
  static const ToolRules rules{.functions = {{"f",
                                              {{"city", kJsonText},
                                               {"n", kJsonNumber},
                                               {"o", kJsonObject},
                                               {"any", 0},
                                               {"flag", kJsonBool},
                                               {"maybe", kJsonText | kJsonNull}}},
                                             {"g", {}}}};
  return rules;
}

Joined Read(ToolStyle style, std::string_view text, const std::vector<size_t>& cuts = {},
            const ToolRules& rules = Rules()) {
  const auto parser = ToolParser::Create(style, rules);
  Joined all;
  size_t done = 0;
  for (const size_t cut : cuts) {
    all.Add(parser->Push(text.substr(done, cut - done)));
    done = cut;
  }
  all.Add(parser->Push(text.substr(done)));
  all.Add(parser->Flush());
  all.is_orderly &= parser->num_calls() == all.num_calls;
  return all;
}

struct Case {
  ToolStyle style;
  std::string text;
  std::string content;
  std::string calls;
  std::string reasoning = "";
};

const std::vector<Case> kCases = {
    {ToolStyle::kNone, "<tool_call>{}</tool_call> ", "<tool_call>{}</tool_call> ", ""},
    // JSON in tags.
    {ToolStyle::kHermes,
     "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": "
     "\"Z\xc3\xbc\\\"</tool_call>"
     "\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {}]}, \"name\": \"g\"}\n"
     "</tool_call>",
     "I look.", "f {\"city\": \"Z\xc3\xbc\\\"</tool_call>\"}\ng {\"a\": [1, {}]}"},
    {ToolStyle::kHermes, "x <tool_call>\n{\"name\": 5}\n</tool_call> y",
     "x <tool_call>\n{\"name\": 5}\n</tool_call> y", ""},
    {ToolStyle::kHermes, "<tool_call>no</tool_call> <tool_", "<tool_call>no</tool_call> <tool_",
     ""},
    {ToolStyle::kHermes,
     "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \\\"\\u00fc\\ud83d\\ude00\\\"}\"}}"
     "</tool_call>\nThen <b>",
     "Then <b>", "f {\"a\": \"\xc3\xbc\xf0\x9f\x98\x80\"}"},
    {ToolStyle::kHermes,
     "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\u12\xc3\xbc\\ud83d\\u\"}</tool_call>", "",
     "f {\xef\xbf\xbd\xc3\xbc\xef\xbf\xbd\xef\xbf\xbd"},
    {ToolStyle::kHermes, "<tool_call>{\"name\":\"f\"}</tool_call>", "", "f {}"},
    {ToolStyle::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", "", "f {}"},
    {ToolStyle::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
     "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", ""},
    {ToolStyle::kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1</tool_call>ok", "ok",
     "f {\"a\":1"},
    {ToolStyle::kHermes, "<tool_call>{\"name\":\"f\",\"argum", "<tool_call>{\"name\":\"f\",\"argum",
     ""},
    {ToolStyle::kHermes, "only text \n", "only text \n", ""},
    // Parameters in tags.
    {ToolStyle::kQwen3Coder,
     "Ok\n\n<tool_call>\n<function=f>\n<parameter=city>\nA \"b\"\nc </param\n</parameter>\n"
     "<parameter=n>\n5\n</parameter>\n<parameter=o>\n{\"a\": [1]}\n</parameter>\n"
     "<parameter=any>\nhello\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n"
     "<parameter=maybe>\nnull\n</parameter>\n</function>\n</tool_call>",
     "Ok",
     "f {\"city\": \"A \\\"b\\\"\\nc </param\", \"n\": 5, \"o\": {\"a\": [1]}, "
     "\"any\": \"hello\", \"flag\": true, \"maybe\": null}"},
    {ToolStyle::kQwen3Coder, "<function=g>\n</function>\n</tool_call>", "", "g {}"},
    {ToolStyle::kQwen3Coder, "<tool_call>\n<function=g></tool_call>\n<function=f", "<function=f",
     "g {}"},
    {ToolStyle::kQwen3Coder, "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", "",
     "g {}"},
    // A closing tag in a string of JSON.
    {ToolStyle::kQwen3Coder,
     "<tool_call>\n<function=f>\n<parameter=o>\n{\"a\": \"x</parameter>\\\"</parameter>y\\\\\", "
     "\"b\": [\"</function>\"]}\n</parameter>\n<parameter=any>\n\"</parameter>\"\n</parameter>\n"
     "</function>\n</tool_call>",
     "",
     "f {\"o\": {\"a\": \"x</parameter>\\\"</parameter>y\\\\\", \"b\": [\"</function>\"]}, "
     "\"any\": \"</parameter>\"}"},
    // A text with a quote that begins no string: seen by a line break, the value, or the end.
    {ToolStyle::kQwen3Coder,
     "<function=f>\n<parameter=any>\n\"5</parameter>\n<parameter=n>\n5\n</parameter>\n</"
     "function>\n",
     "", "f {\"any\": \"\\\"5\", \"n\": 5}"},
    {ToolStyle::kQwen3Coder,
     "<function=f><parameter=any>{\"5</parameter><parameter=o>{\"a\": \"</parameter></function>",
     "", "f {\"any\": \"{\\\"5\", \"o\": \"{\\\"a\\\": \\\"\"}"},
    {ToolStyle::kQwen3Coder,
     "<function=f><parameter=any>\"5</parameter></function></tool_call> "
     "<function=f><parameter=any>\"6</parameter></function></tool_call>bye",
     "bye", "f {\"any\": \"\\\"5\"}\nf {\"any\": \"\\\"6\"}"},
    {ToolStyle::kQwen3Coder,
     "<function=f><parameter=any>say \"5</parameter><parameter=city>\"</parameter></function>", "",
     "f {\"any\": \"say \\\"5\", \"city\": \"\\\"\"}"},
    // Bare JSON.
    {ToolStyle::kLlama3,
     "{\"name\": \"f\", \"parameters\": {\"city\": \"x\"}}; {\"name\": \"g\", \"parameters\": "
     "{}}",
     "", "f {\"city\": \"x\"}\ng {}"},
    {ToolStyle::kLlama3, "<|python_tag|>{\"name\": \"z\", \"parameters\": {}}", "", "z {}"},
    {ToolStyle::kLlama3, "{\"name\": \"Bob\", \"age\": 3}\nmore",
     "{\"name\": \"Bob\", \"age\": 3}\nmore", ""},
    {ToolStyle::kLlama3, "{\"age\": 3} <|pyth", "{\"age\": 3} <|pyth", ""},
    {ToolStyle::kGeneric,
     "[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]", "",
     "f {\"n\": 1}\ng {}"},
    {ToolStyle::kGeneric,
     " {\"type\":\"function\",\"id\":{\"x\":[\"}\"]},\"name\":\"f\",\"arguments\": {}}", "",
     "f {}"},
    {ToolStyle::kGeneric, "[1, 2]", "[1, 2]", ""},
    // Marks of control tokens.
    {ToolStyle::kMistral,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\"}]", "",
     "f {\"n\": 1}\ng {}"},
    {ToolStyle::kMistral,
     "hi[TOOL_CALLS]f[CALL_ID]abc123456[ARGS]{\"n\": 1}[TOOL_CALLS]g{\"b\":\"}\"}", "hi",
     "f {\"n\": 1}\ng {\"b\":\"}\"}"},
    {ToolStyle::kMistral, "[TOOL_CALLS]hello world[TOOL", "[TOOL_CALLS]hello world[TOOL", ""},
    {ToolStyle::kGemma,
     "<start_function_call>call:f{city:<escape>Pa\"r{is<escape>,n:3.5,o:{a:[1,<escape>x<escape>,"
     "{k:true}],w:two words}}<end_function_call><start_function_call>call:g{}"
     "<end_function_call>",
     "",
     "f {\"city\":\"Pa\\\"r{is\",\"n\":3.5,\"o\":{\"a\":[1,\"x\",{\"k\":true}],"
     "\"w\":\"two words\"}}\ng {}"},
    {ToolStyle::kGemma, "t<|tool_call>call:f{city:<|\"|>P<|\"|>,l:[]}<tool_call|> end", "t end",
     "f {\"city\":\"P\",\"l\":[]}"},
    {ToolStyle::kGemma, "<start_function_call>cat", "<start_function_call>cat", ""},
    {ToolStyle::kHarmony,
     "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"n\":1}",
     "", "f {\"n\":1}", "think"},
    {ToolStyle::kHarmony, " to=functions.g<|channel|>commentary json<|message|><|call|>", "",
     "g {}"},
    {ToolStyle::kHarmony, "<|channel|>final<|message|>Hello <b>", "Hello <b>", ""},
    {ToolStyle::kHarmony, "plain text", "plain text", ""},
};

TEST(ToolParserTest, EachStyleGivesContentAndCalls) {
  for (const Case& c : kCases) {
    const Joined all = Read(c.style, c.text);
    EXPECT_EQ(all.content, c.content) << ToolStyleName(c.style) << ": " << c.text;
    EXPECT_EQ(all.calls, c.calls) << ToolStyleName(c.style) << ": " << c.text;
    EXPECT_EQ(all.reasoning, c.reasoning) << ToolStyleName(c.style) << ": " << c.text;
  }
}

TEST(ToolParserTest, NoCutInOneOrTwoPlacesChangesAnything) {
  for (const Case& c : kCases) {
    const Joined whole = Read(c.style, c.text);
    for (size_t i = 0; i <= c.text.size(); ++i) {
      for (size_t j = i; j <= c.text.size(); ++j) {
        if (Read(c.style, c.text, {i, j}) == whole) continue;
        FAIL() << c.text << " at " << i << ", " << j;
      }
    }
  }
}

void CheckCutIntoBytes(ToolStyle style, std::string_view text) {
  const Joined whole = Read(style, text);
  if (whole.num_calls == 0 && style != ToolStyle::kHarmony) {
    EXPECT_EQ(whole.content, text) << static_cast<int>(style);
  }
  std::vector<size_t> cuts;
  for (size_t at = 1; at < text.size(); ++at) cuts.push_back(at);
  EXPECT_TRUE(Read(style, text, cuts) == whole) << static_cast<int>(style) << text;
}

// Every style reads the texts of all others; every end of a text is the end of some answer.
TEST(ToolParserTest, NoTextOfAnotherStyleAndNoPrefixIsLostOrCutDependent) {
  for (int style = 0; style <= static_cast<int>(ToolStyle::kGeneric); ++style) {
    for (const Case& c : kCases) {
      for (size_t end = 1; end <= c.text.size(); end += 7) {
        CheckCutIntoBytes(static_cast<ToolStyle>(style), std::string_view(c.text).substr(0, end));
      }
    }
  }
}

TEST(ToolParserTest, CallsBeyondTheLimitAreDropped) {
  ToolRules rules = Rules();
  rules.max_calls = 1;
  const std::string one = "<tool_call>{\"name\":\"f\",\"arguments\":{\"n\":1}}</tool_call>";
  const Joined all = Read(ToolStyle::kHermes, one + "\n" + one + "end", {}, rules);
  EXPECT_EQ(all.calls, "f {\"n\":1}");
  EXPECT_EQ(all.content, "end");
}

TEST(ToolParserTest, CallsThatAreNotAllowedAreDroppedInEachStyle) {
  ToolRules rules = Rules();
  rules.functions.front().is_allowed = false;
  std::vector<bool> has_dropped(static_cast<size_t>(ToolStyle::kGeneric) + 1);
  for (const Case& c : kCases) {
    if (c.calls.find('\n') != std::string::npos) continue;  // several calls, or blanks in one
    const bool is_barred = c.calls.starts_with("f ");
    EXPECT_EQ(Read(c.style, c.text, {}, rules).calls, is_barred ? "" : c.calls) << c.text;
    if (is_barred) has_dropped[static_cast<size_t>(c.style)] = true;
  }
  for (const auto& [style, text] : {
           std::pair{ToolStyle::kLlama3, R"({"name": "f", "parameters": {}})"},
           std::pair{ToolStyle::kMistral, R"([TOOL_CALLS][{"name": "f", "arguments": {}}])"},
       }) {
    EXPECT_EQ(Read(style, text).calls, "f {}");
    EXPECT_EQ(Read(style, text, {}, rules).calls, "") << text;
    has_dropped[static_cast<size_t>(style)] = true;
  }
  for (size_t style = 0; style < has_dropped.size(); ++style) {
    EXPECT_EQ(has_dropped[style], static_cast<ToolStyle>(style) != ToolStyle::kNone) << style;
  }
  const std::string two =
      R"(<tool_call>{"name":"f"}</tool_call><tool_call>{"name":"g"}</tool_call>)";
  EXPECT_EQ(Read(ToolStyle::kHermes, two, {}, rules).calls, "g {}");
}

// The model ends a call without arguments by its mark, or by an end of generation.
TEST(ToolParserTest, ACallThatIsCutGetsNoArgumentsThatTheModelDidNotWrite) {
  const std::string begin = " to=functions.g<|channel|>commentary json<|message|>";
  for (const bool is_cut : {false, true}) {
    const auto parser = ToolParser::Create(ToolStyle::kHarmony, Rules());
    Joined all;
    all.Add(parser->Push(begin));
    all.Add(parser->Flush(is_cut));
    EXPECT_EQ(all.calls, is_cut ? "g " : "g {}");
  }
}

// The rest of the string would have come after the cut.
TEST(ToolParserTest, AStringThatIsCutDoesNotEndAtAClosingTagWithinIt) {
  const std::string text = "<function=f><parameter=any>\"a</parameter>b";
  for (const bool is_cut : {false, true}) {
    const auto parser = ToolParser::Create(ToolStyle::kQwen3Coder, Rules());
    Joined all;
    all.Add(parser->Push(text));
    all.Add(parser->Flush(is_cut));
    EXPECT_EQ(all.calls, is_cut ? "f {\"any\": " : "f {\"any\": \"\\\"a\"");
  }
}

// One answer is read twice at most, however many of its strings are none.
TEST(ToolParserTest, StringsThatAreNoneCostOneReading) {
  std::string text;
  std::string calls;
  for (int i = 0; i < 20'000; ++i) {
    text += "<function=f><parameter=any>\"5</parameter></function></tool_call>";
    calls += i == 0 ? "" : "\n";
    calls += "f {\"any\": \"\\\"5\"}";
  }
  EXPECT_EQ(Read(ToolStyle::kQwen3Coder, text).calls, calls);
}

TEST(ToolParserTest, ArgumentsStreamByteByByte) {
  const auto parser = ToolParser::Create(ToolStyle::kHermes, Rules());
  EXPECT_TRUE(parser->Push("<tool_call>{\"name\": \"f\", ").calls.empty());
  EXPECT_TRUE(parser->in_call());
  ToolParts parts = parser->Push("\"arguments\": {");
  ASSERT_EQ(parts.calls.size(), 2u);
  EXPECT_EQ(parts.calls[0].name, "f");
  EXPECT_EQ(parts.calls[1].arguments, "{");
  for (const char c : std::string_view("\"n\": 12")) {
    parts = parser->Push({&c, 1});
    ASSERT_EQ(parts.calls.size(), 1u);
    EXPECT_EQ(parts.calls[0].arguments, std::string(1, c));
  }
}

TEST(ToolStyleTest, ATemplateTellsItsStyle) {
  const std::string tools = "{% for t in tools %}{{ t | tojson }}{% endfor %}";
  EXPECT_EQ(ToolStyleOf("{{ messages }}"), ToolStyle::kNone);
  EXPECT_EQ(ToolStyleOf(tools), ToolStyle::kNone);
  EXPECT_EQ(ToolStyleOf(tools + "<tool_call>\n{\"name\": n, \"arguments\": a}"),
            ToolStyle::kHermes);
  EXPECT_EQ(ToolStyleOf(tools + "<tool_call>\n<function=f>\n<parameter=p>"),
            ToolStyle::kQwen3Coder);
  EXPECT_EQ(ToolStyleOf(tools + "<tool_call>f<arg_key>"), ToolStyle::kNone);
  EXPECT_EQ(ToolStyleOf(tools + "<tool_call></tool_call> <tool_calls>[{\"arguments\": a}]"),
            ToolStyle::kNone);
  EXPECT_EQ(ToolStyleOf(tools + "<|start_header_id|>{\"name\": n, \"parameters\": p}"),
            ToolStyle::kLlama3);
  EXPECT_EQ(ToolStyleOf(tools + "[TOOL_CALLS]"), ToolStyle::kMistral);
  EXPECT_EQ(ToolStyleOf(tools + "<start_function_call>call:"), ToolStyle::kGemma);
  EXPECT_EQ(ToolStyleOf(tools + "<|tool_call>call:"), ToolStyle::kGemma);
  EXPECT_EQ(ToolStyleOf("<|channel|>commentary to=functions."), ToolStyle::kHarmony);
  for (int style = 0; style <= static_cast<int>(ToolStyle::kGeneric); ++style) {
    const auto value = static_cast<ToolStyle>(style);
    EXPECT_EQ(FindToolStyle(ToolStyleName(value)), value);
  }
  EXPECT_EQ(FindToolStyle("auto"), std::nullopt);
}

TEST(JsonBytesTest, TypesAreThoseOfWholeValues) {
  EXPECT_EQ(TypeOfJson(" {\"a\": [1, -2.5e3, true, null, \"x\\u00e9\"]} "), kJsonObject);
  EXPECT_EQ(TypeOfJson("[]"), kJsonArray);
  EXPECT_EQ(TypeOfJson("-0.5"), kJsonNumber);
  EXPECT_EQ(TypeOfJson("\"a\""), kJsonText);
  EXPECT_EQ(TypeOfJson("false"), kJsonBool);
  EXPECT_EQ(TypeOfJson("null"), kJsonNull);
  for (const char* bad : {"", "01", "1.", "tru", "\"a", "{\"a\"}", "[1,]", "1 2", "{a:1}",
                          "\"\\x\"", "\"\n\"", "-", "1e"}) {
    EXPECT_EQ(TypeOfJson(bad), 0) << bad;
  }
  EXPECT_EQ(TypeOfJson(std::string(100, '[') + std::string(100, ']')), 0) << "too deep";
}

}  // namespace
}  // namespace baton::text
