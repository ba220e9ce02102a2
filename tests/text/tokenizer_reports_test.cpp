// Faults that users of other tokenizers reported, each with the smallest input that shows it
// (docs/tokenizers.md lists them, and where the rest are tested).
#include <gtest/gtest.h>

#include <functional>

#include "tests/text/tokenizer_testing.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/text/jinja.h"

namespace twinkle {
namespace {

using testing_tokenizers::added_token;
using testing_tokenizers::tokenizer;
using Ids = std::vector<int32_t>;
using Offsets = std::vector<std::pair<int64_t, int64_t>>;

// Letters a-z are 0-25, a blank 26, its marker 27, '.' 28, '_' 29; added tokens from 30 on.
std::shared_ptr<const Tokenizer> letters(const Json& parts) {
  Json vocab = Json::object();
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = c - 'a';
  vocab[" "] = 26;
  vocab["\xE2\x96\x81"] = 27;
  vocab["."] = 28;
  vocab["_"] = 29;
  Json json = {{"version", "1.0"},
               {"normalizer", nullptr},
               {"pre_tokenizer", nullptr},
               {"post_processor", nullptr},
               {"decoder", {{"type", "Fuse"}}},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  json.update(parts);
  return Tokenizer::from_json(json, nullptr, "letters");
}

Json metaspace(const char* scheme) {
  return {
      {"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", scheme}, {"split", false}};
}

TEST(TokenizerReports, AWholeWordOfTheVocabularyStaysWhole) {
  EXPECT_EQ(tokenizer("llama3")->encode(" Vi\xE1\xBB\x87t"), (Ids{101798}));
}

TEST(TokenizerReports, TheSpaceMarkerBehindSpecialTokens) {
  const auto with = [](const char* scheme) {
    return letters({{"pre_tokenizer", metaspace(scheme)},
                    {"decoder", metaspace(scheme)},
                    {"added_tokens", {added_token(30, "<s>")}}});
  };
  EXPECT_EQ(with("first")->encode("<s>hi"), (Ids{30, 7, 8}));
  EXPECT_EQ(with("first")->encode("a<s>b"), (Ids{27, 0, 30, 1}));
  EXPECT_EQ(with("always")->encode("<s>hi"), (Ids{30, 27, 7, 8}));
  EXPECT_EQ(with("always")->encode("a<s>b"), (Ids{27, 0, 30, 27, 1}));
  EXPECT_EQ(with("never")->encode("a<s>b"), (Ids{0, 30, 1}));
  // A text that begins with a blank has its marker already.
  for (const char* scheme : {"first", "always", "never"})
    EXPECT_EQ(with(scheme)->encode(" hi"), (Ids{27, 7, 8})) << scheme;
  EXPECT_EQ(with("first")->decode(with("first")->encode("hi")), "hi");
}

TEST(TokenizerReports, AddedTokensAndTheNormalizer) {
  const auto with = [](bool normalized) {
    return letters({{"normalizer", {{"type", "Lowercase"}}},
                    {"added_tokens", {added_token(30, "A.B", {{"normalized", normalized}})}}});
  };
  EXPECT_EQ(with(true)->encode("xA.Bx"), (Ids{23, 30, 23}));
  EXPECT_EQ(with(true)->encode("xa.bx"), (Ids{23, 30, 23}));  // matches what the text has become
  EXPECT_EQ(with(false)->encode("xA.Bx"), (Ids{23, 30, 23}));
  EXPECT_EQ(with(false)->encode("xa.bx"), (Ids{23, 0, 28, 1, 23}));
}

TEST(TokenizerReports, BlanksBesideAddedTokens) {
  const auto with = [](bool left, bool right) {
    return letters({{"added_tokens", {added_token(30, "_m_", {{"lstrip", left}, {"rstrip", right}})}}});
  };
  EXPECT_EQ(with(false, false)->encode("a _m_ b"), (Ids{0, 26, 30, 26, 1}));
  EXPECT_EQ(with(true, false)->encode("a _m_ b"), (Ids{0, 30, 26, 1}));
  EXPECT_EQ(with(false, true)->encode("a _m_ b"), (Ids{0, 26, 30, 1}));
  EXPECT_EQ(with(true, true)->encode("a _m_ b"), (Ids{0, 30, 1}));
  EXPECT_EQ(with(true, true)->encode_with_offsets("a _m_ b").offsets, (Offsets{{0, 1}, {1, 6}, {6, 7}}));
}

TEST(TokenizerReports, SingleWords) {
  const auto t = letters({{"added_tokens", {added_token(30, "ing", {{"single_word", true}})}}});
  EXPECT_EQ(t->encode("sing"), (Ids{18, 8, 13, 6}));
  EXPECT_EQ(t->encode("ing."), (Ids{30, 28}));
  EXPECT_EQ(t->encode("_ing"), (Ids{29, 8, 13, 6}));
  EXPECT_EQ(t->encode("a ing b"), (Ids{0, 26, 30, 26, 1}));
}

TEST(TokenizerReports, LiteralsAndExpressions) {
  const auto with = [](const char* kind) {
    return letters(
        {{"pre_tokenizer",
          {{"type", "Split"}, {"pattern", {{kind, "."}}}, {"behavior", "Removed"}, {"invert", false}}}});
  };
  EXPECT_EQ(with("String")->encode("a.b"), (Ids{0, 1}));
  EXPECT_EQ(with("Regex")->encode("a.b"), Ids());  // every character is one
  const auto qwen = tokenizer("qwen3");
  EXPECT_EQ(qwen->encode("1234").size(), 4u);
  // 'LL is cut off from the letters behind it, which an apostrophe by itself would not be.
  Ids want = qwen->encode("I'LL");
  for (const int32_t id : qwen->encode("x")) want.push_back(id);
  EXPECT_EQ(qwen->encode("I'LLx"), want);
}

TEST(TokenizerReports, TruncationInTheFileCutsNothing) {
  const auto t =
      letters({{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
               {"truncation",
                {{"max_length", 8}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}}},
               {"padding", {{"strategy", {{"Fixed", 64}}}, {"direction", "Right"}, {"pad_id", 0}}}});
  std::string text;
  for (int i = 0; i < 20; ++i) text += "w ";
  EXPECT_EQ(t->encode(text).size(), 20u);
  EXPECT_EQ(t->encode_with_offsets(text).ids.size(), 20u);
}

TEST(TokenizerReports, ComposedAndDecomposedTextIsTheSame) {
  const auto qwen = tokenizer("qwen3");
  EXPECT_EQ(qwen->encode("e\xCC\x81"), qwen->encode("\xC3\xA9"));
  const auto t =
      letters({{"normalizer", {{"type", "NFKC"}}}, {"added_tokens", {added_token(30, "\xEF\xAC\x81")}}});
  EXPECT_EQ(t->encode("\xE2\x82\x93"), (Ids{23}));  // a subscript x
  EXPECT_EQ(t->encode("f\xEF\xAC\x81i"),
            (Ids{5, 30, 8}));  // the ligature is a token of its own, not normalised
}

// Each construct once: it renders, or the template is refused when it is read.
TEST(TokenizerReports, ConstructsOfTemplates) {
  const Json context = {{"l", {{{"a", 1}}, {{"a", 2}}, {{"b", 3}}}}, {"n", {1, 2, 3, 4}}};
  const std::pair<const char*, const char*> cases[] = {
      {"{{ n | reject('odd') | list }}", "[2, 4]"},
      {"{{ l | rejectattr('a', 'defined') | list | length }}", "1"},
      {"{{ n[1:] }}{{ n[::-1] }}", "[2, 3, 4][4, 3, 2, 1]"},
      {"{% set s = namespace(x=0) %}{% for i in n %}{% set s.x = s.x + i %}{% endfor %}{{ s.x }}", "10"},
      {"{% for i in n %}{{ loop.previtem | default('-') }}{{ loop.nextitem | default('-') }}{% endfor %}",
       "-213243-"},
      {"{{ strftime_now('%Y-%m-%d') }}", "2025-07-10"},
      {"{% for i in n %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "12"}};
  for (const auto& [source, want] : cases)
    EXPECT_EQ(JinjaTemplate::parse(source)->render(context, {}, 1752148800).text, want) << source;
  const auto error_of = [&](const char* source) {
    return test::thrown([&] { JinjaTemplate::parse(source)->render(context); });
  };
  EXPECT_NE(error_of("{{ raise_exception('no system role') }}").find("no system role"), std::string::npos);
  EXPECT_NE(error_of("{{ n | frobnicate }}").find("frobnicate"), std::string::npos);
  EXPECT_NE(error_of("{% frobnicate %}").find("frobnicate"), std::string::npos);
  EXPECT_NE(error_of("{{ n is frobnicated }}").find("frobnicated"), std::string::npos);
}

}  // namespace
}  // namespace twinkle
