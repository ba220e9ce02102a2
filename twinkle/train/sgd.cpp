// SGD as torch.optim.SGD: momentum, dampening, Nesterov, decay added to the gradient. fp32, each element by
// separate multiplications and additions in torch's order.
#include <ATen/ATen.h>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/train/optimizer.h"

namespace twinkle {
namespace {

struct Coefficients {
  float lr, momentum, one_minus_dampening, weight_decay, grad_scale;
  bool nesterov, first;
};

void update_range(float* p, const float* g, float* m, int64_t begin, int64_t end, const Coefficients& c) {
  for (int64_t i = begin; i < end; ++i) {
    float d = g[i] * c.grad_scale;
    if (c.weight_decay != 0) d += c.weight_decay * p[i];
    if (m != nullptr) {
      // torch's buffer starts as the first gradient, undampened.
      m[i] = c.first ? d : c.momentum * m[i] + c.one_minus_dampening * d;
      d = c.nesterov ? d + c.momentum * m[i] : m[i];
    }
    p[i] -= c.lr * d;
  }
}

class Sgd : public Optimizer {
 public:
  explicit Sgd(const Options& o)
      : Optimizer("SGD", o.get_float("lr"), state_dtype_of(o)),
        momentum_(o.get_float("momentum")),
        dampening_(o.get_float("dampening")),
        weight_decay_(o.get_float("weight_decay")),
        nesterov_(o.get_bool("nesterov")) {
    if (nesterov_ && (momentum_ <= 0 || dampening_ != 0)) {
      throw invalid_argument("[SGD] 'nesterov': needs momentum > 0 and dampening 0");
    }
  }

 protected:
  std::vector<std::string> slots() const override {
    if (momentum_ == 0) return {};
    return {"momentum_buffer"};
  }

  void check(const StepHyper& h) const override {
    if (h.overrides.beta1 || h.overrides.beta2 || h.overrides.eps)
      throw invalid_argument("[SGD] 'betas' and 'eps' are options of Adam; SGD has neither");
    if (h.overrides.weight_decay.value_or(0.0) < 0)
      throw invalid_argument("[SGD] 'weight_decay': must be >= 0");
  }

  void update(TrainedTensor& param, std::vector<at::Tensor>& state, const StepHyper& h,
              int64_t step) override {
    const double decay = param.decay ? h.overrides.weight_decay.value_or(weight_decay_) : 0.0;
    const bool first = step == 1;
    if (!param.value.device().is_cpu()) return update_on_device(param, state, h, decay, first);
    const Coefficients c{static_cast<float>(h.lr),
                         static_cast<float>(momentum_),
                         static_cast<float>(1.0 - dampening_),
                         static_cast<float>(decay),
                         static_cast<float>(h.grad_scale),
                         nesterov_,
                         first};
    float* p = param.value.mutable_data_ptr<float>();
    const float* g = param.grad.const_data_ptr<float>();
    float* m = state.empty() ? nullptr : state[0].mutable_data_ptr<float>();
    parallel_for(param.value.numel(), 1 << 15,
                 [&](int64_t begin, int64_t end) { update_range(p, g, m, begin, end, c); });
  }

 private:
  void update_on_device(TrainedTensor& param, std::vector<at::Tensor>& state, const StepHyper& h,
                        double decay, bool first) const {
    at::Tensor d = param.grad * h.grad_scale;
    if (decay != 0) d.add_(param.value, decay);
    if (!state.empty()) {
      if (first) {
        state[0].copy_(d);
      } else {
        state[0].mul_(momentum_).add_(d, 1.0 - dampening_);
      }
      d = nesterov_ ? d.add(state[0], momentum_) : state[0];
    }
    param.value.add_(d, -h.lr);
  }

  double momentum_, dampening_, weight_decay_;
  bool nesterov_;
};

const Registry<Optimizer>::Add sgd{
    {.name = "SGD",
     .help = "Stochastic gradient descent, as torch.optim.SGD.",
     .params =
         {{.name = "lr",
           .type = ParamType::kFloat,
           .default_value = 1e-3,
           .help = "learning rate",
           .min = 0.0},
          {.name = "momentum",
           .type = ParamType::kFloat,
           .default_value = 0.0,
           .help = "0: none",
           .min = 0.0},
          {.name = "dampening", .type = ParamType::kFloat, .default_value = 0.0, .help = "of the momentum"},
          {.name = "weight_decay",
           .type = ParamType::kFloat,
           .default_value = 0.0,
           .help = "added to the gradient",
           .min = 0.0},
          {.name = "nesterov", .type = ParamType::kBool, .default_value = false, .help = "Nesterov momentum"},
          state_dtype_spec()},
     .aliases = {"sgd"}},
    [](const Options& o) { return std::make_unique<Sgd>(o); }};

}  // namespace
}  // namespace twinkle
