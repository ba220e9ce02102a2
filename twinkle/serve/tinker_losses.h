// The losses of the Tinker API: what of a datum each reads, and its options. The engine has them under the
// same names. Constant.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace twinkle::serve::tinker {

struct LossRule {
  std::string name;
  std::vector<std::string> needs, may_have;  // one value a target each; target_tokens stands for itself
  std::vector<std::string> options;
  bool tables = false;       // takes several targets a token
  bool reads_spans = false;  // of where the tokens of a datum come from
  std::string note = {};     // for whoever uses it

  bool reads(std::string_view input) const;
};

/// invalid_argument that lists what there is.
const LossRule& loss_rule(const std::string& name);

/// Options as they came: texts are for losses that no one here has.
using LossOptions = std::map<std::string, std::variant<double, std::string>>;
/// Those of the loss, all finite numbers; invalid_argument names the option otherwise.
std::map<std::string, double> checked_options(const LossRule& rule, const LossOptions& given);

}  // namespace twinkle::serve::tinker
