// Hostile JSON is refused with the right reason; good JSON is read exactly.
#include "src/api/json_value.h"

#include <limits>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "gtest/gtest.h"

#include "src/api/json_writer.h"
#include "src/base/limits.h"

namespace baton::api {

using limits::kMaxJsonDepth;
using limits::kMaxJsonValues;
using router::ErrorCode;
using router::RequestError;

namespace {

TEST(JsonValueTest, ReadsEveryKindOfValue) {
  JsonValue root;
  RequestError error;
  ASSERT_TRUE(ParseJson(
      R"({"s":"a\u00e9\n","i":-5,"d":0.25,"t":true,"f":false,"z":null,"a":[1,[2]],"o":{"k":1}})",
      &root, &error));
  EXPECT_EQ(*root.Find("s")->AsString(), "a\xc3\xa9\n");
  int64_t integer = 0;
  EXPECT_TRUE(root.Find("i")->GetInteger(&integer));
  EXPECT_EQ(integer, -5);
  double number = 0;
  EXPECT_TRUE(root.Find("d")->GetNumber(&number));
  EXPECT_EQ(number, 0.25);
  EXPECT_FALSE(root.Find("d")->GetInteger(&integer));
  EXPECT_TRUE(*root.Find("t")->AsBool());
  EXPECT_FALSE(*root.Find("f")->AsBool());
  EXPECT_TRUE(root.Find("z")->is_null());
  EXPECT_EQ(root.Find("a")->AsArray()->size(), 2u);
  EXPECT_EQ(root.Find("a")->AsArray()->at(1).AsArray()->size(), 1u);
  EXPECT_NE(root.Find("o")->Find("k"), nullptr);
  EXPECT_EQ(root.Find("missing"), nullptr);
}

TEST(JsonValueTest, IntegersAreExactOrNotIntegers) {
  struct Case {
    const char* text;
    bool is_integer;
    int64_t value;
  };
  const Case cases[] = {
      {"9223372036854775807", true, INT64_MAX},
      {"-9223372036854775808", true, INT64_MIN},
      {"9223372036854775808", false, 0},
      {"18446744073709551615", false, 0},
      {"99999999999999999999999", false, 0},
      {"5.0", true, 5},
      {"5.5", false, 0},
      {"1e3", true, 1000},
      {"1e300", false, 0},
      {"-0", true, 0},
  };
  for (const Case& c : cases) {
    JsonValue value;
    RequestError error;
    ASSERT_TRUE(ParseJson(c.text, &value, &error)) << c.text;
    int64_t integer = 0;
    EXPECT_EQ(value.GetInteger(&integer), c.is_integer) << c.text;
    if (c.is_integer) {
      EXPECT_EQ(integer, c.value) << c.text;
    }
  }
}

TEST(JsonValueTest, RefusesWhatIsNotJson) {
  for (const char* text : {"",          " ",
                           "{",         "[1,",
                           "{\"a\":}",  "{\"a\" 1}",
                           "{a:1}",     "{'a':1}",
                           "[1,]",      "{\"a\":1,}",
                           "NaN",       "[NaN]",
                           "Infinity",  "-Infinity",
                           "[1]x",      "{} {}",
                           "01",        "+1",
                           "1.",        ".5",
                           "0x10",      "\"\\x\"",
                           "\"\\u12\"", "\"\\ud800\"",
                           "\"\x01\"",  "\"unterminated",
                           "nul",       "truefalse",
                           "// c\n1",   "/* c */ 1",
                           "[1e400x]",  "[01e400]",
                           "[1.e400]",  "[1e400,]",
                           "[1e400 2]", "{\"a\":1e400"}) {
    JsonValue value;
    RequestError error;
    EXPECT_FALSE(ParseJson(text, &value, &error)) << text;
    EXPECT_EQ(error.code, ErrorCode::kInvalidJson) << text;
  }
}

TEST(JsonValueTest, ANumberBeyondADoubleIsInfinityAndTheOthersStay) {
  JsonValue value;
  RequestError error;
  ASSERT_TRUE(ParseJson(R"({"a":[1,1e400,-2.5E+999,3.5,1e308],"b\"1e400":"1e400\\","c":)" +
                            std::string(400, '9') + R"(,"d":0e999,"e":{"f":-1e309}})",
                        &value, &error))
      << error.Message();
  const auto number = [](const JsonValue* from) {
    double out = 0;
    EXPECT_TRUE(from->GetNumber(&out));
    return out;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const JsonValue::Array& list = *value.Find("a")->AsArray();
  EXPECT_EQ(number(&list[0]), 1);
  EXPECT_EQ(number(&list[1]), kInfinity);
  EXPECT_EQ(number(&list[2]), -kInfinity);
  EXPECT_EQ(number(&list[3]), 3.5);
  EXPECT_EQ(number(&list[4]), 1e308);
  EXPECT_EQ(*value.Find("b\"1e400")->AsString(), "1e400\\");
  EXPECT_EQ(number(value.Find("c")), kInfinity);
  EXPECT_EQ(number(value.Find("d")), 0);
  EXPECT_TRUE(HasHugeNumber(value));
  EXPECT_TRUE(HasHugeNumber(*value.Find("e")));
  EXPECT_FALSE(HasHugeNumber(*value.Find("d")));
  int64_t integer = 0;
  EXPECT_FALSE(list[1].GetInteger(&integer));
}

TEST(JsonValueTest, SyntaxErrorsSayWhereAndWhyWithoutTheText) {
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"", "byte 1: unexpected end of input; expected '[', '{', or a literal."},
      {R"({"a":1,})", "byte 8: unexpected '}'; expected string literal (at 'a')."},
      {R"({"a" 1})", "byte 6: unexpected number literal; expected ':' (at 'a')."},
      {R"({"a":1 "secret":2})", "byte 15: unexpected string literal; expected '}' (at 'a')."},
      {R"({"a":1} x)", "byte 9: invalid literal."},
      {std::string("{\"a\":1}\0{\"b", 11), "byte 8: a NUL."},
      {std::string("{\"a\":\"\0\"}", 9), "byte 7: a NUL."},
      {R"({"a": secret})", "byte 7: invalid literal (at 'a')."},
      {R"({"a":"secret)", "byte 13: invalid string: missing closing quote (at 'a')."},
      {R"({"a":"secret; expected - \q"})",
       "byte 27: invalid string: forbidden character after backslash (at 'a')."},
      {R"({"a":1e999,})", "byte 12: unexpected '}'; expected string literal (at 'a')."},
      {"[" + std::string(100'000, '1') + "x]", ""},
  };
  for (const auto& c : cases) {
    JsonValue value;
    RequestError error;
    ASSERT_FALSE(ParseJson(c.text, &value, &error)) << c.text;
    const std::string message = error.Message();
    EXPECT_LT(message.size(), 150u);
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
    if (c.message.empty()) continue;
    EXPECT_EQ(message, "The body is not valid JSON at " + c.message);
  }
}

TEST(JsonValueTest, RefusalsNameTheFieldWhereTheyMetIt) {
  const struct {
    std::string text;
    std::string field;
  } cases[] = {
      {R"({"a":1,"temperature":NaN})", "temperature"},
      {R"({"messages":[{"role":"user"},{"role":"user","content":+1}]})", "messages[1].content"},
      {R"({"stop":["a",Infinity]})", "stop"},
      {R"({"stop":["a", "b)", "stop"},
      {R"({"a":{"b":1},)", "a"},
      {R"({"a":{"b":1)", "a.b"},
      {R"({"a":1}x)", ""},
      {"[nope]", ""},
      {R"({"a":1,"a":2})", "a"},
      {R"({"x":[0,{"a":1,"b":2,"a":3}]})", "x[1].a"},
      {R"({"a":{"b":"ok )"
       "\xff\"}}",
       "a.b"},
      {"{\"\xff\":1}", ""},
      {R"({"a":"b"} )"
       "\xff",
       ""},
      {R"({"deep":)" + std::string(40, '[') + std::string(40, ']') + "}",
       [] {
         std::string field = "deep";
         for (size_t i = 0; i + 2 < kMaxJsonDepth; ++i) field += "[0]";
         return field;
       }()},
      {R"({")" + std::string(1000, 'k') + R"(":nope})", std::string(64, 'k')},
      // A name is cut between characters.
      {R"({")" + std::string(63, 'k') + "\xc3\xa9" + R"(":nope})", std::string(63, 'k')},
  };
  for (const auto& c : cases) {
    JsonValue value;
    RequestError error;
    ASSERT_FALSE(ParseJson(c.text, &value, &error)) << c.text;
    EXPECT_EQ(error.param, c.field) << c.text;
  }
}

TEST(JsonValueTest, RefusesBrokenUtf8ByName) {
  for (const char* text : {"\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xc0\xaf\"",
                           "{\"\xf4\x90\x80\x80\":1}", "\x80"}) {
    JsonValue value;
    RequestError error;
    EXPECT_FALSE(ParseJson(text, &value, &error));
    EXPECT_EQ(error.code, ErrorCode::kInvalidUtf8);
  }
}

TEST(JsonValueTest, RefusesDuplicateKeysAtAnyDepth) {
  for (const char* text :
       {R"({"a":1,"a":2})", R"({"x":{"a":1,"b":2,"a":3}})", R"([{"a":1,"\u0061":2}])"}) {
    JsonValue value;
    RequestError error;
    EXPECT_FALSE(ParseJson(text, &value, &error)) << text;
    EXPECT_EQ(error.code, ErrorCode::kDuplicateKey) << text;
  }
}

// A member among very many is looked at once or twice, not once for each other.
TEST(JsonValueTest, ManyMembersAreReadAndTheirDuplicatesRefused) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += fmt::format("\"key {}\":0,", i);
  JsonValue value;
  RequestError error;
  EXPECT_TRUE(ParseJson(text + "\"last\":0}", &value, &error));
  EXPECT_EQ(value.AsObject()->size(), 200'001u);
  EXPECT_FALSE(ParseJson(text + "\"key 7\":0}", &value, &error));
  EXPECT_EQ(error.code, ErrorCode::kDuplicateKey);
}

TEST(JsonValueTest, DepthAndSizeAreBounded) {
  JsonValue value;
  RequestError error;
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth), &value, &error));
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 1), &value, &error));
  EXPECT_EQ(error.code, ErrorCode::kTooDeep);
  EXPECT_FALSE(ParseJson(std::string(4'000'000, '['), &value, &error));
  EXPECT_EQ(error.code, ErrorCode::kTooDeep);
  std::string deep_objects;
  for (int i = 0; i < 100'000; ++i) deep_objects += "{\"a\":";
  EXPECT_FALSE(ParseJson(deep_objects, &value, &error));
  EXPECT_EQ(error.code, ErrorCode::kTooDeep);
  std::string many = "[0";
  for (size_t i = 0; i < kMaxJsonValues; ++i) many += ",0";
  EXPECT_FALSE(ParseJson(many + "]", &value, &error));
  EXPECT_EQ(error.code, ErrorCode::kTooDeep);
}

