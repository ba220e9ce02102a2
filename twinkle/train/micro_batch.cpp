#include "twinkle/train/micro_batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "twinkle/core/error.h"
#include "twinkle/data/shared_prefix.h"

namespace twinkle {
namespace {

void check_extra(const std::string& name, const std::vector<std::vector<float>>& lists,
                 std::span<const InputFeature> features) {
  if (lists.size() != features.size()) {
    throw invalid_argument("[batch] '" + name + "' has values for " + std::to_string(lists.size()) +
                           " sequences, needed " + std::to_string(features.size()));
  }
  for (size_t i = 0; i < lists.size(); ++i) {
    const size_t size = lists[i].size(), labels = features[i].labels.size();
    const auto trained = static_cast<size_t>(features[i].num_trained());
    if (size == 1 || size == labels || size == trained) continue;
    throw invalid_argument("[batch] " + sequence_place(features, static_cast<int64_t>(i)) + ": '" + name +
                           "' has " + std::to_string(size) + " values, needed 1, " + std::to_string(labels) +
                           (features[i].label_positions.empty() ? " (tokens) or " : " (labels) or ") +
                           std::to_string(trained) + " (scored targets)");
  }
}

void check_ids(std::span<const int32_t> ids, bool labels, int64_t vocab_size, const std::string& place) {
  for (size_t t = 0; t < ids.size(); ++t) {
    if (labels && ids[t] == kIgnoreIndex) continue;
    if (ids[t] < 0 || ids[t] >= vocab_size) {
      throw invalid_argument("[batch] " + place + ": " + (labels ? "label " : "token ") +
                             std::to_string(ids[t]) + " at position " + std::to_string(t) +
                             " is not in the vocabulary of " + std::to_string(vocab_size));
    }
  }
}

void check_positions(const InputFeature& f, const std::string& place) {
  const auto& at = f.label_positions;
  if (!std::ranges::is_sorted(at))
    throw invalid_argument("[batch] " + place + ": label positions must ascend");
  if (at.front() < 0 || at.back() >= static_cast<int64_t>(f.input_ids.size())) {
    throw invalid_argument("[batch] " + place + ": label position " +
                           std::to_string(at.front() < 0 ? at.front() : at.back()) + " is not one of " +
                           std::to_string(f.input_ids.size()) + " tokens");
  }
}

// The features in the order in which a pass lays them out; those of a run stay as they are.
std::vector<int64_t> layout(std::span<const FeatureRun> runs, PackingOrder packing) {
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (packing == PackingOrder::kReversed) std::reverse(order.begin(), order.end());
  if (packing == PackingOrder::kLongestFirst) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return runs[a].rows > runs[b].rows; });
  }
  std::vector<int64_t> features;
  for (const size_t run : order) {
    for (int64_t i = run == 0 ? 0 : runs[run - 1].end; i < runs[run].end; ++i) features.push_back(i);
  }
  return features;
}

// The first of a run lends the others the rows of the prompt.
std::vector<CommonPrefix> shared_prompts(std::span<const InputFeature> features,
                                         std::span<const FeatureRun> runs, std::span<const int64_t> order) {
  std::vector<int64_t> first_of(features.size());
  int64_t begin = 0;
  for (const FeatureRun& run : runs) {
    for (int64_t i = begin; i < run.end; ++i) first_of[static_cast<size_t>(i)] = begin;
    begin = run.end;
  }
  std::vector<CommonPrefix> out(features.size());
  int32_t first = 0;
  for (size_t b = 0; b < order.size(); ++b) {
    const auto i = static_cast<size_t>(order[b]);
    if (first_of[i] == order[b]) {
      first = static_cast<int32_t>(b);
    } else {
      out[b] = {.of = first, .length = static_cast<int32_t>(prompt_rows(features[i]))};
    }
  }
  return out;
}

}  // namespace

std::string sequence_place(std::span<const InputFeature> features, int64_t index) {
  const std::string& origin = features[static_cast<size_t>(index)].origin;
  return "sequence " + std::to_string(index) + (origin.empty() ? "" : " (" + origin + ")");
}

void check_features(std::span<const InputFeature> features, const Extras& extras, int64_t vocab_size) {
  if (features.empty()) throw invalid_argument("[batch] there are no sequences");
  for (size_t i = 0; i < features.size(); ++i) {
    const InputFeature& f = features[i];
    const std::string place = sequence_place(features, static_cast<int64_t>(i));
    if (f.input_ids.empty()) throw invalid_argument("[batch] " + place + ": has no tokens");
    const auto same = [&](size_t size, size_t needed, const char* what, const char* of) {
      if (size == needed) return;
      throw invalid_argument("[batch] " + place + ": has " + std::to_string(size) + " " + what + " for " +
                             std::to_string(needed) + " " + of);
    };
    if (f.label_positions.empty()) {
      same(f.labels.size(), f.input_ids.size(), "labels", "tokens");
    } else {
      same(f.labels.size(), f.label_positions.size(), "labels", "label positions");
      check_positions(f, place);
    }
    if (!f.weights.empty()) same(f.weights.size(), f.labels.size(), "weights", "labels");
    check_ids(f.input_ids, false, vocab_size, place);
    check_ids(f.labels, true, vocab_size, place);
  }
  for (const auto& [name, lists] : extras) check_extra(name, lists, features);
}

