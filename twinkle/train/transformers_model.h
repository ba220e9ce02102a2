// TransformersModel: a language model with a training loop in the user's own hands, under upstream's method
// names.
//
//   TransformersModel model("path/to/model");
//   model.add_adapter_to_model("default", LoraConfig{.r = 8, .target_modules = {"q_proj", "v_proj"}});
//   model.set_optimizer("AdamW", {{"lr", 1e-3}});
//   for (...) {
//     model.forward_backward(batch);
//     model.clip_grad_and_step();
//   }
//
// Without an adapter the whole model is trained. With several, each has its own loss, optimizer, schedule,
// metrics and gradients; the last argument of a method names it and may be left out while there is one. One
// call at a time.
//
// Between accumulation boundaries clip_grad_norm, step, zero_grad and lr_step do nothing. A mean loss is
// divided by the count of the whole accumulated batch inside the step, with or without clip_grad_norm. See
// TrainGroup for the rest.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "twinkle/data/template.h"
#include "twinkle/train/checkpoint.h"
#include "twinkle/train/input_processor.h"
#include "twinkle/train/planner.h"
#include "twinkle/train/train_group.h"

namespace twinkle {

struct TransformersModelOptions {
  std::string dtype = "auto";  // auto | fp32 | bf16 | fp16: of frozen weights in memory
  at::Device device = at::kCPU;
  std::string tokenizer_id;  // where the tokenizer is, "": with the model
  bool load_weights = true;  // false: fresh random weights (pre-training)
  uint64_t seed = 42;        // of fresh weights
  int64_t gradient_accumulation_steps = 1;
  int64_t micro_batch_tokens = 2048;  // most tokens of one pass; changes no bit
  /// Sequences that begin alike (answers to one prompt): kExact runs what they have in common once, forward,
  /// which changes no bit; kGroups also backward, in other bits; see docs/exactness.md.
  PrefixSharing share_prefix = PrefixSharing::kExact;
  Recompute gradient_checkpointing = Recompute::kAuto;
  PackingOrder packing = PackingOrder::kAsGiven;
  bool check_memory = true;  // refuse training that will not fit, before anything is allocated
};

/// What a forward takes: features, or conversations for the template to encode.
class ModelInputs {
 public:
  ModelInputs(std::vector<InputFeature> features)
      : value_(std::move(features)) {}  // NOLINT(google-explicit-constructor)
  ModelInputs(std::vector<Trajectory> trajectories)
      : value_(std::move(trajectories)) {}  // NOLINT(google-explicit-constructor)
  const std::variant<std::vector<InputFeature>, std::vector<Trajectory>>& value() const { return value_; }

 private:
  std::variant<std::vector<InputFeature>, std::vector<Trajectory>> value_;
};

struct CheckpointOptions {
  std::string name;  // "": checkpoint-step-{cur_step}
  std::string output_dir = "output";
  int64_t interval = 1;                // nothing is written unless cur_step is a multiple of it
  bool save_optimizer = true;          // false: weights only; such a checkpoint can not be resumed exactly
  int64_t consumed_train_samples = 0;  // DataLoader::consumed_train_samples()
  Json data_state = nullptr;           // DataLoader::get_state() of a stream, which a number alone replays
  int64_t save_total_limit = 0;        // keep at most so many checkpoint-step-N; 0: all
  bool background = true;  // adapters are written beside the loop; a full model is written at once
};

struct ResumeInfo {
  int64_t cur_step = 0, consumed_train_samples = 0, gradient_accumulation_steps = 1;
  int64_t skipped_steps = 0;  // of the run so far
  Json data_state = nullptr;  // as given to save()
  Json manifest = nullptr;
  std::vector<std::string> notes;  // what a person should know, e.g. another instruction set
};

class TransformersModel {
 public:
  /// Opens a model directory or .gguf file.
  explicit TransformersModel(const std::string& model_id, const TransformersModelOptions& options = {});
  /// A model that was built in memory; `model_id` is where its tokenizer is, "" when it has none.
  TransformersModel(std::unique_ptr<CausalLM> model, std::string model_id,
                    const TransformersModelOptions& options = {});
  virtual ~TransformersModel();

  virtual void add_adapter_to_model(const std::string& name, const LoraConfig& config);
  /// From a directory of PEFT files, which hold no seed: `seed` is that of its dropout.
  virtual void add_adapter_to_model(const std::string& name, const std::string& directory,
                                    uint64_t seed = LoraConfig().seed);

  // ---- parts: by registered name with options, or an object
  void set_loss(const std::string& name, const Json& options = nullptr, const std::string& adapter_name = "");
  void set_loss(std::unique_ptr<Loss> loss, const std::string& adapter_name = "");
  void set_optimizer(const std::string& name, const Json& options = nullptr,
                     const std::string& adapter_name = "");
  void set_lr_scheduler(const std::string& name, const Json& options = nullptr,
                        const std::string& adapter_name = "");
  void set_template(const std::string& name = "", const TemplateOptions& options = {});
  void set_template(std::shared_ptr<const Template> tmpl) { template_ = std::move(tmpl); }
  void set_processor(const std::string& name, const Json& options = nullptr);
  /// Adds to both training and evaluation, or to one of them.
  void add_metric(const std::string& name, const Json& options = nullptr,
                  std::optional<bool> is_training = {}, const std::string& adapter_name = "");
  void set_gradient_accumulation_steps(int64_t steps, const std::string& adapter_name = "");

