#include "twinkle/text/tokenizer_parts.h"

#include <algorithm>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_fields.h"
#include "twinkle/text/tokenizer_pattern.h"
#include "twinkle/text/tokenizer_vocab.h"

namespace twinkle::tokenizer {

Json byte_level(bool trim, bool regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trim}, {"use_regex", regex}};
}
Json split_regex(std::string_view expression) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(expression)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}
Json sequence(const char* key, Json steps) { return {{"type", "Sequence"}, {key, std::move(steps)}}; }
Json after_splits(std::vector<Json> steps) {
  steps.push_back(byte_level(false, false));
  return sequence("pretokenizers", Json(std::move(steps)));
}

namespace {

constexpr const char* kGpt4oExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenExpression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kCjkRun =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+";
constexpr const char* kDeepseekV3Cjk =
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
constexpr const char* kDeepseekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

// The pre-tokenizers that GGUF files name, as the tokenizer.json of the model has them.
BytePreset byte_preset(const std::string& name, const std::string& path) {
  const auto one_of = [&name](std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  if (one_of({"default", "gpt-2", "gpt2", "phi-2", "roberta-bpe", "mpt", "olmo", "jais", "trillion",
              "exaone4"})) {
    return {Json(), byte_level(true, true)};
  }
  if (one_of({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})) {
    return {Json(), sequence("pretokenizers", Json::array({digits, byte_level(true, true)}))};
  }
  if (one_of({"llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe"})) {
    const bool ignore_merges = !one_of({"dbrx", "smaug-bpe"});
    return {Json(), after_splits({split_regex(kLlama3Expression)}), ignore_merges};
  }
  if (one_of({"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"})) {
    return {{{"type", "NFC"}}, after_splits({split_regex(kQwen2Expression)})};
  }
  if (name == "qwen35") return {{{"type", "NFC"}}, after_splits({split_regex(kQwen35Expression)})};
  if (name == "gpt-4o" || name == "llama4") return {Json(), after_splits({split_regex(kGpt4oExpression)})};
  if (name == "tekken") return {Json(), after_splits({split_regex(kTekkenExpression)}), true};
  if (name == "deepseek-coder") {
    return {Json(), after_splits({split_regex("[\r\n]"), split_regex("\\s?\\p{L}+"),
                                  split_regex("\\s?\\p{P}+"), split_regex(kCjkRun), digits})};
  }
  if (name == "deepseek-v3" || name == "deepseek3") {
    return {Json(), after_splits({split_regex("\\p{N}{1,3}"), split_regex(kDeepseekV3Cjk),
                                  split_regex(kDeepseekV3Words)})};
  }
  throw invalid_argument(
      path + ": unknown pre-tokenizer \"" + name +
      "\" (gpt-2, smollm, llama-bpe, qwen2, qwen35, gpt-4o, tekken, deepseek-coder, deepseek-v3, ...)");
}

Json template_processor(const std::vector<NamedId>& before, const std::vector<NamedId>& after) {
  Json single = Json::array(), pair = Json::array(), special = Json::object();
  for (int type = 0; type < 2; ++type) {
    const auto put = [&](const auto& tokens) {
      for (const auto& [text, id] : tokens) {
        const Json item = {{"SpecialToken", {{"id", text}, {"type_id", type}}}};
        if (type == 0) single.push_back(item);
        pair.push_back(item);
        special[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
      }
    };
    put(before);
    const Json item = {{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}};
    if (type == 0) single.push_back(item);
    pair.push_back(item);
    put(after);
  }
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

Json added_token(int32_t id, std::string_view content, bool special, bool rstrip) {
  return {{"id", id},
          {"content", std::string(content)},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", rstrip},
          {"normalized", false},
          {"special", special}};
}

Json added_tokens_of(const Json& config, const std::string& root) {
  const auto it = config.find("added_tokens_decoder");
  if (it == config.end() || it->is_null()) return nullptr;
  const std::string path = root + "tokenizer_config.json added_tokens_decoder";
  if (!it->is_object()) throw invalid_argument(path + ": needs an object");
  std::map<int64_t, Json> ordered;
  for (const auto& [key, value] : it->items()) {
    if (!value.is_object()) throw invalid_argument(path + "[\"" + key + "\"]: needs an object");
    const bool digits = !key.empty() && key.size() < 8 &&
                        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) throw invalid_argument(path + ": needs ids as keys, got \"" + key + "\"");
    Json token = value;
    token["id"] = std::stoll(key);
    ordered[std::stoll(key)] = std::move(token);
  }
  Json added = Json::array();
  for (auto& [id, token] : ordered) added.push_back(std::move(token));
  return added;
}

}  // namespace twinkle::tokenizer
