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

at::Tensor joined(const std::vector<at::Tensor>& parts) {
  return parts[0].defined() ? at::cat(parts) : at::Tensor();
}

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

TrainGroup::TrainGroup(SharedModel& shared, std::shared_ptr<Adapter> adapter)
    : shared_(shared), adapter_(std::move(adapter)) {
  for (const char* name : {"LossMetric", "Accuracy", "TrainMetric"})
    train_metrics_.add(Registry<Metric>::create(name));
  for (const char* name : {"LossMetric", "Accuracy"}) eval_metrics_.add(Registry<Metric>::create(name));
}

TrainGroup::~TrainGroup() = default;

std::shared_ptr<TrainGroup::Call> TrainGroup::make_call(std::span<const InputFeature> features,
                                                        const ForwardArgs& args, bool training) {
  check_features(features, args.extras, shared_.model->config().vocab_size);
  if (!(args.temperature > 0) || !std::isfinite(args.temperature)) {
    throw invalid_argument("[forward] temperature must be > 0, got " + std::to_string(args.temperature));
  }
  if (training && args.disable_lora) throw invalid_argument("[forward] disable_lora is for forward_only");
  if (training && passes_.sharing == PrefixSharing::kGroups && adapter_ &&
      adapter_->config().lora_dropout > 0) {
    throw invalid_argument(
        "[forward] share_prefix 'groups' needs an adapter without lora_dropout, this one has " +
        Json(adapter_->config().lora_dropout).dump() +
        ": each answer draws its own dropout for the prompt, so there is nothing that they could share; set "
        "lora_dropout to 0 or share_prefix to 'exact'");
  }
  auto call = std::make_shared<Call>();
  call->features.assign(features.begin(), features.end());
  call->args = args;
  call->training = training;
  const int64_t most = passes_.micro_batch_tokens;
  call->ends = split_runs(feature_runs(features, passes_.sharing, training, most), most);
  call->first_order = sequences_seen_;
  for (const auto& feature : features) call->num_tokens += static_cast<int64_t>(feature.input_ids.size());
  return call;
}

std::unique_ptr<TrainGroup::Piece> TrainGroup::piece_of(const Call& call, int64_t begin, int64_t end,
                                                        bool for_backward) {
  auto piece = std::make_unique<Piece>();
  piece->micro = make_micro_batch(call.features, call.args.extras, begin, end, call.first_order,
                                  passes_.packing, passes_.sharing == PrefixSharing::kGroups && for_backward);
  piece->part = {.micro = &piece->micro,
                 .adapter = call.args.disable_lora ? nullptr : adapter_.get(),
                 .training = call.training,
                 .backward = for_backward,
                 .temperature = call.args.temperature,
                 .want_entropy = loss().needs_entropy(),
                 .want_argmax = (call.training ? train_metrics_ : eval_metrics_).needs_argmax()};
  return piece;
}

// One piece in a pass of its own, up to the log-probabilities.
void TrainGroup::run_piece(Piece& piece) {
  shared_.live = nullptr;
  PassPart* part = &piece.part;
  shared_.fused().forward(std::span(&part, 1), {passes_.recompute, passes_.sharing});
  piece.micro.input.logprob_S = piece.part.logprob_S;
  piece.micro.input.entropy_S = piece.part.entropy_S;
}

