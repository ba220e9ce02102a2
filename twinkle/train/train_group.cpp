// The passes of a call: forward, loss, backward. The rest of TrainGroup is in train_group_step.cpp.
#include "twinkle/train/train_group.h"

#include <ATen/ATen.h>

#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/train/cross_entropy.h"

namespace twinkle {
namespace {

std::vector<std::vector<float>> lists(const at::Tensor& values_S, const std::vector<int64_t>& cu_scored) {
  std::vector<std::vector<float>> out;
  if (!values_S.defined()) return out;
  const float* v = values_S.const_data_ptr<float>();
  for (size_t b = 0; b + 1 < cu_scored.size(); ++b) out.emplace_back(v + cu_scored[b], v + cu_scored[b + 1]);
  return out;
}

}  // namespace

TrainGroup::TrainGroup(SharedModel& shared, std::unique_ptr<Adapter> adapter)
    : shared_(shared), adapter_(std::move(adapter)) {
  for (const char* name : {"LossMetric", "Accuracy", "TrainMetric"})
    train_metrics_.add(Registry<Metric>::create(name));
  for (const char* name : {"LossMetric", "Accuracy"}) eval_metrics_.add(Registry<Metric>::create(name));
}

TrainGroup::~TrainGroup() = default;

std::unique_ptr<TrainGroup::Call> TrainGroup::make_call(std::span<const InputFeature> features,
                                                        const ForwardArgs& args, bool training) {
  check_features(features, args.extras, shared_.model->config().vocab_size);
  if (!(args.temperature > 0) || !std::isfinite(args.temperature)) {
    throw invalid_argument("[forward] temperature must be > 0, got " + std::to_string(args.temperature));
  }
  if (training && args.disable_lora) throw invalid_argument("[forward] disable_lora is for forward_only");
  auto call = std::make_unique<Call>();
  call->features.assign(features.begin(), features.end());
  call->args = args;
  call->training = training;
  call->ends = split_by_tokens(features, passes_.micro_batch_tokens);
  call->first_order = sequences_seen_;
  for (const auto& feature : features) call->num_tokens += static_cast<int64_t>(feature.input_ids.size());
  return call;
}

MicroBatch TrainGroup::micro_batch(const Call& call, size_t pass) const {
  return make_micro_batch(call.features, call.args.extras, pass == 0 ? 0 : call.ends[pass - 1],
                          call.ends[pass], call.first_order, passes_.packing);
}

// One pass up to the log-probabilities, in call order in `input`. Returns the most likely tokens if a metric
// asked.
at::Tensor TrainGroup::run_pass(const MicroBatch& micro, const Call& call, bool for_backward,
                                const at::Tensor& known_S, LossInput& input) {
  CausalLM& model = *shared_.model;
  shared_.live = nullptr;
  input = micro.input;
  const auto S = static_cast<int64_t>(micro.rows.size());
  const bool want_entropy = loss().needs_entropy();
  const bool want_argmax = (call.training ? train_metrics_ : eval_metrics_).needs_argmax();
  if (S == 0) {
    model.finish();
    input.logprob_S = at::empty({0}, at::kFloat);
    if (want_entropy) input.entropy_S = at::empty({0}, at::kFloat);
    return want_argmax ? at::empty({0}, at::kInt) : at::Tensor();
  }
  const nn::LoraBinding* lora = nullptr;
  if (adapter_ && !call.args.disable_lora) {
    binding_ = bind_adapter(model, *adapter_, micro.batch, call.training);
    lora = &binding_;
  }
  model.forward(micro.batch, lora, {.for_backward = for_backward, .recompute = passes_.recompute});
  const auto take = [&](at::ScalarType type) {
    return at::empty({S}, at::TensorOptions().dtype(type).device(model.device()));
  };
  ops::HeadOutputs out;
  out.logprob_S = take(at::kFloat);
  out.lse_S = take(at::kFloat);
  if (want_entropy) out.entropy_S = take(at::kFloat);
  if (want_argmax) out.argmax_S = take(at::kInt);
  const at::Tensor known = known_S.defined() ? to_row_order(micro, known_S).to(model.device()) : at::Tensor();
  model.score(micro.rows, micro.targets, 1.0 / call.args.temperature, out, known);
  input.logprob_S = to_call_order(micro, out.logprob_S);
  input.entropy_S = to_call_order(micro, out.entropy_S);
  return to_call_order(micro, out.argmax_S);
}

// Backward of the pass that the model holds. `known`: the head's part is done already.
void TrainGroup::pass_backward(const MicroBatch& micro, bool known, const at::Tensor& dlogprob_S,
                               const at::Tensor& dentropy_S) {
  if (micro.rows.empty()) return;
  CausalLM& model = *shared_.model;
  const auto give = [&](const at::Tensor& x) {
    return x.defined() ? to_row_order(micro, x).to(model.device()) : at::Tensor();
  };
  if (known) {
    model.backward({});
  } else {
    model.backward(give(dlogprob_S), give(dentropy_S));
  }
  model.finish();
}

void TrainGroup::run_forward(Call& call) {
  std::vector<LossInput> parts(call.ends.size());
  std::vector<at::Tensor> argmax;
  const bool keep = call.training && call.ends.size() == 1;
  for (size_t pass = 0; pass < call.ends.size(); ++pass) {
    argmax.push_back(run_pass(micro_batch(call, pass), call, keep, {}, parts[pass]));
  }
  call.input = join_inputs(parts);
  call.argmax_S = argmax[0].defined() ? at::cat(argmax) : at::Tensor();
  if (keep) {
    shared_.live = &call;
  } else {
    shared_.model->finish();
  }
}

LossOutput TrainGroup::evaluate_input(const LossInput& input) {
  LossOutput out = loss()(input);
  const auto sequences = static_cast<size_t>(input.num_sequences());
  if (out.sum_B.size() != sequences || out.denominator_B.size() != sequences) {
    throw invalid_argument("[loss] returned " + std::to_string(out.sum_B.size()) + " sums and " +
                           std::to_string(out.denominator_B.size()) + " denominators for " +
                           std::to_string(sequences) + " sequences");
  }
  if (!out.dlogprob_S.defined() || out.dlogprob_S.numel() != input.num_scored()) {
    throw invalid_argument("[loss] returned no derivative for the " + std::to_string(input.num_scored()) +
                           " scored tokens");
  }
  return out;
}

void TrainGroup::report_pass(MetricSet& metrics, const LossInput& input, const LossOutput& out,
                             const at::Tensor& argmax_S, int64_t num_tokens) {
  metrics.accumulate(PassRecord{.input = input,
                                .output = out,
                                .argmax_S = argmax_S,
                                .num_tokens = num_tokens,
                                .divides = loss().divides()});
}

void TrainGroup::evaluate(Call& call) {
  if (call.out) return;
  call.out = evaluate_input(call.input);
  if (!call.training) report_pass(eval_metrics_, call.input, *call.out, call.argmax_S, call.num_tokens);
}

ModelOutput TrainGroup::output_of(const Call& call) const {
  ModelOutput output;
  output.logprobs = lists(call.input.logprob_S, call.input.cu_scored);
  output.entropies = lists(call.input.entropy_S, call.input.cu_scored);
  output.num_tokens = call.num_tokens;
  if (call.out) {
    output.loss = loss_->divides() ? mean_or_zero(call.out->sum(), call.out->denominator()) : call.out->sum();
  }
  return output;
}

ModelOutput TrainGroup::forward(std::span<const InputFeature> features, const ForwardArgs& args) {
  auto call = make_call(features, args, true);
  prepare();
  run_forward(*call);
  train_call_ = std::move(call);
  last_was_eval_ = false;
  return output_of(*train_call_);
}

ModelOutput TrainGroup::forward_only(std::span<const InputFeature> features, const ForwardArgs& args) {
  auto call = make_call(features, args, false);
  run_forward(*call);
  eval_call_ = std::move(call);
  last_was_eval_ = true;
  return output_of(*eval_call_);
}

double TrainGroup::calculate_loss() {
  const auto& call = last_was_eval_ ? eval_call_ : train_call_;
  if (!call) throw conflict("[calculate_loss] there is no forward to calculate the loss of");
  evaluate(*call);
  return *output_of(*call).loss;
}

void TrainGroup::backward() {
  if (!train_call_) throw conflict("[backward] there is no forward to go back through");
  const auto call = std::move(train_call_);
  evaluate(*call);
  backward_call(*call);
}

// From a loss over the whole call: the pass that the model still holds, or every pass once more. The kernels
// give the same log-probabilities the second time, bit for bit.
void TrainGroup::backward_call(Call& call) {
  begin_accumulation();
  try {
    const bool live = shared_.live == &call;
    shared_.live = nullptr;
    accumulate(call, 0, call.input, *call.out);
    if (broken_.empty()) report_pass(train_metrics_, call.input, *call.out, call.argmax_S, call.num_tokens);
    for (size_t pass = 0; broken_.empty() && pass < call.ends.size(); ++pass) {
      const MicroBatch micro = micro_batch(call, pass);
      const auto part = [&](const at::Tensor& x) {
        return rows_of(x, call.input.cu_scored, micro.begin, micro.end);
      };
      const at::Tensor dlogprob = part(call.out->dlogprob_S), dentropy = part(call.out->dentropy_S);
      bool known = false;
      if (!live) {
        LossInput again;
        known = !dentropy.defined();
        run_pass(micro, call, true, known ? dlogprob : at::Tensor(), again);
      }
      pass_backward(micro, known, dlogprob, dentropy);
    }
    shared_.model->finish();
  } catch (...) {
    abandon();
    throw;
  }
  end_call(call);
}

ModelOutput TrainGroup::forward_backward(std::span<const InputFeature> features, const ForwardArgs& args) {
  train_call_.reset();
  last_was_eval_ = false;
  const auto call = make_call(features, args, true);
  prepare();
  if (loss().needs_whole_batch()) {
    run_forward(*call);
    evaluate(*call);
    backward_call(*call);
    return output_of(*call);
  }
  begin_accumulation();
  LossOutput whole;
  std::vector<LossInput> parts(call->ends.size());
  try {
    for (size_t pass = 0; pass < call->ends.size(); ++pass) {
      const MicroBatch micro = micro_batch(*call, pass);
      const at::Tensor known = loss().known_dlogprob(micro.input);
      const at::Tensor argmax = run_pass(micro, *call, true, known, parts[pass]);
      const LossOutput out = evaluate_input(parts[pass]);
      accumulate(*call, micro.begin, parts[pass], out);
      if (broken_.empty()) {
        report_pass(train_metrics_, parts[pass], out, argmax, micro.batch.num_tokens());
        pass_backward(micro, known.defined(), out.dlogprob_S, out.dentropy_S);
      }
      whole.sum_B.insert(whole.sum_B.end(), out.sum_B.begin(), out.sum_B.end());
      whole.denominator_B.insert(whole.denominator_B.end(), out.denominator_B.begin(),
                                 out.denominator_B.end());
    }
    shared_.model->finish();
  } catch (...) {
    abandon();
    throw;
  }
  call->input = join_inputs(parts);
  call->out = std::move(whole);
  end_call(*call);
  return output_of(*call);
}

}  // namespace twinkle
