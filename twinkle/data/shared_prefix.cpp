#include "twinkle/data/shared_prefix.h"

#include <algorithm>
#include <map>
#include <set>

namespace twinkle {
namespace {

// Fewer rows are not worth the bookkeeping of a sequence that shares.
constexpr int64_t kShortestPrefix = 16;

int64_t equal_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first - a.begin();
}

bool same_prompt(const InputFeature& a, const InputFeature& b) {
  const int64_t rows = prompt_rows(a);
  return rows > 0 && prompt_rows(b) == rows && equal_tokens(a.input_ids, b.input_ids) >= rows;
}

}  // namespace

std::vector<CommonPrefix> common_prefixes(const PackedBatch& batch, std::span<const int64_t> family,
                                          int64_t max_length) {
  const auto tokens_of = [&](size_t b) {
    const auto begin = static_cast<size_t>(batch.cu_seqlens[b]);
    return std::span(batch.tokens).subspan(begin, static_cast<size_t>(batch.cu_seqlens[b + 1]) - begin);
  };
  std::vector<CommonPrefix> out(static_cast<size_t>(batch.num_sequences()));
  std::map<int64_t, std::vector<size_t>> earlier;
  for (size_t b = 0; b < out.size(); ++b) {
    const auto own = tokens_of(b);
    if (family[b] < 0 || static_cast<int64_t>(own.size()) > max_length) continue;
    auto& others = earlier[family[b]];
    int64_t best = kShortestPrefix - 1;
    for (const size_t a : others) {
      const auto other = tokens_of(a);
      const auto at = static_cast<size_t>(best);
      if (other.size() <= at || own.size() <= at || other[at] != own[at]) continue;
      const int64_t common = equal_tokens(other, own);
      if (common <= best) continue;
      best = common;
      out[b] = {static_cast<int32_t>(a), static_cast<int32_t>(common)};
    }
    others.push_back(b);
  }
  return out;
}

bool share_prefixes(std::span<const InputFeature> features) {
  std::set<std::vector<int32_t>> seen;
  for (const auto& feature : features) {
    if (static_cast<int64_t>(feature.input_ids.size()) < kShortestPrefix) continue;
    const auto begin = feature.input_ids.begin();
    if (!seen.emplace(begin, begin + kShortestPrefix).second) return true;
  }
  return false;
}

int64_t prompt_rows(const InputFeature& feature) {
  const auto first = std::find_if(feature.labels.begin(), feature.labels.end(),
                                  [](int32_t label) { return label != kIgnoreIndex; });
  if (first == feature.labels.end()) return 0;
  return feature.label_position(static_cast<size_t>(first - feature.labels.begin())) + 1;
}

std::vector<FeatureRun> feature_runs(std::span<const InputFeature> features, PrefixSharing sharing,
                                     bool backward, int64_t max_rows) {
  std::vector<FeatureRun> runs;
  for (size_t i = 0; i < features.size(); ++i) {
    const auto rows = static_cast<int64_t>(features[i].input_ids.size());
    int64_t shared = 0;
    if (i > 0 && sharing == PrefixSharing::kGroups && backward) {
      if (same_prompt(features[i - 1], features[i])) shared = prompt_rows(features[i]);
    } else if (i > 0 && sharing != PrefixSharing::kOff && !backward) {
      const int64_t common = equal_tokens(features[i - 1].input_ids, features[i].input_ids);
      if (common >= kShortestPrefix && 2 * common >= rows && runs.back().rows + rows - common <= max_rows)
        shared = common;
    }
    if (shared == 0) runs.push_back({});
    runs.back().end = static_cast<int64_t>(i) + 1;
    runs.back().rows += rows - shared;
  }
  return runs;
}

std::vector<int64_t> split_runs(std::span<const FeatureRun> runs, int64_t max_rows) {
  std::vector<int64_t> ends;
  int64_t in_group = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i > 0 && in_group + runs[i].rows > max_rows) {
      ends.push_back(runs[i - 1].end);
      in_group = 0;
    }
    in_group += runs[i].rows;
  }
  if (!runs.empty()) ends.push_back(runs.back().end);
  return ends;
}

}  // namespace twinkle
