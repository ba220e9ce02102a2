// SentencePiece models: real ones against the package's vectors, small ones made here byte by byte against
// the rules worked out by hand, and files that are none.
#include <gtest/gtest.h>

#include <bit>

#include "tests/text/tokenizer_testing.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

using test::test_data;
using testing_tokenizers::ids_in;
using testing_tokenizers::split;
using testing_tokenizers::streamed;
using Ids = std::vector<int32_t>;

const EncodeOptions kPlain{.parse_special = false};
const std::string kMark = "\xE2\x96\x81";

std::string varint(uint64_t value) {
  std::string out;
  for (; value > 127; value >>= 7) out += static_cast<char>((value & 127) | 128);
  return out + static_cast<char>(value);
}
std::string bytes_field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number << 3 | 2)) + varint(bytes.size()) + bytes;
}
std::string int_field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number << 3)) + varint(value);
}
std::string float_field(int number, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  std::string out = varint(static_cast<uint64_t>(number << 3 | 5));
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(bits >> shift & 0xFF);
  return out;
}

struct Row {
  std::string text;
  float score = 0;
  int type = 1;  // 1 normal, 2 unknown, 3 control, 4 user's, 5 unused, 6 byte
};

std::string model(const std::vector<Row>& rows, const std::string& trainer, const std::string& normalizer) {
  std::string out;
  for (const Row& row : rows)
    out += bytes_field(1, bytes_field(1, row.text) + float_field(2, row.score) +
                              int_field(3, static_cast<uint64_t>(row.type)));
  return out + bytes_field(2, trainer) + bytes_field(3, normalizer);
}

const std::string kBpe = int_field(3, 2), kUnigram = int_field(3, 1);
const std::string kKeepSpaces = int_field(4, 0);

std::shared_ptr<const Tokenizer> load(const std::string& bytes, const Json& config = nullptr) {
  return Tokenizer::from_sentencepiece(bytes, config, "made.model");
}
std::string error_of(const std::string& bytes, const Json& config = nullptr) {
  return test::thrown([&] { load(bytes, config); });
}

int check_generated(const std::string& vectors, const std::string& file) {
  const auto t = Tokenizer::load(test_data("tokenizers/" + file));
  int checked = 0;
  const Json rows = read_json_file(test_data("tokenizer-vectors/generated/" + vectors + ".json"));
  for (const Json& row : rows.at("rows")) {
    const std::string text = row.at("text").get<std::string>();
    const auto ids = row.at("ids").get<Ids>();
    EXPECT_EQ(t->encode(text, kPlain), ids) << vectors << ": " << text;
    EXPECT_EQ(t->encode_with_offsets(text, kPlain).ids, ids) << vectors << ": " << text;
    EXPECT_EQ(t->decode(ids), row.at("decoded").get<std::string>()) << vectors << ": " << text;
    EXPECT_EQ(streamed(t, ids, false), t->decode(ids)) << vectors << ": " << text;
    ++checked;
  }
  return checked;
}

TEST(SentencePiece, GeneratedVectors) {
  EXPECT_EQ(check_generated("llama2.spm", "llama2/tokenizer.model"), 41);
  EXPECT_EQ(check_generated("internlm2.spm", "internlm2/tokenizer.model"), 41);
  EXPECT_EQ(check_generated("mistral-v1.spm", "mistral/tokenizer.model.v1"), 41);
  EXPECT_EQ(check_generated("mistral-v3.spm", "mistral/tokenizer.model.v3"), 41);
}

TEST(SentencePiece, KitokenVectors) {
  const std::pair<const char*, const char*> models[] = {{"llama2", "llama2/tokenizer.model"},
                                                        {"mistral01", "mistral/tokenizer.model.v1"},
                                                        {"mistral03", "mistral/tokenizer.model.v3"}};
  const std::string text = read_file(test_data("tokenizer-vectors/kitoken/utf8_input.txt"));
  for (const auto& [name, file] : models) {
    const auto t = Tokenizer::load(test_data(std::string("tokenizers/") + file));
    const auto ids = ids_in(read_file(
        test_data(std::string("tokenizer-vectors/kitoken/sentencepiece/utf8_tokens_") + name + ".txt")));
    EXPECT_EQ(t->encode(text, kPlain), ids) << name;
    EXPECT_EQ(t->decode(ids),
              read_file(test_data(std::string("tokenizer-vectors/kitoken/sentencepiece/utf8_output_") + name +
                                  ".txt")))
        << name;
  }
}

