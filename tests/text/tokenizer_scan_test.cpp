// The hand-written matchers against PCRE2 on the original expressions, over random texts made of what they
// look at.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 sees faults inside std::string's own operator+.
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wrestrict"
#endif

#include <gtest/gtest.h>

#include <random>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/unicode.h"

namespace twinkle::tokenizer {
namespace {

std::string random_text(std::mt19937& rng) {
  static const char* const kParts[] = {"a",
                                       "B",
                                       "s",
                                       "t",
                                       "re",
                                       "'s",
                                       "'S",
                                       "'ll",
                                       "'Ve",
                                       "'",
                                       "'\xC5\xBF",
                                       "1",
                                       "23",
                                       "\xD9\xA3",
                                       "\xC2\xBD",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       "\xE2\x80\xA8",
                                       ".",
                                       "!?",
                                       "\xE2\x80\x94",
                                       "\xE4\xBD\xA0",
                                       "\xC3\xA9",
                                       "\xC3\x89",
                                       "\xC7\x85",
                                       "\xCA\xB0",
                                       "\xC2\xAA",
                                       "\xCC\x81",
                                       "\xF0\x9F\x98\x8A",
                                       "\xE2\x80\x8D",
                                       "_",
                                       "\x01",
                                       "\xEF\xBB\xBF",
                                       "\xE0\xA4\x95\xE0\xA5\x8D",
                                       "/",
                                       "$",
                                       "\xC2\x85",
                                       "\x0B",
                                       "\xE1\xA0\x8E",
                                       "\xF0\x90\xB5\x90"};
  std::string text;
  const int parts = static_cast<int>(rng() % 14);
  for (int i = 0; i < parts; ++i) {
    if (rng() % 40 == 0) {
      char32_t c = rng() % 0x110000;
      if (c >= 0xD800 && c < 0xE000) c = 'x';
      unicode::append(text, c);
    } else {
      text += kParts[rng() % std::size(kParts)];
    }
  }
  return text;
}

TEST(TokenizerScan, EqualsTheExpressions) {
  std::mt19937 rng(11);
  for (const char* expression : {kGpt2Expression, kLlama3Expression, kQwen2Expression, kQwen35Expression,
                                 kCl100kExpression, kO200kExpression, kTekkenExpression}) {
    const auto known = known_pattern(expression);
    ASSERT_NE(known, nullptr);
    EXPECT_TRUE(known->covers());
    const auto pcre = pcre_pattern(expression, "test");
    for (int round = 0; round < 20000; ++round) {
      const std::string text = random_text(rng);
      std::vector<Range> a, b;
      known->matches(text, a);
      pcre->matches(text, b);
      ASSERT_EQ(a, b) << expression << "\n" << testing::PrintToString(text);
    }
  }
  EXPECT_EQ(known_pattern("a+"), nullptr);
}

TEST(TokenizerScan, GivesUpOnRunawayExpressions) {
  const auto pattern = pcre_pattern("(a+)+$", "test");
  std::vector<Range> out;
  EXPECT_HAS(test::thrown([&] { pattern->matches(std::string(40, 'a') + "b", out); }),
             "the expression \"(a+)+$\" gave up");
}

TEST(TokenizerScan, RefusesWhatItCannotTranslate) {
  for (const char* expression :
       {"[a&&b]", "[a[b]]", "(", "\\", "\\p{L", "\\p{Klingon}", "(?~a)", "\\y", "[a", "(?R)"}) {
    EXPECT_THROW(pcre_pattern(expression, "place"), Error) << expression;
  }
  EXPECT_EQ(test::thrown([] { pcre_pattern("[a&&b]", "[x] pre_tokenizer.pattern"); }),
            "[x] pre_tokenizer.pattern: && in a class is not supported in the expression \"[a&&b]\"");
}

}  // namespace
}  // namespace twinkle::tokenizer
