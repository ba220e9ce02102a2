// Optimizers over flat fp32 storages. Components of kind "optimizer", named and computed as in torch.optim.
// Every update is element-wise with a fixed formula, so its bits do not depend on threads. step() and all
// else are for one thread at a time; update() is not, see there.
//
// Between steps the state is kept in fp32 or bf16 (the option `state_dtype`). A step computes in fp32 either
// way: bf16 state is widened, and what it becomes is rounded to nearest even when it is put away; the weights
// see it unrounded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/registry.h"

namespace twinkle {

/// A tensor that is trained: value and gradient are fp32, contiguous and of the same size.
struct TrainedTensor {
  std::string name;
  at::Tensor value, grad;
  bool decay = true;  // whether weight decay applies
};

/// Norms and biases are not decayed: a name that ends in "bias" or has a part with "norm" in it.
bool decays(std::string_view parameter_name);

/// What a caller may set for one step only; the rest is the optimizer's and the schedule's.
struct StepOverrides {
  std::optional<double> lr, weight_decay, eps, beta1, beta2;
};

/// What one step uses.
struct StepHyper {
  double lr = 0;
  double grad_scale = 1.0;  // multiplied into the gradient: 1 / denominator, clipping
  StepOverrides overrides;  // its `lr` is not read: `lr` above is what counts
};

class Optimizer {
 public:
  static constexpr std::string_view kKind = "optimizer";
  Optimizer(std::string name, double lr, at::ScalarType state_type = at::kFloat)
      : name_(std::move(name)), lr_(lr), state_type_(state_type) {}
  virtual ~Optimizer() = default;

  const std::string& name() const { return name_; }
  double lr() const { return lr_; }  // the rate that a schedule scales
  int64_t steps_taken() const { return steps_; }

  /// Allocates zeroed state for these tensors. A second call with other names or sizes is `conflict`.
  void attach(const std::vector<TrainedTensor>& params);
  /// One update of every tensor, in place; attaches at first use.
  void step(std::vector<TrainedTensor>& params, const StepHyper& hyper);

  /// A bound of the L2 norm of all weights after such a step, where the optimizer has a cheap one; otherwise
  /// infinity. `grad_norm`: of the gradient that is used, scaled. Reads weights and state once.
  virtual double norm_after_step(const std::vector<TrainedTensor>& params, const StepHyper& hyper,
                                 double grad_norm) const;
  /// What to blame where a step makes numbers that are not finite, and what to go on with instead.
  struct Cause {
    std::string what, instead;
  };
  virtual Cause cause(const StepHyper& hyper) const;
  /// Weights, state and step count, to go back to.
  struct Saved {
    std::vector<at::Tensor> values, storage;
    int64_t steps = 0;
  };
  Saved save(const std::vector<TrainedTensor>& params);
  void restore(const std::vector<TrainedTensor>& params, const Saved& saved);

  /// State by name ("exp_avg.<parameter>", ...), same layout as the parameter's storage.
  struct StateTensor {
    std::string name;
    at::Tensor value;
  };
  std::vector<StateTensor> state() const;
  /// The same as one flat tensor for each kind of state; empty before attach(). They may be taken away (set
  /// undefined ones) and put back; in between the optimizer can not step.
  const std::vector<at::Tensor>& storage() const { return storage_; }
  void set_storage(std::vector<at::Tensor> storage);
  /// Replaces state and step count; names, sizes and types must be those of state(). Names what differs.
  void load_state(const std::vector<StateTensor>& state, int64_t steps_taken);
  /// Bytes of state for each trained element (the memory planner asks).
  int64_t state_bytes_per_element() const {
    return static_cast<int64_t>(slots().size() * c10::elementSize(state_type_));
  }

 protected:
  /// Names of the state tensors each parameter has.
  virtual std::vector<std::string> slots() const = 0;
  /// Refuses what this optimizer has no use for.
  virtual void check(const StepHyper& hyper) const = 0;
  /// Updates one parameter, or a piece of one; `state` is fp32; `step` is 1 for the first. Called by several
  /// threads at a time, each with another piece: it must change nothing but its arguments.
  virtual void update(TrainedTensor& param, std::vector<at::Tensor>& state, const StepHyper& hyper,
                      int64_t step) = 0;

 private:
  void update_piece(TrainedTensor& param, std::vector<at::Tensor>& state, const StepHyper& hyper);

  std::string name_;
  double lr_;
  at::ScalarType state_type_;
  int64_t steps_ = 0;
  std::vector<std::string> names_;               // of the attached parameters
  std::vector<std::vector<int64_t>> shapes_;     // likewise
  std::vector<at::Tensor> storage_;              // [slot] flat, each parameter on a 64-byte boundary
  std::vector<std::vector<at::Tensor>> states_;  // [parameter][slot] views of it
};

/// The option `state_dtype` of every optimizer that keeps state, and what it says.
ParamSpec state_dtype_spec();
at::ScalarType state_dtype_of(const Options& options);

/// Sum of squares of all gradients in fp64, in list order, each over fixed blocks: the bits depend on no
/// thread.
double gradient_sum_of_squares(const std::vector<TrainedTensor>& params);
/// Likewise of the weights.
double weight_sum_of_squares(const std::vector<TrainedTensor>& params);
/// Name of the first tensor whose values are not all numbers to compute with: not finite, or so large (1e18)
/// that their squares leave fp32. "" when all are. One read of the weights.
std::string unusable_weight(const std::vector<TrainedTensor>& params);
/// Largest magnitude of all gradients; NaN if any is NaN.
double gradient_max_abs(const std::vector<TrainedTensor>& params);

}  // namespace twinkle