void TrainGroup::run_forward(Call& call) {
  std::vector<LossInput> parts;
  std::vector<at::Tensor> argmax;
  const bool keep = call.training && call.ends.size() == 1;
  live_piece_.reset();
  for (size_t pass = 0; pass < call.ends.size(); ++pass) {
    auto piece = piece_of(call, pass == 0 ? 0 : call.ends[pass - 1], call.ends[pass], keep);
    run_piece(*piece);
    parts.push_back(piece->micro.input);
    argmax.push_back(piece->part.argmax_S);
    if (keep) live_piece_ = std::move(piece);
  }
  call.input = join_inputs(parts);
  call.argmax_S = joined(argmax);
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
  prepare();
  begin_accumulation();
  try {
    const bool live = shared_.live == &call && live_piece_ != nullptr;
    shared_.live = nullptr;
    accumulate(call, 0, call.input, *call.out);
    if (broken_.empty()) report_pass(train_metrics_, call.input, *call.out, call.argmax_S, call.num_tokens);
    for (size_t pass = 0; broken_.empty() && pass < call.ends.size(); ++pass) {
      const int64_t begin = pass == 0 ? 0 : call.ends[pass - 1], end = call.ends[pass];
      const auto part = [&](const at::Tensor& x) { return rows_of(x, call.input.cu_scored, begin, end); };
      auto piece = live ? std::move(live_piece_) : piece_of(call, begin, end, true);
      piece->part.dlogprob_S = part(call.out->dlogprob_S);
      piece->part.dentropy_S = part(call.out->dentropy_S);
      if (!live) {
        if (!piece->part.dentropy_S.defined()) piece->part.known_dlogprob_S = piece->part.dlogprob_S;
        run_piece(*piece);
      }
      shared_.fused().backward();
    }
    shared_.model->finish();
  } catch (...) {
    abandon();
    throw;
  }
  live_piece_.reset();
  end_call(call);
}

ModelOutput TrainGroup::forward_backward(std::span<const InputFeature> features, const ForwardArgs& args) {
  if (loss().needs_whole_batch()) {
    train_call_.reset();
    last_was_eval_ = false;
    const auto call = make_call(features, args, true);
    prepare();
    run_forward(*call);
    evaluate(*call);
    backward_call(*call);
    return output_of(*call);
  }
  const auto call = open(features, args, true);
  try {
    for (size_t pass = 0; pass < call->ends.size(); ++pass) {
      const auto piece = make_piece(*call, pass == 0 ? 0 : call->ends[pass - 1], call->ends[pass]);
      run_piece(*piece);
      take_forward(*call, *piece);
      if (broken_.empty()) shared_.fused().backward();
    }
    shared_.model->finish();
    return close(call);
  } catch (...) {
    fail(*call);
    throw;
  }
}

// In pieces.

std::shared_ptr<TrainGroup::Call> TrainGroup::open(std::span<const InputFeature> features,
                                                   const ForwardArgs& args, bool training) {
  if (training) {
    train_call_.reset();
    last_was_eval_ = false;
  }
  auto call = make_call(features, args, training);
  if (training) {
    prepare();
    begin_accumulation();
  }
  return call;
}

std::unique_ptr<TrainGroup::Piece> TrainGroup::make_piece(Call& call, int64_t begin, int64_t end) {
  auto piece = piece_of(call, begin, end, call.training);
  if (call.training) piece->part.known_dlogprob_S = loss().known_dlogprob(piece->micro.input);
  return piece;
}

void TrainGroup::take_forward(Call& call, Piece& piece) {
  LossInput& input = piece.micro.input;
  input.logprob_S = piece.part.logprob_S;
  input.entropy_S = piece.part.entropy_S;
  call.parts.push_back(input);
  call.argmax_parts.push_back(piece.part.argmax_S);
  if (!call.training) return;
  const LossOutput out = evaluate_input(input);
  accumulate(call, piece.micro.begin, input, out);
  if (broken_.empty()) {
    piece.part.dlogprob_S = out.dlogprob_S;
    piece.part.dentropy_S = out.dentropy_S;
  }
  call.dlogprob_parts.push_back(out.dlogprob_S);
  call.dentropy_parts.push_back(out.dentropy_S);
  append(call.sums.sum_B, out.sum_B);
  append(call.sums.denominator_B, out.denominator_B);
}

ModelOutput TrainGroup::close(const std::shared_ptr<Call>& call) {
  call->input = join_inputs(call->parts);
  call->argmax_S = joined(call->argmax_parts);
  call->parts.clear();
  call->argmax_parts.clear();
  if (call->training) {
    call->sums.dlogprob_S = joined(call->dlogprob_parts);
    call->sums.dentropy_S = joined(call->dentropy_parts);
    call->out = std::move(call->sums);
    // All of a call or, when something in it is not finite, nothing.
    if (broken_.empty())
      report_pass(train_metrics_, call->input, *call->out, call->argmax_S, call->num_tokens);
    end_call(*call);
  } else {
    eval_call_ = call;
    last_was_eval_ = true;
  }
  return output_of(*call);
}

void TrainGroup::fail(Call& call) {
  if (call.training) abandon();
}

}  // namespace twinkle
