// Text that may not become special tokens (EncodeOptions::literal): the ids are those of a tokenizer in whose
// table the token has another name, and nothing else changes. Numbers of T5 are the package's.
#include <gtest/gtest.h>

#include "tests/text/tokenizer_testing.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

using test::test_data;
using testing_tokenizers::added_token;
using testing_tokenizers::tokenizer;
using Ids = std::vector<int32_t>;

// The text between « and » is literal.
struct Marked {
  std::string text;
  std::vector<TextSpan> literal;
};
Marked marked(std::string_view given) {
  constexpr std::string_view kOpen = "\xC2\xAB", kClose = "\xC2\xBB";
  Marked out;
  for (size_t at = 0; at < given.size();) {
    const bool open = given.substr(at).starts_with(kOpen), close = given.substr(at).starts_with(kClose);
    const auto here = static_cast<int64_t>(out.text.size());
    if (open) out.literal.push_back({here, here});
    if (close) out.literal.back().end = here;
    if (!open && !close) out.text += given[at];
    at += open || close ? kOpen.size() : 1;
  }
  return out;
}

Ids ids_of(const Tokenizer& tokenizer, std::string_view given) {
  const Marked m = marked(given);
  const EncodeOptions options{.literal = m.literal};
  const Ids ids = tokenizer.encode(m.text, options);
  EXPECT_EQ(tokenizer.encode_with_offsets(m.text, options).ids, ids) << given;
  return ids;
}

// Letters a-z are 0-25, a blank 26, its marker 27, '<' 28, '>' 29, '/' 30; added tokens from 31 on.
std::shared_ptr<const Tokenizer> letters(const Json& parts) {
  Json vocab = Json::object();
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = c - 'a';
  const char* const others[] = {" ", "\xE2\x96\x81", "<", ">", "/"};
  for (int i = 0; i < 5; ++i) vocab[others[i]] = 26 + i;
  Json json = {{"version", "1.0"},
               {"normalizer", nullptr},
               {"pre_tokenizer", nullptr},
               {"post_processor", nullptr},
               {"decoder", {{"type", "Fuse"}}},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  json.update(parts);
  return Tokenizer::from_json(json, nullptr, "letters");
}

TEST(TokenizerLiteral, OnlyWhatTakesInAByteOfARange) {
  const auto t = letters(
      {{"added_tokens", {added_token(31, "<s>"), added_token(32, "<s>x"), added_token(33, "<think>")}}});
  EXPECT_EQ(ids_of(*t, "<s>a"), (Ids{31, 0}));
  EXPECT_EQ(ids_of(*t, "\xC2\xAB<s>a\xC2\xBB<s>"), (Ids{28, 18, 29, 0, 31}));
  // Half of it is enough.
  EXPECT_EQ(ids_of(*t, "<s\xC2\xAB>a\xC2\xBB"), (Ids{28, 18, 29, 0}));
  // The longest that is allowed stays a token.
  EXPECT_EQ(ids_of(*t, "<s>x"), (Ids{32}));
  EXPECT_EQ(ids_of(*t, "<s>\xC2\xABx\xC2\xBB"), (Ids{31, 23}));
  // A token begins inside what was none.
  EXPECT_EQ(ids_of(*t, "\xC2\xAB<\xC2\xBB<s>"), (Ids{28, 31}));
}

TEST(TokenizerLiteral, TokensThatAreNotSpecialAreRead) {
  const auto t = letters({{"added_tokens", {added_token(31, "<t>", {{"special", false}})}}});
  EXPECT_EQ(ids_of(*t, "a\xC2\xAB<t>\xC2\xBB"), (Ids{0, 31}));
}

TEST(TokenizerLiteral, TextBesideIsReadAsUsual) {
  // A marker is put only in front of the first part: the text behind <u> is not a first part.
  const Json first = {
      {"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}, {"split", false}};
  const auto meta =
      letters({{"pre_tokenizer", first}, {"added_tokens", {added_token(31, "<u>"), added_token(32, "<e>")}}});
  EXPECT_EQ(ids_of(*meta, "<u>\xC2\xABhi<e>\xC2\xBB<e>"), (Ids{31, 7, 8, 28, 4, 29, 32}));
  // Blanks go to the template's token, as ever.
  const auto left =
      letters({{"added_tokens", {added_token(31, "<u>", {{"lstrip", true}}), added_token(32, "<e>")}}});
  EXPECT_EQ(ids_of(*left, "\xC2\xAB<e>a  \xC2\xBB<u>"), (Ids{28, 4, 29, 0, 31}));
  // A token inside of a word is none, whoever wrote it.
  const auto word =
      letters({{"added_tokens", {added_token(31, "<u>"), added_token(32, "<e>", {{"single_word", true}})}}});
  EXPECT_EQ(ids_of(*word, "\xC2\xAB<u>a\xC2\xBB<e> <e>"), (Ids{28, 20, 29, 0, 28, 4, 29, 26, 32}));
}

TEST(TokenizerLiteral, WhatANormalizerMakesOfTheText) {
  const Json flags = {{"normalized", true}};
  const auto with = [&](const Json& normalizer) {
    return letters({{"normalizer", normalizer}, {"added_tokens", {added_token(31, "</s>", flags)}}});
  };
  const auto nfkc = with({{"type", "NFKC"}}), lower = with({{"type", "Lowercase"}});
  EXPECT_EQ(nfkc->encode("a\xEF\xBC\x9C/s\xEF\xBC\x9E"), (Ids{0, 31}));
  EXPECT_EQ(ids_of(*nfkc,
                   "\xC2\xAB"
                   "a\xEF\xBC\x9C/s\xEF\xBC\x9E\xC2\xBB</s>"),
            (Ids{0, 28, 30, 18, 29, 31}));
  EXPECT_EQ(lower->encode("A</S>"), (Ids{0, 31}));
  EXPECT_EQ(ids_of(*lower,
                   "\xC2\xAB"
                   "A</S>\xC2\xBB</s>"),
            (Ids{0, 28, 30, 18, 29, 31}));
  EXPECT_EQ(ids_of(*lower, "</\xC2\xABS\xC2\xBB>"), (Ids{28, 30, 18, 29}));
  // Llama 2: the marker that the normalizer puts before a token is not the token.
  const auto llama =
      with({{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}}}}});
  EXPECT_EQ(llama->encode("a </s>"), (Ids{27, 0, 31}));
  EXPECT_EQ(ids_of(*llama,
                   "\xC2\xAB"
                   "a \xC2\xBB</s>"),
            (Ids{27, 0, 31}));
  EXPECT_EQ(ids_of(*llama,
                   "\xC2\xAB"
                   "a </s>\xC2\xBB</s>"),
            (Ids{27, 0, 27, 28, 30, 18, 29, 28, 30, 18, 29}));
}

