#include "twinkle/sample/pick.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

struct Candidate {
  int32_t id;
  double p;  // relative to the likeliest token's
};

bool likelier(const Candidate& a, const Candidate& b) { return a.p != b.p ? a.p > b.p : a.id < b.id; }

// The vocabulary is walked for every token: memory is kept from draw to draw.
struct Scratch {
  std::vector<double> scores;
  std::vector<Candidate> kept;
};

Scratch& scratch() {
  thread_local Scratch one;
  return one;
}

constexpr size_t kLanes = 16;  // so that the compiler uses vectors

void check_logits(std::span<const float> logits) {
  int32_t bad[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) bad[k] |= logits[i + k] < INFINITY ? 0 : 1;
  }
  for (; i < logits.size(); ++i) bad[0] |= logits[i] < INFINITY ? 0 : 1;
  if (std::ranges::any_of(bad, [](int32_t b) { return b != 0; })) {
    throw invalid_argument(
        "[sample] the model gave logits that are not numbers: its weights, or those of the adapter, hold NaN "
        "or infinity");
  }
}

// The largest of what holds no NaN.
template <class Number>
Number largest(std::span<const Number> values) {
  Number top[kLanes];
  std::fill_n(top, kLanes, -std::numeric_limits<Number>::infinity());
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) top[k] = values[i + k] > top[k] ? values[i + k] : top[k];
  }
  for (; i < values.size(); ++i) top[0] = values[i] > top[0] ? values[i] : top[0];
  return *std::max_element(top, top + kLanes);
}

// Whether something stands between the logits and the temperature.
bool changes_logits(const SamplingParams& p, const PickPlace& place, size_t vocab) {
  return !p.logit_bias.empty() || !p.allowed_token_ids.empty() || !p.forbidden_token_ids.empty() ||
         p.repetition_penalty != 1.0 || p.frequency_penalty != 0 || p.presence_penalty != 0 ||
         !place.not_yet.empty() || (place.drawable >= 0 && static_cast<size_t>(place.drawable) < vocab);
}

void penalise(std::vector<double>& scores, const SamplingParams& params, const PickPlace& place) {
  const auto in_range = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < scores.size(); };
  if (params.repetition_penalty != 1.0) {
    std::unordered_map<int32_t, bool> seen;
    for (const int32_t id : place.history) {
      if (!in_range(id) || !seen.emplace(id, true).second) continue;
      double& s = scores[static_cast<size_t>(id)];
      s = s > 0 ? s / params.repetition_penalty : s * params.repetition_penalty;
    }
  }
  if (params.frequency_penalty == 0 && params.presence_penalty == 0) return;
  std::unordered_map<int32_t, int64_t> counts;
  for (const int32_t id : place.history.subspan(static_cast<size_t>(place.prompt_tokens))) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (!in_range(id)) continue;
    scores[static_cast<size_t>(id)] -=
        params.frequency_penalty * static_cast<double>(count) + params.presence_penalty;
  }
}

// Logits after bias, bans and penalties, and the largest of them.
double adjusted(std::span<const float> logits, const SamplingParams& params, const PickPlace& place,
                std::vector<double>& scores) {
  check_logits(logits);
  scores.assign(logits.begin(), logits.end());
  for (const auto& [id, bias] : params.logit_bias) scores[static_cast<size_t>(id)] += bias;
  if (!params.allowed_token_ids.empty()) {
    std::vector<std::pair<size_t, double>> allowed;
    for (const int32_t id : params.allowed_token_ids)
      allowed.emplace_back(static_cast<size_t>(id), scores[static_cast<size_t>(id)]);
    std::ranges::fill(scores, -INFINITY);
    for (const auto& [id, score] : allowed) scores[id] = score;
  }
  for (const int32_t id : params.forbidden_token_ids) scores[static_cast<size_t>(id)] = -INFINITY;
  for (const int32_t id : place.not_yet) {
    if (static_cast<size_t>(id) < scores.size()) scores[static_cast<size_t>(id)] = -INFINITY;
  }
  if (place.drawable >= 0 && static_cast<size_t>(place.drawable) < scores.size())
    std::fill(scores.begin() + place.drawable, scores.end(), -INFINITY);
  penalise(scores, params, place);
  const double top = largest(std::span<const double>(scores));
  if (top == -INFINITY) {
    throw invalid_argument(
        "[sample] every token is forbidden; see allowed_token_ids, forbidden_token_ids and min_tokens");
  }
  return top;
}

