// What holds for whole tokenizers: offsets, special tokens as text, broken UTF-8, streaming, threads, long
// runs, saving.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/text/tokenizer_testing.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_bytes.h"
#include "twinkle/text/unicode.h"

namespace twinkle {
namespace {

using test::test_data;
using testing_tokenizers::streamed;
using testing_tokenizers::tokenizer;

// Byte-level BPE with a few merges, small enough to be read.
Json small_json() {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[std::string(tokenizer::byte_char(static_cast<unsigned char>(b)))] = b;
  int id = 256;
  Json merges = Json::array();
  for (const auto& [left, right] : {std::pair{"a", "a"}, {"aa", "aa"}, {"Ġ", "a"}, {"h", "i"}}) {
    vocab[std::string(left) + right] = id++;
    merges.push_back({left, right});
  }
  const Json level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const auto added = [](int id, const char* text, bool special) {
    return Json{{"id", id}, {"content", text}, {"special", special}, {"normalized", false}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {added(260, "<s>", true), added(261, "<tool>", false)}},
          {"pre_tokenizer", level},
          {"decoder", level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

std::shared_ptr<const Tokenizer> small() {
  return Tokenizer::from_json(small_json(), {{"eos_token", "<s>"}}, "small");
}

TEST(Tokenizer, SpecialTokensAreTextWhenNotParsed) {
  const auto t = small();
  EXPECT_EQ(t->encode("hi<s>"), (std::vector<int32_t>{259, 260}));
  EXPECT_EQ(t->encode("hi<s>", {.parse_special = false}), (std::vector<int32_t>{259, '<', 's', '>'}));
  // As in the package: tokens that are added but not special are parsed in any case.
  EXPECT_EQ(t->encode("<tool>", {.parse_special = false}), (std::vector<int32_t>{261}));
  EXPECT_EQ(t->decode(t->encode("hi<s>hi")), "hi<s>hi");
  EXPECT_EQ(t->decode(t->encode("hi<s>hi"), true), "hihi");
  EXPECT_TRUE(t->is_special(260));
  EXPECT_FALSE(t->is_special(261));
}

TEST(Tokenizer, NamesAndSizes) {
  const auto t = small();
  EXPECT_EQ(t->vocab_size(), 262);
  EXPECT_EQ(t->eos_id(), 260);
  EXPECT_EQ(t->bos_id(), -1);
  EXPECT_EQ(t->token_to_id("aaaa"), 257);
  EXPECT_EQ(t->token_to_id("zz"), -1);
  EXPECT_EQ(t->id_to_token(258), "Ġa");
  EXPECT_EQ(t->token_bytes(258), " a");
  EXPECT_EQ(t->token_bytes(0xC3), "\xC3");
  EXPECT_EQ(t->token_bytes(260), "<s>");
  EXPECT_THROW(t->token_bytes(262), Error);
  EXPECT_THROW(t->decode(std::vector<int32_t>{-1}), Error);
  EXPECT_THROW(t->id_to_token(1000), Error);
}

TEST(Tokenizer, OffsetsCoverTheText) {
  const auto t = small();
  const std::string text =
      "hi \xE4\xBD\xA0"
      "aaaa<s> a";
  const Encoding e = t->encode_with_offsets(text);
  EXPECT_EQ(e.ids, t->encode(text));
  const std::vector<std::pair<int64_t, int64_t>> want = {{0, 2}, {2, 3},  {3, 6},   {3, 6},
                                                         {3, 6}, {6, 10}, {10, 13}, {13, 15}};
  EXPECT_EQ(e.offsets, want);
}

TEST(Tokenizer, BrokenUtf8BecomesReplacementCharacters) {
  // Maximal ill-formed parts, as Python's errors="replace".
  const std::pair<std::string, std::string> cases[] = {{"a\xFFz", "a\uFFFDz"},
                                                       {"\xE4\xBD", "\uFFFD"},
                                                       {"\xE4\xBDx", "\uFFFDx"},
                                                       {"\xC0\xAF", "\uFFFD\uFFFD"},
                                                       {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
                                                       {"\xF0\x9F\x98", "\uFFFD"},
                                                       {"\xF5\x80", "\uFFFD\uFFFD"},
                                                       {"\x80\x80", "\uFFFD\uFFFD"}};
  const auto t = small();
  for (const auto& [broken, repaired] : cases) {
    EXPECT_EQ(unicode::replace_invalid(broken), repaired);
    EXPECT_EQ(t->encode(broken), t->encode(repaired));
    const Encoding e = t->encode_with_offsets(broken);
    EXPECT_EQ(e.ids, t->encode(repaired));
    for (const auto& [begin, end] : e.offsets) {
      EXPECT_LE(0, begin);
      EXPECT_LE(begin, end);
      EXPECT_LE(end, static_cast<int64_t>(broken.size()));
    }
  }
}

TEST(Tokenizer, StreamNeverGivesHalfCharacters) {
  const auto t = small();
  StreamDecoder stream(t, false);
  EXPECT_EQ(stream.push(0xEA), "");
  EXPECT_EQ(stream.push(0xB9), "");
  EXPECT_EQ(stream.push(0xB0), "\xEA\xB9\xB0");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push('x'), "\uFFFDx");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Tokenizer, StreamOfByteFallbackWaitsForTheRun) {
  const auto t = tokenizer("llama2");
  const auto byte = [&t](int b) {
    return t->token_to_id(tokenizer::byte_token(static_cast<unsigned char>(b)));
  };
  StreamDecoder stream(t);
  EXPECT_EQ(stream.push(t->token_to_id("\xE2\x96\x81"
                                       "a")),
            "a");
  for (const int b : {0xE4, 0xBD, 0xA0}) EXPECT_EQ(stream.push(byte(b)), "");
  EXPECT_EQ(stream.push(t->token_to_id("b")),
            "\xE4\xBD\xA0"
            "b");
  EXPECT_EQ(stream.push(byte(0xE4)), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Tokenizer, RandomIdsStreamAsTheyDecode) {
  std::mt19937 rng(7);
  for (const char* name : {"gpt2", "llama2", "qwen3", "t5-small", "all-minilm-l6-v2", "yi-1.5"}) {
    const auto t = tokenizer(name);
    for (int round = 0; round < 50; ++round) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 60; ++i)
        ids.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(t->vocab_size())));
      for (const bool skip : {false, true}) {
        EXPECT_EQ(streamed(t, ids, skip), t->decode(ids, skip)) << name;
        EXPECT_TRUE(unicode::is_valid(t->decode(ids, skip))) << name;
      }
    }
  }
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  const std::string text = read_file(test_data("tokenizer-vectors/kitoken/utf8_input.txt"));
  for (const char* name : {"gpt2", "llama3", "minimind", "phi-3-mini"}) {
    const auto t = tokenizer(name);
    // SentencePiece's mark for a space comes back as one, also where the text itself has it.
    const std::string mark = test_data("tokenizer-vectors/kitoken/tokenizers/utf8_output_llama2.txt");
    const std::string want = std::string(name) == "phi-3-mini" ? read_file(mark) : text;
    EXPECT_EQ(t->decode(t->encode(text)), want) << name;
    std::string bytes;
    for (const int32_t id : t->encode(text)) bytes += t->token_bytes(id);
    EXPECT_TRUE(bytes.ends_with(want)) << name;
    EXPECT_LE(bytes.size(), want.size() + 1) << name;  // the space put in front
  }
}

TEST(Tokenizer, LongRunsTakeNoLongTime) {
  const size_t size = 200'000;
  const std::string parts[] = {"a",
                               " ",
                               "\n",
                               "0",
                               "ab",
                               "\xF0\x9F\x98\x8A",
                               "\xCC\x81",
                               "e\xCC\x81\xCC\xA3",
                               "\xE2\x96\x81",
                               "'",
                               "A\xC3\xA9",
                               "\r\n ",
                               ". "};
  for (const char* name : {"gpt2", "qwen3", "llama2", "t5-small", "all-minilm-l6-v2",
                           "deepseek-coder/ggml-vocab-deepseek-coder.gguf"}) {
    const auto t = tokenizer(name);
    for (const std::string& part : parts) {
      std::string text;
      while (text.size() < size) text += part;
      const auto ids = t->encode(text);
      EXPECT_LE(ids.size(), text.size() + 1) << name;
    }
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto t = tokenizer("minimind");
  const auto text = read_file(test_data("tokenizer-vectors/kitoken/utf8_input.txt"));
  const auto want = tokenizer("minimind")->encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) wrong += t->encode(text) != want;
      wrong += t->encode_with_offsets(text).ids != want;
      wrong += t->decode(want) != text;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Words that a thread met before are remembered: by which tokenizer, and in how many tokens, must not be
// mixed up.
TEST(Tokenizer, TokenizersInTurnGetTheirOwnIds) {
  Json other = small_json();
  other["model"]["merges"] = Json::array({{"h", "i"}});
  Json pieces = Json::array({{"<unk>", 0.0}});
  for (const char* piece : {"\u2581", "h", "i", "a", "b", "hi"})
    pieces.push_back({piece, -1.0 - pieces.size()});
  const Json unigram = {{"version", "1.0"},
                        {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}}},
                        {"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", pieces}}}};
  const std::vector<std::shared_ptr<const Tokenizer>> all = {
      small(), Tokenizer::from_json(other, {}, "other"), Tokenizer::from_json(unigram, {}, "unigram")};
  std::mt19937 rng(5);
  std::vector<std::string> words = {"", "x", std::string(24, 'a'), std::string(25, 'a'),
                                    std::string(40, 'b')};
  for (int i = 0; i < 300; ++i) {
    std::string word;
    for (int n = static_cast<int>(rng() % 30); n >= 0; --n) word += "hiab"[rng() % 4];
    words.push_back(word);
  }
  for (int i = 0; i < 6000; ++i) {
    const std::string& word = words[rng() % words.size()];
    const auto& t = all[rng() % all.size()];
    // The way that knows where tokens lie remembers nothing.
    ASSERT_EQ(t->encode(word), t->encode_with_offsets(word).ids) << word;
  }
}