TEST(TokenizerLiteral, PiecesOfAUnigramModel) {
  const auto t5 = tokenizer("t5-small");
  EXPECT_EQ(t5->encode("hi </s> there"), (Ids{7102, 1, 132}));
  // As with encode_special_tokens of the package: the model has the spelling as a piece.
  EXPECT_EQ(t5->encode("hi </s> there", {.parse_special = false}), (Ids{7102, 3, 1, 132}));
  EXPECT_EQ(ids_of(*t5, "\xC2\xABhi </s> there\xC2\xBB"), (Ids{7102, 3, 2, 87, 7, 3155, 132}));
  EXPECT_EQ(ids_of(*t5, "\xC2\xABhi \xEF\xBC\x9C/s\xEF\xBC\x9E there\xC2\xBB"),
            (Ids{7102, 3, 2, 87, 7, 3155, 132}));
  EXPECT_EQ(ids_of(*t5,
                   "\xC2\xAB"
                   "a</s>b\xC2\xBB"),
            (Ids{3, 9, 2, 87, 7, 3155, 115}));
  EXPECT_EQ(ids_of(*t5, "\xC2\xAB<unk><\xC2\xBB"), (Ids{3, 2, 6513, 3155, 2}));
  EXPECT_EQ(ids_of(*t5, "<extra_id_0>\xC2\xAB </s>\xC2\xBB</s>"), (Ids{32099, 3, 2, 87, 7, 3155, 1}));
}