int32_t greedy(const std::vector<double>& scores, double top) {
  return static_cast<int32_t>(std::find(scores.begin(), scores.end(), top) - scores.begin());
}

// Orders `kept` so far that its first elements, likeliest first, reach `wanted`; cuts the rest off and
// returns what they sum to.
double cut_nucleus(std::vector<Candidate>& kept, double wanted) {
  double reached = 0;
  size_t begin = 0;
  for (size_t step = 64; begin < kept.size(); step *= 8) {
    const size_t end = std::min(kept.size(), begin + step);
    const auto first = kept.begin() + static_cast<ptrdiff_t>(begin),
               last = kept.begin() + static_cast<ptrdiff_t>(end);
    if (end < kept.size()) std::nth_element(first, last, kept.end(), likelier);
    std::sort(first, last, likelier);
    for (; begin < end; ++begin) {
      if (begin > 0 && reached >= wanted) {
        kept.resize(begin);
        return reached;
      }
      reached += kept[begin].p;
    }
  }
  return reached;
}

// The candidates that survive the cut-offs and the sum of their p. The order of the sum is part of the
// result: by likelihood when a nucleus was cut, by id otherwise.
double survivors(const std::vector<double>& scores, double top, const SamplingParams& params,
                 std::vector<Candidate>& kept) {
  kept.clear();
  for (size_t i = 0; i < scores.size(); ++i) {
    // The difference first: a denormal temperature then gives 0 or -inf, never NaN.
    const double p = std::exp((scores[i] - top) / params.temperature);
    if (p > 0 && p >= params.min_p) kept.push_back({static_cast<int32_t>(i), p});
  }
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + params.top_k, kept.end(), likelier);
    kept.resize(static_cast<size_t>(params.top_k));
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  }
  double total = 0;
  for (const auto& c : kept) total += c.p;
  return params.top_p < 1.0 ? cut_nucleus(kept, params.top_p * total) : total;
}

}  // namespace

Picked pick_token(std::span<const float> logits_V, const SamplingParams& params, const PickPlace& place) {
  if (params.temperature == 0 && !changes_logits(params, place, logits_V.size())) {
    check_logits(logits_V);
    const float most = largest(logits_V);
    if (most > -INFINITY)
      return {static_cast<int32_t>(std::find(logits_V.begin(), logits_V.end(), most) - logits_V.begin()), 0.0};
  }
  Scratch& s = scratch();
  const double top = adjusted(logits_V, params, place, s.scores);
  if (params.temperature == 0) return {greedy(s.scores, top), 0.0};
  const double total = survivors(s.scores, top, params, s.kept);
  const auto position = place.history.size() - static_cast<size_t>(place.prompt_tokens);
  const auto words = philox4x32(place.seed, position, place.stream);
  const double wanted = uniform_double(words[0], words[1]) * total;
  double reached = 0;
  for (const auto& c : s.kept) {
    reached += c.p;
    if (wanted < reached) return {c.id, std::log(c.p / total)};
  }
  return {s.kept.back().id, std::log(s.kept.back().p / total)};  // the sum fell short by rounding
}

std::vector<double> sampling_distribution(std::span<const float> logits_V, const SamplingParams& params,
                                          const PickPlace& place) {
  Scratch& s = scratch();
  const double top = adjusted(logits_V, params, place, s.scores);
  std::vector<double> out(logits_V.size(), 0.0);
  if (params.temperature == 0) {
    out[static_cast<size_t>(greedy(s.scores, top))] = 1.0;
    return out;
  }
  const double total = survivors(s.scores, top, params, s.kept);
  for (const auto& c : s.kept) out[static_cast<size_t>(c.id)] = c.p / total;
  return out;
}

}  // namespace twinkle
