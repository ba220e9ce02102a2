#include "twinkle/train/loss.h"

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle {

namespace {

// The other name of an extra that has two; "" else.
std::string other_name(const std::string& name) {
  for (const std::string which : {"old", "ref"}) {
    if (name == which + "_logps") return which + "_logprobs";
    if (name == which + "_logprobs") return which + "_logps";
  }
  return "";
}

}  // namespace

const at::Tensor* LossInput::find_extra(const std::string& name, std::string_view loss) const {
  const auto found = extras.find(name), other = extras.find(other_name(name));
  if (found != extras.end() && other != extras.end()) {
    throw invalid_argument("[" + std::string(loss) + "] '" + name + "' and '" + other->first +
                           "' are two names of one thing; give one");
  }
  if (found != extras.end()) return &found->second;
  return other != extras.end() ? &other->second : nullptr;
}

const at::Tensor& LossInput::extra(const std::string& name, std::string_view loss) const {
  if (const at::Tensor* found = find_extra(name, loss)) return *found;
  std::vector<std::string> given;
  for (const auto& [key, value] : extras) given.push_back(key);
  throw invalid_argument("[" + std::string(loss) + "] needs '" + name + "' for every sequence" +
                         (given.empty() ? std::string(", none was given") : did_you_mean(name, given)));
}

double LossOutput::sum() const {
  double total = 0;
  for (const double part : sum_B) total += part;
  return total;
}

double LossOutput::denominator() const {
  double total = 0;
  for (const double part : denominator_B) total += part;
  return total;
}

at::Tensor Loss::known_dlogprob(const LossInput&) const { return {}; }

double mean_or_zero(double sum, double denominator) { return denominator > 0 ? sum / denominator : sum; }

}  // namespace twinkle
