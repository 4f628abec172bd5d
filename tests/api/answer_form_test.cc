// The form that a client asks of an answer: which grammar the router gives its workers, and what it
// refuses before any of them hears of it.
#include "src/api/answer_form.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/text/grammar.h"
#include "src/wire/answer_grammar.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using router::ErrorCode;
using router::ModelInfo;
using router::RequestError;
using router::TestModel;
using scheduler::FinishReason;
using text::ChatTemplate;
using text::Grammar;
using text::GrammarVocabulary;
using wire::AnswerGrammar;
using wire::GrammarKind;
using wire::GrammarStart;

namespace {

using ::testing::HasSubstr;

const std::string kPrompt = R"({"prompt":"hello")";

class AnswerFormTest : public HttpApiTest {
 protected:
  AnswerFormTest() { AnswerWith("x"); }

  // The grammar of the request that the router got; `fields` begin with a comma.
  AnswerGrammar Sent(const std::string& fields) {
    const auto responder = Post(kChatPath, kHello + fields + "}");
    EXPECT_EQ(responder->status, 200) << fields << responder->body;
    if (responder->status != 200) return {};
    const auto submitted = submitter_.WaitSubmitted(num_sent_++);
    EXPECT_FALSE(submitted.request.sampling.grammar == nullptr) << fields;
    return *submitted.request.sampling.grammar;
  }
  size_t num_sent_ = 0;
};

TEST_F(AnswerFormTest, EveryFieldBecomesAGrammar) {
  struct Case {
    std::string fields;
    GrammarKind kind;
    std::string text;
  };
  const std::string schema =
      R"({"type":"object","properties":{"b":{},"a":{"maximum":9007199254740992}}})";
  const std::string strict =
      R"(,"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":)";
  for (const Case& c : {
           Case{R"(,"response_format":{"type":"json_object"})", GrammarKind::kJsonObject, ""},
           Case{strict + schema + "}}", GrammarKind::kSchemaStrict, schema},
           Case{R"(,"response_format":{"type":"json_schema","json_schema":{"schema":)" + schema +
                    "}}",
                GrammarKind::kSchemaLoose, schema},
           Case{R"(,"response_format":{"type":"json_object","schema":)" + schema + "}",
                GrammarKind::kSchemaLoose, schema},
           Case{R"(,"structured_outputs":{"json":)" + schema + "}", GrammarKind::kSchemaLoose,
                schema},
           Case{R"(,"structured_outputs":{"json":"{ }"})", GrammarKind::kSchemaLoose, "{ }"},
           Case{R"(,"structured_outputs":{"json":{"type":"array"},"disable_any_whitespace":true})",
                GrammarKind::kSchemaLoose,
                R"({"type":"array","x-guidance":{"whitespace_flexible":false}})"},
           Case{R"(,"structured_outputs":{"disable_any_whitespace":true,"json_object":true})",
                GrammarKind::kSchemaLoose,
                R"({"type":"object","x-guidance":{"whitespace_flexible":false}})"},
           Case{R"(,"structured_outputs":{"regex":"a+","disable_any_whitespace":true})",
                GrammarKind::kRegex, "a+"},
           Case{R"(,"structured_outputs":{"grammar":"start: \"a\"","disable_any_whitespace":true})",
                GrammarKind::kLark, "start: \"a\""},
           Case{R"(,"structured_outputs":{"disable_any_whitespace":true},"guided_json":{})",
                GrammarKind::kSchemaLoose, R"({"x-guidance":{"whitespace_flexible":false}})"},
           Case{R"(,"structured_outputs":{"disable_any_whitespace":true})" + strict +
                    R"({"type":"array"}}})",
                GrammarKind::kSchemaStrict,
                R"({"type":"array","x-guidance":{"whitespace_flexible":false}})"},
           Case{R"(,"structured_outputs":{"regex":"a+"})", GrammarKind::kRegex, "a+"},
           Case{R"(,"structured_outputs":{"choice":["yes","no"]})", GrammarKind::kChoice,
                R"(["yes","no"])"},
           Case{R"(,"structured_outputs":{"grammar":"start: \"a\""})", GrammarKind::kLark,
                "start: \"a\""},
           Case{R"(,"structured_outputs":{"json_object":true})", GrammarKind::kJsonObject, ""},
           Case{R"(,"response_format":{"type":"structural_tag","format":{"type":"any_text"}})",
                GrammarKind::kStructuralTag, R"({"format":{"type":"any_text"}})"},
           Case{R"(,"structured_outputs":{"structural_tag":)"
                R"("{\"type\":\"structural_tag\",\"format\":{\"type\":\"any_text\"}}"})",
                GrammarKind::kStructuralTag,
                R"({"type":"structural_tag","format":{"type":"any_text"}})"},
           Case{R"(,"guided_json":{})", GrammarKind::kSchemaLoose, "{}"},
           Case{R"(,"guided_regex":"a+")", GrammarKind::kRegex, "a+"},
           Case{R"(,"guided_choice":["yes"])", GrammarKind::kChoice, R"(["yes"])"},
           Case{R"(,"guided_grammar":"start: \"a\"")", GrammarKind::kLark, "start: \"a\""},
       }) {
    const AnswerGrammar sent = Sent(c.fields);
    EXPECT_EQ(sent.kind, c.kind) << c.fields;
    EXPECT_EQ(sent.text, c.text) << c.fields;
    EXPECT_EQ(sent.start, GrammarStart::kFirstToken) << c.fields;
  }
}

