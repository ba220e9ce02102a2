// tiktoken files by name and by config, BERT's vocab.txt, and GGUF's named pre-tokenizers.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/temp_dir.h"
#include "tests/text/tokenizer_testing.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_parts.h"
#include "twinkle/text/tokenizer_save.h"

namespace twinkle {
namespace {

using test::test_data;
using test::thrown;
using Ids = std::vector<int32_t>;

const EncodeOptions kPlain{.parse_special = false};

std::string base64(const std::string& bytes) {
  const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (at + k < bytes.size() ? static_cast<unsigned char>(bytes[at + k]) : 0U);
    for (size_t k = 0; k < 4; ++k)
      out += at + k <= bytes.size() && k <= bytes.size() - at ? digits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// Every byte at its own rank, then the given tokens.
std::string ranks(const std::vector<std::string>& more) {
  std::string text;
  for (int b = 0; b < 256; ++b)
    text += base64(std::string(1, static_cast<char>(b))) + " " + std::to_string(b) + "\n";
  int rank = 256;
  for (const std::string& token : more) text += base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

// The ranks above, then as many made-up tokens as the encoding has ranks, but for those of special tokens.
std::string filled(const std::vector<std::string>& more, int end, int hole = -1) {
  std::string text = ranks(more);
  for (int rank = 256 + static_cast<int>(more.size()); rank < end; ++rank) {
    if (rank != hole) text += base64("\xFE\xFF" + std::to_string(rank)) + " " + std::to_string(rank) + "\n";
  }
  return text;
}

TEST(Tiktoken, NamedEncodings) {
  std::map<std::string, std::string> texts;
  const auto load = [&](const std::string& name) {
    static const std::map<std::string, int> ends = {
        {"cl1", 100256}, {"o20", 199998}, {"p50", 50281}, {"r50", 50256}, {"qwe", 151643}};
    std::string& text = texts[name.substr(0, 3)];
    const int end = ends.at(name.substr(0, 3));
    if (text.empty()) text = filled({"  ", "12", "123", "1234"}, end, end == 50281 ? 50256 : -1);
    return Tokenizer::from_tiktoken(text, nullptr, "/x/" + name);
  };
  // Numbers: up to three digits a piece, or as many as there are.
  EXPECT_EQ(load("cl100k_base.tiktoken")->encode("1234"), (Ids{258, '4'}));
  EXPECT_EQ(load("o200k_base.tiktoken")->encode("1234"), (Ids{258, '4'}));
  EXPECT_EQ(load("p50k_base.tiktoken")->encode("1234"), (Ids{259}));
  EXPECT_EQ(load("r50k_base.tiktoken")->encode("1234"), (Ids{259}));
  EXPECT_EQ(load("qwen.tiktoken")->encode("1234"), (Ids{'1', '2', '3', '4'}));
  // Blanks at the end: one piece in cl100k, parted behind the last line break in o200k.
  EXPECT_EQ(load("cl100k_base.tiktoken")->encode("a\n  "), (Ids{'a', '\n', 256}));
  EXPECT_EQ(load("cl100k_base.tiktoken")->encode("<|endoftext|>"), (Ids{100257}));
  EXPECT_EQ(load("cl100k_base.tiktoken")->encode("<|endofprompt|>"), (Ids{100276}));
  EXPECT_EQ(load("cl100k_base.tiktoken")->encode("<|endoftext|>", kPlain).size(), 13u);
  EXPECT_EQ(load("cl100k_base.tiktoken")->vocab_size(), 100277);
  EXPECT_EQ(load("o200k_base.tiktoken")->encode("<|endofprompt|>"), (Ids{200018}));
  EXPECT_EQ(load("o200k_harmony.tiktoken")->encode("<|start|>x<|call|><|reserved_200013|>"),
            (Ids{200006, 'x', 200012, 200013}));
  EXPECT_EQ(load("p50k_edit.tiktoken")->encode("<|fim_suffix|>"), (Ids{50283}));
  EXPECT_EQ(load("qwen.tiktoken")->encode("<|im_start|>"), (Ids{151644}));
  EXPECT_EQ(load("cl100k_base.tiktoken")->eos_id(), 100257);
}

TEST(Tiktoken, ExpressionsOfTheConfig) {
  const std::string text = ranks({"aa", "bb"});
  const Json config = {{"pat_str", "a+|b+|[^ab]+"},
                       {"added_tokens_decoder", {{"258", {{"content", "<end>"}, {"special", true}}}}}};
  const auto t = Tokenizer::from_tiktoken(text, config, "own.tiktoken");
  EXPECT_EQ(t->encode("aabb<end>"), (Ids{256, 257, 258}));
  EXPECT_EQ(t->encode("<end>", kPlain), (Ids{'<', 'e', 'n', 'd', '>'}));
  EXPECT_EQ(t->decode(Ids{256, 258, 257}), "aa<end>bb");
  EXPECT_EQ(t->vocab_size(), 259);
  const auto again = Tokenizer::from_json(t->to_json(), t->config(), "saved");
  EXPECT_EQ(again->encode("aabb<end>"), (Ids{256, 257, 258}));
  const auto kimi =
      Tokenizer::from_tiktoken(text, {{"tokenizer_class", "TikTokenTokenizer"}}, "tiktoken.model");
  EXPECT_EQ(kimi->encode("aabb"), (Ids{256, 257}));
  EXPECT_EQ(
      thrown([&] { Tokenizer::from_tiktoken(text, nullptr, "own.tiktoken"); }),
      "[own.tiktoken] the file does not tell how text is cut before merging: name it after its encoding "
      "(cl100k_base, o200k_base, p50k_base, r50k_base, qwen), or give pat_str in tokenizer_config.json");
  EXPECT_EQ(thrown([&] {
              Tokenizer::from_tiktoken(
                  text, {{"pat_str", "a"}, {"added_tokens_decoder", {{"257", {{"content", "<x>"}}}}}},
                  "own.tiktoken");
            }),
            "[own.tiktoken] id 257 is a rank and the special token <x>");
}

// What is cut off would move the ids of the special tokens behind the ranks.
TEST(Tiktoken, FilesThatLostLines) {
  const auto refused = [&](const std::string& text, const Json& config, const char* name) {
    return thrown([&] { Tokenizer::from_tiktoken(text, config, name); });
  };
  const std::string whole = ranks({"aa", "bb"});
  const Json config = {{"pat_str", "a+|b+"},
                       {"added_tokens_decoder", {{"258", {{"content", "<end>"}, {"special", true}}}}}};
  const auto without = [&](int line) {
    size_t at = 0;
    for (int i = 1; i < line; ++i) at = whole.find('\n', at) + 1;
    return std::string(whole).erase(at, whole.find('\n', at) + 1 - at);
  };
  EXPECT_EQ(refused(whole, config, "own.tiktoken"), "");
  EXPECT_EQ(
      refused(without(258), config, "own.tiktoken"),
      "[own.tiktoken] line 257 has the last rank, 256, but the special tokens begin at 258; the file is cut "
      "short, or another encoding's");
  EXPECT_EQ(refused(without(100), {{"pat_str", "a"}}, "own.tiktoken"),
            "[own.tiktoken] line 100: rank 99 is missing before it; lines were lost");
  EXPECT_EQ(refused(whole + "Y2M= 99\n", {{"pat_str", "a"}}, "own.tiktoken"),
            "[own.tiktoken] line 259: rank 99 stands on line 100 too");
  EXPECT_EQ(refused(whole + "YWE= 258\n", {{"pat_str", "a"}}, "own.tiktoken"),
            "[own.tiktoken] line 259: the token of rank 258 has rank 256 already");
  EXPECT_EQ(refused(whole + "Y2M= 1000\n", {{"pat_str", "a"}}, "own.tiktoken"),
            "[own.tiktoken] line 259: rank 258 is missing before it; lines were lost");
  EXPECT_EQ(refused(whole + "Y2M", {{"pat_str", "a"}}, "own.tiktoken"),
            "[own.tiktoken] line 259: needs base64 and a rank");
  for (const auto& [name, last] : std::map<const char*, const char*>{{"qwen.tiktoken", "151642"},
                                                                     {"cl100k_base.tiktoken", "100255"},
                                                                     {"p50k_base.tiktoken", "50280"}}) {
    EXPECT_EQ(refused(whole, nullptr, name),
              "[" + std::string(name) +
                  "] line 258 has the last rank, 257, but this encoding's ranks end "
                  "at " +
                  last + "; the file is cut short, or another encoding's");
  }
}

// The file alone, as Meta and Qwen publish it.
TEST(Tiktoken, FamiliesByTheSizeOfTheFile) {
  const auto qwen = Tokenizer::load(test_data("tokenizers/qwen1/qwen.tiktoken"));
  EXPECT_EQ(qwen->encode("<|im_start|>"), (Ids{151644}));
  const auto llama = Tokenizer::from_tiktoken(read_file(test_data("tokenizers/llama3/tokenizer.model")),
                                              nullptr, "tokenizer.model");
  const auto named = Tokenizer::load(test_data("tokenizers/llama3"));
  EXPECT_EQ(llama->vocab_size(), 128256);
  for (const char* text :
       {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
        "<|eot_id|>", "<|python_tag|>", "<|finetune_right_pad_id|>", "<|reserved_special_token_247|>"}) {
    EXPECT_EQ(llama->encode(text), named->encode(text)) << text;
    EXPECT_EQ(llama->encode(text).size(), 1u) << text;
  }
  EXPECT_EQ(llama->encode("Hi", {.add_special_tokens = true}),
            named->encode("Hi", {.add_special_tokens = true}));
}

TEST(BertVocabulary, SwiftTransformersVectors) {
  const auto t = Tokenizer::load(test_data("tokenizers/bert-base-uncased"));
  const Json row =
      read_json_file(test_data("tokenizer-vectors/swift-transformers/bert_uncased_encoded.json"));
  EXPECT_EQ(t->encode(row.at("text").get<std::string>(), {.add_special_tokens = true}),
            row.at("token_ids").get<Ids>());
  const Json file = read_json_file(test_data("tokenizer-vectors/swift-transformers/tokenizer_tests.json"));
  int checked = 0;
  for (const char* model : {"bert-base-uncased", "google-bert/bert-base-uncased"}) {
    for (const Json& item : file.at(model)) {
      EXPECT_EQ(t->encode(item.at("input").get<std::string>(), {.add_special_tokens = true}),
                item.at("encoded").at("input_ids").get<Ids>());
      ++checked;
    }
  }
  EXPECT_GT(checked, 10);
  EXPECT_EQ(t->vocab_size(), 30522);
  EXPECT_EQ(t->pad_id(), 0);
  EXPECT_EQ(t->encode("[MASK]"), (Ids{103}));
  EXPECT_EQ(t->token_to_id("[SEP]"), 102);
}

TEST(BertVocabulary, Settings) {
  const test::TempDir temp;
  const std::string& folder = temp.path();
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_atomic(folder + "/" + name, text);
  };
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nA\na\n##b\r\n\xC3\xA9\ne\n");
  EXPECT_EQ(Tokenizer::load(folder)->encode("Ab \xC3\xA9"), (Ids{6, 7, 9}));
  write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(Tokenizer::load(folder)->encode("Ab \xC3\xA9"), (Ids{5, 7, 8}));
  EXPECT_EQ(Tokenizer::load(folder)->encode("q", {.add_special_tokens = true}), (Ids{2, 1, 3}));
  write("tokenizer_config.json", R"({"cls_token": "<cls>"})");
  EXPECT_EQ(thrown([&] { Tokenizer::load(folder); }),
            "[" + folder + "/vocab.txt] cls_token \"<cls>\" is not in the vocabulary");
  write("vocab.txt", "a\na\n");
  EXPECT_EQ(thrown([&] { Tokenizer::load(folder); }),
            "[" + folder + "/vocab.txt] line 2: \"a\" stands there twice");
}

// GGUF marks words' beginnings where BERT's file marks the other pieces.
TEST(BertVocabulary, FromGguf) {
  const std::string path = test_data("tokenizers/bert-base-uncased/vocab.txt");
  Json tokens = Json::array(), types = Json::array();
  for (std::string line : testing_tokenizers::split(read_file(path), "\n")) {
    if (line.empty()) continue;
    const bool control = line.starts_with("[") && line.ends_with("]") && line.size() > 2;
    if (line.starts_with("##")) {
      line.erase(0, 2);
    } else if (!control) {
      line.insert(0, "\xE2\x96\x81");
    }
    tokens.push_back(line);
    types.push_back(control ? 3 : 1);
  }
  const Json metadata = {{"tokenizer.ggml.model", "bert"},           {"tokenizer.ggml.tokens", tokens},
                         {"tokenizer.ggml.token_type", types},       {"tokenizer.ggml.cls_token_id", 101},
                         {"tokenizer.ggml.seperator_token_id", 102}, {"tokenizer.ggml.unknown_token_id", 100},
                         {"tokenizer.ggml.padding_token_id", 0}};
  const auto gguf = Tokenizer::from_gguf_metadata(metadata, "made.gguf");
  const auto file = Tokenizer::load(path);
  EXPECT_EQ(gguf->vocab_size(), file->vocab_size());
  for (const char* text : {"Hello world, unaffable!", "caf\xC3\xA9 [MASK] 12", "\xE4\xBD\xA0\xE5\xA5\xBD"}) {
    const EncodeOptions special{.add_special_tokens = true};
    EXPECT_EQ(gguf->encode(text, special), file->encode(text, special)) << text;
  }
}

// What each pre-tokenizer makes of one text, read off its expressions.
TEST(GgufPresets, CutAsTheFamiliesDo) {
  Json tokens = Json::array(), types = Json::array();
  const auto t = [&](const std::string& name) {
    const auto bytes = Tokenizer::from_tiktoken(ranks({}), {{"pat_str", "(?s:.)"}}, "bytes.tiktoken");
    Json metadata = {{"tokenizer.ggml.model", "gpt2"},
                     {"tokenizer.ggml.pre", name},
                     {"tokenizer.ggml.add_bos_token", false}};
    Json list = Json::array();
    for (int id = 0; id < 256; ++id) list.push_back(bytes->id_to_token(id));
    // One merge for every pair of digits, of letters, and of a blank with a letter: what is cut apart stays
    // apart.
    Json merges = Json::array();
    const auto merge = [&](const std::string& a, const std::string& b) {
      list.push_back(a + b);
      merges.push_back(a + " " + b);
    };
    merge("1", "2");
    merge("a", "b");
    merge("\xC4\xA0", "a");  // the blank's character
    merge("!", "?");
    metadata["tokenizer.ggml.tokens"] = list;
    metadata["tokenizer.ggml.merges"] = merges;
    return Tokenizer::from_gguf_metadata(metadata, "made.gguf");
  };
  const Ids joined = {256}, apart = {'1', '2'};
  for (const char* name :
       {"gpt-2", "llama-bpe", "glm4", "gpt-4o", "deepseek-v3", "kimi-k2", "falcon", "bloom", "pixtral"})
    EXPECT_EQ(t(name)->encode("12"), joined) << name;
  for (const char* name : {"smollm", "qwen2", "tekken", "deepseek-llm", "deepseek-coder", "seed-coder",
                           "bailingmoe", "minerva-7b", "viking", "hunyuan"})
    EXPECT_EQ(t(name)->encode("12"), apart) << name;
  for (const char* name : {"deepseek-llm", "deepseek-coder", "falcon", "bloom", "kimi-k2", "tiny_aya"}) {
    EXPECT_EQ(t(name)->encode("ab"), (Ids{257})) << name;
    EXPECT_EQ(t(name)->decode(t(name)->encode("ab 12!?\n  \xE4\xBD\xA0 x")), "ab 12!?\n  \xE4\xBD\xA0 x")
        << name;
    const auto saved = Tokenizer::from_json(t(name)->to_json(), nullptr, "saved");
    EXPECT_EQ(saved->encode("ab 12!? a"), t(name)->encode("ab 12!? a")) << name;
  }
  EXPECT_NE(thrown([&] { t("klingon"); }).find("unknown pre-tokenizer \"klingon\""), std::string::npos);
}

// The numbers of a JSON text as they are written, but for whole ones.
std::vector<std::string> written_numbers(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      for (++at; text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
    } else if (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')) {
      const size_t end = text.find_first_not_of("-+.0123456789eE", at);
      const std::string number = text.substr(at, end - at);
      if (number.find('.') != std::string::npos) out.push_back(number);
      at = end - 1;
    }
  }
  return out;
}

// What reads the file takes -8.149978637695313 for another number than -8.149978637695312, although both are
// nearest to one: the digits are those of the package's own writer.
TEST(SavedTokenizer, ScoresHaveTheDigitsOfThePackagesFiles) {
  const auto tokenizer = Tokenizer::load(test_data("tokenizers/t5-small"));
  const std::string saved = tokenizer_file_text(*tokenizer);
  const auto want = written_numbers(read_file(test_data("tokenizers/t5-small/tokenizer.json")));
  EXPECT_EQ(want.size(), 32100u);
  EXPECT_EQ(written_numbers(saved), want);
  EXPECT_NE(saved.find("\n  \"version\": \"1.0\",\n"), std::string::npos);
  EXPECT_EQ(Json::parse(saved), tokenizer->to_json());
}

}  // namespace
}  // namespace twinkle
