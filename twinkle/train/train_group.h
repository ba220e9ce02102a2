// One thing that is trained (an adapter, or the whole model) with its loss, optimizer, schedule, metrics and
// the gradients accumulated so far. What TransformersModel is made of. Not thread-safe: one call at a time
// per model.
//
// Gradients are summed over sequences in the order in which they are given, over all calls up to the
// optimizer step; the divisor of a mean and the clipping factor are applied once, inside the step. So neither
// the split of a call over passes nor the split of a batch over accumulated calls changes a bit.
//
// A loss or gradient that is not finite spoils the whole accumulated batch: the step is skipped, weights,
// optimizer state and step count stay as they were, and the report names the sequence.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/lora/adapter.h"
#include "twinkle/model/causal_lm.h"
#include "twinkle/train/fused_pass.h"
#include "twinkle/train/loss.h"
#include "twinkle/train/metrics.h"
#include "twinkle/train/micro_batch.h"
#include "twinkle/train/optimizer.h"
#include "twinkle/train/planner.h"
#include "twinkle/train/scheduler.h"

namespace twinkle {

/// A component as it was asked for; kept for checkpoints and manifests. Empty name: given as an object.
struct ComponentSpec {
  std::string name;
  Json options = Json::object();
};

struct PassOptions {
  int64_t micro_batch_tokens = 2048;  // most rows of one pass; a longer sequence gets a pass of its own
  bool recompute = false;             // keep only each layer's input between forward and backward
  PackingOrder packing = PackingOrder::kAsGiven;
  PrefixSharing sharing = PrefixSharing::kExact;
  PassSize planned;  // memory was found to be enough for such passes
};

/// Beside the features of a call.
struct ForwardArgs {
  Extras extras;
  double temperature = 1.0;   // logits are divided by it
  bool disable_lora = false;  // forward_only: the base model alone
};

struct ModelOutput {
  std::vector<std::vector<float>> logprobs;   // of each sequence's scored targets
  std::vector<std::vector<float>> entropies;  // likewise; only when the loss asks for them
  std::optional<double> loss;                 // of this call: sum / denominator, or the sum for a sum loss
  int64_t num_tokens = 0;                     // tokens that went through the model
};

struct StepResult {
  bool stepped = false;             // the weights changed
  bool skipped = false;             // something was not finite; nothing changed
  std::string reason;               // why not, naming the sequence when skipped
  int64_t step = 0;                 // optimizer steps taken so far
  double lr = 0;                    // the rate this step used (or would have)
  std::optional<double> grad_norm;  // before clipping
};

/// The model that several groups share. `live` names the group and call whose activations the model holds.
struct SharedModel {
  std::unique_ptr<CausalLM> model;
  const void* live = nullptr;
  std::unique_ptr<FusedPass> pass;
  FusedPass& fused() {
    if (!pass) pass = std::make_unique<FusedPass>(*model);
    return *pass;
  }
};

class TrainGroup {
 public:
  /// `adapter` null: every weight of the model is trained.
  TrainGroup(SharedModel& shared, std::shared_ptr<Adapter> adapter);
  ~TrainGroup();

  // ---- parts
  void set_loss(std::unique_ptr<Loss> loss, ComponentSpec spec);
  void set_optimizer(std::unique_ptr<Optimizer> optimizer, ComponentSpec spec);
  void set_lr_scheduler(std::unique_ptr<LRScheduler> scheduler, ComponentSpec spec);
  void set_gradient_accumulation_steps(int64_t steps);
  int64_t gradient_accumulation_steps() const { return accumulation_steps_; }
  /// Called right before weights change (a checkpoint that is being written may still read them).
  void set_before_update(std::function<void()> fn) { before_update_ = std::move(fn); }
  MetricSet& train_metrics() { return train_metrics_; }
  MetricSet& eval_metrics() { return eval_metrics_; }
  PassOptions& passes() { return passes_; }
  Adapter* adapter() { return adapter_.get(); }
  bool has_loss() const { return loss_ != nullptr; }
  const Loss& loss();      // CrossEntropyLoss by default
  Optimizer& optimizer();  // AdamW, lr 1e-5, weight_decay 0.01 by default
  const ComponentSpec& loss_spec() const { return loss_spec_; }
  const ComponentSpec& optimizer_spec() const { return optimizer_spec_; }
  const ComponentSpec& scheduler_spec() const { return scheduler_spec_; }