TEST_F(AnswerFormTest, ABadFormIsRefusedBeforeAWorkerHearsOfIt) {
  struct Case {
    std::string fields;
    const char* param;
    const char* code;
    const char* says;
  };
  const std::string strict =
      R"(,"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":)";
  for (const Case& c : {
           Case{strict + R"({"type":"array","minItems":1,"items":{"$ref":"#"}}}})",
                "response_format.json_schema.schema", "invalid_value",
                "#: it demands itself again without end"},
           Case{strict + R"({"type":"object","minProperties":2}}})",
                "response_format.json_schema.schema", "invalid_value", "#/minProperties: "},
           Case{R"(,"response_format":{"type":"structural_tag","format":{"type":"sequence",)"
                R"("elements":[{"type":"token","token":5}]}})",
                "response_format", "invalid_value", "#/format/elements/0/type: is not supported"},
           Case{R"(,"structured_outputs":{"structural_tag":{"format":{"type":"json_schema",)"
                R"("json_schema":{"minimum":3,"maximum":2,"type":"integer"}}}})",
                "structured_outputs.structural_tag", "invalid_value",
                "#/format/json_schema: Unsatisfiable"},
           Case{strict + R"({"properties":{"a":{"type":"array","uniqueItems":true}}}}})",
                "response_format.json_schema.schema", "invalid_value",
                "#/properties/a/uniqueItems: the keyword is not supported"},
           Case{strict + R"({"type":"text"}}})", "response_format.json_schema.schema",
                "invalid_value", "#/type"},
           Case{R"(,"structured_outputs":{"json":"{\"type\":"})", "structured_outputs.json",
                "invalid_value", "a JSON Schema"},
           Case{R"(,"structured_outputs":{"regex":"("})", "structured_outputs.regex",
                "invalid_value", "a regular expression"},
           Case{R"(,"guided_choice":[""])", "guided_choice", "invalid_value", "text 0 is empty"},
           Case{R"(,"guided_grammar":"root ::= a")", "guided_grammar", "invalid_value",
                "line 1: there is no rule 'a'"},
           Case{R"(,"guided_regex":")" + std::string((1 << 20) + 1, 'a') + "\"", "guided_regex",
                "invalid_value", "at most 1048576 bytes, it has 1048577"},
           Case{R"(,"response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
                "structured_outputs.regex", "invalid_combination", "response_format asks"},
           Case{R"(,"structured_outputs":{"disable_any_whitespace":true,"structural_tag":"{}"})",
                "structured_outputs.disable_any_whitespace", "invalid_combination",
                "absent beside a structural tag"},
           Case{R"(,"structured_outputs":{"disable_any_whitespace":true,"grammar":"start: %json )"
                R"({\"type\":\"object\"}"})",
                "structured_outputs.disable_any_whitespace", "invalid_combination",
                R"(the schema there may say "x-guidance": {"whitespace_flexible": false})"},
       }) {
    for (const auto& [path, head] :
         {std::pair(kChatPath, kHello), std::pair(kCompletionPath, kPrompt)}) {
      const auto responder = Post(path, head + c.fields + "}");
      EXPECT_EQ(responder->status, 400) << c.param;
      EXPECT_EQ(Text(*responder, {"error", "param"}), c.param);
      EXPECT_EQ(Text(*responder, {"error", "code"}), c.code) << c.param;
      EXPECT_THAT(Text(*responder, {"error", "message"}), HasSubstr(c.says)) << c.param;
    }
  }
  (void)Sent(R"(,"guided_regex":"a")");  // the first that the router got
}

