// Normal forms by parts against utf8proc on the whole text, and the helpers of UTF-8.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

#include "twinkle/text/unicode.h"

namespace twinkle::unicode {
namespace {

std::string by_parts(const std::string& text, Form form) {
  std::string out;
  size_t at = 0;
  for (const Rewrite& r : normalize(text, form)) {
    EXPECT_LE(at, r.begin);
    EXPECT_LE(r.begin, r.end);
    out.append(text, at, r.begin - at);
    out += r.out;
    at = r.end;
  }
  return out + text.substr(at);
}

std::string whole(const std::string& text, utf8proc_option_t options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  EXPECT_GE(size, 0);
  std::string result(reinterpret_cast<char*>(out), static_cast<size_t>(size));
  std::free(out);
  return result;
}

TEST(Unicode, NormalFormsEqualUtf8procs) {
  const std::pair<char32_t, char32_t> blocks[] = {
      {0x20, 0x7E},     {0xA0, 0x36F},    {0x370, 0x3FF},   {0x900, 0x9D7},   {0xB47, 0xBD7},
      {0xDCA, 0xDDF},   {0x1100, 0x11FF}, {0x1E00, 0x1FFF}, {0x2126, 0x212B}, {0x3040, 0x30FF},
      {0xAC00, 0xAC60}, {0xFB1D, 0xFB4F}, {0xF900, 0xF910}, {0x300, 0x345}};
  const std::pair<Form, int> forms[] = {
      {Form::kNfc, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
      {Form::kNfd, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
      {Form::kNfkc, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
      {Form::kNfkd, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  std::mt19937 rng(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const int chars = static_cast<int>(rng() % 12);
    for (int i = 0; i < chars; ++i) {
      const auto& [low, high] = blocks[rng() % std::size(blocks)];
      append(text, low + static_cast<char32_t>(rng() % (high - low + 1)));
    }
    for (const auto& [form, options] : forms) {
      ASSERT_EQ(by_parts(text, form), whole(text, static_cast<utf8proc_option_t>(options)))
          << testing::PrintToString(text);
    }
    if (is_surely_nfc(text)) {
      ASSERT_EQ(by_parts(text, Form::kNfc), text);
    }
  }
}

TEST(Unicode, EveryCharacterByItself) {
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append(text, c);
    ASSERT_TRUE(is_valid(text));
    ASSERT_EQ(char_at(text, 0), c);
    ASSERT_EQ(char_bytes(text[0]), text.size());
    ASSERT_EQ(settled_prefix(text), text.size());
    for (size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(settled_prefix(text.substr(0, n)), 0u);
      ASSERT_FALSE(is_valid(text.substr(0, n)));
      ASSERT_EQ(replace_invalid(text.substr(0, n)), "\xEF\xBF\xBD");
    }
    ASSERT_EQ(by_parts(text, Form::kNfc),
              whole(text, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE)));
  }
}

TEST(Unicode, ManyMarksTakeNoLongTime) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) append(text, i % 2 == 0 ? 0x301 : 0x323);
  EXPECT_EQ(by_parts(text, Form::kNfd).size(), text.size());
  EXPECT_EQ(by_parts(text, Form::kNfc).substr(0, 3),
            "\xE1\xBA\xA1");  // a with dot below; the acute ones follow
}

}  // namespace
}  // namespace twinkle::unicode
