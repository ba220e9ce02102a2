#include "twinkle/train/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/kernels/ops.h"

namespace twinkle {

namespace {

int64_t aligned(int64_t elements) { return (elements + 31) / 32 * 32; }

const char* name_of(at::ScalarType type) { return type == at::kBFloat16 ? "bf16" : "fp32"; }

// To nearest even.
void put_away(const at::Tensor& wide, at::Tensor state) {
  if (!state.device().is_cpu()) {
    state.copy_(wide);
    return;
  }
  const float* from = wide.const_data_ptr<float>();
  auto* to = state.mutable_data_ptr<at::BFloat16>();
  parallel_for(wide.numel(), 16384, [&](int64_t begin, int64_t end) {
    ops::narrow(from + begin, end - begin, at::kBFloat16, to + begin);
  });
}

}  // namespace

ParamSpec state_dtype_spec() {
  return {.name = "state_dtype",
          .type = ParamType::kString,
          .default_value = "fp32",
          .help =
              "how its state is kept between steps; bf16, rounded to nearest even, takes half the memory "
              "(Adam: with a second beta of 0.99 or less, or the second moment never falls)",
          .choices = {"fp32", "bf16"}};
}

at::ScalarType state_dtype_of(const Options& options) {
  return options.get_string("state_dtype") == "bf16" ? at::kBFloat16 : at::kFloat;
}

bool decays(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return !lower.ends_with("bias") && lower.find("norm") == std::string::npos;
}

void Optimizer::attach(const std::vector<TrainedTensor>& params) {
  std::vector<std::string> names;
  for (const auto& param : params) names.push_back(param.name);
  if (!states_.empty()) {
    bool same = names == names_;
    for (size_t i = 0; same && i < params.size(); ++i) same = params[i].value.sizes() == shapes_[i];
    if (!same) throw conflict("[optimizer] " + name_ + " already holds state for other parameters");
    return;
  }
  names_ = std::move(names);
  for (const auto& param : params) shapes_.push_back(param.value.sizes().vec());
  int64_t elements = 0;
  for (const auto& param : params) elements += aligned(param.value.numel());
  std::vector<at::Tensor> storage;
  for (size_t k = 0; k < slots().size(); ++k)
    storage.push_back(at::zeros({elements}, params.at(0).value.options().dtype(state_type_)));
  set_storage(std::move(storage));
}

void Optimizer::set_storage(std::vector<at::Tensor> storage) {
  storage_ = std::move(storage);
  states_.assign(names_.size(), {});
  int64_t place = 0;
  for (size_t i = 0; i < names_.size(); ++i) {
    int64_t elements = 1;
    for (const int64_t size : shapes_[i]) elements *= size;
    for (const at::Tensor& flat : storage_)
      states_[i].push_back(flat.defined() ? flat.narrow(0, place, elements).view(shapes_[i]) : flat);
    place += aligned(elements);
  }
}

void Optimizer::step(std::vector<TrainedTensor>& params, const StepHyper& hyper) {
  check(hyper);
  if (!std::isfinite(hyper.lr) || hyper.lr < 0) {
    throw invalid_argument("[optimizer] learning rate must be a finite number >= 0, got " +
                           std::to_string(hyper.lr));
  }
  attach(params);
  ++steps_;
  for (size_t i = 0; i < params.size(); ++i) {
    if (state_type_ == at::kFloat || states_[i].empty()) {
      update(params[i], states_[i], hyper, steps_);
    } else {
      update_rounded(params[i], states_[i], hyper);
    }
  }
}

double Optimizer::norm_after_step(const std::vector<TrainedTensor>& /*params*/, const StepHyper& /*hyper*/,
                                  double /*grad_norm*/) const {
  return std::numeric_limits<double>::infinity();
}

Optimizer::Cause Optimizer::cause(const StepHyper& hyper) const {
  return {"learning rate " + Json(hyper.lr).dump(), "a smaller learning rate"};
}

Optimizer::Saved Optimizer::save(const std::vector<TrainedTensor>& params) {
  attach(params);
  Saved saved{.steps = steps_};
  for (const auto& param : params) saved.values.push_back(param.value.clone());
  for (const auto& flat : storage_) saved.storage.push_back(flat.clone());
  return saved;
}

void Optimizer::restore(const std::vector<TrainedTensor>& params, const Saved& saved) {
  for (size_t i = 0; i < params.size(); ++i) params[i].value.copy_(saved.values[i]);
  for (size_t k = 0; k < storage_.size(); ++k) storage_[k].copy_(saved.storage[k]);
  steps_ = saved.steps;
}

void Optimizer::update_rounded(TrainedTensor& param, const std::vector<at::Tensor>& state,
                               const StepHyper& hyper) {
  constexpr int64_t kPiece = 1 << 17;  // bounds the wide copies
  const at::Tensor value = param.value.view({-1}), grad = param.grad.view({-1});
  for (int64_t begin = 0; begin < value.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, value.numel() - begin);
    TrainedTensor piece{.name = param.name,
                        .value = value.narrow(0, begin, count),
                        .grad = grad.narrow(0, begin, count),
                        .decay = param.decay};
    std::vector<at::Tensor> wide;
    for (const auto& s : state) wide.push_back(s.view({-1}).narrow(0, begin, count).to(at::kFloat));
    update(piece, wide, hyper, steps_);
    for (size_t k = 0; k < state.size(); ++k) put_away(wide[k], state[k].view({-1}).narrow(0, begin, count));
  }
}