  // ---- a step, in the user's order
  ModelOutput forward(std::span<const InputFeature> features, const ForwardArgs& args);
  ModelOutput forward_only(std::span<const InputFeature> features, const ForwardArgs& args);
  /// Of the last forward or forward_only.
  double calculate_loss();
  /// Of the last forward; calculates the loss first when that was not done.
  void backward();
  /// The same as forward, calculate_loss and backward, in as little memory as the loss allows.
  ModelOutput forward_backward(std::span<const InputFeature> features, const ForwardArgs& args);
  // ---- the same in pieces, for passes that several groups share
  struct Call;
  /// Some sequences of a call in a pass of their own or of many; see FusedPass.
  struct Piece {
    MicroBatch micro;
    PassPart part;
  };
  /// Begins a forward_only (`training` false) or forward_backward; errors as there. A group has one training
  /// call open at a time.
  std::shared_ptr<Call> open(std::span<const InputFeature> features, const ForwardArgs& args, bool training);
  /// Sequences [begin, end) of the call; pieces are made in order. A loss that needs the whole batch needs it
  /// in one piece.
  std::unique_ptr<Piece> make_piece(Call& call, int64_t begin, int64_t end);
  /// After the pass's forward: evaluates the loss of a training call and says what flows back.
  void take_forward(Call& call, Piece& piece);
  /// After the last piece's backward.
  ModelOutput close(const std::shared_ptr<Call>& call);
  /// Instead of close(), after an error: as when forward_backward() throws.
  void fail(Call& call);

  /// The norm of the whole accumulated gradient, divided as the loss says, before clipping; nothing between
  /// boundaries; NaN when a loss was not finite. `max_norm` <= 0: no clipping. `norm_type` 2 or infinity.
  std::optional<double> clip_grad_norm(double max_norm, double norm_type);
  /// invalid_argument for what clip_grad_norm() does not take.
  static void check_clipping(double max_norm, double norm_type);
  /// invalid_argument when the rate was so large that a weight is no longer a number to compute with: the
  /// weights are lost then, and only those of a checkpoint can be gone on with. With undo_bad_steps() such a
  /// step is skipped instead.
  StepResult step(const StepOverrides& overrides = {});
  /// A step that would leave weights or optimizer state that are not finite, or too large to compute with,
  /// changes nothing. Costs a read of both a step, and a copy of both when the numbers look as if it could.
  void undo_bad_steps(bool value) { undo_bad_steps_ = value; }
  void zero_grad();
  void lr_step();
  /// Ends an accumulation early: the calls so far count as complete.
  void flush_accumulation();

