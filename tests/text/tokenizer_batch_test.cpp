// Truncation, batches, padding, and BOS and EOS by the config.
#include "twinkle/text/tokenizer_batch.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

using test::thrown;
using Rows = std::vector<std::vector<int32_t>>;

// Words w10, w20 ... are their numbers; 0 is BOS, 1 EOS, 2 padding.
std::shared_ptr<const Tokenizer> words(const Json& config, const Json& post = nullptr) {
  Json vocab = {{"<s>", 0}, {"</s>", 1}, {"<pad>", 2}};
  for (int i = 10; i <= 50; i += 10) vocab["w" + std::to_string(i)] = i;
  const auto special = [](int id, const char* text) {
    return Json{{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const Json json = {{"version", "1.0"},
                     {"added_tokens", {special(0, "<s>"), special(1, "</s>"), special(2, "<pad>")}},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                     {"post_processor", post},
                     {"decoder", nullptr},
                     {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "w50"}}}};
  return Tokenizer::from_json(json, config, "words");
}

const Json kNames = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};

Json with(const Json& more) {
  Json config = kNames;
  config.update(more);
  return config;
}

TEST(TokenizerBatch, TruncationKeepsTheClosingToken) {
  const auto t = words(with({{"add_bos_token", true}, {"add_eos_token", true}}));
  const EncodeOptions cut{.add_special_tokens = true, .max_length = 4};
  EXPECT_EQ(t->encode("w10 w20 w30 w40", cut), (std::vector<int32_t>{0, 10, 20, 1}));
  EXPECT_EQ(
      t->encode("w10 w20 w30 w40", {.add_special_tokens = true, .max_length = 4, .truncate_left = true}),
      (std::vector<int32_t>{0, 30, 40, 1}));
  const Encoding encoding = t->encode_with_offsets("w10 w20 w30 w40", cut);
  EXPECT_EQ(encoding.ids, (std::vector<int32_t>{0, 10, 20, 1}));
  EXPECT_EQ(encoding.offsets, (std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 3}, {4, 7}, {0, 0}}));
  EXPECT_EQ(t->encode("w10 w20", {.max_length = 2}), (std::vector<int32_t>{10, 20}));
  EXPECT_EQ(t->encode("w10 w20", {.add_special_tokens = true, .max_length = 2}),
            (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(thrown([&] { t->encode("w10", {.add_special_tokens = true, .max_length = 1}); }),
            "[tokenizer] max_length 1 is less than the 2 special tokens around a text");
}

TEST(TokenizerBatch, TheConfigSaysWhatIsPutAround) {
  const EncodeOptions special{.add_special_tokens = true};
  EXPECT_EQ(words(kNames)->encode("w10", special), (std::vector<int32_t>{10}));
  EXPECT_EQ(words(with({{"add_bos_token", true}}))->encode("w10", special), (std::vector<int32_t>{0, 10}));
  EXPECT_EQ(words(with({{"add_eos_token", true}}))->encode("w10", special), (std::vector<int32_t>{10, 1}));
  const Json bos = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {0}}, {"tokens", {"<s>"}}}}}}};
  // The file's own template stands while the config says nothing, and once only when it says the same.
  EXPECT_EQ(words(kNames, bos)->encode("w10", special), (std::vector<int32_t>{0, 10}));
  EXPECT_EQ(words(with({{"add_bos_token", true}}), bos)->encode("w10", special),
            (std::vector<int32_t>{0, 10}));
  const auto none = words(with({{"add_bos_token", false}}), bos);
  EXPECT_EQ(none->encode("w10", special), (std::vector<int32_t>{10}));
  // What is saved says so, too.
  EXPECT_EQ(Tokenizer::from_json(none->to_json(), nullptr, "saved")->encode("w10", special),
            (std::vector<int32_t>{10}));
}

TEST(TokenizerBatch, BatchesAreTheSingleResults) {
  const auto t = words(kNames);
  std::vector<std::string> texts;
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    for (int k = 0; k <= i % 7; ++k) text += "w" + std::to_string(10 * (1 + (i + k) % 5)) + " ";
    texts.push_back(text);
  }
  Rows want;
  for (const auto& text : texts) want.push_back(t->encode(text));
  const int before = num_threads();
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    EXPECT_EQ(encode_batch(*t, texts), want);
  }
  set_num_threads(before);
  EXPECT_TRUE(encode_batch(*t, std::vector<std::string>()).empty());
}

TEST(TokenizerBatch, TheFirstBadTextIsNamed) {
  const Json json = {{"version", "1.0"},
                     {"model", {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "<none>"}}}};
  const auto t = Tokenizer::from_json(json, nullptr, "one word");
  std::vector<std::string> texts(200, "a");
  texts[37] = texts[150] = "b";
  EXPECT_EQ(thrown([&] { encode_batch(*t, texts); }),
            "[tokenizer] text 37: [tokenizer] a word is unknown, and unk_token \"<none>\" is not in the "
            "vocabulary");
}

TEST(TokenizerBatch, PaddingSides) {
  const Rows rows = {{10, 20, 30}, {10}};
  const auto right = pad_batch(*words(kNames), rows);
  EXPECT_EQ(right.length, 3);
  EXPECT_EQ(right.ids, (Rows{{10, 20, 30}, {10, 2, 2}}));
  EXPECT_EQ(right.attention_mask, (std::vector<std::vector<uint8_t>>{{1, 1, 1}, {1, 0, 0}}));
  const auto left = pad_batch(*words(with({{"padding_side", "left"}})), rows);
  EXPECT_EQ(left.ids, (Rows{{10, 20, 30}, {2, 2, 10}}));
  EXPECT_EQ(left.attention_mask[1], (std::vector<uint8_t>{0, 0, 1}));
  const auto eight = pad_batch(*words(kNames), {{10}}, {.side = "left", .length = 3, .multiple_of = 4});
  EXPECT_EQ(eight.ids, (Rows{{2, 2, 2, 10}}));
  EXPECT_EQ(thrown([&] { pad_batch(*words({{"bos_token", "<s>"}}), rows); }),
            "[tokenizer] padding: the tokenizer has no pad token (pad_token)");
  EXPECT_EQ(thrown([&] { pad_batch(*words(kNames), rows, {.length = 2}); }),
            "[tokenizer] padding: a row of 3 ids, but length is 2");
  EXPECT_EQ(thrown([&] { pad_batch(*words(kNames), rows, {.side = "up"}); }),
            "[tokenizer] padding_side: needs left or right, got \"up\"");
  EXPECT_TRUE(truncates_left(*words(with({{"truncation_side", "left"}}))));
  EXPECT_FALSE(truncates_left(*words(kNames)));
}

}  // namespace
}  // namespace twinkle