// %json in a comment or in what the answer says is no schema.
TEST_F(AnswerFormTest, BlanksOfASchemaWithinAGrammarAreRefusedAndNoOthers) {
  struct Case {
    const char* grammar;  // within a JSON string
    bool has_schema;
  };
  for (const Case& c : {
           Case{R"(start: \"%json\")", false},
           Case{R"(start: \"\\\"%json\")", false},
           Case{R"(start: /%json/)", false},
           Case{R"(start: /\\/%json/)", false},
           Case{R"(start: \"a\" // %json {})", false},
           Case{R"(start: b // it's \"\nb: \"%json\")", false},
           Case{R"(root ::= [%json]+)", false},
           Case{R"(start: %json {})", true},
           Case{R"(start: b // c\nb: %json {})", true},
           Case{R"(start: b # \"\nb: %json {})", true},
           Case{R"(start: \"\\\"\" %json {})", true},
           Case{R"(start: \"//\" %json {})", true},
           Case{R"(start: /\"/ %json {})", true},
           Case{R"(start: /a\n\"/ %json {})", true},
       }) {
    const std::string fields =
        R"(,"structured_outputs":{"disable_any_whitespace":true,"grammar":")" +
        std::string(c.grammar) + "\"}}";
    const auto responder = Post(kChatPath, kHello + fields);
    EXPECT_EQ(responder->status, c.has_schema ? 400 : 200) << c.grammar << responder->body;
    if (!c.has_schema) continue;
    EXPECT_EQ(Text(*responder, {"error", "code"}), "invalid_combination") << c.grammar;
  }
}

// A free answer must not pass for one that has a form.
TEST_F(AnswerFormTest, AnEmptyFormIsRefusedByName) {
  struct Case {
    const char* field;
    const char* param;
    const char* code;
  };
  for (const Case& c : {
           Case{R"("structured_outputs":{"choice":[]})", "structured_outputs.choice",
                "invalid_value"},
           Case{R"("structured_outputs":{"regex":""})", "structured_outputs.regex",
                "invalid_value"},
           Case{R"("structured_outputs":{"grammar":""})", "structured_outputs.grammar",
                "invalid_value"},
           Case{R"("structured_outputs":{"json":""})", "structured_outputs.json", "invalid_value"},
           Case{R"("structured_outputs":{"json":false})", "structured_outputs.json",
                "invalid_type"},
           Case{R"("structured_outputs":{"structural_tag":""})",
                "structured_outputs.structural_tag", "invalid_value"},
           Case{R"("structured_outputs":[])", "structured_outputs", "invalid_type"},
           Case{R"("structured_outputs":{"foo":1})", "structured_outputs.foo",
                "unsupported_parameter"},
           Case{R"("structured_outputs":{"f o\"":1})", "structured_outputs.f?o?",
                "unsupported_parameter"},
           Case{R"("structured_outputs":"")", "structured_outputs", "invalid_type"},
           Case{R"("structured_outputs":{})", "structured_outputs", "invalid_value"},
           Case{R"("structured_outputs":{"json":null,"choice":null})", "structured_outputs",
                "invalid_value"},
           Case{R"("structured_outputs":{"choice":null,"json_object":false})", "structured_outputs",
                "invalid_value"},
           Case{R"("structured_outputs":{"json_object":false},"response_format":)"
                R"({"type":"json_object"})",
                "structured_outputs", "invalid_value"},
           Case{R"("structured_outputs":{"backend":"xgrammar","whitespace_pattern":null})",
                "structured_outputs", "invalid_value"},
           Case{R"("structured_outputs":{"disable_any_whitespace":false})", "structured_outputs",
                "invalid_value"},
           Case{R"("structured_outputs":{"disable_any_whitespace":true})", "structured_outputs",
                "invalid_value"},
           Case{R"("guided_choice":[])", "guided_choice", "invalid_value"},
           Case{R"("guided_regex":"")", "guided_regex", "invalid_value"},
           Case{R"("guided_grammar":"")", "guided_grammar", "invalid_value"},
           Case{R"("guided_json":"")", "guided_json", "invalid_value"},
           Case{R"("response_format":{"type":"json_object","schema":""})", "response_format.schema",
                "invalid_value"},
           Case{R"("response_format":{"type":"json_schema","json_schema":{"schema":""}})",
                "response_format.json_schema.schema", "invalid_value"},
           // A form that the type does not read: the answer would be without it.
           Case{R"("response_format":{"type":"text","json_schema":{"schema":{}}})",
                "response_format.json_schema", "invalid_combination"},
           Case{R"("response_format":{"type":"json_object","json_schema":{"schema":{}}})",
                "response_format.json_schema", "invalid_combination"},
           Case{R"("response_format":{"type":"json_schema","schema":{}})",
                "response_format.json_schema", "missing_required_parameter"},
           Case{R"("response_format":{"type":"text","structures":[],"triggers":[]})",
                "response_format.structures", "invalid_combination"},
           Case{R"("response_format":{"type":"json_object","format":{"type":"any_text"}})",
                "response_format.format", "invalid_combination"},
       }) {
    for (const auto& [path, head] :
         {std::pair(kChatPath, kHello), std::pair(kCompletionPath, kPrompt)}) {
      const auto responder = Post(path, head + "," + c.field + "}");
      EXPECT_EQ(responder->status, 400) << c.field;
      EXPECT_EQ(Text(*responder, {"error", "param"}), c.param) << c.field;
      EXPECT_EQ(Text(*responder, {"error", "code"}), c.code) << c.field;
    }
  }
}

