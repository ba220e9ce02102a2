// MultiLoraTransformersModel: one base model, many adapters that train at the same time, each with its own
// rank, modules, loss, optimizer, schedule, accumulation and metrics.
//
//   MultiLoraTransformersModel model("path/to/model", {.max_loras = 32, .max_r = 64});
//   model.add_adapter_to_model("nova", LoraConfig{.r = 8});
//   model.add_adapter_to_model("atlas", LoraConfig{.r = 32});
//   auto results = model.run({{.adapter_name = "nova", .features = ...}, {.adapter_name = "atlas", ...},
//                             {.adapter_name = "nova", .kind = WorkKind::kStep}, ...});
//
// run() puts the work of all tenants into shared passes; every method of TransformersModel is there as well
// and works on the adapter that its last argument names. Either way an adapter's numbers are those it has
// alone: losses, log-probabilities, gradients, weights and optimizer state, bit for bit.
//
// What is wrong with one tenant's request, loss or numbers is that tenant's result; the others do not notice.
// The base model itself is never trained. One call at a time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/lora/adapter_pool.h"
#include "twinkle/train/pass_planner.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle {

struct MultiLoraOptions {
  int64_t max_loras = 5;      // adapters in memory; more are written to spill_dir and come back when used
  int64_t max_r = 32;         // largest rank
  int64_t max_length = 8192;  // most tokens of a sequence
  std::vector<std::string> target_modules = {"all-linear"};  // that adapters may touch
  bool attention = true, mlp = true, unembedding = true;     // parts that adapters may touch
  std::string spill_dir;                                     // "": the system's temporary folder
  TransformersModelOptions model;  // micro_batch_tokens: most tokens of a shared pass
};

/// One thing that a tenant wants done.
struct TenantRequest {
  std::string adapter_name;  // "": the base model; forward only
  WorkKind kind = WorkKind::kForwardBackward;
  // kForward, kForwardBackward
  std::vector<InputFeature> features;
  ForwardArgs args;
  bool calculate_loss = false;  // kForward: the loss as well
  // kStep: clip_grad_norm, step, zero_grad, lr_step
  double max_grad_norm = 0;  // <= 0: no clipping
  double norm_type = 2.0;
  StepOverrides optim_params;
};

struct TenantResult {
  ModelOutput output;          // of a forward
  StepResult step;             // of a step; a skipped one says why
  std::optional<Error> error;  // the request had no effect, or its accumulated batch is gone (see TrainGroup)
  bool ok() const { return !error; }
};

class MultiLoraTransformersModel : public TransformersModel {
 public:
  explicit MultiLoraTransformersModel(const std::string& model_id, const MultiLoraOptions& options = {});
  /// A model that was built in memory.
  MultiLoraTransformersModel(std::unique_ptr<CausalLM> model, std::string model_id,
                             const MultiLoraOptions& options = {});
  ~MultiLoraTransformersModel() override;

  /// After an error nothing is left of the adapter.
  void add_adapter_to_model(const std::string& name, const LoraConfig& config) override;
  void add_adapter_to_model(const std::string& name, const std::string& directory,
                            uint64_t seed = LoraConfig().seed) override;
  /// Frees everything the adapter had. Snapshots that are held stay. not_found.
  void remove_adapter(const std::string& name);
  bool has_adapter(const std::string& name) const { return groups_.contains(name); }
  std::vector<std::string> adapter_names() const { return pool_.names(); }

  /// Carries out the requests of many tenants, in one pass where they fit into one: a tenant's own in their
  /// order, fairly between tenants (see PassPlanner). One result for each request.
  std::vector<TenantResult> run(std::span<const TenantRequest> requests);
  std::vector<TenantResult> run(std::initializer_list<TenantRequest> requests) {
    return run(std::span(requests.begin(), requests.size()));
  }
  /// `adapter_name` "": the base model.
  ModelOutput forward_only(const ModelInputs& inputs, const ForwardArgs& args = {},
                           const std::string& adapter_name = "");

  /// The adapter's weights as they are now, for a sampler.
  std::shared_ptr<const AdapterSnapshot> snapshot(const std::string& adapter_name);
  AdapterPool& pool() { return pool_; }
  /// The group of an adapter, in memory. The name is needed.
  TrainGroup& group(const std::string& adapter_name = "") override;
  /// Passes that run() has made so far, the tokens that went through them, and the rows that were computed
  /// for these (fewer where sequences share their beginning).
  int64_t num_passes() const { return num_passes_; }
  int64_t num_pass_tokens() const { return num_pass_tokens_; }
  int64_t num_computed_rows() const { return num_computed_rows_; }

 protected:
  std::vector<InputFeature> features_of(const ModelInputs& inputs) const override;
  void drop_group(const std::string& name) override { remove_adapter(name); }

 private:
  struct Running;
  void add(const std::string& name, std::shared_ptr<Adapter> adapter);
  void check_lengths(std::span<const InputFeature> features) const;
  PlannedRequest planned(const TenantRequest& request, std::vector<FeatureRun>& runs);
  void plan_memory_for(const PassSize& size);
  int64_t most_in_a_pass() const;
  void take_requests(Running& running, PassPlanner& planner);
  TrainGroup& group_of(const TenantRequest& request);
  StepResult carry_out_step(const TenantRequest& request);
  double most_tokens_of_a_row(const Running& running) const;
  void bring_in(Running& running, const std::vector<PassPlanner::Piece>& pieces);
  void fail_request(Running& running, int64_t id);
  void end_call(Running& running, int64_t id);
  void run_pass(Running& running, const std::vector<PassPlanner::Piece>& pieces);

  MultiLoraOptions multi_;
  AdapterPool pool_;
  TrainGroup base_;  // the model alone; only scored
  PassSize planned_;
  int64_t num_passes_ = 0, num_pass_tokens_ = 0, num_computed_rows_ = 0;
  bool recompute_ = false;
};

}  // namespace twinkle
