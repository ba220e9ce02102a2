#include "twinkle/sample/pick.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"
#include "twinkle/kernels/isa.h"

namespace twinkle {

Error not_numbers() {
  return invalid_argument(
      "[sample] the model gave logits that are not numbers: its weights, or those of the adapter, hold NaN "
      "or "
      "infinity");
}

namespace {

// The vocabulary is walked for every token: memory is kept from draw to draw.
struct Scratch {
  std::vector<double> scores;  // logits after bias, bans and penalties
  std::vector<double> p;       // relative to the likeliest token's; 0: never drawn
  std::vector<double> blocks;  // sums of p over kBlock tokens each
  std::vector<uint8_t> levels;
};

Scratch& scratch() {
  thread_local Scratch one;
  return one;
}

constexpr size_t kLanes = 16;  // so that the compiler uses vectors
constexpr size_t kBlock = 256, kLevels = 256;

void check_logits(std::span<const float> logits) {
  int32_t bad[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) bad[k] |= logits[i + k] < INFINITY ? 0 : 1;
  }
  for (; i < logits.size(); ++i) bad[0] |= logits[i] < INFINITY ? 0 : 1;
  if (std::ranges::any_of(bad, [](int32_t b) { return b != 0; })) {
    throw not_numbers();
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

// What extreme biases and penalties give stays a number.
double finite(double score) { return std::clamp(score, -1e300, 1e300); }

void penalise(std::vector<double>& scores, const SamplingParams& params, const PickPlace& place) {
  const auto in_range = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < scores.size(); };
  if (params.repetition_penalty != 1.0) {
    std::unordered_map<int32_t, bool> seen;
    for (const int32_t id : place.history) {
      if (!in_range(id) || !seen.emplace(id, true).second) continue;
      double& s = scores[static_cast<size_t>(id)];
      if (s == -INFINITY) continue;  // forbidden
      s = finite(s > 0 ? s / params.repetition_penalty : s * params.repetition_penalty);
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
  for (const auto& [id, bias] : params.logit_bias) {
    double& s = scores[static_cast<size_t>(id)];
    if (s > -INFINITY) s = finite(s + bias);
  }
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

// exp(x) for x <= 0 within two units in the last place (range reduction by Cody and Waite, Taylor); 0 below
// -700. Written so that a loop over it becomes vector code; every operation rounds once, so that any width of
// vectors gives the same bits.
[[gnu::always_inline]] inline double exp_below(double x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double shifted = x * 1.4426950408889634 + kMagic, n = shifted - kMagic;
  const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double y = 1.0 / 6227020800.0;
  y = y * r + 1.0 / 479001600.0;
  y = y * r + 1.0 / 39916800.0;
  y = y * r + 1.0 / 3628800.0;
  y = y * r + 1.0 / 362880.0;
  y = y * r + 1.0 / 40320.0;
  y = y * r + 1.0 / 5040.0;
  y = y * r + 1.0 / 720.0;
  y = y * r + 1.0 / 120.0;
  y = y * r + 1.0 / 24.0;
  y = y * r + 1.0 / 6.0;
  y = y * r + 0.5;
  y = y * r + 1.0;
  y = y * r + 1.0;
  const double scaled =
      std::bit_cast<double>(std::bit_cast<uint64_t>(y) + (std::bit_cast<uint64_t>(shifted) << 52));
  return x > -700.0 ? scaled : 0.0;
}

// p of `count` tokens. The difference comes first: a denormal temperature then gives 0 or -inf, never NaN.
[[gnu::always_inline]] inline void fill_probabilities(const double* scores, size_t count, double top,
                                                      double temperature, double* p) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) p[i + k] = exp_below((scores[i + k] - top) / temperature);
  }
  for (; i < count; ++i) p[i] = exp_below((scores[i] - top) / temperature);
}

void probabilities_plain(const double* scores, size_t count, double top, double temperature, double* p) {
  fill_probabilities(scores, count, top, temperature, p);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void probabilities_avx2(const double* scores, size_t count, double top,
                                                        double temperature, double* p) {
  fill_probabilities(scores, count, top, temperature, p);
}

__attribute__((target("avx512f,avx512dq,avx512vl"))) void probabilities_avx512(const double* scores,
                                                                               size_t count, double top,
                                                                               double temperature,
                                                                               double* p) {
  fill_probabilities(scores, count, top, temperature, p);
}
#endif

void probabilities(const std::vector<double>& scores, double top, double temperature,
                   std::vector<double>& p) {
  p.resize(scores.size());
  auto* fill = probabilities_plain;
#if defined(__x86_64__)
  if (active_isa() == Isa::kAvx2) fill = probabilities_avx2;
  if (active_isa() > Isa::kAvx2) fill = probabilities_avx512;
#endif
  fill(scores.data(), scores.size(), top, temperature, p.data());
}

// The sum of p, by blocks: each in order of ids, then over blocks.
double sum_by_blocks(const std::vector<double>& p, std::vector<double>& blocks) {
  blocks.clear();
  double total = 0;
  for (size_t begin = 0; begin < p.size(); begin += kBlock) {
    double lanes[4] = {};
    const size_t end = std::min(p.size(), begin + kBlock);
    for (size_t i = begin; i < end; ++i) lanes[i % 4] += p[i];
    blocks.push_back((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    total += blocks.back();
  }
  return total;
}

// How far down a token is, in steps that keep the order of p: by the exponent and two bits of the mantissa.
uint8_t level_of(double p) {
  constexpr uint64_t kOne = uint64_t{1023} << 2;
  const uint64_t key = std::bit_cast<uint64_t>(p) >> 50;
  return static_cast<uint8_t>(std::min<uint64_t>(kOne - std::min(kOne, key), kLevels - 1));
}

// Keeps the likeliest tokens, ties by id, until `enough`(their number, their sum) says so. Only the level
// where that happens is ordered.
template <class Enough>
void keep_likeliest(Scratch& s, Enough enough) {
  int64_t counts[kLevels] = {};
  double sums[kLevels] = {};
  s.levels.resize(s.p.size());
  for (size_t i = 0; i < s.p.size(); ++i) {
    const uint8_t level = s.levels[i] = level_of(s.p[i]);
    counts[level] += s.p[i] > 0;
    sums[level] += s.p[i];
  }
  int64_t count = 0;
  double sum = 0;
  size_t level = 0;
  while (level < kLevels && !enough(count + counts[level], sum + sums[level])) {
    count += counts[level];
    sum += sums[level++];
  }
  if (level == kLevels) return;                 // all of them
  std::vector<std::pair<double, size_t>> here;  // likeliest first, then the lowest id
  for (size_t i = 0; i < s.p.size(); ++i) {
    if (s.levels[i] == level && s.p[i] > 0) here.emplace_back(-s.p[i], i);
  }
  std::sort(here.begin(), here.end());
  size_t kept = 0;
  while (kept < here.size() && !enough(count, sum)) {
    ++count;
    sum -= here[kept++].first;
  }
  for (size_t i = kept; i < here.size(); ++i) s.p[here[i].second] = 0;
  for (size_t i = 0; i < s.p.size(); ++i) s.p[i] = s.levels[i] > level ? 0 : s.p[i];
}

// Sets p of what does not survive the cut-offs to 0; returns the sum of the rest.
double cut(Scratch& s, double top, const SamplingParams& params) {
  probabilities(s.scores, top, params.temperature, s.p);
  if (params.min_p > 0) {
    for (double& p : s.p) p = p < params.min_p ? 0 : p;
  }
  if (params.top_k > 0) keep_likeliest(s, [&](int64_t count, double) { return count >= params.top_k; });
  double total = sum_by_blocks(s.p, s.blocks);
  if (params.top_p < 1.0) {
    const double wanted = params.top_p * total;
    keep_likeliest(s, [&](int64_t count, double sum) { return count > 0 && sum >= wanted; });
    total = sum_by_blocks(s.p, s.blocks);
  }
  return total;
}

// One draw from the p that are left, which sum to `total`.
Picked draw_from(const Scratch& s, double total, const PickPlace& place) {
  const auto position = place.history.size() - static_cast<size_t>(place.prompt_tokens);
  const auto words = philox4x32(place.seed, position, place.stream);
  const double wanted = uniform_double(words[0], words[1]) * total;
  double reached = 0;
  size_t block = 0;
  while (block + 1 < s.blocks.size() && reached + s.blocks[block] <= wanted) reached += s.blocks[block++];
  // The last token with a probability stands in where rounding left the sum short.
  size_t chosen = 0;
  for (size_t i = block * kBlock; i < std::min(s.p.size(), (block + 1) * kBlock); ++i) {
    if (s.p[i] == 0) continue;
    chosen = i;
    reached += s.p[i];
    if (wanted < reached) break;
  }
  if (s.p[chosen] == 0) {  // the last block is empty
    chosen = s.p.size() - 1;
    while (s.p[chosen] == 0) --chosen;
  }
  return {static_cast<int32_t>(chosen), std::log(s.p[chosen] / total)};
}

// Takes the others out of p.
std::vector<Picked> likeliest_of(Scratch& s, double total, int64_t count) {
  keep_likeliest(s, [&](int64_t kept, double) { return kept >= count; });
  std::vector<Picked> out;
  for (size_t i = 0; i < s.p.size(); ++i) {
    if (s.p[i] > 0) out.push_back({static_cast<int32_t>(i), std::log(s.p[i] / total)});
  }
  std::ranges::stable_sort(out, [](const Picked& a, const Picked& b) { return a.logprob > b.logprob; });
  return out;
}

}  // namespace

Picked pick_token(std::span<const float> logits_V, const SamplingParams& params, const PickPlace& place,
                  int64_t count, std::vector<Picked>* likeliest) {
  if (params.temperature == 0 && !changes_logits(params, place, logits_V.size())) {
    check_logits(logits_V);
    const float most = largest(logits_V);
    if (most > -INFINITY)
      return {static_cast<int32_t>(std::find(logits_V.begin(), logits_V.end(), most) - logits_V.begin()),
              0.0};
  }
  Scratch& s = scratch();
  const double top = adjusted(logits_V, params, place, s.scores);
  if (params.temperature == 0) return {greedy(s.scores, top), 0.0};
  const double total = cut(s, top, params);
  const Picked picked = draw_from(s, total, place);
  if (likeliest != nullptr && count > 0) *likeliest = likeliest_of(s, total, count);
  return picked;
}

std::vector<Picked> pick_tokens(std::span<const float> logits_V, const SamplingParams& params,
                                const PickPlace& place, std::span<const uint64_t> streams) {
  if (params.temperature == 0)
    return std::vector<Picked>(streams.size(), pick_token(logits_V, params, place));
  Scratch& s = scratch();
  const double total = cut(s, adjusted(logits_V, params, place, s.scores), params);
  std::vector<Picked> out;
  for (const uint64_t stream : streams) {
    PickPlace here = place;
    here.stream = stream;
    out.push_back(draw_from(s, total, here));
  }
  return out;
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
  const double total = cut(s, top, params);
  for (size_t i = 0; i < out.size(); ++i) out[i] = s.p[i] / total;
  return out;
}

}  // namespace twinkle
