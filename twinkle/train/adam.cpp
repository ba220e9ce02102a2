// AdamW and Adam as torch.optim (Kingma & Ba 2015; Loshchilov & Hutter 2019), on the fused kernel.
#include <algorithm>
#include <cmath>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/kernels/ops.h"
#include "twinkle/train/optimizer.h"

namespace twinkle {
namespace {

class Adam : public Optimizer {
 public:
  Adam(std::string name, bool decoupled, const Options& o)
      : Optimizer(std::move(name), o.get_float("lr"), state_dtype_of(o)),
        decoupled_(decoupled),
        eps_(o.get_float("eps")),
        weight_decay_(o.get_float("weight_decay")) {
    const Json& betas = o.get("betas");
    if (betas.size() != 2)
      throw invalid_argument("[" + this->name() + "] 'betas': needs two numbers, got " + betas.dump());
    beta1_ = betas[0].get<double>();
    beta2_ = betas[1].get<double>();
    check_betas(beta1_, beta2_);
  }

  // With m the average of the gradient after the step, |m| <= |m before| + |g|, every weight w becomes
  // w (1 - lr * decay) - lr * (m / correction) / (sqrt(v) + eps), and sqrt(v) is at least 0.
  double norm_after_step(const std::vector<TrainedTensor>& params, const StepHyper& h,
                         double grad_norm) const override {
    constexpr double kUnknown = std::numeric_limits<double>::infinity();
    const double eps = h.overrides.eps.value_or(eps_);
    const double decay = h.overrides.weight_decay.value_or(weight_decay_);
    if (!decoupled_ || eps <= 0 || !(grad_norm < 1e18)) return kUnknown;
    double average = 0;
    if (!storage().empty()) {
      if (storage()[0].scalar_type() != at::kFloat) return kUnknown;
      average = std::sqrt(ops::sum_of_squares(storage()[0]));
    }
    const double correction =
        1 - std::pow(h.overrides.beta1.value_or(beta1_), static_cast<double>(steps_taken() + 1));
    return std::sqrt(weight_sum_of_squares(params)) * std::max(1.0, std::abs(1 - h.lr * decay)) +
           h.lr * (average + grad_norm) / correction / eps;
  }

  // Where a gradient has always been 0, the step is 0 / eps.
  Cause cause(const StepHyper& h) const override {
    const double eps = h.overrides.eps.value_or(eps_);
    if (static_cast<float>(eps) != 0) return Optimizer::cause(h);
    return {"eps (adam_epsilon) " + Json(eps).dump(), "an eps (adam_epsilon) above 0, such as 1e-8"};
  }

 protected:
  std::vector<std::string> slots() const override { return {"exp_avg", "exp_avg_sq"}; }

  void check(const StepHyper& h) const override {
    check_betas(h.overrides.beta1.value_or(beta1_), h.overrides.beta2.value_or(beta2_));
    if (h.overrides.eps.value_or(eps_) < 0) throw invalid_argument("[" + name() + "] 'eps': must be >= 0");
    if (h.overrides.weight_decay.value_or(weight_decay_) < 0)
      throw invalid_argument("[" + name() + "] 'weight_decay': must be >= 0");
  }

  void update(TrainedTensor& param, std::vector<at::Tensor>& state, const StepHyper& h,
              int64_t step) override {
    ops::adam_step(param.value, param.grad, state[0], state[1],
                   {.lr = h.lr,
                    .beta1 = h.overrides.beta1.value_or(beta1_),
                    .beta2 = h.overrides.beta2.value_or(beta2_),
                    .eps = h.overrides.eps.value_or(eps_),
                    .weight_decay = param.decay ? h.overrides.weight_decay.value_or(weight_decay_) : 0.0,
                    .decoupled = decoupled_,
                    .step = step,
                    .grad_scale = h.grad_scale});
  }

 private:
  void check_betas(double beta1, double beta2) const {
    for (const double beta : {beta1, beta2}) {
      if (!(beta >= 0 && beta < 1)) {
        throw invalid_argument("[" + name() + "] 'betas': each must be >= 0 and < 1, got " +
                               std::to_string(beta));
      }
    }
  }

  bool decoupled_;
  double beta1_ = 0, beta2_ = 0, eps_, weight_decay_;
};

std::vector<ParamSpec> adam_params(double weight_decay) {
  return {
      {.name = "lr", .type = ParamType::kFloat, .default_value = 1e-3, .help = "learning rate", .min = 0.0},
      {.name = "betas",
       .type = ParamType::kFloatList,
       .default_value = {0.9, 0.999},
       .help = "decay of the running averages of the gradient and of its square"},
      {.name = "eps",
       .type = ParamType::kFloat,
       .default_value = 1e-8,
       .help = "added to the denominator",
       .min = 0.0},
      {.name = "weight_decay",
       .type = ParamType::kFloat,
       .default_value = weight_decay,
       .help = "decay of everything but norms and biases",
       .min = 0.0},
      state_dtype_spec()};
}

const Registry<Optimizer>::Add adamw{
    {.name = "AdamW",
     .help = "Adam with decoupled weight decay, as torch.optim.AdamW.",
     .params = adam_params(0.01),
     .aliases = {"adamw"}},
    [](const Options& o) { return std::make_unique<Adam>("AdamW", true, o); }};

const Registry<Optimizer>::Add adam{
    {.name = "Adam",
     .help = "Adam with the decay added to the gradient, as torch.optim.Adam.",
     .params = adam_params(0.0),
     .aliases = {"adam"}},
    [](const Options& o) { return std::make_unique<Adam>("Adam", false, o); }};

}  // namespace
}  // namespace twinkle
