// Malformed tokenizer.json files: each is refused with the place and the reason.
#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/json.h"
#include "twinkle/text/tokenizer.h"

namespace twinkle {
namespace {

struct Case {
  const char* pointer;  // what to replace in a good file
  const char* value;    // JSON; "" removes it
  const char* message;
};

const char* const kGood = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip", "strip_left": true, "strip_right": true}]},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\d+"}, "behavior": "Isolated", "invert": false}, {"type": "WhitespaceSplit"},
    {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": true}]},
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
    "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})";

const Case kCases[] = {
    {"/version", "\"2.0\"", "version: needs \"1.0\", got \"2.0\""},
    {"/extra", "1", "unknown key \"extra\""},
    {"/model", "", "model: is missing"},
    {"/model", "[]", "model: needs an object, got list"},
    {"/model/type", "\"Word2Vec\"", "model.type: unknown model \"Word2Vec\""},
    {"/model/dropout", "0.1",
     "model.dropout: BPE dropout makes ids random and is not supported; set it to null, got 0.1"},
    {"/model/vocab", "", "model.vocab: is missing"},
    {"/model/vocab", "[]", "model.vocab: needs an object of text and id"},
    {"/model/vocab/a", "-1", "model.vocab[\"a\"]: needs a number from 0 to 8388607, got -1"},
    {"/model/vocab/a", "99999999999",
     "model.vocab[\"a\"]: needs a number from 0 to 8388607, got 99999999999"},
    {"/model/vocab/a", "\"x\"", "model.vocab[\"a\"]: needs a whole number, got string"},
    {"/model/vocab/a", "1.5", "model.vocab[\"a\"]: needs a whole number, got number"},
    {"/model/merges", "", "model.merges: is missing"},
    {"/model/merges", "{}", "model.merges: needs a list, got object"},
    {"/model/merges/0", "[\"a\"]",
     "model.merges[0]: needs \"left right\" or [\"left\", \"right\"], got [\"a\"]"},
    {"/model/merges/0", "\"ab\"", "model.merges[0]: needs two parts with one space between, got \"ab\""},
    {"/model/merges/0", "[\"a\", \"c\"]", "model.merges[0]: \"c\" is not in the vocabulary"},
    {"/model/merges/0", "[\"b\", \"a\"]", "model.merges[0]: \"ba\" is not in the vocabulary"},
    {"/model/fuse_unk", "3", "model.fuse_unk: needs true or false, got number"},
    {"/model/unk_token", "3", "model.unk_token: needs a string, got number"},
    {"/model/speed", "3", "model: unknown key \"speed\""},
    {"/added_tokens", "{}", "added_tokens: needs a list, got object"},
    {"/added_tokens/0/id", "-3", "added_tokens[0].id: needs a number from 0 to 8388607, got -3"},
    {"/added_tokens/0/content", "3", "added_tokens[0].content: needs a string, got number"},
    {"/added_tokens/0/colour", "3", "added_tokens[0]: unknown key \"colour\""},
    {"/normalizer/normalizers/0/type", "\"NFX\"",
     "normalizer.normalizers[0].type: unknown normalizer \"NFX\""},
    {"/normalizer/normalizers/1/strip_left", "", "normalizer.normalizers[1].strip_left: is missing"},
    {"/normalizer/normalizers/1/strip_top", "true", "normalizer.normalizers[1]: unknown key \"strip_top\""},
    {"/normalizer", "3", "normalizer: needs an object, got number"},
    {"/normalizer", "{\"type\": \"Replace\", \"pattern\": {\"Glob\": \"*\"}, \"content\": \"\"}",
     "normalizer.pattern: needs {\"String\": ...} or {\"Regex\": ...}"},
    {"/normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"!!\"}",
     "normalizer.precompiled_charsmap: not base64 at character 0"},
    {"/normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"/////w==\"}",
     "normalizer.precompiled_charsmap: the trie's size 4294967295 does not fit 4 bytes"},
    {"/pre_tokenizer/pretokenizers/0/behavior", "\"Shredded\"",
     "pre_tokenizer.pretokenizers[0].behavior: unknown behavior \"Shredded\""},
    {"/pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\": \"(\"}",
     "pre_tokenizer.pretokenizers[0].pattern.Regex: the expression \"(\" does not compile: missing closing "
     "parenthesis"},
    {"/pre_tokenizer/pretokenizers/1/type", "\"UnicodeScripts\"",
     "pre_tokenizer.pretokenizers[1].type: unknown pre-tokenizer \"UnicodeScripts\""},
    {"/pre_tokenizer/pretokenizers/2/prepend_scheme", "\"second\"",
     "pre_tokenizer.pretokenizers[2].prepend_scheme: unknown scheme \"second\""},
    {"/pre_tokenizer/pretokenizers/2/replacement", "\"ab\"",
     "pre_tokenizer.pretokenizers[2].replacement: needs exactly one character, got \"ab\""},
    {"/pre_tokenizer/type", "", "pre_tokenizer.type: needs a string"},
    {"/decoder/decoders/0/type", "\"Rot13\"", "decoder.decoders[0].type: unknown decoder \"Rot13\""},
    {"/decoder/decoders/0/start", "-1",
     "decoder.decoders[0].start: needs a number from 0 to 2147483647, got -1"},
    {"/post_processor/type", "\"Magic\"", "post_processor.type: unknown post-processor \"Magic\""},
    {"/post_processor/special_tokens", "{}",
     "post_processor.single[0].SpecialToken.id: \"<s>\" is not among special_tokens"},
    {"/post_processor/special_tokens/<s>/ids/0", "4",
     "post_processor.special_tokens[\"<s>\"].ids[0]: needs a number from 0 to 3, got 4"},
    {"/post_processor/single/1/Sequence/id", "\"B\"",
     "post_processor.single[1].Sequence.id: needs \"A\" in a template for one sequence, got \"B\""},
    {"/post_processor/single/1", "{}", "post_processor.single[1]: needs \"SpecialToken\" or \"Sequence\""},
};

TEST(TokenizerErrors, NameThePlaceAndTheReason) {
  EXPECT_EQ(Tokenizer::from_json(parse_json(kGood, "good"), Json(), "good")->encode("ab ba"),
            (std::vector<int32_t>{2, 1, 0}));
  for (const Case& c : kCases) {
    Json file = parse_json(kGood, "good");
    const Json::json_pointer pointer(c.pointer);
    if (*c.value != 0) {
      file[pointer] = parse_json(c.value, "value");
    } else {
      file[pointer.parent_pointer()].erase(pointer.back());
    }
    const std::string got = test::thrown([&] { Tokenizer::from_json(file, Json(), "t.json"); });
    const std::string want = std::string("[t.json] ") + c.message;
    EXPECT_TRUE(got.starts_with(want)) << c.pointer << " " << c.value << ": " << got << "\n wanted " << want;
  }
}

TEST(TokenizerErrors, TextsThatCannotBeEncoded) {
  Json file = parse_json(kGood, "good");
  file["model"]["unk_token"] = "<unk>";
  const auto t = Tokenizer::from_json(file, Json(), "t.json");
  EXPECT_THROW(t->encode("abc"), Error);
  file = parse_json(kGood, "good");
  file["normalizer"] = parse_json(R"({"type": "Sequence", "normalizers": []})", "x");
  for (int i = 0; i < 40; ++i) {
    file["normalizer"]["normalizers"].push_back(
        parse_json(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"})", "x"));
  }
  try {
    Tokenizer::from_json(file, Json(), "t.json")->encode("a");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kExhausted);
  }
}

}  // namespace
}  // namespace twinkle