// The same vocabulary as a tokenizer.json: the ids of ordinary text are the same.
TEST(SentencePiece, AgreesWithTheTokenizerJson) {
  const auto model = Tokenizer::load(test_data("tokenizers/llama2/tokenizer.model"));
  const auto json = Tokenizer::load(test_data("tokenizers/llama2"));
  for (const char* text :
       {"Hello world", "  two  blanks ", "\n\nline\n", "caf\xC3\xA9 \xF0\x9F\x98\x8A", "x=1;\ty"})
    EXPECT_EQ(model->encode(text), json->encode(text)) << text;
  EXPECT_EQ(model->encode("Hello", {.add_special_tokens = true}), (Ids{1, 15043}));
  EXPECT_EQ(model->bos_id(), 1);
  EXPECT_EQ(model->eos_id(), 2);
  EXPECT_EQ(model->vocab_size(), 32000);
}

TEST(SentencePiece, SavedAndLoadedAgain) {
  for (const char* file :
       {"llama2/tokenizer.model", "internlm2/tokenizer.model", "mistral/tokenizer.model.v3"}) {
    const auto t = Tokenizer::load(test_data(std::string("tokenizers/") + file));
    const auto again = Tokenizer::from_json(t->to_json(), t->config(), "saved");
    for (const char* text :
         {"Hello world", "  a  b\n", "\xE4\xBD\xA0\xE5\xA5\xBD 123", "[INST] x [/INST] <s> y</s>"}) {
      EXPECT_EQ(again->encode(text), t->encode(text)) << file << ": " << text;
      const EncodeOptions special{.add_special_tokens = true};
      EXPECT_EQ(again->encode(text, special), t->encode(text, special)) << file << ": " << text;
      EXPECT_EQ(again->decode(t->encode(text)), t->decode(t->encode(text))) << file << ": " << text;
    }
  }
}

const std::vector<Row> kLetters = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {kMark, -1},
                                   {"a", -2},       {"b", -3},     {"c", -4}};

std::vector<Row> letters(std::initializer_list<Row> more) {
  std::vector<Row> rows = kLetters;
  rows.insert(rows.end(), more);
  return rows;
}

TEST(SentencePiece, BpeMergesByScoreThenFromTheLeft) {
  // "bc" (8) has the higher score, so it wins over "ab" (7).
  const auto better = load(model(letters({{"ab", -6}, {"bc", -5}}), kBpe, kKeepSpaces));
  EXPECT_EQ(better->encode("abc"), (Ids{3, 4, 8}));
  // Equal scores: the leftmost, here "ab".
  const auto equal = load(model(letters({{"bc", -5}, {"ab", -5}}), kBpe, kKeepSpaces));
  EXPECT_EQ(equal->encode("abc"), (Ids{3, 8, 6}));
  // A part that is no piece of its own can still be in one: "bd" has "d", which alone is unknown.
  const auto part = load(model(letters({{"bd", -5}}), kBpe, kKeepSpaces));
  EXPECT_EQ(part->encode("abd"), (Ids{3, 4, 7}));
  EXPECT_EQ(part->encode("add"), (Ids{3, 4, 0}));  // unknown neighbours are one
  EXPECT_EQ(part->encode_with_offsets("add").offsets,
            (std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {0, 1}, {1, 3}}));
}

TEST(SentencePiece, SymbolsOfTheUserNeverMergeNorChange) {
  EXPECT_EQ(error_of(model(letters({{"b", 0, 4}}), kBpe, "")),
            "[made.model] pieces[7]: \"b\" stands there twice");
  const auto symbols = load(model(
      {{"<unk>", 0, 2}, {kMark, -1}, {"a", -2}, {"b", 0, 4}, {"ab", -5}, {"bb", 0, 4}, {kMark + "a", -3}},
      kBpe, kKeepSpaces));
  EXPECT_EQ(symbols->encode("ab"), (Ids{6, 3}));
  EXPECT_EQ(symbols->encode("abbb"), (Ids{6, 5, 3}));  // the longest first
  EXPECT_EQ(symbols->encode("ab", kPlain), (Ids{6, 3}));
}

