#include "twinkle/text/tokenizer_parts.h"

#include <algorithm>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/text/tokenizer_fields.h"
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

bool config_flag(const Json& config, const char* key, bool fallback, const std::string& root) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return fallback;
  if (!it->is_boolean())
    throw invalid_argument(root + "tokenizer_config.json " + key + ": needs true or false, got " +
                           it->dump());
  return it->get<bool>();
}

}  // namespace twinkle::tokenizer
