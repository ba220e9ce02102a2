// What happens to the gradients: counting accumulated calls, clipping, the optimizer step, and finding the
// sequence that made something not finite.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/train/cross_entropy.h"
#include "twinkle/train/train_group.h"

namespace twinkle {
namespace {

bool all_finite(const at::Tensor& x) {
  if (!x.defined()) return true;
  const float* v = x.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (!std::isfinite(v[i])) return false;
  }
  return true;
}

}  // namespace

// Parts.

void TrainGroup::set_loss(std::unique_ptr<Loss> loss, ComponentSpec spec) {
  if (pending_calls() > 0) throw conflict("[set_loss] an accumulation is under way; step or zero_grad first");
  loss_ = std::move(loss);
  loss_spec_ = std::move(spec);
}

void TrainGroup::set_optimizer(std::unique_ptr<Optimizer> optimizer, ComponentSpec spec) {
  optimizer_ = std::move(optimizer);
  optimizer_spec_ = std::move(spec);
}

void TrainGroup::set_lr_scheduler(std::unique_ptr<LRScheduler> scheduler, ComponentSpec spec) {
  scheduler_ = std::move(scheduler);
  scheduler_spec_ = std::move(spec);
}

void TrainGroup::set_gradient_accumulation_steps(int64_t steps) {
  if (steps < 1)
    throw invalid_argument("[train] gradient_accumulation_steps must be >= 1, got " + std::to_string(steps));
  if (pending_calls() > 0 && steps != accumulation_steps_) {
    throw conflict("[train] gradient_accumulation_steps can not change while " + std::to_string(calls_) +
                   " of " + std::to_string(accumulation_steps_) + " calls are accumulated");
  }
  accumulation_steps_ = steps;
}

const Loss& TrainGroup::loss() {
  if (!loss_) set_loss(std::make_unique<CrossEntropyLoss>(), {.name = "CrossEntropyLoss"});
  return *loss_;
}

Optimizer& TrainGroup::optimizer() {
  if (!optimizer_) {
    const ComponentSpec spec{"AdamW", {{"lr", 1e-5}, {"weight_decay", 0.01}}};
    set_optimizer(Registry<Optimizer>::create(spec.name, spec.options), spec);
  }
  return *optimizer_;
}

double TrainGroup::current_lr() {
  const double base = optimizer().lr();
  return scheduler_ ? scheduler_->lr(base, schedule_position_) : base;
}

std::vector<TrainedTensor> TrainGroup::trained() {
  std::vector<TrainedTensor> list;
  if (adapter_) {
    for (auto& t : adapter_->trained()) list.push_back({t.name, t.value, t.grad, decays(t.name)});
  } else {
    for (auto& p : shared_.model->parameters())
      list.push_back({p.name, p.flat(), p.flat_grad(), decays(p.name)});
  }
  return list;
}

void TrainGroup::prepare() {
  if (adapter_) adapter_->make_trainable();
  if (prepared_) return;
  if (!adapter_) shared_.model->make_trainable();
  optimizer().attach(trained());
  prepared_ = true;
}

void TrainGroup::weights_change() {
  if (before_update_) before_update_();
  shared_.live = nullptr;
}

void TrainGroup::restore(int64_t sequences_seen, int64_t tokens_seen, int64_t schedule_position,
                         int64_t skipped_steps) {
  reset_accumulation();
  sequences_seen_ = sequences_seen;
  tokens_seen_ = tokens_seen;
  schedule_position_ = schedule_position;
  skipped_steps_ = skipped_steps;
  train_metrics_.resume({.tokens_seen = tokens_seen, .skipped_steps = skipped_steps});
  lr_step_due_ = false;
}

// Accumulation.

bool TrainGroup::at_boundary() const {
  return calls_ > 0 && (stepped_ || flushed_ || calls_ >= accumulation_steps_);
}

// A new accumulation begins with the first backward after a step, whether or not zero_grad was called. The
// gradients are in memory here.
void TrainGroup::begin_accumulation() {
  if (stepped_ || dirty_) {
    calls_ = std::max<int64_t>(calls_, 1);
    reset_accumulation();
    dirty_ = false;
  }
  norm_.reset();
  clip_scale_ = 1.0;
}

void TrainGroup::reset_accumulation() {
  if (prepared_ && calls_ > 0) {
    if (adapter_) {
      adapter_->zero_grad();
    } else {
      shared_.model->zero_grad();
    }
  }
  calls_ = 0;
  flushed_ = stepped_ = false;
  denominator_ = 0;
  sequences_.clear();
  broken_.clear();
  norm_.reset();
  clip_scale_ = 1.0;
}