TEST(Tokenizer, GgufMetadataMakeATokenizer) {
  Json metadata = {{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", "smollm"}};
  Json tokens = Json::array({"<|endoftext|>", "<|im_start|>"}), types = Json::array({3, 3});
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(std::string(tokenizer::byte_char(static_cast<unsigned char>(b))));
    types.push_back(1);
  }
  for (const char* token : {"hi", "12"}) {
    tokens.push_back(token);
    types.push_back(1);
  }
  metadata["tokenizer.ggml.tokens"] = tokens;
  metadata["tokenizer.ggml.token_type"] = types;
  metadata["tokenizer.ggml.merges"] = {"h i", "1 2"};
  metadata["tokenizer.ggml.bos_token_id"] = 1;
  metadata["tokenizer.ggml.eos_token_id"] = 0;
  metadata["tokenizer.ggml.add_bos_token"] = true;
  metadata["tokenizer.chat_template"] = "{{ x }}";
  const auto t = Tokenizer::from_gguf_metadata(metadata, "x.gguf");
  // The digits stay apart although they would merge.
  const std::vector<int32_t> want = {258, 2 + '1', 2 + '2', 1};
  EXPECT_EQ(t->encode("hi12<|im_start|>"), want);
  EXPECT_EQ(t->encode("hi", {.add_special_tokens = true}), (std::vector<int32_t>{1, 258}));
  EXPECT_EQ(t->bos_id(), 1);
  EXPECT_EQ(t->eos_id(), 0);
  EXPECT_EQ(t->config().at("chat_template"), "{{ x }}");
  EXPECT_EQ(t->config().at("bos_token"), "<|im_start|>");
  const auto again = Tokenizer::from_json(t->to_json(), t->config(), "saved");
  EXPECT_EQ(again->encode("hi12<|im_start|>"), want);
  EXPECT_EQ(again->encode("hi", {.add_special_tokens = true}), (std::vector<int32_t>{1, 258}));

  const auto fails = [&](const char* key, const Json& value, const std::string& part) {
    Json bad = metadata;
    bad[key] = value;
    EXPECT_HAS(test::thrown([&] { Tokenizer::from_gguf_metadata(bad, "x.gguf"); }), part) << key;
  };
  fails("tokenizer.ggml.model", "rwkv", "tokenizer.ggml.model: unknown model \"rwkv\"");
  fails("tokenizer.ggml.pre", "klingon", "tokenizer.ggml.pre: unknown pre-tokenizer \"klingon\"");
  fails("tokenizer.ggml.token_type", Json::array({1}),
        "tokenizer.ggml.token_type: needs a list of 260 numbers");
  fails("tokenizer.ggml.merges", Json::array({"hi"}), "tokenizer.ggml.merges: needs \"left right\"");
  fails("tokenizer.ggml.merges", Json::array({"h q"}), "is not in the vocabulary");
  fails("tokenizer.ggml.bos_token_id", 260,
        "tokenizer.ggml.bos_token_id: needs a number from 0 to 259, got 260");
  fails("tokenizer.ggml.tokens", Json::array({"a", "a"}), "stands there twice");
}

TEST(Tokenizer, FilesThatAreNotThereOrNotRead) {
  const auto message = [](const std::string& path) {
    return test::thrown([&] { Tokenizer::load(path); }, test::kAnyKind);
  };
  EXPECT_NE(message("/nowhere/tokenizer.json").find("no such file or folder: /nowhere/tokenizer.json"),
            std::string::npos);
  EXPECT_NE(
      message(test_data("tokenizer-vectors")).find("has no tokenizer.json, vocab.json with merges.txt, "),
      std::string::npos);
}

TEST(Tokenizer, TruncationInTheFileIsNotApplied) {
  // all-minilm's file says 128 tokens, padded; encoding gives every token and no more.
  const auto t = tokenizer("all-minilm-l6-v2");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "word ";
  EXPECT_EQ(t->encode(text).size(), 500u);
  EXPECT_EQ(t->encode("word").size(), 1u);
}

}  // namespace
}  // namespace twinkle
