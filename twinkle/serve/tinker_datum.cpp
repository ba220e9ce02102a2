#include "twinkle/serve/tinker_datum.h"

#include <algorithm>
#include <cmath>

#include "twinkle/serve/tinker_json.h"

namespace twinkle::serve::tinker {
namespace {

// The spans lie one behind the other over all the tokens.
void check_tiling(const std::vector<ProvenanceSpan>& spans, int64_t tokens, const std::string& where) {
  int64_t covered = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const ProvenanceSpan& span = spans[i];
    const std::string place = where + "[" + std::to_string(i) + "]";
    if (!span.named) bad(place, "names no sequence");
    if (span.offset < 0 || span.length < 0) bad(place, "its offset and length must not be negative");
    covered += std::min(span.length, tokens - covered + 1);
  }
  if (covered != tokens) {
    bad(where, std::string("the spans cover ") + (covered > tokens ? "more than the " : "fewer than the ") +
                   std::to_string(tokens) + " positions of the datum");
  }
}

// 1 for each target that was sampled.
std::vector<float> sampled_targets(const RawDatum& raw, const std::vector<float>& advantages,
                                   const std::string& where) {
  const auto tokens = static_cast<int64_t>(raw.tokens.size());
  if (raw.input_spans.empty() || raw.target_spans.empty())
    bad(where, "provenance comes as a pair: model_input_spans and loss_fn_input_spans");
  check_tiling(raw.input_spans, tokens, where + ", model_input_spans");
  check_tiling(raw.target_spans, tokens, where + ", loss_fn_input_spans");
  std::vector<float> out;
  for (const auto& span : raw.target_spans)
    out.insert(out.end(), static_cast<size_t>(span.length), span.sampled ? 1.0f : 0.0f);
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == 0 && advantages[i] != 0)
      bad(where + ", advantages",
          "position " + std::to_string(i) +
              " has one, and loss_fn_input_spans say that its target was not sampled");
  }
  return out;
}

void check_mask(const std::vector<float>& mask, const std::string& where) {
  for (const float x : mask) {
    if (x != 0 && x != 1) bad(where, "its values must be 0 or 1");
  }
}

}  // namespace

Datum checked_datum(RawDatum raw, const LossRule& rule, const std::string& where) {
  const auto n = static_cast<int64_t>(raw.tokens.size());
  if (n == 0) bad(where, "has no tokens");
  Datum out;
  const auto needed = [&](const std::string& name) {
    bad(where, "loss '" + rule.name + "' needs '" + name + "'");
  };
  const auto found = raw.inputs.find("target_tokens");
  if (found == raw.inputs.end()) needed("target_tokens");
  Tensor& targets = found->second;
  const std::string place = where + ", target_tokens";
  if (!targets.integral) bad(place, "must be whole numbers");
  out.columns = columns_of(targets, n, place);
  if (n * out.targets_per_token() > kMostTargets)
    bad(place, "has more than " + std::to_string(kMostTargets) + " cells");
  if (out.columns > 1 && !rule.tables)
    bad(place, "loss '" + rule.name + "' takes one target a token; only cross_entropy takes several");
  for (const int64_t id : dense_values<int64_t>(targets, std::move(targets.ints), 0))
    out.targets.push_back(token_id(id, place));

  const auto take = [&](const std::string& name, bool must) {
    const auto given = raw.inputs.find(name);
    if (given == raw.inputs.end()) {
      if (must) needed(name);
      return;
    }
    Tensor& t = given->second;
    const std::string at = where + ", " + name;
    const int64_t columns = std::max<int64_t>(columns_of(t, n, at), 1);  // [N] and [N, 1] are the same
    if (columns != out.targets_per_token()) {
      bad(at, "has " + std::to_string(columns) + " values a token, target_tokens has " +
                  std::to_string(out.targets_per_token()));
    }
    if (t.integral) t.floats.assign(t.ints.begin(), t.ints.end());
    for (const float x : t.floats) {
      if (!std::isfinite(x)) bad(at, "NonFiniteInTensor: it holds a number that is not finite");
    }
    out.inputs[name] = dense_values<float>(t, std::move(t.floats), 0);
  };
  for (const auto& name : rule.needs) take(name, true);
  for (const auto& name : rule.may_have) take(name, false);
  if (const auto mask = out.inputs.find("sequence_ratio_mask"); mask != out.inputs.end())
    check_mask(mask->second, where + ", sequence_ratio_mask");
  if (rule.reads_spans && !(raw.input_spans.empty() && raw.target_spans.empty()))
    out.inputs["sampled"] = sampled_targets(raw, out.inputs.at("advantages"), where);
  out.tokens = std::move(raw.tokens);
  return out;
}

}  // namespace twinkle::serve::tinker
