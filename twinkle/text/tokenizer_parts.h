// Parts of a tokenizer.json for tokenizers that come in other files. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle::tokenizer {

Json byte_level(bool trim_offsets, bool use_regex);
Json split_regex(std::string_view expression);
Json sequence(const char* key, Json steps);
/// The steps, then ByteLevel without an expression of its own.
Json after_splits(std::vector<Json> steps);

/// What stands in front of byte-level BPE in the tokenizer.json of a model family.
struct BytePreset {
  Json normalizer, pre_tokenizer;
  bool ignore_merges = false;
};
/// By the name GGUF files give it ("smollm", "llama-bpe", "qwen2", ...); errors name `path`.
BytePreset byte_preset(const std::string& name, const std::string& path);

using NamedId = std::pair<std::string, int32_t>;
Json template_processor(const std::vector<NamedId>& before, const std::vector<NamedId>& after);
Json added_token(int32_t id, std::string_view content, bool special, bool rstrip = false);
/// The added_tokens_decoder of a tokenizer_config.json as the list of a tokenizer.json; null when there is
/// none.
Json added_tokens_of(const Json& config, const std::string& root);

/// A flag of tokenizer_config.json; absent and null are `fallback`. Errors begin with `root`.
bool config_flag(const Json& config, const char* key, bool fallback, const std::string& root);

}  // namespace twinkle::tokenizer