  // ---- a step
  ModelOutput forward(const ModelInputs& inputs, const ForwardArgs& args = {},
                      const std::string& adapter_name = "");
  ModelOutput forward_only(const ModelInputs& inputs, const ForwardArgs& args = {},
                           const std::string& adapter_name = "");
  double calculate_loss(const std::string& adapter_name = "");
  void backward(const std::string& adapter_name = "");
  ModelOutput forward_backward(const ModelInputs& inputs, const ForwardArgs& args = {},
                               const std::string& adapter_name = "");
  std::optional<double> clip_grad_norm(double max_grad_norm = 1.0, double norm_type = 2.0,
                                       const std::string& adapter_name = "");
  StepResult step(const StepOverrides& optim_params = {}, const std::string& adapter_name = "");
  void zero_grad(const std::string& adapter_name = "");
  void lr_step(const std::string& adapter_name = "");
  StepResult clip_grad_and_step(double max_grad_norm = 1.0, double norm_type = 2.0,
                                const std::string& adapter_name = "");
  /// Counts the calls accumulated so far as a complete batch (the last, short one of an epoch).
  void flush_accumulation(const std::string& adapter_name = "");
  /// Numbers since the last report.
  Json calculate_metric(bool is_training, const std::string& adapter_name = "");

  // ---- files
  /// Writes a checkpoint and returns its directory; nothing when cur_step is not a multiple of the interval.
  /// `conflict` in the middle of an accumulation, or when a weight is not a usable number.
  std::optional<std::string> save(const CheckpointOptions& options = {},
                                  const std::string& adapter_name = "");
  /// The checkpoint of an adapter as it is now, in memory of its own. Calling what is returned, once and from
  /// any thread, writes it to `path`, whatever becomes of the adapter meanwhile. Errors as of save().
  std::function<void()> capture(const std::string& path, const std::string& adapter_name = "");
  /// Waits for a checkpoint that is being written; its errors come out here.
  void wait_for_save();
  /// Whether every checkpoint that save() began is on the disk.
  bool save_finished() const { return writer_.finished(); }
  /// Weights alone, from a checkpoint or PEFT directory.
  void load(const std::string& name, const std::string& output_dir = "",
            const std::string& adapter_name = "");
  /// Continues a run: the next step has the bits it would have had. Components that were not set are taken
  /// from the checkpoint, and so is the adapter when there is none ("default" where no name is given); after
  /// an error that adapter is gone again. `resume_only_model`: weights alone.
  ResumeInfo resume_from_checkpoint(const std::string& directory, bool resume_only_model = false,
                                    const std::string& adapter_name = "");
  /// Copies of all trained tensors, fp32 on the CPU: by PEFT names for an adapter, Hugging Face names for a
  /// model.
  std::map<std::string, at::Tensor> get_state_dict(const std::string& adapter_name = "");
  /// What is trained and how, as JSON and as text.
  Json train_configs(const std::string& adapter_name = "");
  std::string get_train_configs(const std::string& adapter_name = "");

  // ---- what else a loop asks for
  int64_t cur_step(const std::string& adapter_name = "") { return group(adapter_name).cur_step(); }
  double current_lr(const std::string& adapter_name = "") { return group(adapter_name).current_lr(); }
  CausalLM& model() { return *shared_.model; }
  const std::shared_ptr<const Template>& get_template() const { return template_; }
  std::shared_ptr<const Tokenizer> tokenizer();
  /// Folder or file of the tokenizer, "" when there is none.
  const std::string& tokenizer_id() const {
    return options_.tokenizer_id.empty() ? model_id_ : options_.tokenizer_id;
  }
  const std::string& model_id() const { return model_id_; }
  virtual TrainGroup& group(const std::string& adapter_name = "");
  /// Stored in every checkpoint.
  void set_manifest(Json manifest) { manifest_ = std::move(manifest); }

 protected:
  virtual std::vector<InputFeature> features_of(const ModelInputs& inputs) const;
  TrainGroup& add_group(const std::string& name, std::shared_ptr<Adapter> adapter);
  virtual void drop_group(const std::string& name);
  ResumeInfo resume_group(TrainGroup& group, const TrainerState& state, const std::string& directory,
                          bool resume_only_model);
  /// The group, ready to train: the memory it needs is there.
  TrainGroup& training_group(const std::string& adapter_name, const std::vector<InputFeature>& features);
  void load_weights(TrainGroup& group, const std::string& directory);
  TrainerState state_to_save(TrainGroup& group, const CheckpointOptions& options);
  void save_full(const std::string& directory);

  std::string model_id_;
  TransformersModelOptions options_;
  SharedModel shared_;
  std::map<std::string, std::unique_ptr<TrainGroup>> groups_;
  std::shared_ptr<const Template> template_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<InputProcessor> processor_;
  Json manifest_ = nullptr;
  BackgroundWriter writer_;
};

}  // namespace twinkle
