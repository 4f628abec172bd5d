// Chat templates and the parsers of tool calls: a call that a template writes into the history of a
// conversation is in the style that is chosen for the template, and is read as the same call.
//
// The templates below are short ones of each style. BATON_TEMPLATE_CORPUS names a file of
// tests/golden/make_template_corpus.py with published ones, of which a table is printed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "src/base/json_value.h"
#include "src/text/chat_template.h"
#include "src/text/tools/tool_parser.h"
#include "src/text/tools/tool_style.h"

namespace baton::text {
namespace {

constexpr std::string_view kArguments = R"({"zone": "Zürich <b>", "digits": 3})";
constexpr std::string_view kTools =
    R"([{"type":"function","function":{"name":"clock","description":"The time.","parameters":{)"
    R"("type":"object","properties":{"zone":{"type":"string","description":"Where."},)"
    R"("digits":{"type":"integer","description":"How many."}},"required":["zone"]}}}])";

JsonValue ValueOf(const nlohmann::ordered_json& json) {
  if (json.is_object()) {
    JsonValue::Object object;
    for (const auto& [name, member] : json.items()) object.emplace_back(name, ValueOf(member));
    return JsonValue(std::move(object));
  }
  if (json.is_array()) {
    JsonValue::Array array;
    for (const auto& item : json) array.push_back(ValueOf(item));
    return JsonValue(std::move(array));
  }
  if (json.is_string()) return JsonValue(json.get<std::string>());
  return JsonValue(json.get<int64_t>());
}

JsonValue Parsed(std::string_view text) { return ValueOf(nlohmann::ordered_json::parse(text)); }

// The outcome of one template.
struct Outcome {
  ToolStyle style = ToolStyle::kNone;
  std::string problem;  // "" = the call came back
};

struct Called {
  std::string names;
  std::string arguments;
};

Called CallsOf(ToolStyle style, std::string_view text) {
  const ToolRules rules{.functions = {{"clock", {{"zone", kJsonText}, {"digits", kJsonNumber}}}}};
  const auto parser = ToolParser::Create(style, rules);
  Called called;
  for (const bool is_end : {false, true}) {
    const ToolParts parts = is_end ? parser->Flush() : parser->Push(text);
    for (const CallPiece& piece : parts.calls) {
      called.names += piece.name;
      called.arguments += piece.arguments;
    }
  }
  return called;
}

// Renders a conversation before, with and after a call.
class Conversation {
 public:
  explicit Conversation(const ChatTemplate& chat_template) : template_(chat_template) {
    options_.variables = {{"tools", Parsed(kTools)}};
    const std::string calls =
        R"([{"id":"call00001","type":"function","function":{"name":"clock","arguments":)" +
        std::string(kArguments) + "}}]";
    messages_ = {{"user", "What time is it?"}, {"assistant", ""}, {"tool", "a quarter past nine"}};
    messages_[1].members = {{"role", {}}, {"content", {}}, {"tool_calls", Parsed(calls)}};
    messages_[2].members = {{"role", {}},
                            {"tool_call_id", JsonValue(std::string("call00001"))},
                            {"name", JsonValue(std::string("clock"))},
                            {"content", {}}};
  }

  StatusOr<std::string> Question(bool opens_turn) { return Render(1, opens_turn); }
  StatusOr<std::string> WithCall() { return Render(2, false); }
  StatusOr<std::string> WithResult() { return Render(3, true); }

 private:
  StatusOr<std::string> Render(size_t count, bool opens_turn) {
    options_.add_generation_prompt = opens_turn;
    options_.now_unix_s = 1'753'488'000;
    return template_.Render(std::span(messages_).first(count), options_);
  }

