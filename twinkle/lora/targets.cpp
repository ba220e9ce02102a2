#include "twinkle/lora/targets.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"
#include "twinkle/text/tokenizer_pattern.h"

namespace twinkle {
namespace {

Error fail(const std::string& message) { return invalid_argument("[lora] " + message); }

std::string leaf_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::vector<std::string> leaves_of(const std::vector<std::string>& names) {
  std::set<std::string> out;
  for (const auto& name : names) out.insert(leaf_of(name));
  return {out.begin(), out.end()};
}

// A pattern that must match whole names, as Python's re.fullmatch.
class NamePattern {
 public:
  NamePattern(const std::string& pattern, const char* key)
      : place_("[lora] '" + std::string(key) + "'"), pattern_(pattern) {
    constexpr size_t kMaxPattern = 4096;
    if (pattern.size() > kMaxPattern)
      throw invalid_argument(place_ + ": the pattern is longer than 4096 characters");
    tokenizer::pcre_pattern(pattern, place_);  // it must be one by itself
    matcher_ = tokenizer::pcre_pattern("\\A(?:" + pattern + ")\\z", place_);
  }
  bool matches(const std::string& name) const {
    std::vector<tokenizer::Range> found;
    try {
      matcher_->matches(name, found);
    } catch (const Error&) {
      throw invalid_argument(place_ + ": '" + pattern_ + "' takes too long on '" + name + "'");
    }
    return !found.empty();
  }

 private:
  std::string place_, pattern_;
  std::shared_ptr<const tokenizer::Pattern> matcher_;
};

bool is_all_linear(const LoraConfig& config) {
  if (!config.target_is_pattern) return false;
  std::string lower = config.target_modules[0];
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "all-linear";
}

bool is_suffix(const std::string& name, const std::string& entry) {
  return name == entry ||
         (name.size() > entry.size() && name.ends_with(entry) && name[name.size() - entry.size() - 1] == '.');
}

// `entry` as whole components anywhere in the name.
bool is_within(const std::string& name, const std::string& entry) {
  return ("." + name + ".").find("." + entry + ".") != std::string::npos;
}

// The number in "….layers.7.…"; PEFT takes the last component that is one, with one before it.
int64_t layer_of(const std::string& name) {
  int64_t layer = -1;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, value);
    if (error == std::errc() && stop == name.data() + end && end < name.size() && begin > 0) layer = value;
    begin = end + 1;
  }
  return layer;
}

// rank_pattern and alpha_pattern: the first key that, as a pattern, matches the name's last components.
template <class Value>
Value pattern_value(const std::vector<std::pair<NamePattern, Value>>& patterns, const std::string& name,
                    Value fallback) {
  for (const auto& [pattern, value] : patterns) {
    if (pattern.matches(name)) return value;
  }
  return fallback;
}

template <class Value>
std::vector<std::pair<NamePattern, Value>> compile_patterns(
    const std::vector<std::pair<std::string, Value>>& patterns, const char* key) {
  std::vector<std::pair<NamePattern, Value>> out;
  for (const auto& [pattern, value] : patterns) {
    NamePattern{pattern, key};  // it must be one by itself
    out.emplace_back(NamePattern("(.*\\.)?(" + pattern + ")", key), value);
  }
  return out;
}

}  // namespace

LoraConfig expand_all_linear(const LoraConfig& config, const std::vector<std::string>& names) {
  if (!is_all_linear(config)) return config;
  std::set<std::string> leaves;
  for (const auto& name : names) {
    if (name != kHeadModule && name != kEmbeddingModule) leaves.insert(leaf_of(name));
  }
  LoraConfig out = config;
  out.target_is_pattern = false;
  out.target_modules.assign(leaves.begin(), leaves.end());
  return out;
}

std::vector<TargetedModule> match_targets(const LoraConfig& given, const std::vector<std::string>& names,
                                          bool every_entry) {
  check_lora_config(given);
  LoraConfig config = expand_all_linear(given, names);
  if (config.target_modules.empty()) config.target_modules = {"q_proj", "v_proj"};
  const auto ranks = compile_patterns(config.rank_pattern, "rank_pattern");
  const auto alphas = compile_patterns(config.alpha_pattern, "alpha_pattern");
  std::optional<NamePattern> target, exclude;
  if (config.target_is_pattern) target.emplace(config.target_modules[0], "target_modules");
  if (config.exclude_is_pattern) exclude.emplace(config.exclude_modules[0], "exclude_modules");
  const std::set<int64_t> layers(config.layers_to_transform.begin(), config.layers_to_transform.end());

  std::vector<TargetedModule> out;
  std::set<std::string> used;  // list entries that named some module, excluded or not
  for (const auto& name : names) {
    bool matched = false;
    if (config.target_is_pattern) {
      matched = target->matches(name);
    } else {
      for (const auto& entry : config.target_modules) {
        if (!is_suffix(name, entry)) continue;
        used.insert(entry);
        // As in PEFT, an entry that is the whole name is not narrowed by layer.
        matched |= name == entry || layers.empty() || layers.contains(layer_of(name));
      }
    }
    if (!matched) continue;
    const auto excludes = [&](const std::string& entry) { return is_suffix(name, entry); };
    if (config.exclude_is_pattern
            ? exclude->matches(name)
            : std::any_of(config.exclude_modules.begin(), config.exclude_modules.end(), excludes)) {
      continue;
    }
    const auto saved = [&](const std::string& entry) { return is_within(name, entry); };
    if (std::any_of(config.modules_to_save.begin(), config.modules_to_save.end(), saved)) continue;
    out.push_back(
        {name, pattern_value(ranks, name, config.r), pattern_value(alphas, name, config.lora_alpha)});
  }
  if (every_entry && !config.target_is_pattern) {
    for (const auto& entry : config.target_modules) {
      if (!used.contains(entry)) {
        throw fail("'target_modules': '" + entry + "' names no linear module of this model" +
                   did_you_mean(entry, leaves_of(names)));
      }
    }
  }
  if (out.empty()) {
    if (config.target_is_pattern)
      throw fail("'target_modules': the pattern '" + config.target_modules[0] +
                 "' matches no linear module of this model");
    throw fail(
        "'target_modules', 'exclude_modules', 'modules_to_save' and 'layers_to_transform' together leave no "
        "module to adapt");
  }
  return out;
}

std::vector<std::string> match_modules_to_save(const LoraConfig& config,
                                               const std::vector<std::string>& names) {
  std::set<std::string> chosen;
  for (const auto& entry : config.modules_to_save) {
    bool found = false;
    for (const auto& name : names) {
      // PEFT compares ends of names here, not components: "norm" takes "input_layernorm" too.
      if (entry.empty() || !name.ends_with(entry)) continue;
      found = true;
      chosen.insert(name);
    }
    if (!found) {
      throw fail("'modules_to_save': '" + entry +
                 "' names no module of this model that can be trained whole" +
                 did_you_mean(entry, leaves_of(names)));
    }
  }
  std::vector<std::string> out;
  for (const auto& name : names) {
    if (chosen.contains(name)) out.push_back(name);
  }
  return out;
}

}  // namespace twinkle
