#include "src/text/chat_template.h"

#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/patience.h"
#include "tests/text/test_spec.h"

namespace baton::text {
namespace {

using ::testing::HasSubstr;

ChatTemplate Make(std::string source) {
  auto made = ChatTemplate::Create(std::move(source), "<s>", "</s>");
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    std::abort();
  }
  return *std::move(made);
}

const std::vector<ChatMessage> kTalk = {{"system", "Be kind."},
                                        {"user", "Hi & <bye>\n\"q\" \\ \x01 é😀"},
                                        {"assistant", "Hello"},
                                        {"user", "Why?"}};

TEST(ChatTemplateTest, DemoModelSpeaksChatMl) {
  const ChatTemplate chat_template = Make(DemoSpec().chat_template);
  EXPECT_EQ(chat_template.Render(kTalk).value(),
            "<|im_start|>system\nBe kind.<|im_end|>\n"
            "<|im_start|>user\nHi & <bye>\n\"q\" \\ \x01 é😀<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n");
  const std::vector<ChatMessage> one = {{"user", "Hi"}};
  EXPECT_EQ(chat_template.Render(one, {.add_generation_prompt = false}).value(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

// The constructs that published templates of other families use.
TEST(ChatTemplateTest, OtherFamiliesStyles) {
  const ChatTemplate llama = Make(
      "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined "
      "%}\n        {%- set date_string = strftime_now('%d %b %Y') %}\n    {%- else %}\n        {%- "
      "set date_string = '26 Jul 2024' %}\n    {%- endif %}\n{%- endif %}\n{%- if "
      "messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content']|trim %}\n "
      "   {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif "
      "%}\n{{- '[' + date_string + '|' + system + ']' }}\n{%- for m in messages %}\n    {{- '<' + "
      "m.role + '>' + m['content'] | trim + '</>' }}\n{%- endfor %}\n{%- if add_generation_prompt "
      "%}\n    {{- '<assistant>' }}\n{%- endif %}\n");
  const std::vector<ChatMessage> talk = {{"system", " S "}, {"user", " u\n"}};
  EXPECT_EQ(llama.Render(talk).value(), "<s>[26 Jul 2024|S]<user>u</><assistant>");
  EXPECT_EQ(llama.Render(talk, {.now_unix_s = 1'753'488'000}).value(),
            "<s>[26 Jul 2025|S]<user>u</><assistant>");
  const ChatTemplate mistral = Make(
      "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
      "(loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate!') }}{% endif %}{% if "
      "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ "
      "message['content'] + eos_token }}{% endif %}{% endfor %}");
  const std::vector<ChatMessage> good = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  EXPECT_EQ(mistral.Render(good).value(), "<s>[INST] a [/INST]b</s>[INST] c [/INST]");
  const auto refused = mistral.Render(talk);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "chat template: roles must alternate! (line 1 of the template)");
}

// The turns of an agent: a call whose content has the form `form`, and its result.
std::vector<ChatMessage> TalkWithCall(ContentForm form) {
  std::vector<ChatMessage> talk = {{"user", "Time?"}, {"assistant", ""}, {"tool", "noon"}};
  talk[1].form = form;
  talk[1].members = {{"role", {}}, {"tool_calls", JsonValue(JsonValue::Array())}};
  if (form != ContentForm::kAbsent) talk[1].members.emplace_back("content", JsonValue());
  return talk;
}

TEST(ChatTemplateTest, ContentThatATemplateCannotAddIsAnEmptyText) {
  const ChatTemplate demo = Make(DemoSpec().chat_template);
  const ChatTemplate parts_only = Make(
      "{% for m in messages %}<{% for part in m.content %}{{ part.text }}{% endfor %}>{% endfor "
      "%}");
  for (const ContentForm form : {ContentForm::kNull, ContentForm::kAbsent}) {
    const std::vector<ChatMessage> talk = TalkWithCall(form);
    EXPECT_EQ(demo.Render(talk).value(),
              "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
              "Face<|im_end|>\n<|im_start|>user\nTime?<|im_end|>\n"
              "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n"
              "<|im_start|>assistant\n");
    EXPECT_EQ(parts_only.Render(talk).value(), "<Time?><><noon>");
  }
}

TEST(ChatTemplateTest, ATemplateThatTakesNullIsToldNull) {
  const std::vector<ChatMessage> talk = TalkWithCall(ContentForm::kNull);
  const std::vector<ChatMessage> absent = TalkWithCall(ContentForm::kAbsent);
  const ChatTemplate asks = Make("{% for m in messages %}{{ m.content is none }};{% endfor %}");
  EXPECT_EQ(asks.Render(talk).value(), "False;True;False;");
  EXPECT_EQ(asks.Render(absent).value(), "False;False;False;");
  const ChatTemplate looks =
      Make("{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %};{% endfor %}");
  EXPECT_EQ(looks.Render(talk).value(), "Time?;;noon;");
  EXPECT_EQ(looks.Render(absent).value(), "Time?;;noon;");
  // transformers prints None here too.
  const ChatTemplate prints = Make("{% for m in messages %}{{ m.content }};{% endfor %}");
  EXPECT_EQ(prints.Render(talk).value(), "Time?;None;noon;");
}

TEST(ChatTemplateTest, ATemplateThatAlwaysFailsIsQuotedAsItFailedFirst) {
  const ChatTemplate picky = Make(
      "{% for m in messages %}{% if m.content is none %}{{ raise_exception('no null') }}{% endif %}"
      "{% if m.content == '' %}{{ raise_exception('no empty text') }}{% endif %}{% endfor %}");
  EXPECT_EQ(picky.Render(TalkWithCall(ContentForm::kNull)).status().message(),
            "chat template: no null (line 1 of the template)");
  EXPECT_EQ(picky.Render(TalkWithCall(ContentForm::kText)).status().message(),
            "chat template: no empty text (line 1 of the template)");
}

TEST(ChatTemplateTest, MessagesArriveUnchangedWhateverTheyHold) {
  const ChatTemplate echo = Make("{% for m in messages %}{{ m.content }}|{% endfor %}");
  RandomText random(TestSeed());
  const std::vector<std::string> parts = {"\"",     "\\",     "\n",      "\x01",    "\x7f",
                                          "é",      "😀",      "{{ 1 }}", "{% x %}", "</",
                                          "\u2028", "\ufdd0", "\\u0041"};
  for (int round = 0; round < 300; ++round) {
    const std::string a = random.Join(parts, 8);
    const std::string b = random.Join(parts, 8) + std::string(1, '\0');
    const std::vector<ChatMessage> talk = {{"user", a}, {"tool", b}};
    EXPECT_EQ(echo.Render(talk).value(), a + "|" + b + "|");
  }
}

TEST(ChatTemplateTest, BadMessagesAreNamed) {
  const ChatTemplate echo = Make("{{ messages|length }}");
  const auto message = [&echo](std::vector<ChatMessage> talk) {
    const auto rendered = echo.Render(talk);
    EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument);
    return std::string(rendered.status().message());
  };
  EXPECT_THAT(message({{"user", "x"}, {"root", "x"}}), HasSubstr("messages[1]: role \"root\""));
  EXPECT_THAT(message({{"<|im_start|>", "x"}}), HasSubstr("messages[0]"));
  EXPECT_THAT(message({{"\xff", "x"}}), HasSubstr("messages[0]"));
  EXPECT_THAT(message({{"user", "ab\xff"}}),
              HasSubstr("messages[0]: content is not UTF-8 at byte 2"));
  EXPECT_THAT(message(std::vector<ChatMessage>(kMaxChatMessages + 1, {"user", ""})),
              HasSubstr("100001"));
  EXPECT_EQ(echo.Render({}).value(), "0");
}

TEST(ChatTemplateTest, BadTemplatesAreRefusedWithTheLine) {
  const auto bad = ChatTemplate::Create("a\n{% for %}", "", "");
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("line 2 of the template"));
  EXPECT_FALSE(ChatTemplate::Create("\xff", "", "").ok());
  EXPECT_FALSE(ChatTemplate::Create("", "\xff", "").ok());
  EXPECT_FALSE(ChatTemplate::Create(std::string(300 << 10, ' '), "", "").ok());
}

// A template that does not end and what it runs into.
struct Runaway {
  const char* source;
  const char* message;
};

TEST(ChatTemplateTest, RunawaysGiveAClearErrorSoon) {
  const Runaway cases[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
       "ran more instructions than allowed"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursed deeper than"},
      {"{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "wrote more than the allowed"},
      {"{% set n = namespace(x='ab') %}{% for a in range(64) %}{% set n.x = n.x + n.x %}{% endfor "
       "%}",
       "bytes of memory"},
      {"{% set n = namespace(x=messages[0].content) %}{% for a in range(64) %}{% set n.x = "
       "n.x.replace('u', n.x) %}{% endfor %}",
       "bytes of memory"},
  };
  const std::vector<ChatMessage> talk = {{"user", "uu"}};
  for (const Runaway& c : cases) {
    const ChatTemplate chat_template = Make(c.source);
    // Processor time, which a busy machine does not stretch.
    const std::clock_t start = std::clock();
    const auto rendered = chat_template.Render(talk);
    const double took_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    ASSERT_FALSE(rendered.ok()) << c.source;
    EXPECT_EQ(rendered.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(rendered.status().message()), HasSubstr(c.message)) << c.source;
    EXPECT_LT(took_s, 1.5 * kPatienceFactor) << c.source;
  }
}

// Long conversations stay within the limits, also where the template builds one long string.
TEST(ChatTemplateTest, LongConversationsRender) {
  const ChatTemplate demo = Make(DemoSpec().chat_template);
  const ChatTemplate concatenating = Make(
      "{% set n = namespace(p='') %}{% for m in messages %}{% set n.p = n.p + '<' + m.role + '>' + "
      "m.content %}{% endfor %}{{ n.p }}");
  const std::vector<ChatMessage> talk(1000, {"user", std::string(300, 'x')});
  EXPECT_TRUE(demo.Render(talk).ok()) << demo.Render(talk).status();
  EXPECT_TRUE(concatenating.Render(talk).ok()) << concatenating.Render(talk).status();
  const std::vector<ChatMessage> one = {{"user", std::string(3 << 20, 'x')}};
  EXPECT_TRUE(demo.Render(one).ok()) << demo.Render(one).status();
}

TEST(ChatTemplateTest, ThreadsShareOneTemplate) {
  const ChatTemplate demo = Make(DemoSpec().chat_template);
  const std::string expected = demo.Render(kTalk).value();
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto rendered = demo.Render(kTalk);
        num_wrong[t] += rendered.ok() && *rendered == expected ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(num_wrong, testing::ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace baton::text