TEST_F(AnswerFormTest, StructuredOutputsWithoutAFormSayWhatTheyMayHave) {
  const auto responder = Post(kChatPath, kHello + R"(,"structured_outputs":{}})");
  EXPECT_EQ(responder->status, 400);
  EXPECT_EQ(Text(*responder, {"error", "message"}),
            "'structured_outputs' is out of range: it must be an object with one of json, regex, "
            "choice, grammar, json_object and structural_tag; absent or null asks for no form.");
}

TEST_F(AnswerFormTest, WhatALooseSchemaDropsIsNamed) {
  const auto responder =
      Post(kChatPath,
           kHello + R"(,"nick":1,"response_format":{"type":"json_schema","json_schema":)"
                    R"({"schema":{"properties":{"a b":{"type":"array","uniqueItems":true}}}}}})");
  EXPECT_EQ(responder->status, 200) << responder->body;
  EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"),
            "nick, response_format.json_schema.schema.properties.a?b.uniqueItems");
}

TEST_F(AnswerFormTest, AllMembersOfAStructuralTagAreRead) {
  for (const char* members :
       {R"("format":{"type":"any_text"})",
        R"("at_least_one":true,"structures":[{"begin":"<","schema":{},"end":">"}])"}) {
    const auto responder = Post(kChatPath, kHello + R"(,"response_format":{"type":)" +
                                               R"("structural_tag",)" + members + "}}");
    EXPECT_EQ(responder->status, 200) << responder->body;
    EXPECT_EQ(responder->Header("X-Baton-Ignored-Fields"), "") << members;
  }
}

TEST_F(AnswerFormTest, AGrammarBeginsAfterThoughts) {
  struct Case {
    const char* chat_template;
    GrammarStart start;
  };
  for (const Case& c : {
           Case{"{{ messages[0].content }}<assistant>", GrammarStart::kFirstToken},
           Case{"{{ messages[0].content.split('</think>')[0] }}<assistant>",
                GrammarStart::kMayThink},
           Case{"{{ messages[0].content }}<assistant><think>\n", GrammarStart::kAfterThoughts},
           Case{"{{ messages[0].content }}<assistant><think>\n\n</think>\n\n",
                GrammarStart::kFirstToken},
       }) {
    auto model = std::make_shared<ModelInfo>(*TestModel());
    model->chat_template = std::make_shared<const ChatTemplate>(
        ChatTemplate::Create(c.chat_template, "", "<eos>").value());
    submitter_.served = {model};
    EXPECT_EQ(Sent(R"(,"guided_regex":"a")").start, c.start) << c.chat_template;
  }
}

