#include "twinkle/sample/pick.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

struct Candidate {
  int32_t id;
  double score;  // logit after penalties and temperature
};

bool likelier(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

void check_logits(std::span<const float> logits) {
  for (const float x : logits) {
    if (std::isnan(x) || x == INFINITY)
      throw internal_error("[sample] the model gave logits that are not numbers");
  }
}

std::vector<double> penalised(std::span<const float> logits, const SamplingParams& params,
                              std::span<const int32_t> history) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (params.repetition_penalty == 1.0) return scores;
  std::vector<bool> seen(scores.size(), false);
  for (const int32_t id : history) {
    const auto i = static_cast<size_t>(id);
    if (id < 0 || i >= scores.size() || seen[i]) continue;
    seen[i] = true;
    scores[i] = scores[i] > 0 ? scores[i] / params.repetition_penalty : scores[i] * params.repetition_penalty;
  }
  return scores;
}

// The candidates that survive the cut-offs, likeliest first, with probabilities summing to 1.
std::vector<std::pair<int32_t, double>> survivors(std::span<const float> logits, const SamplingParams& params,
                                                  std::span<const int32_t> history) {
  const std::vector<double> scores = penalised(logits, params, history);
  std::vector<Candidate> all(scores.size());
  for (size_t i = 0; i < scores.size(); ++i)
    all[i] = {static_cast<int32_t>(i), scores[i] / params.temperature};
  const double top =
      std::max_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.score < b.score; })->score;
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < all.size()) {
    std::nth_element(all.begin(), all.begin() + params.top_k, all.end(), likelier);
    all.resize(static_cast<size_t>(params.top_k));
  }
  std::erase_if(all, [&](const Candidate& c) { return c.score == -INFINITY; });
  const bool ordered = params.top_p < 1.0;
  // The order of the sum is part of the result: by likelihood when cutting a nucleus, by id otherwise.
  if (ordered) {
    std::sort(all.begin(), all.end(), likelier);
  } else {
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.id < b.id; });
  }
  std::vector<std::pair<int32_t, double>> out;
  out.reserve(all.size());
  double total = 0;
  for (const auto& c : all) {
    const double p = std::exp(c.score - top);
    if (p < params.min_p) continue;
    out.emplace_back(c.id, p);
    total += p;
  }
  if (ordered) {
    double reached = 0;
    size_t keep = 0;
    while (keep < out.size() && reached < params.top_p * total) reached += out[keep++].second;
    out.resize(std::max<size_t>(keep, 1));
    total = reached;
  }
  for (auto& [id, p] : out) p /= total;
  return out;
}

Picked greedy(std::span<const float> logits, const SamplingParams& params, std::span<const int32_t> history) {
  const std::vector<double> scores = penalised(logits, params, history);
  const auto best = std::max_element(scores.begin(), scores.end());  // the first among equals
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - *best);
  return {static_cast<int32_t>(best - scores.begin()), -std::log(sum)};
}

}  // namespace

Picked pick_token(std::span<const float> logits_V, const SamplingParams& params,
                  std::span<const int32_t> history, uint64_t stream, uint64_t position) {
  check_logits(logits_V);
  if (params.temperature == 0) return greedy(logits_V, params, history);
  const auto kept = survivors(logits_V, params, history);
  const auto words = philox4x32(params.seed, position, stream);
  const double u = uniform_double(words[0], words[1]);
  double reached = 0;
  for (const auto& [id, p] : kept) {
    reached += p;
    if (u < reached) return {id, std::log(p)};
  }
  return {kept.back().first, std::log(kept.back().second)};  // the sum fell short of 1 by rounding
}

std::vector<double> sampling_distribution(std::span<const float> logits_V, const SamplingParams& params,
                                          std::span<const int32_t> history) {
  check_logits(logits_V);
  std::vector<double> out(logits_V.size(), 0.0);
  if (params.temperature == 0) {
    out[static_cast<size_t>(greedy(logits_V, params, history).id)] = 1.0;
    return out;
  }
  for (const auto& [id, p] : survivors(logits_V, params, history)) out[static_cast<size_t>(id)] = p;
  return out;
}

}  // namespace twinkle
