// Schemas of functions: what they say to the reader of calls, and to the grammar of a form or a
// call.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/api/tool_shapes.h"
#include "src/base/clock.h"
#include "tests/api/http_api_rig.h"

namespace baton::api {

using router::ModelInfo;
using router::RequestError;
using router::TestModel;
using text::ChatTemplate;

namespace {

using ::testing::HasSubstr;

constexpr uint8_t kNullableText = text::kJsonText | text::kJsonNull;

// The types of the property "p" of a schema for the reader of a free call.
uint8_t TypesOfP(const std::string& parameters) {
  ToolFunction function;
  function.name = "f";
  RequestError error;
  EXPECT_TRUE(ParseJson(parameters, &function.parameters, &error)) << parameters;
  const text::ToolShape shape = ShapeOf(function, true, ParameterWriter::kModel);
  for (const auto& [name, types] : shape.parameters) {
    if (name == "p") return types;
  }
  ADD_FAILURE() << parameters;
  return 0;
}

TEST(ToolShapesTest, TypesComeFromReferencesListsAndValues) {
  const std::string defs =
      R"("$defs":{"unit":{"type":"string","enum":["5","6"]},"a/~b":{"type":"integer"},)"
      R"("loop":{"$ref":"#/$defs/loop"},"far":{"$ref":"#/$defs/unit"}})";
  for (const auto& [schema, types] : {
           std::pair<std::string, uint8_t>{R"({"$ref":"#/$defs/unit"})", text::kJsonText},
           {R"({"$ref":"#/$defs/far","description":"d"})", text::kJsonText},
           {R"({"$ref":"#/$defs/a~1~0b"})", text::kJsonNumber},
           {R"({"allOf":[{"$ref":"#/$defs/unit"}],"default":"5"})", text::kJsonText},
           {R"({"anyOf":[{"$ref":"#/$defs/unit"},{"type":"null"}]})", kNullableText},
           {R"({"type":["string","null"],"anyOf":[{"type":"string"}]})", text::kJsonText},
           {R"({"enum":["5","6"]})", text::kJsonText},
           {R"({"enum":["5",null]})", kNullableText},
           {R"({"const":5})", text::kJsonNumber},
           {R"({"type":"string","enum":[1]})", text::kJsonText},
           {R"({})", 0},
           {R"({"anyOf":[{"type":"string"},{}]})", 0},
           {R"({"$ref":"#/$defs/none"})", 0},
           {R"({"$ref":"#/$defs/loop"})", 0},
           {R"({"$ref":"other.json"})", 0},
       }) {
    EXPECT_EQ(TypesOfP(R"({"properties":{"p":)" + schema + "}," + defs + "}"), types) << schema;
  }
}

// References that branch have no other bound: 100^16 schemas are below this property.
TEST(ToolShapesTest, BranchingReferencesEnd) {
  std::string list;
  for (int i = 0; i < 100; ++i) list += std::string(i > 0 ? "," : "") + R"({"$ref":"#/$defs/d"})";
  EXPECT_EQ(TypesOfP(R"({"properties":{"p":{"$ref":"#/$defs/d"}},"$defs":{"d":{"anyOf":[)" + list +
                     "]}}}"),
            0);
}

// A body has room for as many names.
TEST(ToolShapesTest, ManyRequiredNamesAreLookedUpSoon) {
  JsonValue::Object properties;
  JsonValue::Array required;
  for (int i = 0; i < 100'000; ++i) {
    properties.emplace_back("p" + std::to_string(i), JsonValue(true));
    required.emplace_back("p" + std::to_string(i));
  }
  const JsonValue schema(JsonValue::Object{{"properties", JsonValue(std::move(properties))},
                                           {"required", JsonValue(std::move(required))}});
  const int64_t begin_us = SystemClock().NowUs();
  EXPECT_FALSE(DemandsUndeclared(schema));
  EXPECT_LT(SystemClock().NowUs() - begin_us, 2'000'000);
}

const std::string kXml =
    "{% if tools %}{{ tools | tojson }}<tool_call>\n<function=f>\n<parameter=p>{% endif %}"
    "{% for m in messages %}<user>{{ m.role[0] }}:{{ m.content }}{% endfor %}<assistant>";

class ToolSchemasTest : public HttpApiTest {
 protected:
  ToolSchemasTest() {
    auto info = std::make_shared<ModelInfo>(*TestModel());
    info->chat_template =
        std::make_shared<const ChatTemplate>(ChatTemplate::Create(kXml, "", "<eos>").value());
    submitter_.served = {info};
  }
};

std::string ToolF(const std::string& parameters, bool is_strict = false) {
  return R"(,"tools":[{"type":"function","function":{"name":"f","strict":)" +
         std::string(is_strict ? "true" : "false") + R"(,"parameters":)" + parameters + "}}]";
}

const std::vector<std::string> kArguments = {"choices", "0",        "message",  "tool_calls",
                                             "0",       "function", "arguments"};

// A free call writes "5" for the text 5. The schema says that it is one, though by a reference.
TEST_F(ToolSchemasTest, ATextByReferenceStaysAText) {
  AnswerWith(
      "<tool_call>\n<function=f>\n<parameter=p>\n5\n</parameter>\n</function>\n</tool_call>");
  const std::string tools =
      ToolF(R"({"properties":{"p":{"$ref":"#/$defs/unit"}},"$defs":{"unit":{"type":"string"}}})");
  const auto responder = Post(kChatPath, kHello + tools + "}");
  EXPECT_EQ(Text(*responder, kArguments), R"({"p": "5"})");
}

// Forced calls write JSON there, and a listed text with the closing tag too.
TEST_F(ToolSchemasTest, AClosingTagWithinAValueIsAPartOfIt) {
  AnswerWith(
      "<tool_call>\n<function=f>\n<parameter=p>\n\"</parameter>\"\n</parameter>\n<parameter=o>\n"
      "{\"k\": \"a</parameter>\\n</function>\"}\n</parameter>\n</function>\n</tool_call>");
  const std::string tools =
      ToolF(R"({"properties":{"p":{"type":"string","enum":["</parameter>","a"]},"o":)"
            R"({"type":"object"}}})");
  const auto responder = Post(kChatPath, kHello + tools + R"(,"tool_choice":"required"})");
  EXPECT_EQ(Text(*responder, kArguments),
            R"({"p": "</parameter>", "o": {"k": "a</parameter>\n</function>"}})");
}

// The style's readers take calls without "<tool_call>", which no grammar of tags would constrain.
TEST_F(ToolSchemasTest, FreeTextBesideConstrainedCallsBeginsNoCall) {
  AnswerWith("x");
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f"}},)"
      R"({"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools",)"
      R"("allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}})";
  ASSERT_EQ(Post(kChatPath, kHello + tools + "}")->status, 200);
  EXPECT_THAT(submitter_.WaitSubmitted(0).request.sampling.grammar->text,
              HasSubstr(R"("excludes":["<function="])"));
}

TEST_F(ToolSchemasTest, ASchemaWithoutAnEndIsNamedBeforeAWorkerHearsOfIt) {
  AnswerWith("x");
  const std::string endless =
      R"({"required":["n"],"properties":{"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"array",)"
      R"("minItems":1,"items":{"$ref":"#/$defs/n"}}}})";
  for (const std::string& rest :
       {ToolF(endless) + R"(,"tool_choice":"required")", ToolF(endless, true)}) {
    const auto responder = Post(kChatPath, kHello + rest + "}");
    EXPECT_EQ(responder->status, 400) << rest << responder->body;
    EXPECT_EQ(Text(*responder, {"error", "param"}), "tools[0].function.parameters.?defs.n") << rest;
    EXPECT_THAT(Text(*responder, {"error", "message"}), HasSubstr("without end")) << rest;
  }
}

// Each anchor is that of its own schema.
TEST_F(ToolSchemasTest, AnchorsOfAFormAndOfAFunctionStayApart) {
  AnswerWith(R"({"n": 1})");
  const std::string form =
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)"
      R"({"properties":{"n":{"$ref":"#x"}},"$defs":{"d":{"$anchor":"x","type":"integer"}}}}})";
  const std::string tools = ToolF(
      R"({"properties":{"s":{"$ref":"#x"}},"$defs":{"d":{"$anchor":"x","type":"null"}}})", true);
  const auto responder = Post(kChatPath, kHello + tools + form + "}");
  ASSERT_EQ(responder->status, 200) << responder->body;
  const std::string grammar = submitter_.WaitSubmitted(0).request.sampling.grammar->text;
  EXPECT_THAT(grammar, HasSubstr(R"("$ref":"#anyOf.0.x")"));
  EXPECT_THAT(grammar, HasSubstr(R"("$anchor":"anyOf.0.x","type":"integer")"));
  EXPECT_THAT(grammar, HasSubstr(R"("$ref":"#anyOf.1.properties.arguments.x")"));
  EXPECT_THAT(grammar, HasSubstr(R"("$anchor":"anyOf.1.properties.arguments.x","type":"null")"));
}

}  // namespace
}  // namespace baton::api