  // ---- state
  bool at_boundary() const;  // enough calls have been accumulated for a step
  int64_t pending_calls() const { return stepped_ ? 0 : calls_; }
  int64_t cur_step() const { return optimizer_ ? optimizer_->steps_taken() : 0; }
  int64_t sequences_seen() const { return sequences_seen_; }
  int64_t tokens_seen() const { return tokens_seen_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  int64_t schedule_position() const { return schedule_position_; }
  double current_lr();
  /// Everything that is trained, with the gradients accumulated so far. Ask at a boundary: the two uses of a
  /// tied embedding are added here (see Parameter::tied_grad).
  std::vector<TrainedTensor> trained();
  /// Allocates gradients and optimizer state; done at the first backward otherwise.
  void prepare();
  bool prepared() const { return prepared_; }
  /// Gradients of an adapter are freed by zero_grad() and made again at the next backward.
  void free_gradients_when_zero(bool value) { free_gradients_ = value; }
  /// Flat state of the optimizer, empty while there is none; see Optimizer::storage.
  std::vector<at::Tensor> optimizer_storage() const {
    return optimizer_ ? optimizer_->storage() : std::vector<at::Tensor>();
  }
  void set_optimizer_storage(std::vector<at::Tensor> storage) {
    if (optimizer_) optimizer_->set_storage(std::move(storage));
  }
  /// To be called before weights are written over from outside: who still reads them keeps the old ones, and
  /// a pass that is held is run again. Ask for trained() after it.
  void weights_change();
  /// Continues a run: after this the next call is the one that would have followed.
  void restore(int64_t sequences_seen, int64_t tokens_seen, int64_t schedule_position,
               int64_t skipped_steps = 0);

 private:
  // A sequence of the accumulated batch, kept to find the one that broke a gradient.
  struct Sequence {
    InputFeature feature;
    int64_t call = 0, index = 0, order = 0;
    double temperature = 1.0;
    at::Tensor dlogprob, dentropy;  // of its scored rows
  };

  std::shared_ptr<Call> make_call(std::span<const InputFeature> features, const ForwardArgs& args,
                                  bool training);
  std::unique_ptr<Piece> piece_of(const Call& call, int64_t begin, int64_t end, bool for_backward);
  void run_piece(Piece& piece);
  void run_forward(Call& call);
  void evaluate(Call& call);
  LossOutput evaluate_input(const LossInput& input);
  void backward_call(Call& call);
  void report_pass(MetricSet& metrics, const LossInput& input, const LossOutput& out,
                   const at::Tensor& argmax_S, int64_t num_tokens);
  ModelOutput output_of(const Call& call) const;

  void begin_accumulation();
  void accumulate(const Call& call, int64_t begin, const LossInput& input, const LossOutput& out);
  void end_call(const Call& call);
  void abandon();
  void reset_accumulation();
  void measure(double norm_type);
  std::string find_bad_sequence();
  std::string update(std::vector<TrainedTensor>& params, const StepHyper& hyper);
  std::string name_of(const Sequence& sequence) const;
  double divisor();

  SharedModel& shared_;
  std::shared_ptr<Adapter> adapter_;
  std::unique_ptr<Loss> loss_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<LRScheduler> scheduler_;
  ComponentSpec loss_spec_, optimizer_spec_, scheduler_spec_;
  MetricSet train_metrics_, eval_metrics_;
  PassOptions passes_;
  std::function<void()> before_update_;
  int64_t accumulation_steps_ = 1;
  bool prepared_ = false, free_gradients_ = false, undo_bad_steps_ = false;

  std::shared_ptr<Call> train_call_, eval_call_;
  std::unique_ptr<Piece> live_piece_;  // of the pass that the model holds for train_call_
  bool last_was_eval_ = false;

  // The accumulated batch.
  int64_t calls_ = 0;
  bool flushed_ = false, stepped_ = false;
  bool dirty_ = false;  // gradients of a call that failed may still lie with an adapter that was written out
  double denominator_ = 0;
  std::vector<Sequence> sequences_;
  std::string broken_;          // what is not finite, "" when all is
  std::optional<double> norm_;  // measured since the last backward
  double clip_scale_ = 1.0;

  int64_t sequences_seen_ = 0, tokens_seen_ = 0, schedule_position_ = 0, skipped_steps_ = 0;
  bool lr_step_due_ = false;
};

/// A forward whose loss or backward may still be asked for.
struct TrainGroup::Call {
  std::vector<InputFeature> features;
  ForwardArgs args;
  bool training = false;
  std::vector<int64_t> ends;  // features at which each pass ends, when the group runs it alone
  int64_t first_order = 0;    // the run's number of the first sequence
  int64_t num_tokens = 0;
  std::vector<LossInput> parts;  // of the pieces so far
  std::vector<at::Tensor> argmax_parts, dlogprob_parts, dentropy_parts;
  LossOutput sums;  // of the pieces so far
  LossInput input;
  at::Tensor argmax_S;
  std::optional<LossOutput> out;
};

}  // namespace twinkle
