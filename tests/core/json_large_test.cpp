// Large objects parse, with their keys in order and the last of equal keys.
#include <gtest/gtest.h>

#include "twinkle/core/error.h"
#include "twinkle/core/json.h"

namespace twinkle {
namespace {

TEST(LargeJson, ManyKeysKeepTheirOrder) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text += "\"key5\":-5,\"key199999\":[1,{\"a\":null}]}";
  const Json value = parse_json(text, "test");
  ASSERT_EQ(value.size(), 200000u);
  int i = 0;
  for (const auto& [key, number] : value.items()) {
    ASSERT_EQ(key, "key" + std::to_string(i));
    if (i == 5) {
      EXPECT_EQ(number, -5);
    } else if (i == 199999) {
      EXPECT_EQ(number.dump(), "[1,{\"a\":null}]");
    } else {
      ASSERT_EQ(number, i);
    }
    ++i;
  }
}

TEST(LargeJson, WideIntegersAreRoundedOrRefused) {
  const char* text = R"({"a":18446744073709551615,"b":-9223372036854775808,"c":[1e30,2.5],"d":%s})";
  const auto with = [&](const std::string& d) {
    return std::string(text).replace(std::string(text).find("%s"), 2, d);
  };
  for (const char* wide :
       {"18446744073709551616", "-9223372036854775809", "1000000000000000019884624838656"}) {
    EXPECT_EQ(parse_json(with(wide), "test").at("d").get<double>(), std::stod(wide));
    Json out = "as it was";
    const auto problem = try_parse_json(with(wide), out, kMaxJsonDepth, WideIntegers::kRefuse);
    ASSERT_TRUE(problem);
    EXPECT_EQ(problem->reason,
              "the whole number " + std::string(wide) + " has more than 64 bits: give it as a string");
    EXPECT_EQ(out, "as it was");
  }
  Json out;
  EXPECT_FALSE(try_parse_json(with("-0"), out, kMaxJsonDepth, WideIntegers::kRefuse));
  EXPECT_EQ(out.at("a"), 18446744073709551615u);
}

TEST(LargeJson, SmallObjectsToo) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":{"x":[[],{}]},"b":[true,null,"s",1.5,-3]})", "test").dump(),
            R"({"b":[true,null,"s",1.5,-3],"a":{"x":[[],{}]}})");
  EXPECT_EQ(parse_json(" 7 ", "test"), 7);
  for (const char* bad : {"", "{", "[1,]", "{\"a\"}", "{\"a\":1}x", "\"\xFF\"", "1e999", "[1 2]"}) {
    EXPECT_THROW(parse_json(bad, "test"), Error) << bad;
  }
  Json value;
  const auto problem = try_parse_json("{\"a\": 1,\n \"b\": [2, 1e999]}", value);
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->line, 2);
  EXPECT_EQ(problem->column, 11);
  EXPECT_EQ(problem->reason, "the number 1e999 is too large");
}

}  // namespace
}  // namespace twinkle