std::vector<Optimizer::StateTensor> Optimizer::state() const {
  std::vector<StateTensor> list;
  const auto slot_names = slots();
  for (size_t i = 0; i < states_.size(); ++i) {
    for (size_t k = 0; k < slot_names.size(); ++k)
      list.push_back({slot_names[k] + "." + names_[i], states_[i][k]});
  }
  return list;
}

void Optimizer::load_state(const std::vector<StateTensor>& given, int64_t steps_taken) {
  if (steps_taken < 0)
    throw invalid_argument("[optimizer] step count must be >= 0, got " + std::to_string(steps_taken));
  const auto mine = state();
  std::vector<const at::Tensor*> from(mine.size(), nullptr);
  for (const auto& entry : given) {
    const auto found =
        std::find_if(mine.begin(), mine.end(), [&](const auto& m) { return m.name == entry.name; });
    if (found == mine.end())
      throw invalid_argument("[optimizer] state has '" + entry.name + "', which " + name_ +
                             " does not use here");
    if (found->value.numel() != entry.value.numel()) {
      throw invalid_argument("[optimizer] state '" + entry.name + "' has " +
                             std::to_string(entry.value.numel()) + " elements, needed " +
                             std::to_string(found->value.numel()));
    }
    if (found->value.scalar_type() != entry.value.scalar_type()) {
      throw invalid_argument("[optimizer] state '" + entry.name + "' is " +
                             name_of(entry.value.scalar_type()) + ", this optimizer keeps " +
                             name_of(state_type_) + "; set state_dtype as it was");
    }
    from[static_cast<size_t>(found - mine.begin())] = &entry.value;
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    if (from[i] == nullptr) throw invalid_argument("[optimizer] state lacks '" + mine[i].name + "'");
  }
  for (size_t i = 0; i < mine.size(); ++i) mine[i].value.view({-1}).copy_(from[i]->reshape({-1}));
  steps_ = steps_taken;
}

double gradient_sum_of_squares(const std::vector<TrainedTensor>& params) {
  double total = 0;
  for (const auto& param : params) total += ops::sum_of_squares(param.grad);
  return total;
}

double weight_sum_of_squares(const std::vector<TrainedTensor>& params) {
  double total = 0;
  for (const auto& param : params) total += ops::sum_of_squares(param.value);
  return total;
}

std::string unusable_weight(const std::vector<TrainedTensor>& params) {
  constexpr double kMost = 1e36;
  for (const auto& param : params) {
    if (!(ops::sum_of_squares(param.value) < kMost)) return param.name;
  }
  return "";
}

double gradient_max_abs(const std::vector<TrainedTensor>& params) {
  double largest = 0;
  for (const auto& param : params) {
    if (param.grad.numel() == 0) continue;
    const double value = param.grad.abs().max().item<double>();  // max propagates NaN
    if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, value);
  }
  return largest;
}

}  // namespace twinkle
