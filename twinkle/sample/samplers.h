// Samplers under upstream's names, over the engine. vLLMSampler answers many callers at once: its passes run
// in a thread of their own and every method may be called from any thread. TorchSampler runs in the caller's
// thread, one call at a time, and gives the same answers.
//
//   vLLMSampler sampler("path/to/model");
//   sampler.set_template();
//   sampler.add_adapter_to_sampler("nova", "output/checkpoint-50");
//   auto responses = sampler.sample(trajectories, {.max_tokens = 64}, {.adapter_name = "nova"});
//
// Weights go by version: apply_weights() makes "nova@2" what "nova" means from then on, requests under way
// keep "nova@1", and every response says which version answered. Weights that are gone are an error, never
// the base model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "twinkle/data/template.h"
#include "twinkle/sample/engine.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle {

/// What a sampler is asked: conversations for the template, or prompts that are tokens already.
using SampleInputs = std::variant<std::vector<Trajectory>, std::vector<InputFeature>>;

struct SampleArgs {
  std::string adapter_name;     // its newest version; "": see set_default_adapter
  std::string adapter_version;  // that very version, as a response names it
  std::string adapter_path;     // a PEFT folder, loaded for this call; give one of the three
  bool use_base_model = false;  // whatever the others say
  std::string tenant;
};

struct SampleResponse : SampleResult {
  std::vector<int32_t> prompt_token_ids;
  std::vector<InputFeature> new_input_features;  // prompt and answer of each sequence, the answer labelled
};

/// The options of `engine_args`: upstream's names, checked.
const std::vector<ParamSpec>& engine_arg_specs();

struct ReceiveOptions {
  int64_t most_bucket_mb = 256;  // two such buckets are held while weights come
  int64_t most_rank = 1024;      // of an adapter
  double silence_s = 30;         // a trainer that says nothing for so long is given up
  /// Hears of new weights once requests get them, in the thread that receives; the next ones wait for it.
  /// What it throws becomes the status' last_error.
  std::function<void(const std::string& version)> on_weights;
};

/// What came from trainers in other processes so far.
struct ReceiveStatus {
  int64_t received = 0, failed = 0;  // transfers
  std::string last_version;          // adapters: as versions(); whole weights: "model@N"
  std::string last_error;
};

class Sampler {
 public:
  virtual ~Sampler();

  void set_template(const std::string& name = "", const TemplateOptions& options = {});
  void set_template(std::shared_ptr<const Template> tmpl);

  /// One response an input, in order. Errors name the input.
  std::vector<SampleResponse> sample(const SampleInputs& inputs, const SamplingParams& params = {},
                                     const SampleArgs& args = {});
  /// Gives the text of one answer while it is made; return false to end it.
  SampleResponse sample_stream(const SampleInputs& input, const SamplingParams& params,
                               const std::function<bool(const std::string& delta)>& on_delta,
                               const SampleArgs& args = {});

  /// Makes an adapter known; returns its version. The adapter is copied. A name that is there already gets a
  /// new version.
  std::string add_adapter_to_sampler(const std::string& name, const std::string& directory);
  std::string apply_weights(const std::string& name, const Adapter& adapter);
  /// The same for a snapshot, which is shared, not copied.
  std::string apply_weights(const std::string& name, std::shared_ptr<const AdapterSnapshot> snapshot);
  /// What requests mean that name no adapter, "" (from the start): the model itself. not_found.
  void set_default_adapter(const std::string& name);
  /// Other weights for the model itself, by their names, made ready beside the old ones, which answer what
  /// was asked before; adapters of the old ones are forgotten. Returns how often that was done (see
  /// SampleResult::model_version). conflict over the weights of a model in training; unavailable while asleep
  /// with requests under way.
  int64_t replace_model_weights(std::vector<Parameter> weights);
  /// From now on takes weights from trainers of this machine and user (see CheckpointEngineManager) at a
  /// socket of this path, in a thread of its own. conflict over the weights of a model in training, or when
  /// it receives already.
  void receive_weights(const std::string& path, const ReceiveOptions& options = {});
  /// Ends the connection of the moment; conflict when on_weights calls it.
  void stop_receiving();
  ReceiveStatus receive_status() const;
  /// The path, "" while nothing is received.
  std::string receives_at() const;
  /// not_found when there is none. Requests under way are answered.
  void remove_adapter(const std::string& name);
  /// Versions kept beside the newest of each name (0 from the start); older ones are forgotten.
  void keep_versions(int64_t count);
  std::vector<std::string> versions() const { return engine_->versions(); }
  /// Changes the model's own weights while no pass runs, and forgets what was cached.
  void update_base(const std::function<void(CausalLM&)>& change);

  /// Gives the cache's memory back (both of upstream's levels); requests are refused until wake_up.
  void sleep(int64_t level = 1);
  void wake_up();
  void reset_prefix_cache() { engine_->reset_prefix_cache(); }
  void reset_mm_cache() {}       // there are no images to cache
  void reset_encoder_cache() {}  // nor encoders
  /// Names of the model's weights, as Hugging Face has them.
  std::vector<std::string> get_state_keys() const;
  void shutdown();

  std::vector<int32_t> encode_trajectory(const Trajectory& trajectory) const;
  std::string decode_response(std::span<const int32_t> ids) const;
  SampleEngine& engine() { return *engine_; }

 protected:
  Sampler(const std::string& model_id, const Json& engine_args, const LoadOptions& load, bool own_thread);
  Sampler(TransformersModel& trainer, const Json& engine_args, bool own_thread);

 private:
  void start(CausalLM& model, const Json& engine_args, bool own_thread);
  std::string add(const std::string& name, const std::function<void(const std::string& version)>& to_engine);
  std::vector<SampleRequest> requests_of(const SampleInputs& inputs, const SamplingParams& params,
                                         const SampleArgs& args);
  static void check_args(const SampleArgs& args);
  std::string version_of(const SampleArgs& args) const;
  std::shared_ptr<SampleJob> submit(SampleRequest request, const SampleArgs& args);
  SampleResponse response_of(SampleResult result, std::vector<int32_t> prompt) const;
  const Template& the_template() const;

  std::unique_ptr<CausalLM> model_;  // when it is the sampler's own
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const Template> template_;
  std::vector<int32_t> end_ids_;
  std::unique_ptr<SampleEngine> engine_;
  bool own_thread_;

  mutable std::mutex mutex_;                               // guards the rest
  std::map<std::string, std::vector<std::string>> names_;  // versions of each name, the newest last
  std::string default_;
  int64_t next_version_ = 1, keep_ = 0;
  std::mutex turn_;  // one call at a time without a thread

  mutable std::mutex receiver_mutex_;
  std::unique_ptr<class WeightReceiver> receiver_;  // goes first: it uses the rest
};

class vLLMSampler : public Sampler {
 public:
  explicit vLLMSampler(const std::string& model_id, const Json& engine_args = nullptr,
                       const LoadOptions& load = {})
      : Sampler(model_id, engine_args, load, true) {}
  /// Over the weights of a model in training, which must outlive it: one copy of the base.
  explicit vLLMSampler(TransformersModel& trainer, const Json& engine_args = nullptr)
      : Sampler(trainer, engine_args, true) {}
};

class TorchSampler : public Sampler {
 public:
  explicit TorchSampler(const std::string& model_id, const Json& engine_args = nullptr,
                        const LoadOptions& load = {})
      : Sampler(model_id, engine_args, load, false) {}
  explicit TorchSampler(TransformersModel& trainer, const Json& engine_args = nullptr)
      : Sampler(trainer, engine_args, false) {}
};

}  // namespace twinkle
