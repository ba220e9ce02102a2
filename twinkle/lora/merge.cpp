// Merging an adapter into the weights. Deltas are computed in fp32 and rounded once into the weight's own
// type; the originals are kept, so that unmerging gives back the very bits.
#include <ATen/ops/matmul.h>

#include <set>

#include "twinkle/core/error.h"
#include "twinkle/lora/adapter.h"

namespace twinkle {

struct MergedAdapter::Impl {
  struct Original {
    Parameter* parameter;
    ops::PackedMatrix matrix;
    at::Tensor vector;
  };
  std::vector<Original> originals;

  void restore() {
    for (auto& original : originals) {
      original.parameter->matrix = original.matrix;
      original.parameter->vector = original.vector;
    }
    originals.clear();
  }
};

namespace {

// W + delta in W's type.
ops::PackedMatrix added(const ops::PackedMatrix& weight, const at::Tensor& delta_NK) {
  if (!weight.device().is_cpu()) return ops::PackedMatrix::pack(weight.unpack() + delta_NK, weight.dtype());
  const at::Tensor plain = delta_NK.contiguous();
  const float* delta = plain.const_data_ptr<float>();
  const int64_t cols = weight.cols();
  return ops::PackedMatrix::build(weight.rows(), cols, weight.dtype(), weight.device(),
                                  [&](int64_t begin, int64_t end, float* rows) {
                                    weight.read_rows(begin, end, rows);
                                    const float* add = delta + begin * cols;
                                    for (int64_t i = 0; i < (end - begin) * cols; ++i) rows[i] += add[i];
                                  });
}

bool is_weight_of(const Parameter& weight, const std::string& module) {
  constexpr std::string_view kWeight = ".weight";
  return weight.name.size() == module.size() + kWeight.size() && weight.name.starts_with(module) &&
         weight.name.ends_with(kWeight);
}

}  // namespace

void check_mergeable(const CausalLM& model, const Adapter& adapter) {
  // One matrix serves as embedding and head; a change of one would change the other.
  const auto check = [&](const std::string& module) {
    if (!model.config().tie_word_embeddings || (module != "lm_head" && module != "model.embed_tokens"))
      return;
    throw invalid_argument(
        "[merge] the adapter changes '" + module +
        "', which this model shares between embedding and head; it can only be used unmerged");
  };
  for (const auto& module : adapter.modules()) check(module.name);
  for (const auto& [name, parameter] : adapter.saved_modules()) check(name);
}

Parameter merged_weight(const Adapter& adapter, const Parameter& weight) {
  Parameter out;
  out.name = weight.name;
  out.matrix = weight.matrix;
  out.vector = weight.vector;
  for (const auto& module : adapter.modules()) {
    if (!is_weight_of(weight, module.name)) continue;
    at::Tensor delta = at::matmul(module.slot.b_Nr, module.slot.a_rK).mul_(module.slot.scale);
    if (module.linear < 0) delta = delta.t();  // [hidden, vocab] -> [vocab, hidden]
    out.matrix = added(out.matrix, delta);
  }
  for (const auto& [name, parameter] : adapter.saved_modules()) {
    if (!is_weight_of(weight, name)) continue;
    if (out.is_matrix()) {
      out.matrix = ops::PackedMatrix::pack(parameter.matrix.unpack(), weight.matrix.dtype());
    } else {
      out.vector = parameter.vector.clone();
    }
  }
  return out;
}

MergedAdapter::MergedAdapter(CausalLM& model, const Adapter& adapter) : impl_(std::make_unique<Impl>()) {
  check_mergeable(model, adapter);
  std::set<std::string> touched;
  for (const auto& module : adapter.modules()) touched.insert(module.name + ".weight");
  for (const auto& [name, parameter] : adapter.saved_modules()) touched.insert(name + ".weight");
  try {
    for (auto& weight : model.parameters()) {
      if (!touched.contains(weight.name)) continue;
      const Parameter merged = merged_weight(adapter, weight);
      impl_->originals.push_back({&weight, weight.matrix, weight.vector});
      weight.matrix = merged.matrix;
      weight.vector = merged.vector;
    }
  } catch (...) {
    impl_->restore();
    throw;
  }
  TW_CHECK(impl_->originals.size() == touched.size(), "every module has a weight");
}

MergedAdapter::~MergedAdapter() { unmerge(); }
void MergedAdapter::unmerge() { impl_->restore(); }
void MergedAdapter::commit() { impl_->originals.clear(); }

}  // namespace twinkle
