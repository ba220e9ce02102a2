#include "twinkle/core/yaml.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/utf8.h"

namespace twinkle {
namespace {

std::string error_of(std::string_view text, const YamlLimits& limits = {}) {
  return test::thrown([&] { parse_yaml(text, "f", limits); });
}

TEST(Yaml, TypesPlainScalarsByTheCoreSchema) {
  EXPECT_EQ(
      yaml_to_json(parse_yaml("a: 1\nb: -2.5e-3\nc: 'x'\nd: \"5\"\ne: true\nf: null\ng: ~\nh: [1, two, "
                              "3.0]\ni: {j: +7}\nk: yes\nl: 0x1\n",
                              "f")),
      Json::parse(
          R"({"a": 1, "b": -0.0025, "c": "x", "d": "5", "e": true, "f": null, "g": null, "h": [1, "two", 3.0],
                            "i": {"j": 7}, "k": "yes", "l": "0x1"})"));
  EXPECT_EQ(yaml_to_json(parse_yaml("", "f")), Json(nullptr));
  EXPECT_EQ(yaml_to_json(parse_yaml("x: &a [1, 2]\ny: *a\n", "f")),
            Json::parse(R"({"x": [1, 2], "y": [1, 2]})"));
}

TEST(Yaml, KnowsItsLines) {
  const YamlNode root = parse_yaml("a:\n  - 1\n  - b: 2\n\nc: 3\n", "f");
  EXPECT_EQ(root.map[0].second.list[1].map[0].second.line, 3);
  EXPECT_EQ(root.map[1].second.line, 5);
}

// A value is written out as JSON, which has no other text.
TEST(Yaml, IsUtf8) {
  for (const char* text : {"", "a", "\u00e9", "\u4f60\u597d", "\uffff", "\U0001F680", "\U0010FFFF"})
    EXPECT_TRUE(is_utf8(text)) << text;
  // A byte of Latin-1, one that continues nothing, cut off, in too many bytes, a surrogate, above the last
  // code.
  for (const char* text : {"caf\xE9", "\x80", "\xE4\xBD", "\xC0\xAF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                           "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE4\xBD\xC0"})
    EXPECT_FALSE(is_utf8(text)) << text;
  EXPECT_EQ(yaml_to_json(parse_yaml("a: caf\u00e9", "f")), (Json{{"a", "caf\u00e9"}}));
  EXPECT_EQ(error_of("a: 1\nb: caf\xE9"), "[f line 2] this is not UTF-8 text");
  EXPECT_EQ(error_of("caf\xE9: 1"), "[f line 1] this is not UTF-8 text");
}

TEST(Yaml, BombsAreRefusedEarly) {
  // Nine levels of ten aliases each stand for a thousand million values.
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string name = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) bomb += (j ? ", " : "") + name;
    bomb += "]\n";
  }
  EXPECT_EQ(error_of(bomb), "[f line 5] more than 20000 values (aliases written out)");
  EXPECT_EQ(error_of(std::string(40, '[') + std::string(40, ']')), "[f line 1] nested deeper than 32 levels");
  EXPECT_NE(error_of(std::string(100000, '[')), "");
  EXPECT_NE(error_of(std::string(100000, '{')), "");
  EXPECT_EQ(error_of("a: &a [*a]\n"), "[f line 1] an alias that stands within what it names");
  EXPECT_EQ(error_of("aaaa", {.max_bytes = 3}), "[f] is longer than 3 bytes");
  EXPECT_NE(error_of("a: *nowhere\n"), "");
}

}  // namespace
}  // namespace twinkle