TEST(JsonWriterTest, WritesWhatReadsBack) {
  JsonWriter json;
  json.BeginObject().Key("a").BeginArray().Int(-1).Uint(UINT64_MAX).Bool(true).Null().EndArray();
  json.Key("s").String("\"\\\n\t\x01\x7f\xc3\xa9").Key("f").Float(0.1f).Key("d").Double(1e-7);
  json.Key("nan").Double(0.0 / 0.0).Key("ms").Milli(61.23456).Key("zero").Milli(0).EndObject();
  EXPECT_EQ(
      json.text(),
      "{\"a\":[-1,18446744073709551615,true,null],\"s\":\"\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa9"
      "\",\"f\":0.1,\"d\":1e-07,\"nan\":null,\"ms\":61.235,\"zero\":0}");
  JsonValue value;
  RequestError error;
  EXPECT_TRUE(ParseJson(json.text(), &value, &error));
}

TEST(JsonWriterTest, BrokenBytesStayJson) {
  JsonWriter json;
  json.String("a\xff\xc3z\xed\xa0\x80").String("\xf0\x9f");
  EXPECT_EQ(json.text(),
            "\"a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\",\"\xef\xbf\xbd\"")
      << "one for the half of a character, as Python's and Rust's decoders have it";
}

TEST(JsonWriterTest, EscapesUnicodeLineBreaks) {
  // Clients that split lines as Python's str.splitlines does cut an event at each of these.
  constexpr std::string_view kText = "\xc2\x85 \xe2\x80\xa8\xe2\x80\xa9 \xc2\xa0\xe2\x80\xaa";
  constexpr std::string_view kWritten = "\"\\u0085 \\u2028\\u2029 \xc2\xa0\xe2\x80\xaa\"";
  JsonWriter json;
  json.String(kText);
  EXPECT_EQ(json.text(), kWritten);
  JsonWriter raw;
  raw.Raw(fmt::format("\"{}\"", kText));
  EXPECT_EQ(raw.text(), kWritten) << "arguments of a call are the model's own bytes";
  JsonValue value;
  RequestError error;
  ASSERT_TRUE(ParseJson(json.text(), &value, &error));
  EXPECT_EQ(*value.AsString(), kText);
}

}  // namespace
}  // namespace baton::api
