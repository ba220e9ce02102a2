// The post-processors of tokenizer.json, for one sequence: what stands before and after it, and trimmed
// offsets. Immutable after loading: safe from many threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle::tokenizer {

class PostProcessor {
 public:
  /// No steps for a JSON null. Template tokens must be ids below `end_id`.
  static PostProcessor parse(const Json& value, const std::string& path, int32_t end_id);

  /// The steps of a post-processor that put nothing around a text, as a list.
  static Json without_templates(const Json& value);

  /// Puts the special tokens around.
  void add_special(std::vector<int32_t>& ids) const;
  /// The same with offsets (empty ones for special tokens); trims blanks off the offsets where a step says
  /// so, also when no special tokens are added. `text` is what was encoded; `token_text` gives a token as the
  /// vocabulary spells it.
  void apply(std::string_view text, std::vector<int32_t>& ids,
             std::vector<std::pair<int64_t, int64_t>>& offsets, bool add_special,
             const std::function<std::string(int32_t)>& token_text) const;

 private:
  struct Step {
    bool trims = false, prefix_space = false;
    bool has_template = false;
    std::vector<int32_t> items;  // -1: the sequence
  };
  static void parse_into(const Json& value, const std::string& path, int32_t end_id,
                         std::vector<Step>& steps);
  std::vector<Step> steps_;
};

}  // namespace twinkle::tokenizer
