// The engine of twinkle-server: serve/'s narrow interface over MultiLoraTransformersModel and SampleEngine,
// which share one copy of the base model. A library of its own that the server loads when it has begun to
// listen; all of it runs on the server's one engine thread, so training and sampling passes take turns.
#include <ATen/ATen.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "twinkle/core/caught.h"
#include "twinkle/core/files.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/model/weights_id.h"
#include "twinkle/sample/engine.h"
#include "twinkle/serve/engine.h"
#include "twinkle/train/multi_lora_transformers_model.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr double kAlpha = 32;  // of every adapter: the API has no name for it

MultiLoraOptions model_options(const serve::EngineOptions& o) {
  MultiLoraOptions out;
  out.max_loras = o.models_in_memory;
  out.max_r = o.max_rank;
  out.max_length = std::numeric_limits<int64_t>::max();  // the context is checked here
  out.spill_dir = o.spill_dir;
  out.model.dtype = o.dtype;
  out.model.micro_batch_tokens = o.tokens_per_pass;
  return out;
}

// Tinker's names of losses are aliases of ours; cross-entropy is a plain sum there.
ComponentSpec loss_spec(const serve::TrainCall& call) {
  ComponentSpec spec{.name = call.loss};
  if (call.loss == "cross_entropy") spec.options["reduction"] = "sum";
  for (const auto& [name, value] : call.loss_config) spec.options[name] = value;
  return spec;
}

// Ours of what Tinker calls an input of a loss.
std::string extra_name(const std::string& input) { return input == "logprobs" ? "old_logprobs" : input; }

bool same(const ComponentSpec& a, const ComponentSpec& b) {
  return a.name == b.name && a.options == b.options;
}

class ServerEngine : public serve::Engine {
 public:
  explicit ServerEngine(const serve::EngineOptions& options)
      : model_(options.model, model_options(options)),
        sampler_(model_.model(), tokenizer_of(model_),
                 EngineOptions{.kv_cache_mb = options.kv_cache_mb, .own_thread = false}),
        tokens_per_pass_(options.tokens_per_pass) {
    info_ = {.context = sampler_.context(),
             .max_rank = options.max_rank,
             .weights = weights_sample_id(model_.model()),
             .isa = std::string(isa_name(active_isa()))};
    if (model_.model().config().raw.contains("auto_map"))
      std::fputs("note: the model's config.json names code of its own (auto_map), which is not run\n",
                 stderr);
    for (const int64_t id : model_.model().config().eos_token_ids)
      end_ids_.push_back(static_cast<int32_t>(id));
  }

  const serve::EngineInfo& info() const override { return info_; }

  serve::EngineCounts counts() override {
    const EngineStats stats = sampler_.stats();
    return {.train_passes = model_.num_passes(),
            .train_tokens = model_.num_pass_tokens(),
            .computed_rows = model_.num_computed_rows(),
            .tokens_per_pass = tokens_per_pass_,
            .models_in_memory = static_cast<int64_t>(adapters_.size()),
            .sample_passes = stats.passes,
            .sampled_tokens = stats.sampled_tokens,
            .computed_tokens = stats.computed_tokens,
            .samples_running = stats.running,
            .samples_waiting = stats.waiting,
            .cache_blocks = stats.blocks.total,
            .cache_used = stats.blocks.used,
            .cache_cached = stats.blocks.cached,
            .cache_lookups = stats.blocks.lookups,
            .cache_hit_tokens = stats.blocks.hit_tokens,
            .cache_evictions = stats.blocks.evictions};
  }

  // Models.
  bool has_model(const std::string& model) const override { return adapters_.contains(model); }

  void create_model(const std::string& model, const serve::LoraShape& shape) override {
    if (shape.rank > info_.max_rank) {
      throw invalid_argument("[create_model] rank " + std::to_string(shape.rank) +
                             " is above this server's " + std::to_string(info_.max_rank));
    }
    LoraConfig config{.r = shape.rank, .lora_alpha = kAlpha, .seed = shape.seed};
    config.target_modules = modules_of_parts(shape.attention, shape.mlp, shape.unembedding);
    install(model, [&](const std::string& name) { model_.add_adapter_to_model(name, config); });
  }

  void load_model(const std::string& model, const std::string& folder, bool optimizer) override {
    install(model, [&](const std::string& name) {
      if (optimizer) {
        model_.resume_from_checkpoint(folder, false, name);
      } else {
        model_.add_adapter_to_model(name, folder, read_checkpoint(folder).adapter_seed);
      }
    });
  }

  void remove_model(const std::string& model) override {
    const auto found = adapters_.find(model);
    if (found == adapters_.end()) return;
    model_.remove_adapter(found->second);
    adapters_.erase(found);
  }