// An error in the middle of a call: half of its gradients may be there already, so the whole accumulation
// goes. An adapter that is not in memory has its gradients cleared when they are back.
void TrainGroup::abandon() {
  shared_.live = nullptr;
  shared_.model->finish();
  calls_ = std::max<int64_t>(calls_, 1);
  reset_accumulation();
  dirty_ = true;
}

std::string TrainGroup::name_of(const Sequence& sequence) const {
  std::string name = "sequence " + std::to_string(sequence.index);
  if (accumulation_steps_ > 1) name += " of accumulated call " + std::to_string(sequence.call);
  return name + (sequence.feature.origin.empty() ? "" : " (" + sequence.feature.origin + ")");
}

// Adds what the loss said about features begin.. of the call, in order, and looks for what is not finite.
void TrainGroup::accumulate(const Call& call, int64_t begin, const LossInput& input, const LossOutput& out) {
  const float* w = input.weights_S.const_data_ptr<float>();
  const float* lp = input.logprob_S.const_data_ptr<float>();
  for (size_t b = 0; b < out.sum_B.size(); ++b) {
    denominator_ += out.denominator_B[b];
    const int64_t index = begin + static_cast<int64_t>(b), row = static_cast<int64_t>(b);
    Sequence sequence{.feature = call.features[static_cast<size_t>(index)],
                      .call = calls_,
                      .index = index,
                      .order = call.first_order + index,
                      .temperature = call.args.temperature,
                      .dlogprob = rows_of(out.dlogprob_S, input.cu_scored, row, row + 1),
                      .dentropy = rows_of(out.dentropy_S, input.cu_scored, row, row + 1)};
    bool finite_logprobs = true;
    for (int64_t s = input.cu_scored[b]; s < input.cu_scored[b + 1]; ++s)
      finite_logprobs &= w[s] == 0 || std::isfinite(lp[s]);
    if (broken_.empty()) {
      if (!finite_logprobs) {
        broken_ = "a log-probability of " + name_of(sequence) + " is not finite";
      } else if (!all_finite(sequence.dlogprob) || !all_finite(sequence.dentropy)) {
        broken_ = "the derivative of the loss for " + name_of(sequence) + " is not finite";
      } else if (!std::isfinite(out.sum_B[b])) {
        broken_ = loss().needs_whole_batch() ? "the loss of call " + std::to_string(calls_) + " is not finite"
                                             : "the loss of " + name_of(sequence) + " is not finite";
      }
    }
    sequences_.push_back(std::move(sequence));
  }
}

void TrainGroup::end_call(const Call& call) {
  ++calls_;
  sequences_seen_ += static_cast<int64_t>(call.features.size());
  if (broken_.empty()) tokens_seen_ += call.num_tokens;  // as the metrics count
}

double TrainGroup::divisor() { return loss().divides() && denominator_ > 0 ? denominator_ : 1.0; }

// Step.

