// Which modules an adapter touches, by PEFT's rules (tuners_utils.check_target_module_exists and its kin): a
// pattern must match the whole name, a list entry the name or its last components; exclusions and modules
// that are trained whole come first.
#pragma once

#include <string>
#include <vector>

#include "twinkle/lora/adapter.h"

namespace twinkle {

inline const std::string kEmbeddingModule = "model.embed_tokens";
inline const std::string kHeadModule = "lm_head";

struct TargetedModule {
  std::string name;
  int64_t rank = 0;
  double alpha = 0;
};

/// The modules of `names` (linears, in model order, and "model.embed_tokens") that `config` targets, each
/// with its own rank and alpha. `every_entry`: a list entry that matches nothing is invalid_argument, naming
/// near names; otherwise only a config that matches nothing at all.
std::vector<TargetedModule> match_targets(const LoraConfig& config, const std::vector<std::string>& names,
                                          bool every_entry);

/// "all-linear" as a list of last components ("q_proj", ...), sorted; any other config is left as it is.
LoraConfig expand_all_linear(const LoraConfig& config, const std::vector<std::string>& names);

/// Of `names` (every module with weights), those that config.modules_to_save asks for; entries that match
/// nothing are invalid_argument.
std::vector<std::string> match_modules_to_save(const LoraConfig& config,
                                               const std::vector<std::string>& names);

}  // namespace twinkle
