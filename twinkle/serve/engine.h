// What the server asks of the part that computes: the one narrow place where serve/ meets train/ and sample/.
// The implementation is loaded at run time (twinkle/cli/server_engine), so this room has no tensors, and
// tests put a small stand-in here.
//
// One thread calls all of it, at most one call at a time. Weights of a model change only by its own work, and
// the result of work depends on nothing but the model's own work before it, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/json.h"

namespace twinkle::serve {

struct EngineInfo {
  int64_t context = 0;  // most tokens of a sequence
  int64_t max_rank = 0;
  // Names of the base's weights as they are held and of the instruction set; its numbers depend on nothing
  // else but the requests.
  std::string weights, isa;
};

struct LoraShape {
  int64_t rank = 32;
  uint64_t seed = 0;  // of the initial weights
  bool attention = true, mlp = true, unembedding = true;
};

/// One sequence to be scored: a target of token i is predicted from tokens 0..i. There may be a table of
/// targets, whose row i is of token i.
struct Datum {
  std::vector<int32_t> tokens, targets;
  std::map<std::string, std::vector<float>> inputs;  // "weights", "logprobs", "advantages" ...: one a target
  int64_t columns = 0;                               // of the table; 0: a list, one target a token
  int64_t targets_per_token() const { return columns == 0 ? 1 : columns; }
};

/// Where the values of a tensor of two dimensions belong: all its cells in order, or some (CSR).
struct TensorLayout {
  std::vector<int64_t> shape;      // empty: a list
  std::vector<int64_t> crow, col;  // empty: all cells
};

/// Tokens whose log-probabilities a sample is asked for: row i is of what may stand at place i+1 of the
/// prompt.
struct PromptTargets {
  TensorLayout layout;
  std::vector<int32_t> ids;  // of the cells; -1: none
};

struct TrainCall {
  std::vector<Datum> data;
  std::string loss;  // Tinker's name: "cross_entropy", "ppo", ...
  std::map<std::string, double> loss_config;
  bool forward_only = false;
};

struct AdamParams {
  double learning_rate = 1e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-12, weight_decay = 0, grad_clip_norm = 0;
};

struct TrainWork {
  enum class Kind { kCall, kStep, kDiscard };  // kDiscard: the gradients so far are forgotten
  std::string model;
  Kind kind = Kind::kCall;
  std::shared_ptr<const TrainCall> call;
  AdamParams adam;
};

struct TrainDone {
  std::optional<Error> error;                // nothing of it took effect
  std::vector<std::vector<float>> logprobs;  // of a call: of every target of every datum
  double loss = 0;                           // of a call: the sum over its targets
  int64_t step = 0;                          // of a step: steps taken so far
  std::optional<double> grad_norm;           // of a step, before clipping
};

struct SampleCall {
  std::vector<int32_t> prompt;
  std::string weights;  // by the name given to add_weights(); "": the base model
  std::string tenant;   // requests take turns by tenant
  int64_t num_samples = 1;
  std::optional<int64_t> max_tokens;  // unset: up to the end of the context
  uint64_t seed = 0;
  double temperature = 1.0, top_p = 1.0;
  int64_t top_k = -1;
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_tokens;
  bool stop_at_end = true;  // the model's own end of a text ends an answer
  bool prompt_logprobs = false;
  int64_t topk_prompt_logprobs = 0;
  int64_t prompt_logprobs_last_n = 0;  // both of these for the last n tokens only; 0: for all
  int64_t topk_sample_logprobs = 0;
  int64_t prompt_alt_tokens = 0;  // tokens drawn at each place of the prompt but the first, at `temperature`
  PromptTargets prompt_targets;
};

/// The likeliest tokens at each place of a text, likeliest first; none where none were asked for.
using Alternatives = std::vector<std::vector<std::pair<int32_t, float>>>;

struct SampleDone {
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;  // of the distribution that was drawn from; greedy: the model's own
    bool stopped = false;         // by a stop, not by the length
    Alternatives top = {};        // of the distribution of `logprobs`
  };
  uint64_t ticket = 0;
  std::optional<Error> error;
  std::vector<Sequence> sequences;
  std::vector<float> prompt_logprobs;  // NaN where there is none, as for the first token; empty unless asked
                                       // for
  Alternatives topk_prompt_logprobs;
  TensorLayout target_layout;  // that of the call
  std::vector<float> target_prompt_logprobs;
  int64_t alt_tokens_a_place = 0;
  std::vector<int32_t> alt_tokens;  // of place 1, 2 ...
  std::vector<float> alt_logprobs;  // the model's own
};