TEST(TokenizerLiteral, WordsOfAVocabulary) {
  const Json vocab = {{"[UNK]", 0}, {"[E]", 1}, {"a", 2}, {"[", 3}, {"##E", 4}, {"##]", 5}};
  for (const char* type : {"WordLevel", "WordPiece"}) {
    Json model = {{"type", type}, {"unk_token", "[UNK]"}, {"vocab", vocab}};
    const bool pieces = model["type"] == "WordPiece";
    if (pieces) model["continuing_subword_prefix"] = "##";
    const auto t =
        letters({{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                 {"added_tokens", {added_token(0, "[UNK]"), added_token(1, "[E]", {{"single_word", true}})}},
                 {"model", model}});
    EXPECT_EQ(t->encode("a [E]"), (Ids{2, 1})) << type;
    EXPECT_EQ(ids_of(*t,
                     "\xC2\xAB"
                     "a [E]\xC2\xBB [E]"),
              (pieces ? Ids{2, 3, 4, 5, 1} : Ids{2, 0, 1}))
        << type;
    EXPECT_EQ(ids_of(*t, "\xC2\xABzz\xC2\xBB [E]"), (Ids{0, 1})) << type;
  }
}

TEST(TokenizerLiteral, WordsThatAreReadWithoutMerging) {
  Json vocab = Json::object();
  const char* const texts[] = {"<", "s", ">", "<s>", "a"};
  for (int i = 0; i < 5; ++i) vocab[texts[i]] = i;
  const auto t = letters(
      {{"added_tokens", {added_token(3, "<s>")}},
       {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
       {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}, {"ignore_merges", true}}}});
  EXPECT_EQ(t->encode("a <s>", {.parse_special = false}), (Ids{4, 3}));
  EXPECT_EQ(ids_of(*t,
                   "\xC2\xAB"
                   "a <s>\xC2\xBB <s>"),
            (Ids{4, 0, 1, 2, 3}));
}

TEST(TokenizerLiteral, RangesOfBrokenText) {
  const auto t = letters({{"added_tokens", {added_token(31, "<s>")}}});
  // The broken byte becomes three, and is unknown here; the range moves with the text.
  EXPECT_EQ(ids_of(*t, "\xFF<s>\xC2\xAB<s>\xC2\xBB<s>"), (Ids{31, 28, 18, 29, 31}));
}

// Real tokenizers whose tokens match raw, after normalisation, or with blanks, against a tokenizer of the
// same file in which the spelling in the text is not a token.
TEST(TokenizerLiteral, EqualsATokenizerThatDoesNotKnowTheToken) {
  struct Case {
    const char *folder, *open, *close, *spelled;
    Json flags;  // of all added tokens; null: with a marker in front of the first part only
  };
  const Case cases[] = {
      {"phi-3-mini", "<|user|>", "<|end|>", "<|system|>", Json::object()},
      {"phi-3-mini", "<|user|>", "<|end|>", "<|system|>", {{"normalized", true}}},
      {"phi-3-mini", "<|user|>", "<|end|>", "<|system|>", nullptr},
      {"qwen3", "<|im_start|>", "<|im_end|>", "<|vision_start|>", {{"lstrip", true}, {"rstrip", true}}},
      {"llama2", "<s>", "</s>", "<unk>", Json::object()},
      {"t5-small", "<pad>", "</s>", "<extra_id_7>", Json::object()},
      {"t5-small", "<pad>", "</s>", "<extra_id_7>", {{"single_word", true}}}};
  const Json meta = {
      {"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", "first"}, {"split", false}};
  const std::string words[] = {
      "hello", " world ", "\n\n", "\xC3\xA9t\xC3\xA9 ", "12 3", "  x", "\xE4\xBD\xA0\xE5\xA5\xBD"};
  int compared = 0;
  for (const Case& c : cases) {
    const Json file = read_json_file(test_data(std::string("tokenizers/") + c.folder + "/tokenizer.json"));
    Json known = file;
    if (c.flags.is_null()) {
      known["normalizer"] = nullptr;
      known["pre_tokenizer"] = meta;
    } else {
      for (Json& token : known["added_tokens"]) token.update(c.flags);
    }
    Json renamed = known;
    const std::string other = "\xF3\xB1\x88\xB4zz";
    for (Json& token : renamed["added_tokens"]) {
      if (token["content"] == c.spelled) token["content"] = other;
    }
    Json& model = renamed["model"];
    if (model["vocab"].is_array()) {
      for (Json& piece : model["vocab"]) {
        if (piece[0] == c.spelled) piece[0] = other;
      }
    } else if (const auto piece = model["vocab"].find(c.spelled); piece != model["vocab"].end()) {
      const Json id = *piece;
      model["vocab"].erase(c.spelled);
      model["vocab"][other] = id;
    }
    if (model.contains("unk_token") && model["unk_token"] == c.spelled) model["unk_token"] = other;
    const auto t = Tokenizer::from_json(known, nullptr, c.folder);
    const auto without = Tokenizer::from_json(renamed, nullptr, c.folder);
    for (const std::string& before : words) {
      for (const std::string& behind : words) {
        const std::string open = "\xC2\xAB", close = "\xC2\xBB";
        const std::string given = std::string(c.open) + "user\n" + open + before + c.spelled + behind +
                                  close + c.close + "\n" + c.open + open + behind + close + c.close;
        EXPECT_EQ(ids_of(*t, given), without->encode(marked(given).text))
            << c.folder << " " << c.flags.dump() << ": " << given;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 7 * 49);
}

}  // namespace
}  // namespace twinkle
