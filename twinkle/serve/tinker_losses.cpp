#include "twinkle/serve/tinker_losses.h"

#include <algorithm>
#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle::serve::tinker {
namespace {

bool holds(const std::vector<std::string>& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

const std::vector<LossRule>& rules() {
  static const std::vector<std::string> policy = {"logprobs", "advantages"},
                                        bounds = {"clip_low_threshold", "clip_high_threshold"};
  static const std::vector<LossRule> all = {
      {.name = "cross_entropy", .needs = {}, .may_have = {"weights"}, .options = {}, .tables = true},
      {.name = "importance_sampling", .needs = policy, .may_have = {}, .options = {}},
      {.name = "ppo", .needs = policy, .may_have = bounds, .options = bounds},
      {.name = "cispo", .needs = policy, .may_have = bounds, .options = bounds},
      {.name = "dro", .needs = policy, .may_have = {}, .options = {"beta"}},
      {.name = "gspo", .needs = policy, .may_have = {"sequence_ratio_mask"}, .options = bounds},
      {.name = "stable_reinforce",
       .needs = policy,
       .may_have = {},
       .options = {"kl_coeff"},
       .reads_spans = true,
       .note =
           "stable_reinforce has no published formula; this server's is importance-weighted REINFORCE with "
           "a per-token k3 KL penalty to the sampling policy (kl_coeff, default 0.01). For a loss with a "
           "published formula use importance_sampling."}};
  return all;
}

}  // namespace

bool LossRule::reads(std::string_view input) const {
  return input == "target_tokens" || holds(needs, input) || holds(may_have, input);
}

const LossRule& loss_rule(const std::string& name) {
  if (name == "custom") {
    throw invalid_argument(
        "[forward_backward] loss_fn 'custom' runs a loss of yours on the server, which this one does not do; "
        "forward_backward_custom computes it on your machine");
  }
  std::vector<std::string> names;
  for (const auto& rule : rules()) {
    if (name == rule.name) return rule;
    names.push_back(rule.name);
  }
  throw invalid_argument("[forward_backward] loss_fn '" + name + "' is not one of this server's" +
                         did_you_mean(name, names));
}

std::map<std::string, double> checked_options(const LossRule& rule, const LossOptions& given) {
  std::map<std::string, double> out;
  for (const auto& [name, value] : given) {
    if (!holds(rule.options, name)) {
      throw invalid_argument("[forward_backward] loss '" + rule.name + "' has no option '" + name + "'" +
                             (rule.options.empty() ? "; it takes none" : did_you_mean(name, rule.options)));
    }
    const double* number = std::get_if<double>(&value);
    if (number == nullptr)
      throw invalid_argument("[forward_backward] option '" + name + "' must be a number, not a text");
    if (!std::isfinite(*number))
      throw invalid_argument("[forward_backward] option '" + name + "' is not finite");
    out[name] = *number;
  }
  return out;
}

}  // namespace twinkle::serve::tinker