// A symbol, or an ordinary piece, that the config calls special: text that may not be a special token is not
// it.
TEST(SentencePiece, SpecialTokensAreNotFoundInLiteralText) {
  const std::vector<Row> rows = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"a", -1},
                                 {"<", -2},       {"t", -3},     {">", -4},      {"<t>", -5, 4},
                                 {"<t", -4.5F},   {"<u>", -7},   {"u", -8},      {"<u", -9}};
  Json names = Json::object();
  for (const int id : {7, 9})
    names[std::to_string(id)] = {{"content", rows[static_cast<size_t>(id)].text}, {"special", true}};
  const Json config = {{"added_tokens_decoder", names}};
  const std::string settings = kKeepSpaces + int_field(3, 0);
  for (const std::string& kind : {kBpe, kUnigram}) {
    const auto t = load(model(rows, kind, settings), config);
    EXPECT_EQ(t->encode("a<t><u>"), (Ids{3, 7, 9}));
    EXPECT_EQ(t->encode("a<t><u>", kPlain), (Ids{3, 7, 9}));
    const std::vector<TextSpan> first = {{0, 7}};
    EXPECT_EQ(t->encode("a<t><u><t>", {.literal = first}), (Ids{3, 8, 6, 11, 6, 7}));
    EXPECT_EQ(t->encode_with_offsets("a<t><u><t>", {.literal = first}).ids, (Ids{3, 8, 6, 11, 6, 7}));
  }
}

TEST(SentencePiece, UnusedPiecesFallApart) {
  const auto t = load(model(letters({{"ab", -5, 5}, {"abc", -6}}), kBpe, kKeepSpaces));
  EXPECT_EQ(t->encode("ab"), (Ids{3, 4, 5}));
  EXPECT_EQ(t->encode("abc"), (Ids{3, 8}));
  const auto unigram = load(model(letters({{"ab", -5, 5}, {"abc", -6}}), kUnigram, kKeepSpaces));
  EXPECT_EQ(unigram->encode("ab"), (Ids{3, 4, 5}));
  EXPECT_EQ(unigram->encode("abc"), (Ids{3, 8}));
}

TEST(SentencePiece, UnigramTakesTheBestSum) {
  // a + bc = -7 beats ab + c = -8 and a + b + c = -9.
  const auto t = load(model(letters({{"ab", -4}, {"bc", -5}}), kUnigram, kKeepSpaces));
  EXPECT_EQ(t->encode("abc"), (Ids{3, 4, 8}));
  EXPECT_EQ(t->encode("a\xC3\xA9\xC3\xA9"
                      "b"),
            (Ids{3, 4, 0, 5}));
  EXPECT_EQ(t->encode("a", {.add_special_tokens = true}), (Ids{3, 4, 2}));  // T5 ends with EOS
}

// Ids as the package gives them for the same pieces.
TEST(SentencePiece, WordsAndCharacters) {
  const std::string kWord = int_field(3, 3), kChar = int_field(3, 4);
  const std::vector<Row> rows = letters({{kMark + "ab", -5}, {"cc", 0, 4}, {kMark + "b", -5, 5}});
  const auto word = load(model(rows, kWord, kKeepSpaces));
  EXPECT_EQ(word->encode("ab b ab"), (Ids{7, 0, 7}));        // unused pieces are unknown
  EXPECT_EQ(word->encode("ab xx a cc ab"), (Ids{7, 0, 7}));  // unknown neighbours are one, symbols no words
  EXPECT_EQ(word->encode_with_offsets("ab xx a cc ab").offsets,
            (std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 10}, {10, 13}}));
  EXPECT_EQ(word->encode("  ab"), (Ids{3, 3, 7}));
  EXPECT_EQ(word->decode(Ids{7, 9, 7}), "ab b ab");
  const auto bare = load(model(rows, kWord, int_field(3, 0)));
  EXPECT_EQ(bare->encode("a ab"), (Ids{4, 7}));
  const auto chars = load(model(rows, kChar, kKeepSpaces));
  EXPECT_EQ(chars->encode("ab cab"), (Ids{3, 4, 5, 3, 6, 4, 5}));
  EXPECT_EQ(chars->encode("accca"), (Ids{3, 4, 8, 6, 4}));  // the symbol first
  EXPECT_EQ(chars->encode("axya"), (Ids{3, 4, 0, 4}));
  EXPECT_EQ(chars->encode("a", {.add_special_tokens = true}), (Ids{3, 4, 2}));
  EXPECT_EQ(chars->decode(chars->encode("ab cab")), "ab cab");
  for (const auto& t : {word, bare, chars}) {
    const auto again = Tokenizer::from_json(t->to_json(), t->config(), "saved");
    for (const char* text : {"xx ab", "a ab b", "accca", "", " a"})
      EXPECT_EQ(again->encode(text), t->encode(text)) << text;
  }
}

