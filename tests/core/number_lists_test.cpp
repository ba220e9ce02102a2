// Packed lists are the lists that the plain parser reads, number by number, and what is no such list is as
// before.
#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/number_lists.h"

namespace twinkle {
namespace {

std::string repeated(const std::string& item, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i == 0 ? "" : ",") + item;
  return out;
}

// With lists again, as the plain parser makes them; a list of whole numbers has whole numbers.
Json plain(const Json& value) {
  if (is_packed(value)) {
    if (const auto integers = packed_integers(value)) return *integers;
    Json out = Json::array();
    for (const float x : packed_floats(value)) out.push_back(x);
    return out;
  }
  Json out = value;
  if (value.is_array() || value.is_object()) {
    for (auto it = out.begin(); it != out.end(); ++it) *it = plain(*it);
  }
  return out;
}

TEST(NumberLists, LongOnesArePackedAndTheRestIsNot) {
  const std::string ids = repeated("7", kLeastPacked), few = repeated("7", kLeastPacked - 1);
  const Json value = parse_json_packed(
      R"({"a":[)" + ids + R"(],"b":[)" + few + R"(],"c":{"[1,2":[[ )" + ids + " ],[" + ids + R"(,"x"],[]]}})",
      "test");
  EXPECT_TRUE(is_packed(value.at("a")));
  EXPECT_FALSE(is_packed(value.at("b")));
  EXPECT_TRUE(is_packed(value.at("c").at("[1,2").at(0)));
  EXPECT_FALSE(is_packed(value.at("c").at("[1,2").at(1)));
  EXPECT_EQ(packed_integers(value.at("a")), std::vector<int64_t>(kLeastPacked, 7));
  EXPECT_EQ(plain(value), parse_json(R"({"a":[)" + ids + R"(],"b":[)" + few + R"(],"c":{"[1,2":[[ )" + ids +
                                         " ],[" + ids + R"(,"x"],[]]}})",
                                     "test"));
}

TEST(NumberLists, EveryNumberIsWhatThePlainParserReads) {
  for (const char* number : {"0",
                             "-0",
                             "1",
                             "-17",
                             "999999999999999999",
                             "-999999999999999999",
                             "1234567890123456789012",
                             "0.1",
                             "-0.1",
                             "1.0",
                             "-0.0",
                             "0.30000000000000004",
                             "123456789.123456789",
                             "9007199254740993.0",
                             "1e5",
                             "1E-5",
                             "-2.5e+3",
                             "1e-400",
                             "4.9e-324",
                             "0.000000000000000000000000000001",
                             "-1.2345678",
                             "3.4028235677973366e38",
                             "1e39",
                             "18446744073709551615",
                             "9223372036854775808",
                             "-0e5"}) {
    const std::string text = "[[" + repeated(number, 20) + "]]",
                      mixed = "[" + repeated("9007199254740993,0.5", 20) + "]";
    const Json expected = parse_json(text, "test").at(0), value = parse_json_packed(text, "test").at(0);
    EXPECT_EQ(parse_json(mixed, "test"), parse_json_packed(mixed, "test"));
    if (!is_packed(value)) {
      EXPECT_EQ(value, expected) << number;
      continue;
    }
    EXPECT_EQ(packed_integers(value).has_value(), expected.at(0).is_number_integer()) << number;
    const auto integers = packed_integers(value);
    if (integers) {
      EXPECT_EQ(integers->at(19), expected.at(19)) << number;
    }
    const float want = expected.at(0).get<float>(), got = packed_floats(value).at(0);
    EXPECT_EQ(std::signbit(want), std::signbit(got)) << number;
    EXPECT_EQ(want, got) << number;
  }
}

TEST(NumberLists, WholeNumbersBesideOthersStayWhatTheyAre) {
  const Json value = parse_json_packed("[" + repeated("16777217,0.5", 10) + "]", "test");
  ASSERT_TRUE(is_packed(value));
  EXPECT_EQ(packed_integers(value), std::nullopt);
  EXPECT_EQ(packed_floats(value).at(0), 16777216.0f);
  EXPECT_EQ(packed_floats(value).at(1), 0.5f);
}

TEST(NumberLists, ErrorsAreThoseOfThePlainParser) {
  const std::string ids = repeated("7", 20);
  for (const std::string& text :
       {"{\"a\":[" + ids + "]5}", "[" + ids + "]5",         "5[" + ids + "]",
        "-[" + ids + "]",         "[" + ids + ",]",         "[," + ids + "]",
        "[" + ids + ",01]",       "[" + ids + ",1.]",       "[" + ids + ",.5]",
        "[" + ids + ",+1]",       "[" + ids + ",1e]",       "[" + ids + ",NaN]",
        "[" + ids + ",1e999]",    "[" + ids + " 7]",        "[" + ids,
        "[[" + ids + "]",         "{\"a\":[" + ids + "],}", "{[" + ids + "]:1}",
        "[\"\\[" + ids + "]",     "[[" + ids + "],\"\n\"]", std::string("[[") + ids + "],\"\xff\"]"}) {
    const std::string want = test::thrown([&] { parse_json(text, "test"); });
    EXPECT_NE(want, "") << text;
    EXPECT_EQ(test::thrown([&] { parse_json_packed(text, "test"); }), want) << text;
  }
}

TEST(NumberLists, NothingInATextIsTakenForAPlace) {
  const std::string ids = repeated("7", 20);
  for (const std::string& text : {"[-0e0,[" + ids + "]]", "[[" + ids + "],-0E0]",
                                  "[\"-0e0\",[" + ids + "],\"\\\"-0e0\"]", "{\"-0e0\":[" + ids + "]}"})
    EXPECT_EQ(plain(parse_json_packed(text, "test")), parse_json(text, "test")) << text;
}

TEST(NumberLists, DepthIsBoundedAsBefore) {
  const std::string ids = repeated("7", 20);
  EXPECT_NO_THROW(parse_json_packed("[[" + ids + "]]", "test", 2));
  EXPECT_THROW(parse_json_packed("[[[" + ids + "]]]", "test", 2), Error);
}

}  // namespace
}  // namespace twinkle
