#include "twinkle/cli/json_lines.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle::cli {
namespace {

std::string error_of(const std::string& text) {
  return test::thrown([&] { each_json_line(text, "x.jsonl", [](const Json&, const std::string&) {}); });
}

TEST(JsonLines, NamesEachRowByItsLine) {
  std::vector<std::pair<Json, std::string>> got;
  each_json_line("{\"a\": 1}\n\n \t\r\n[2]", "x.jsonl",
                 [&](const Json& value, const std::string& place) { got.emplace_back(value, place); });
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0], std::pair(Json{{"a", 1}}, std::string("x.jsonl row 1")));
  EXPECT_EQ(got[1], std::pair(Json::array({2}), std::string("x.jsonl row 4")));
  EXPECT_NE(error_of("1\n{").find("x.jsonl row 2"), std::string::npos);
  EXPECT_EQ(error_of(""), "[x.jsonl] has no rows");
  EXPECT_EQ(error_of(" \n\n"), "[x.jsonl] has no rows");
}

}  // namespace
}  // namespace twinkle::cli