TEST_F(AnswerFormTest, ACutAnswerSaysThatItIsIncomplete) {
  const std::string form = R"(,"response_format":{"type":"json_object"})";
  const std::string cut =
      R"("stop_reason":null,"incomplete_details":{"reason":"max_output_tokens"})";
  AnswerWith("{", FinishReason::kLength);
  EXPECT_THAT(Post(kChatPath, kHello + form + "}")->body, HasSubstr(cut));
  EXPECT_THAT(Post(kChatPath, kHello + form + R"(,"stream":true})")->body, HasSubstr(cut));
  EXPECT_THAT(Post(kCompletionPath, kPrompt + form + "}")->body, HasSubstr(cut));
  const auto lacks = ::testing::Not(HasSubstr("incomplete_details"));
  EXPECT_THAT(Post(kChatPath, kHello + "}")->body, lacks) << "it has no form";
  AnswerWith("{}");
  EXPECT_THAT(Post(kChatPath, kHello + form + "}")->body, lacks) << "it is whole";
}

// Whether the form is complete sooner depends on the answer.
TEST_F(AnswerFormTest, MinTokensWithAFormIsWarned) {
  const std::string choice = R"(,"structured_outputs":{"choice":["a"]})";
  const auto warning = [&](const std::string& fields) {
    const auto responder = Post(kChatPath, kHello + fields + "}");
    EXPECT_EQ(responder->status, 200) << responder->body;
    return responder->Header("X-Baton-Warnings");
  };
  EXPECT_EQ(warning(choice + R"(,"min_tokens":5)"),
            "min_tokens ends with the form of structured_outputs.choice");
  EXPECT_EQ(warning(choice + R"(,"min_tokens":5,"presence_penalty":3)"),
            "presence_penalty beyond 2, min_tokens ends with the form of "
            "structured_outputs.choice");
  EXPECT_EQ(warning(choice + R"(,"min_tokens":0)"), "");
  EXPECT_EQ(warning(choice), "");
  EXPECT_EQ(warning(R"(,"min_tokens":5)"), "");
}

TEST_F(AnswerFormTest, AFormThatAsksForNothingIsNone) {
  for (const char* fields : {R"("response_format":{"type":"text"})", R"("structured_outputs":null)",
                             R"("guided_json":null,"guided_choice":null,"guided_regex":null)"}) {
    const auto responder = Post(kChatPath, kHello + "," + fields + "}");
    EXPECT_EQ(responder->status, 200) << fields << responder->body;
    EXPECT_TRUE(submitter_.WaitSubmitted(num_sent_++).request.sampling.grammar == nullptr);
  }
}

TEST_F(AnswerFormTest, AFaultOfTheServerIsNoneOfTheRequest) {
  RequestError error;
  EXPECT_TRUE(IsServerFault(Internal("#: panic: 7"), &error));
  EXPECT_EQ(error.code, ErrorCode::kInternal);
  EXPECT_EQ(error.Message(), "The server failed; the log has the request id.");
  EXPECT_TRUE(IsServerFault(Unavailable("8 earlier grammars"), &error));
  EXPECT_EQ(error.code, ErrorCode::kServerBusy);
  EXPECT_GT(error.retry_after_s, 0u);
  EXPECT_FALSE(IsServerFault(InvalidArgument("#: no schema"), &error));
  EXPECT_FALSE(IsServerFault(FailedPrecondition("too large"), &error));
}

// A compilation that went past its memory holds its thread for ever, so the threads are another
// process's.
TEST_F(AnswerFormTest, AFormIsRefusedForAWhileWhereEarlierOnesHoldAllThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fill_and_ask = [this] {
    const auto vocabulary = GrammarVocabulary::Create(*TestModel()->tokenizer).value();
    for (int i = 0; i < 8; ++i) {
      const auto held =
          Grammar::Compile(vocabulary, GrammarKind::kJsonObject, "", {.max_memory_bytes = 1});
      if (!absl::IsFailedPrecondition(held.status())) std::_Exit(1);
    }
    const auto refused = Post(kChatPath, kHello + R"(,"guided_regex":"a"})");
    std::fprintf(stderr, "%d after %s s: %s\n", refused->status,
                 refused->Header("Retry-After").c_str(), refused->body.c_str());
    std::_Exit(Post(kChatPath, kHello + "}")->status == 200 ? 0 : 2);
  };
  EXPECT_EXIT(fill_and_ask(), testing::ExitedWithCode(0), "503 after 1 s: .*\"server_busy\"");
}

}  // namespace
}  // namespace baton::api