  const ChatTemplate& template_;
  RenderOptions options_;
  std::vector<ChatMessage> messages_;
};

// The text that the two have not in common.
std::string_view TailOf(std::string_view text, std::string_view begin) {
  size_t same = 0;
  while (same < text.size() && same < begin.size() && text[same] == begin[same]) ++same;
  return text.substr(same);
}

Outcome Try(const std::string& source) {
  Outcome outcome{.style = ToolStyleOf(source)};
  if (outcome.style == ToolStyle::kNone) return outcome;
  const auto made = ChatTemplate::Create(source, "<s>", "</s>");
  if (!made.ok()) {
    outcome.problem = "no template: " + std::string(made.status().message());
    return outcome;
  }
  Conversation talk(*made);
  const auto question = talk.Question(true);
  const auto closed = talk.Question(false);
  const auto call = talk.WithCall();
  const auto result = talk.WithResult();
  for (const auto* text : {&question, &closed, &call, &result}) {
    if (text->ok()) continue;
    outcome.problem = "not rendered: " + std::string(text->status().message());
    return outcome;
  }
  if (question->find("clock") == std::string::npos) {
    outcome.problem = "the prompt does not name the function";
  } else if (result->find("a quarter past nine") == std::string::npos) {
    outcome.problem = "the next prompt lacks the result";
  }
  // The opened turn of the answer may begin as the call does, with "<think>" and "<tool_call>";
  // without it the tail has the head of the turn, which bare JSON may not.
  const auto expected = nlohmann::json::parse(kArguments);
  std::string seen;
  for (const auto* begin : {&question, &closed}) {
    const std::string_view tail = TailOf(*call, **begin);
    const Called called = CallsOf(outcome.style, tail);
    const auto arguments = nlohmann::json::parse(called.arguments, nullptr, false);
    if (called.names == "clock" && arguments == expected) return outcome;
    seen += " read as '" + called.names + " " + called.arguments + "': " + std::string(tail);
  }
  outcome.problem += seen;
  return outcome;
}

constexpr std::string_view kShowsTools = "{% if tools %}{{ tools | tojson }}{% endif %}";

// A template whose turns are those of ChatML and whose calls are written by `call`.
std::string ChatMl(std::string_view call) {
  return std::string(kShowsTools) +
         "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
         "{% for c in m.tool_calls or [] %}" +
         std::string(call) +
         "{% endfor %}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
}

TEST(ToolTemplateTest, ACallOfTheHistoryIsReadInTheStyleOfItsTemplate) {
  const std::pair<ToolStyle, std::string> templates[] = {
      {ToolStyle::kHermes,
       ChatMl("<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
              "{{ c.function.arguments | tojson }}}\n</tool_call>\n")},
      {ToolStyle::kQwen3Coder,
       ChatMl("<tool_call>\n<function={{ c.function.name }}>\n"
              "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n"
              "</parameter>\n{% endfor %}</function>\n</tool_call>\n")},
      {ToolStyle::kLlama3, ChatMl("{\"name\": \"{{ c.function.name }}\", \"parameters\": "
                                  "{{ c.function.arguments | tojson }}}") +
                               "{# <|start_header_id|> #}"},
      {ToolStyle::kGemma,
       ChatMl("<start_function_call>call:{{ c.function.name }}{{ '{' }}"
              "{% for k, v in c.function.arguments | items %}{% if not loop.first %},{% endif %}"
              "{{ k }}:{% if v is string %}<escape>{{ v }}<escape>{% else %}{{ v }}{% endif %}"
              "{% endfor %}{{ '}' }}<end_function_call>")},
      {ToolStyle::kMistral,
       ChatMl("[TOOL_CALLS][{\"name\": \"{{ c.function.name }}\", \"arguments\": "
              "{{ c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}]")},
      {ToolStyle::kHarmony,
       ChatMl("<|channel|>commentary to=functions.{{ c.function.name }} <|constrain|>json"
              "<|message|>{{ c.function.arguments | tojson }}<|call|>")},
  };
  for (const auto& [style, source] : templates) {
    const Outcome outcome = Try(source);
    EXPECT_EQ(outcome.style, style) << source;
    EXPECT_EQ(outcome.problem, "") << ToolStyleName(style);
  }
}

TEST(ToolTemplateTest, PublishedTemplates) {
  const char* const path = std::getenv("BATON_TEMPLATE_CORPUS");
  if (path == nullptr) GTEST_SKIP() << "BATON_TEMPLATE_CORPUS names no corpus";
  std::ifstream file(path);
  const auto corpus = nlohmann::json::parse(file);
  std::map<std::string_view, int> num_of_style;
  int num_bad = 0;
  for (const auto& entry : corpus["sources"]) {
    const Outcome outcome = Try(entry["source"]);
    ++num_of_style[ToolStyleName(outcome.style)];
    const std::string name = entry["name"];
    std::printf("%-12s %s %s\n", std::string(ToolStyleName(outcome.style)).c_str(), name.c_str(),
                outcome.problem.c_str());
    num_bad += outcome.problem.empty() ? 0 : 1;
  }
  for (const auto& [style, count] : num_of_style) {
    std::printf("%s: %d templates\n", std::string(style).c_str(), count);
  }
  EXPECT_EQ(num_bad, 0);
}

}  // namespace
}  // namespace baton::text