/// What an engine has done since it was made, and what it holds.
struct EngineCounts {
  int64_t train_passes = 0, train_tokens = 0, computed_rows = 0;  // rows: fewer where beginnings are shared
  int64_t tokens_per_pass = 0;                                    // the most of a training pass
  int64_t models_in_memory = 0;
  int64_t sample_passes = 0, sampled_tokens = 0, computed_tokens = 0;
  int64_t samples_running = 0, samples_waiting = 0;
  int64_t cache_blocks = 0, cache_used = 0, cache_cached = 0;  // of 64 positions
  int64_t cache_lookups = 0, cache_hit_tokens = 0, cache_evictions = 0;
};

/// How an engine is made.
struct EngineOptions {
  std::string model;              // folder or .gguf file
  std::string dtype = "auto";     // of the frozen weights in memory
  std::string spill_dir;          // for adapters that do not fit into memory
  int64_t models_in_memory = 32;  // adapters in training; more are written out and come back when used
  int64_t max_rank = 128;
  int64_t tokens_per_pass = 2048;
  int64_t kv_cache_mb = 0;  // 0: a share of the memory that is available
};
/// What the library of the engine exports, as twinkle_make_server_engine.
using MakeEngineFn = class Engine* (*)(const EngineOptions&);

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;
  virtual EngineCounts counts() { return {}; }

  // ---- models in training
  virtual bool has_model(const std::string& model) const = 0;
  virtual void create_model(const std::string& model, const LoraShape& shape) = 0;
  /// Makes the model's weights (and with `optimizer` the optimizer's state) those of a folder that
  /// save_model() wrote; gradients are forgotten, and without `optimizer` its state begins anew. The model
  /// need not be there before. After an error it is as it was.
  virtual void load_model(const std::string& model, const std::string& folder, bool optimizer) = 0;
  /// Nothing when it is not there.
  virtual void remove_model(const std::string& model) = 0;
  /// Writes a folder that appears whole or not at all; an existing one is replaced. `optimizer`: also its
  /// state, which needs a model without gradients (kDiscard).
  virtual void save_model(const std::string& model, const std::string& folder, bool optimizer) = 0;
  /// The whole model as it is now, without gradients; what is returned writes it, as save_model() does, once
  /// and from any thread, whatever becomes of the model meanwhile.
  virtual std::function<void()> capture_model(const std::string& model, const std::string& folder) = 0;
  /// Carries out work of many models, in shared passes where it fits; one model's in the given order. One
  /// result each. A model's works hold at most one step, which is first. After a step, failed or not, the
  /// model has no gradients.
  virtual std::vector<TrainDone> train(std::span<const TrainWork> work) = 0;

  // ---- sampling
  /// Weights that save_model() wrote, for sampling.
  virtual void add_weights(const std::string& name, const std::string& folder) = 0;
  virtual void remove_weights(const std::string& name) = 0;
  /// Queues a request; its ticket comes back with the answer.
  virtual uint64_t sample(const SampleCall& call) = 0;
  /// Computes no more of it; whether an answer still comes does not matter.
  virtual void cancel_sample(uint64_t ticket) = 0;
  /// One pass for the requests that are queued; false when there is nothing to do.
  virtual bool sample_pass() = 0;
  /// Answers since the last call.
  virtual std::vector<SampleDone> take_samples() = 0;
};

}  // namespace twinkle::serve
