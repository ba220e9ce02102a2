// Merging an adapter into the weights. Deltas are computed in fp32 and rounded once into the weight's own
// type; the originals are kept, so that unmerging gives back the very bits.
#include <ATen/ops/matmul.h>

#include <map>

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

}  // namespace

MergedAdapter::MergedAdapter(CausalLM& model, const Adapter& adapter) : impl_(std::make_unique<Impl>()) {
  std::map<std::string, Parameter*> weights;
  for (auto& parameter : model.parameters()) weights[parameter.name] = &parameter;
  const auto weight = [&](const std::string& module) {
    // One matrix serves as embedding and head; a change of one would change the other.
    if (model.config().tie_word_embeddings && (module == "lm_head" || module == "model.embed_tokens")) {
      throw invalid_argument(
          "[merge] the adapter changes '" + module +
          "', which this model shares between embedding and head; it can only be used unmerged");
    }
    const auto it = weights.find(module + ".weight");
    TW_CHECK(it != weights.end(), "no weight for module " + module);
    return it->second;
  };
  for (const auto& module : adapter.modules()) weight(module.name);
  auto saved = const_cast<Adapter&>(adapter).saved_modules();  // handles; only read
  for (const auto& [name, parameter] : saved) weight(name);

  try {
    for (const auto& module : adapter.modules()) {
      Parameter* target = weight(module.name);
      impl_->originals.push_back({target, target->matrix, target->vector});
      at::Tensor delta = at::matmul(module.slot.b_Nr, module.slot.a_rK).mul_(module.slot.scale);
      if (module.linear < 0) delta = delta.t();  // [hidden, vocab] -> [vocab, hidden]
      target->matrix = added(target->matrix, delta);
    }
    for (const auto& [name, parameter] : saved) {
      Parameter* target = weight(name);
      impl_->originals.push_back({target, target->matrix, target->vector});
      if (target->is_matrix()) {
        target->matrix = ops::PackedMatrix::pack(parameter.matrix.unpack(), target->matrix.dtype());
      } else {
        target->vector = parameter.vector.clone();
      }
    }
  } catch (...) {
    impl_->restore();
    throw;
  }
}

MergedAdapter::~MergedAdapter() { unmerge(); }
void MergedAdapter::unmerge() { impl_->restore(); }
void MergedAdapter::commit() { impl_->originals.clear(); }

}  // namespace twinkle
