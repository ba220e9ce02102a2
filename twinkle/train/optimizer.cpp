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

constexpr int64_t kPiece = 1 << 17;  // elements that one thread updates at a time

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

// Of each tensor. Threads share small ones out among them, and large ones block by block.
std::vector<double> sums_of_squares(const std::vector<TrainedTensor>& params,
                                    at::Tensor TrainedTensor::* which) {
  constexpr int64_t kSmall = 1 << 18;
  std::vector<double> sums(params.size());
  std::vector<size_t> small;
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& x = params[i].*which;
    if (x.device().is_cpu() && x.numel() <= kSmall) {
      small.push_back(i);
    } else {
      sums[i] = ops::sum_of_squares(x);
    }
  }
  parallel_for(static_cast<int64_t>(small.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const size_t i = small[static_cast<size_t>(k)];
      sums[i] = ops::sum_of_squares(params[i].*which);
    }
  });
  return sums;
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
  // An adapter has hundreds of tensors too small for several threads. Pieces bound what is widened at a time.
  struct Piece {
    size_t param;
    int64_t begin, count;
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < params.size(); ++i) {
    const int64_t size = params[i].value.numel();
    for (int64_t begin = 0; begin < size; begin += kPiece)
      pieces.push_back({i, begin, std::min(kPiece, size - begin)});
  }
  const bool cpu = !params.empty() && params[0].value.is_cpu();
  const auto all = static_cast<int64_t>(pieces.size());
  parallel_for(all, cpu ? 1 : all, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const Piece& piece = pieces[static_cast<size_t>(k)];
      TrainedTensor& whole = params[piece.param];
      if (piece.count == whole.value.numel()) {
        update_piece(whole, states_[piece.param], hyper);
        continue;
      }
      const auto part = [&](const at::Tensor& x) { return x.view({-1}).narrow(0, piece.begin, piece.count); };
      TrainedTensor param{
          .name = whole.name, .value = part(whole.value), .grad = part(whole.grad), .decay = whole.decay};
      std::vector<at::Tensor> state;
      for (const at::Tensor& s : states_[piece.param]) state.push_back(part(s));
      update_piece(param, state, hyper);
    }
  });
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

void Optimizer::update_piece(TrainedTensor& param, std::vector<at::Tensor>& state, const StepHyper& hyper) {
  if (state_type_ == at::kFloat || state.empty()) return update(param, state, hyper, steps_);
  std::vector<at::Tensor> wide;
  for (const auto& s : state) wide.push_back(s.to(at::kFloat));
  update(param, wide, hyper, steps_);
  for (size_t k = 0; k < state.size(); ++k) put_away(wide[k], state[k]);
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
  for (const double sum : sums_of_squares(params, &TrainedTensor::grad)) total += sum;
  return total;
}

double weight_sum_of_squares(const std::vector<TrainedTensor>& params) {
  double total = 0;
  for (const double sum : sums_of_squares(params, &TrainedTensor::value)) total += sum;
  return total;
}

std::string unusable_weight(const std::vector<TrainedTensor>& params) {
  constexpr double kMost = 1e36;
  const auto sums = sums_of_squares(params, &TrainedTensor::value);
  for (size_t i = 0; i < params.size(); ++i) {
    if (!(sums[i] < kMost)) return params[i].name;
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
