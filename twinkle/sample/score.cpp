#include "twinkle/sample/score.h"

#include <ATen/ops/empty.h>

#include "twinkle/core/error.h"
#include "twinkle/data/shared_prefix.h"

namespace twinkle {

std::vector<std::vector<float>> score_sequences(CausalLM& model, Adapter* adapter,
                                                const std::vector<std::vector<int32_t>>& sequences,
                                                int64_t max_tokens_per_pass) {
  std::vector<InputFeature> features;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto& ids = sequences[i];
    if (ids.empty()) throw invalid_argument("[score] sequence " + std::to_string(i) + " has no tokens");
    for (size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] < 0 || ids[t] >= model.config().vocab_size) {
        throw invalid_argument("[score] sequence " + std::to_string(i) + ", position " + std::to_string(t) +
                               ": token " + std::to_string(ids[t]) + " is not in the vocabulary of " +
                               std::to_string(model.config().vocab_size));
      }
    }
    InputFeature f;
    f.input_ids = ids;
    f.labels.assign(ids.begin() + 1, ids.end());
    f.labels.push_back(kIgnoreIndex);
    features.push_back(std::move(f));
  }
  std::vector<std::vector<float>> out;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(model.device());
  int64_t begin = 0;
  const auto runs = feature_runs(features, PrefixSharing::kExact, false, max_tokens_per_pass);
  for (const int64_t end : split_runs(runs, max_tokens_per_pass)) {
    PackedBatch batch = pack(
        std::span(features).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), begin);
    const std::vector<int64_t> one_family(static_cast<size_t>(end - begin), 0);
    batch.prefix = common_prefixes(batch, one_family, model.max_shared_length());
    nn::LoraBinding binding;
    if (adapter != nullptr) binding = bind_adapter(model, *adapter, batch, false);
    model.forward(batch, adapter != nullptr ? &binding : nullptr, {});
    const auto rows = batch.scored_rows();
    std::vector<int32_t> targets;
    for (const int32_t row : rows) targets.push_back(batch.targets[static_cast<size_t>(row)]);
    ops::HeadOutputs head;
    head.logprob_S = at::empty({static_cast<int64_t>(rows.size())}, options);
    head.lse_S = at::empty({static_cast<int64_t>(rows.size())}, options);
    model.score(rows, targets, 1.0, head);
    const at::Tensor logprobs = head.logprob_S.cpu();
    model.finish();
    const float* next = logprobs.data_ptr<float>();
    for (int64_t i = begin; i < end; ++i) {
      const size_t n = features[static_cast<size_t>(i)].input_ids.size() - 1;
      out.emplace_back(next, next + n);
      next += n;
    }
    begin = end;
  }
  return out;
}

}  // namespace twinkle