  void save_model(const std::string& model, const std::string& folder, bool optimizer) override {
    const std::string& name = adapter_of(model);
    if (optimizer) {
      model_.save({.name = fs::path(folder).filename().string(),
                   .output_dir = fs::path(folder).parent_path().string(),
                   .background = false},
                  name);
      return;
    }
    TrainGroup& group = model_.group(name);
    const TrainerState state{.kind = "lora",
                             .cur_step = group.cur_step(),
                             .sequences_seen = group.sequences_seen(),
                             .tokens_seen = group.tokens_seen(),
                             .adapter_seed = group.adapter()->config().seed,
                             .base_model = model_.model_id(),
                             .isa = std::string(isa_name(active_isa()))};
    make_directories(fs::path(folder).parent_path().string());
    write_checkpoint(folder, state, {}, [&](const std::string& at) { group.adapter()->save(at); });
  }

  std::function<void()> capture_model(const std::string& model, const std::string& folder) override {
    return model_.capture(folder, adapter_of(model));
  }

  // Works run together up to where one has to wait: for a model's loss to change, or for what comes before
  // its gradients are forgotten.
  std::vector<serve::TrainDone> train(std::span<const serve::TrainWork> works) override {
    std::vector<serve::TrainDone> done(works.size());
    std::vector<size_t> left(works.size());
    for (size_t i = 0; i < left.size(); ++i) left[i] = i;
    while (!left.empty()) {
      std::vector<size_t> batch, later;
      std::vector<TenantRequest> requests;
      std::set<std::string> in_batch, waiting;
      for (const size_t i : left) {
        const serve::TrainWork& work = works[i];
        if (waiting.contains(work.model)) {
          later.push_back(i);
          continue;
        }
        try {
          if (must_wait(work, in_batch.contains(work.model))) {
            waiting.insert(work.model);
            later.push_back(i);
            continue;
          }
          if (work.kind == serve::TrainWork::Kind::kDiscard) {
            model_.zero_grad(adapter_of(work.model));
            continue;
          }
          requests.push_back(request_of(work));
          batch.push_back(i);
          in_batch.insert(work.model);
        } catch (const Error& e) {
          done[i].error = e;
        }
      }
      const auto results = model_.run(requests);
      for (size_t k = 0; k < batch.size(); ++k) done[batch[k]] = done_of(works[batch[k]], results[k]);
      left = std::move(later);
    }
    return done;
  }

  // Sampling.
  void add_weights(const std::string& name, const std::string& folder) override {
    // Refused unless it is as it was written.
    sampler_.add_version(name, std::shared_ptr<const Adapter>(Adapter::load(model_.model(), folder)));
  }

  void remove_weights(const std::string& name) override { sampler_.remove_version(name); }

  uint64_t sample(const serve::SampleCall& call) override {
    const int64_t room = info_.context - static_cast<int64_t>(call.prompt.size());
    SamplingParams params;
    params.max_tokens = call.max_tokens.value_or(std::max<int64_t>(room, 1));
    params.temperature = call.temperature;
    params.top_k = call.top_k;
    params.top_p = call.top_p;
    params.seed = call.seed;
    params.stop = call.stop_strings;
    params.stop_token_ids = call.stop_tokens;
    params.ignore_eos = !call.stop_at_end;
    params.num_samples = call.num_samples;
    params.prompt_logprobs = call.prompt_logprobs || call.topk_prompt_logprobs > 0;
    params.topk_prompt_logprobs = call.topk_prompt_logprobs;
    params.prompt_logprobs_last_n = call.prompt_logprobs_last_n;
    params.prompt_draws = call.prompt_alt_tokens;
    // Without cut-offs at temperature 1 the model's own log-probabilities are those drawn from, to the bit.
    const bool own = call.temperature == 0 || (call.temperature == 1 && call.top_k <= 0 && call.top_p == 1);
    (own ? params.logprobs : params.sampled_alternatives) = call.topk_sample_logprobs;
    Job job{.own_logprobs = own, .call = call};
    SampleRequest request{.prompt = call.prompt,
                          .params = std::move(params),
                          .version = call.weights,
                          .tenant = call.tenant,
                          .end_ids = end_ids_};
    for_each_target(
        call, [&](size_t, int64_t place, int32_t id) { request.prompt_targets.push_back({place, id}); });
    job.job = sampler_.submit(std::move(request));
    job.call.prompt.clear();
    jobs_[++last_ticket_] = std::move(job);
    return last_ticket_;
  }

  void cancel_sample(uint64_t ticket) override {
    if (const auto found = jobs_.find(ticket); found != jobs_.end()) found->second.job->cancel();
  }

  bool sample_pass() override { return sampler_.step(); }