TEST(SentencePiece, SpacesAsTheFileSays) {
  const auto rows = letters({{kMark + "a", -2}});
  const auto trimmed = load(model(rows, kBpe, ""));
  EXPECT_EQ(trimmed->encode("  a   b  "), (Ids{7, 3, 5}));
  EXPECT_EQ(trimmed->encode("   "), Ids());
  EXPECT_EQ(trimmed->encode(""), Ids());
  const auto kept = load(model(rows, kBpe, kKeepSpaces));
  EXPECT_EQ(kept->encode(" a b "), (Ids{3, 7, 3, 5, 3}));
  EXPECT_EQ(kept->encode(" "), (Ids{3, 3}));
  const auto bare = load(model(rows, kBpe, kKeepSpaces + int_field(3, 0)));
  EXPECT_EQ(bare->encode("a b"), (Ids{4, 3, 5}));
  const auto suffix = load(model(rows, kBpe + int_field(24, 1), kKeepSpaces));
  EXPECT_EQ(suffix->encode("ba"), (Ids{5, 4, 3}));
}

// Behind a special token a text begins anew, unless the config says legacy: false.
TEST(SentencePiece, PrefixBehindSpecialTokens) {
  const auto rows = letters({{kMark + "a", -2}});
  EXPECT_EQ(load(model(rows, kBpe, kKeepSpaces))->encode("<s>a<s>a"), (Ids{1, 7, 1, 7}));
  EXPECT_EQ(load(model(rows, kBpe, kKeepSpaces), {{"legacy", false}})->encode("a<s>a"), (Ids{7, 1, 4}));
  EXPECT_EQ(load(model(rows, kBpe, kKeepSpaces))->encode("<s>", kPlain), (Ids{3, 0}));
}

TEST(SentencePiece, BytesOfUnknownCharacters) {
  std::vector<Row> rows = kLetters;
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    rows.push_back({text, 0, 6});
  }
  for (const std::string& kind : {kBpe, kUnigram, int_field(3, 4)}) {
    const auto t = load(model(rows, kind + int_field(35, 1), kKeepSpaces), {{"add_eos_token", false}});
    EXPECT_EQ(t->encode("a\xC3\xA9"), (Ids{3, 4, 7 + 0xC3, 7 + 0xA9}));
    EXPECT_EQ(t->decode(t->encode("a\xC3\xA9")), "a\xC3\xA9");
    EXPECT_EQ(t->encode_with_offsets("a\xC3\xA9").offsets,
              (std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {0, 1}, {1, 3}, {1, 3}}));
  }
  rows.pop_back();
  EXPECT_EQ(error_of(model(rows, kBpe + int_field(35, 1), "")),
            "[made.model] byte_fallback is on, but not all 256 byte pieces are there");
}

// InternLM2 names unused pieces anew in its config.
TEST(SentencePiece, TheConfigNamesPieces) {
  const Json config = {{"added_tokens_decoder",
                        {{"6", {{"content", "<|im_start|>"}, {"special", true}}},
                         {"7", {{"content", "<|im_end|>"}, {"special", true}}}}}};
  const auto t = load(model(kLetters, kBpe, kKeepSpaces), config);
  EXPECT_EQ(t->encode("a<|im_start|>b<|im_end|>"), (Ids{3, 4, 6, 3, 5, 7}));
  EXPECT_EQ(t->encode("c"), (Ids{3, 0}));  // the piece has another name now
  EXPECT_EQ(t->vocab_size(), 8);
  const auto real = Tokenizer::load(test_data("tokenizers/internlm2"));
  EXPECT_EQ(real->encode("<|im_start|>"), (Ids{92543}));
  EXPECT_EQ(real->encode("<|im_end|>"), (Ids{92542}));
  EXPECT_EQ(error_of(model(kLetters, kBpe, ""), {{"added_tokens_decoder", {{"6", {{"content", "a"}}}}}}),
            "[made.model] added_tokens_decoder: \"a\" is the name of two pieces");
  EXPECT_EQ(error_of(model(kLetters, kBpe, ""), {{"add_bos_token", 1}}),
            "[made.model] tokenizer_config.json add_bos_token: needs true or false, got 1");
}

