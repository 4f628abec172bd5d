// Text that Python's json module writes becomes plain JSON.
#include "src/base/python_json.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(PythonJsonTest, NumbersThatJsonCannotHoldBecomeObjects) {
  EXPECT_EQ(PlainJsonOfPython("[NaN, Infinity,-Infinity]"),
            R"([{"__float__":"NaN"}, {"__float__":"Infinity"},{"__float__":"-Infinity"}])");
  EXPECT_EQ(PlainJsonOfPython(R"({"a": -1e999, "b": 1E+400})"),
            R"({"a": {"__float__":"-Infinity"}, "b": {"__float__":"Infinity"}})");
  EXPECT_EQ(PlainJsonOfPython(std::string(400, '9')), R"({"__float__":"Infinity"})");
}

TEST(PythonJsonTest, EverythingElseStaysAsItIs) {
  for (const std::string text : {R"({"a":"NaN \" Infinity","b":[1,-2.5e-3,true,null]})", "1e-999",
                                 R"("Infinity)", R"("\)", "", "-", "1e", "Na", "[0.5, 1E5]"}) {
    EXPECT_EQ(PlainJsonOfPython(text), text);
  }
}

TEST(PythonJsonTest, GrowthIsBounded) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "NaN";
  EXPECT_LE(PlainJsonOfPython(text).size(), kMaxPythonJsonGrowth * text.size());
}

}  // namespace
}  // namespace baton