  std::vector<serve::SampleDone> take_samples() override {
    std::vector<serve::SampleDone> out;
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      if (!it->second.job->done()) {
        ++it;
        continue;
      }
      out.push_back(answer_of(it->first, it->second));
      it = jobs_.erase(it);
    }
    return out;
  }

 private:
  struct Job {
    std::shared_ptr<SampleJob> job;
    bool own_logprobs = false;
    serve::SampleCall call;  // without the prompt
  };

  // fn(cell, place of the prompt, token) for the cells that ask for one, by place.
  template <class Fn>
  static void for_each_target(const serve::SampleCall& call, const Fn& fn) {
    const auto& [layout, ids] = call.prompt_targets;
    const size_t rows = layout.shape.empty() ? 0 : static_cast<size_t>(layout.shape[0]);
    for (size_t row = 0; row < rows; ++row) {
      const bool sparse = !layout.crow.empty();
      const size_t columns = static_cast<size_t>(layout.shape[1]);
      const size_t begin = sparse ? static_cast<size_t>(layout.crow[row]) : row * columns;
      const size_t end = sparse ? static_cast<size_t>(layout.crow[row + 1]) : begin + columns;
      for (size_t cell = begin; cell < end; ++cell) {
        if (ids[cell] >= 0) fn(cell, static_cast<int64_t>(row) + 1, ids[cell]);
      }
    }
  }

  static std::shared_ptr<const Tokenizer> tokenizer_of(MultiLoraTransformersModel& model) {
    try {
      return model.tokenizer();
    } catch (const Error&) {
      return nullptr;  // a model without one takes tokens only
    }
  }

  const std::string& adapter_of(const std::string& model) const {
    const auto found = adapters_.find(model);
    if (found == adapters_.end()) throw not_found("[model] this model is not here");
    return found->second;
  }

  // A model is an adapter under a new name each time, so that what fails leaves the old one.
  template <class Add>
  void install(const std::string& model, Add&& add) {
    const std::string name = model + "#" + std::to_string(++generation_);
    try {
      add(name);
      if (model_.group(name).optimizer_spec().name.empty())
        model_.set_optimizer("AdamW", {{"lr", 1e-4}, {"weight_decay", 0.0}}, name);
      // Undone or not, what the client is told is what a restart finds.
      model_.group(name).undo_bad_steps(true);
    } catch (...) {
      if (model_.has_adapter(name)) model_.remove_adapter(name);
      throw;
    }
    if (const auto old = adapters_.find(model); old != adapters_.end()) model_.remove_adapter(old->second);
    adapters_[model] = name;
  }

  bool must_wait(const serve::TrainWork& work, bool behind_others) {
    if (!behind_others) return false;
    if (work.kind == serve::TrainWork::Kind::kDiscard) return true;
    if (work.kind == serve::TrainWork::Kind::kStep || work.call->forward_only) return false;
    return !same(model_.group(adapter_of(work.model)).loss_spec(), loss_spec(*work.call));
  }

  TenantRequest request_of(const serve::TrainWork& work) {
    TenantRequest request{.adapter_name = adapter_of(work.model)};
    if (work.kind == serve::TrainWork::Kind::kStep) {
      request.kind = WorkKind::kStep;
      request.max_grad_norm = work.adam.grad_clip_norm;
      request.optim_params = {.lr = work.adam.learning_rate,
                              .weight_decay = work.adam.weight_decay,
                              .eps = work.adam.eps,
                              .beta1 = work.adam.beta1,
                              .beta2 = work.adam.beta2};
      return request;
    }
    const serve::TrainCall& call = *work.call;
    const bool policy = call.loss != "cross_entropy";
    for (size_t i = 0; i < call.data.size(); ++i) {
      const serve::Datum& datum = call.data[i];
      const auto length = static_cast<int64_t>(datum.tokens.size());
      if (length > info_.context) {
        throw invalid_argument("PromptTooLong: datum " + std::to_string(i) + " has " +
                               std::to_string(length) + " tokens, the model's context has " +
                               std::to_string(info_.context));
      }
      InputFeature feature{.input_ids = datum.tokens, .labels = datum.targets};
      for (int64_t at = 0; datum.columns > 1 && at < length; ++at)
        feature.label_positions.insert(feature.label_positions.end(), static_cast<size_t>(datum.columns),
                                       static_cast<int32_t>(at));
      if (const auto weights = datum.inputs.find("weights"); weights != datum.inputs.end())
        feature.weights = weights->second;
      request.features.push_back(std::move(feature));
      if (!policy) continue;
      for (const auto& [name, values] : datum.inputs) request.args.extras[extra_name(name)].push_back(values);
    }
    const ComponentSpec spec = loss_spec(call);
    if (call.forward_only) {
      Registry<Loss>::create(spec.name, spec.options);  // its options are looked at before anything runs
      request.kind = WorkKind::kForward;
      return request;
    }
    request.kind = WorkKind::kForwardBackward;
    TrainGroup& group = model_.group(request.adapter_name);
    if (!same(group.loss_spec(), spec)) {
      if (group.pending_calls() > 0) {
        throw invalid_argument(
            "[forward_backward] the calls of one step need one loss with the same options; '" +
            group.loss_spec().name + "' came before '" + spec.name + "'");
      }
      group.set_loss(Registry<Loss>::create(spec.name, spec.options), spec);
    }
    return request;
  }

  serve::TrainDone done_of(const serve::TrainWork& work, const TenantResult& result) {
    serve::TrainDone done{.error = result.error};
    if (work.kind == serve::TrainWork::Kind::kStep) {
      done.step = result.step.step;
      done.grad_norm = result.step.grad_norm;
      if (!done.error && !result.step.stepped)
        done.error = invalid_argument("[optim_step] " + result.step.reason);
      if (done.error) model_.zero_grad(adapter_of(work.model));
      return done;
    }
    if (done.error) return done;
    done.logprobs = result.output.logprobs;
    done.loss =
        work.call->forward_only ? loss_of(*work.call, done.logprobs) : result.output.loss.value_or(0.0);
    return done;
  }

  // The loss of a call that ran forward only.
  static double loss_of(const serve::TrainCall& call, const std::vector<std::vector<float>>& logprobs) {
    LossInput in;
    in.cu_scored = {0};
    std::vector<float> lp, weights;
    std::map<std::string, std::vector<float>> extras;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (size_t i = 0; i < call.data.size(); ++i) {
      const serve::Datum& datum = call.data[i];
      append(lp, logprobs[i]);
      if (!datum.inputs.contains("weights")) weights.insert(weights.end(), datum.targets.size(), 1.0f);
      for (const auto& [name, values] : datum.inputs)
        append(name == "weights" ? weights : extras[extra_name(name)], values);
      in.cu_scored.push_back(static_cast<int64_t>(lp.size()));
    }
    const auto tensor = [](std::vector<float>& values) {
      return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kFloat);
    };
    in.logprob_S = tensor(lp);
    in.weights_S = tensor(weights);
    for (auto& [name, values] : extras) in.extras[name] = tensor(values);
    const ComponentSpec spec = loss_spec(call);
    return (*Registry<Loss>::create(spec.name, spec.options))(in).sum();
  }

  static serve::SampleDone answer_of(uint64_t ticket, const Job& job) {
    serve::SampleDone done{.ticket = ticket};
    SampleResult result;
    try {
      result = job.job->wait();
    } catch (...) {
      done.error = caught_error("sample");
      return done;
    }
    const auto pairs = [](const std::vector<std::vector<TokenLogprob>>& places) {
      serve::Alternatives out;
      for (const auto& row : places) {
        auto& to = out.emplace_back();
        for (const auto& entry : row) to.emplace_back(entry.id, entry.logprob);
      }
      return out;
    };
    for (auto& sequence : result.sequences) {
      const bool own = job.own_logprobs;
      done.sequences.push_back(
          {.tokens = std::move(sequence.tokens),
           .logprobs = own ? std::move(sequence.logprobs) : std::move(sequence.sampled_logprobs),
           .stopped = sequence.stop_reason == "stop",
           .top = pairs(own ? sequence.top_logprobs : sequence.top_sampled)});
    }
    for (const auto& x : result.prompt_logprobs) {
      if (job.call.prompt_logprobs)
        done.prompt_logprobs.push_back(x.value_or(std::numeric_limits<float>::quiet_NaN()));
    }
    done.topk_prompt_logprobs = pairs(result.topk_prompt_logprobs);
    done.target_layout = job.call.prompt_targets.layout;
    done.target_prompt_logprobs.resize(job.call.prompt_targets.ids.size());
    size_t target = 0;
    for_each_target(job.call, [&](size_t cell, int64_t, int32_t) {
      done.target_prompt_logprobs[cell] = result.prompt_target_logprobs[target++];
    });
    done.alt_tokens_a_place = job.call.prompt_alt_tokens;
    for (const auto& row : result.prompt_draws) {
      for (const auto& [id, logprob] : row) {
        done.alt_tokens.push_back(id);
        done.alt_logprobs.push_back(logprob);
      }
    }
    return done;
  }

  MultiLoraTransformersModel model_;
  SampleEngine sampler_;
  int64_t tokens_per_pass_;
  serve::EngineInfo info_;
  std::vector<int32_t> end_ids_;
  std::map<std::string, std::string> adapters_;  // of each model
  uint64_t generation_ = 0;
  std::map<uint64_t, Job> jobs_;
  uint64_t last_ticket_ = 0;
};

}  // namespace
}  // namespace twinkle

extern "C" __attribute__((visibility("default"))) twinkle::serve::Engine* twinkle_make_server_engine(
    const twinkle::serve::EngineOptions& options) {
  return new twinkle::ServerEngine(options);
}