// The same unigram model in a GGUF file's metadata.
TEST(SentencePiece, UnigramFromGguf) {
  const auto rows = letters({{"ab", -4}, {"bc", -5}, {"zz", 0, 4}});
  Json tokens = Json::array(), scores = Json::array(), types = Json::array();
  for (const Row& row : rows) {
    tokens.push_back(row.text);
    scores.push_back(row.score);
    types.push_back(row.type);
  }
  const Json metadata = {{"tokenizer.ggml.model", "t5"},        {"tokenizer.ggml.tokens", tokens},
                         {"tokenizer.ggml.scores", scores},     {"tokenizer.ggml.token_type", types},
                         {"tokenizer.ggml.bos_token_id", 1},    {"tokenizer.ggml.eos_token_id", 2},
                         {"tokenizer.ggml.unknown_token_id", 0}};
  const auto gguf = Tokenizer::from_gguf_metadata(metadata, "made.gguf");
  const auto file = load(model(rows, kUnigram, ""));
  for (const char* text : {"abc", "  a zzb  c", "azzzb", "q", ""}) {
    const EncodeOptions special{.add_special_tokens = true};
    EXPECT_EQ(gguf->encode(text, special), file->encode(text, special)) << text;
  }
  EXPECT_EQ(gguf->encode("abc", {.add_special_tokens = true}), (Ids{3, 4, 8, 2}));
}

TEST(SentencePiece, FilesThatAreNone) {
  EXPECT_EQ(error_of(""), "[made.model] is no SentencePiece model: it has no pieces");
  EXPECT_EQ(error_of(bytes_field(1, bytes_field(1, "a"))), "[made.model] has no unknown piece");
  EXPECT_EQ(error_of(model(letters({{"", -1}}), kBpe, "")),
            "[made.model] pieces[7]: a piece without text (byte 9)");
  EXPECT_EQ(error_of(model(letters({{"\xFF", -1}}), kBpe, "")),
            "[made.model] pieces[7]: a piece that is not UTF-8 (byte 10)");
  EXPECT_EQ(error_of(model(letters({{"<u>", 0, 2}}), kBpe, "")),
            "[made.model] pieces[7]: a second unknown piece");
  EXPECT_EQ(error_of(model(letters({{"x", 0, 9}}), kBpe, "")),
            "[made.model] pieces[7]: type 9 of a piece (known are 1 to 6) (byte 10)");
  EXPECT_EQ(error_of(model(kLetters, int_field(3, 5), "")),
            "[made.model] trainer_spec: model kind 5 (known are 1 to 4) (byte 2)");
  const std::string whole = model(kLetters, kBpe, kKeepSpaces);
  for (size_t size = 1; size < whole.size(); ++size) {
    try {  // every cut is either refused or a smaller model
      load(whole.substr(0, size));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << size;
    }
  }
  EXPECT_EQ(error_of(whole + "\x0A\xFF\xFF\xFF\x7F"),
            "[made.model] SentencePiece model: a length of 268435455 bytes, more than there are (byte " +
                std::to_string(whole.size() + 5) + ")");
  EXPECT_EQ(error_of(whole + std::string(11, '\xFF')),
            "[made.model] SentencePiece model: a number of more than 64 bits (byte " +
                std::to_string(whole.size() + 10) + ")");
  EXPECT_EQ(error_of(whole + "\x0B"),
            "[made.model] SentencePiece model: wire type 3 of field 1, which is not read (byte " +
                std::to_string(whole.size() + 1) + ")");
}

}  // namespace
}  // namespace twinkle