MicroBatch make_micro_batch(std::span<const InputFeature> features, const Extras& extras, int64_t begin,
                            int64_t end, int64_t first_order, PackingOrder packing, bool groups) {
  MicroBatch micro{.begin = begin, .end = end};
  const auto part = features.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  const auto runs = feature_runs(part, groups ? PrefixSharing::kGroups : PrefixSharing::kOff, true, 0);
  const auto order = layout(runs, packing);
  if (packing == PackingOrder::kAsGiven) {
    micro.batch = pack(part, first_order + begin);
  } else {
    std::vector<InputFeature> laid;
    for (const int64_t i : order) laid.push_back(part[static_cast<size_t>(i)]);
    micro.batch = pack(laid);
    for (size_t b = 0; b < order.size(); ++b) {
      micro.batch.order[b] = first_order + begin + order[b];
      micro.batch.sequence_key[b] = static_cast<uint64_t>(first_order + begin + order[b]);
    }
  }
  if (groups) micro.batch.prefix = shared_prompts(part, runs, order);
  for (size_t b = 0; b < order.size(); ++b) {
    const InputFeature& f = part[static_cast<size_t>(order[b])];
    for (size_t label = 0; label < f.labels.size(); ++label) {
      if (f.labels[label] == kIgnoreIndex) continue;
      micro.rows.push_back(micro.batch.cu_seqlens[b] + f.label_position(label));
      micro.targets.push_back(f.labels[label]);
    }
  }

  // Where each sequence's scored rows begin among `rows`, then those places in call order.
  std::vector<int64_t> first(part.size()), count(part.size());
  int64_t seen = 0;
  for (size_t b = 0; b < order.size(); ++b) {
    const auto i = static_cast<size_t>(order[b]);
    first[i] = seen;
    count[i] = part[i].num_trained();
    seen += count[i];
  }
  micro.input.cu_scored = {0};
  for (size_t i = 0; i < part.size(); ++i) {
    for (int64_t k = 0; k < count[i]; ++k) micro.place.push_back(first[i] + k);
    micro.input.cu_scored.push_back(micro.input.cu_scored.back() + count[i]);
  }

  const int64_t S = seen;
  micro.input.targets_S = at::empty({S}, at::kInt);
  micro.input.weights_S = at::empty({S}, at::kFloat);
  int32_t* targets = micro.input.targets_S.mutable_data_ptr<int32_t>();
  float* weights = micro.input.weights_S.mutable_data_ptr<float>();
  std::map<std::string, float*> values;
  for (const auto& [name, lists] : extras) {
    micro.input.extras[name] = at::empty({S}, at::kFloat);
    values[name] = micro.input.extras[name].mutable_data_ptr<float>();
  }
  int64_t s = 0;
  for (size_t i = 0; i < part.size(); ++i) {
    const InputFeature& f = part[i];
    size_t scored = 0;
    for (size_t t = 0; t < f.labels.size(); ++t) {
      if (f.labels[t] == kIgnoreIndex) continue;
      targets[s] = f.labels[t];
      weights[s] = f.weights.empty() ? 1.0f : f.weights[t];
      for (const auto& [name, lists] : extras) {
        const auto& list = lists[static_cast<size_t>(begin) + i];
        values[name][s] = list.size() == f.labels.size() ? list[t]
                          : list.size() == 1             ? list[0]
                                                         : list[scored];
      }
      ++scored;
      ++s;
    }
  }
  return micro;
}

LossInput join_inputs(std::span<const LossInput> parts) {
  if (parts.size() == 1) return parts[0];
  LossInput all;
  all.cu_scored = {0};
  const auto join = [&](auto&& get) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : parts) tensors.push_back(get(part));
    return tensors[0].defined() ? at::cat(tensors) : at::Tensor();
  };
  for (const auto& part : parts) {
    const int64_t offset = all.cu_scored.back();
    for (size_t b = 1; b < part.cu_scored.size(); ++b) all.cu_scored.push_back(offset + part.cu_scored[b]);
  }
  all.logprob_S = join([](const LossInput& x) { return x.logprob_S; });
  all.entropy_S = join([](const LossInput& x) { return x.entropy_S; });
  all.targets_S = join([](const LossInput& x) { return x.targets_S; });
  all.weights_S = join([](const LossInput& x) { return x.weights_S; });
  for (const auto& [name, unused] : parts[0].extras) {
    all.extras[name] = join([&](const LossInput& x) { return x.extras.at(name); });
  }
  return all;
}

at::Tensor rows_of(const at::Tensor& joined_S, const std::vector<int64_t>& cu_scored, int64_t begin,
                   int64_t end) {
  if (!joined_S.defined()) return {};
  const int64_t from = cu_scored[static_cast<size_t>(begin)];
  return joined_S.narrow(0, from, cu_scored[static_cast<size_t>(end)] - from).contiguous();
}

at::Tensor to_row_order(const MicroBatch& micro, const at::Tensor& in_call_order) {
  if (!in_call_order.defined()) return {};
  at::Tensor out = at::empty_like(in_call_order);
  const float* from = in_call_order.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  for (size_t s = 0; s < micro.place.size(); ++s) to[micro.place[s]] = from[s];
  return out;
}

at::Tensor to_call_order(const MicroBatch& micro, const at::Tensor& in_row_order) {
  if (!in_row_order.defined()) return {};
  const at::Tensor host = in_row_order.cpu();
  at::Tensor out = at::empty_like(host);
  const auto gather = [&]<class T>(T*) {
    const T* from = host.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    for (size_t s = 0; s < micro.place.size(); ++s) to[s] = from[micro.place[s]];
  };
  if (host.scalar_type() == at::kInt) {
    gather(static_cast<int32_t*>(nullptr));
  } else {
    gather(static_cast<float*>(nullptr));
  }
  return out;
}

}  // namespace twinkle