void TrainGroup::measure(double norm_type) {
  if (norm_) return;
  if (!broken_.empty()) {
    norm_ = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  const auto params = trained();
  norm_ =
      (norm_type == 2.0 ? std::sqrt(gradient_sum_of_squares(params)) : gradient_max_abs(params)) / divisor();
  if (!std::isfinite(*norm_)) broken_ = find_bad_sequence();
}

// The gradients are lost already, so each sequence is run once more alone to see which one does it.
std::string TrainGroup::find_bad_sequence() {
  const auto clear = [&] { adapter_ ? adapter_->zero_grad() : shared_.model->zero_grad(); };
  std::string found =
      "the sum of the gradients of " + std::to_string(sequences_.size()) + " sequences is not finite";
  for (const auto& sequence : sequences_) {
    clear();
    Call call;
    call.features = {sequence.feature};
    call.args.temperature = sequence.temperature;
    call.training = true;
    call.ends = {1};
    call.first_order = sequence.order;
    const auto piece = piece_of(call, 0, 1, true);
    run_piece(*piece);
    piece->part.dlogprob_S = sequence.dlogprob;
    piece->part.dentropy_S = sequence.dentropy;
    shared_.fused().backward();
    if (!std::isfinite(gradient_max_abs(trained()))) {
      found = "the gradient of " + name_of(sequence) + " is not finite";
      break;
    }
  }
  clear();
  shared_.model->finish();
  return found;
}

void TrainGroup::check_clipping(double max_norm, double norm_type) {
  if (std::isnan(max_norm)) throw invalid_argument("[clip_grad_norm] max_grad_norm is not a number");
  if (norm_type != 2.0 && !(std::isinf(norm_type) && norm_type > 0)) {
    throw invalid_argument("[clip_grad_norm] norm_type must be 2 or inf, got " + std::to_string(norm_type));
  }
}

std::optional<double> TrainGroup::clip_grad_norm(double max_norm, double norm_type) {
  check_clipping(max_norm, norm_type);
  if (stepped_ || !at_boundary()) return std::nullopt;
  norm_.reset();
  measure(norm_type);
  // As torch.nn.utils.clip_grad_norm_.
  clip_scale_ = max_norm > 0 ? std::min(1.0, max_norm / (*norm_ + 1e-6)) : 1.0;
  return norm_;
}

// What the step would have broken, when it was undone for that; "" otherwise.
std::string TrainGroup::update(std::vector<TrainedTensor>& params, const StepHyper& hyper) {
  constexpr double kSafe = 1e17;  // a tenth of what unusable_weight() lets pass
  if (!undo_bad_steps_ || optimizer().norm_after_step(params, hyper, *norm_ * clip_scale_) < kSafe) {
    optimizer().step(params, hyper);
    return "";
  }
  const Optimizer::Saved saved = optimizer().save(params);
  optimizer().step(params, hyper);
  std::string bad = unusable_weight(params);
  for (const auto& entry : optimizer().state()) {
    if (bad.empty() && !entry.value.isfinite().all().item<bool>()) bad = entry.name;
  }
  if (!bad.empty()) optimizer().restore(params, saved);
  return bad;
}

StepResult TrainGroup::step(const StepOverrides& overrides) {
  StepResult result{.step = cur_step(), .lr = overrides.lr.value_or(current_lr())};
  if (calls_ == 0 || stepped_) {
    result.reason = "nothing has been accumulated since the last step";
    return result;
  }
  if (!at_boundary()) {
    result.reason =
        std::to_string(calls_) + " of " + std::to_string(accumulation_steps_) + " calls are accumulated";
    return result;
  }
  measure(2.0);
  result.grad_norm = norm_;
  if (!broken_.empty()) {
    result.skipped = true;
    ++skipped_steps_;
    result.reason = "step skipped: " + broken_ + "; weights, optimizer and step count are as before";
    lr_step_due_ = false;
  } else {
    if (before_update_) before_update_();
    auto params = trained();
    const StepHyper hyper{.lr = result.lr, .grad_scale = clip_scale_ / divisor(), .overrides = overrides};
    const std::string bad = update(params, hyper);
    if (shared_.live == train_call_.get()) shared_.live = nullptr;  // a forward with the weights before
    result.stepped = bad.empty();
    result.step = cur_step();
    lr_step_due_ = result.stepped;
    if (!bad.empty()) {
      result.skipped = true;
      ++skipped_steps_;
      result.reason = "step skipped: " + optimizer().cause(hyper).what + " would make numbers of '" + bad +
                      "' that are not finite, or too large to compute with; weights, optimizer and step "
                      "count are as before";
    }
  }
  stepped_ = true;
  train_metrics_.accumulate(StepRecord{
      .step = result.step, .lr = result.lr, .grad_norm = result.grad_norm, .skipped = result.skipped});
  // update() sees to that itself where it undoes such steps.
  if (const std::string bad = result.stepped && !undo_bad_steps_ ? unusable_weight(trained()) : "";
      !bad.empty()) {
    const auto [what, instead] = optimizer().cause({.lr = result.lr, .overrides = overrides});
    throw invalid_argument("[step] step " + std::to_string(result.step) + " with " + what +
                           " made numbers of '" + bad +
                           "' that are not finite, or too large to compute with: these weights are lost; "
                           "go on from a checkpoint with " +
                           instead);
  }
  return result;
}

void TrainGroup::zero_grad() {
  if (!at_boundary()) return;
  reset_accumulation();
  if (!free_gradients_ || !adapter_) return;
  live_piece_.reset();  // it would add to the gradients that go
  adapter_->set_gradients({});
}

void TrainGroup::lr_step() {
  if (!lr_step_due_) return;
  lr_step_due_ = false;
  ++schedule_position_;
}

void TrainGroup::flush_accumulation() {
  if (pending_calls() > 0) flushed_ = true;
}

}  // namespace twinkle
