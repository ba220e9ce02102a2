// What TransformersModel writes and reads: checkpoints, weights, its own description.
#include <ATen/ATen.h>

#include <filesystem>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/lora/adapter_copies.h"
#include "twinkle/model/save.h"
#include "twinkle/text/tokenizer_save.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

// Values of `from` into the group's adapter, by name. Nothing has changed after an error.
void copy_values(TrainGroup& group, std::vector<Adapter::Trained> from, const std::string& directory) {
  const auto to = group.adapter()->trained();
  std::map<std::string, at::Tensor> values;
  for (auto& t : from) values[t.name] = t.value;
  for (auto& t : to) {
    const auto found = values.find(t.name);
    if (found == values.end())
      throw invalid_argument("[checkpoint] '" + directory + "' has no '" + t.name +
                             "', which this adapter trains");
    if (found->second.sizes() != t.value.sizes()) {
      throw invalid_argument("[checkpoint] '" + directory + "': '" + t.name +
                             "' has another rank or shape than this adapter's");
    }
  }
  if (values.size() != to.size()) {
    throw invalid_argument("[checkpoint] '" + directory + "' has " + std::to_string(values.size()) +
                           " tensors, this adapter trains " + std::to_string(to.size()));
  }
  group.weights_change();  // may give the adapter other tensors
  for (auto& t : group.adapter()->trained()) t.value.copy_(values.at(t.name));
}

void load_full_weights(TrainGroup& group, CausalLM& model, const std::string& directory) {
  const ModelFiles files = open_model_files(directory);
  if (!files.weights) throw not_found("[checkpoint] '" + directory + "' has no weights");
  check_weights(model.config(), *files.weights);
  group.weights_change();
  for (auto& p : model.parameters()) {
    if (p.is_matrix()) {
      const auto fresh = ops::PackedMatrix::build(
          p.matrix.rows(), p.matrix.cols(), p.matrix.dtype(), p.matrix.device(),
          [&](int64_t begin, int64_t end, float* out) { files.weights->read_rows(p.name, begin, end, out); });
      p.flat().copy_(fresh.storage());
    } else {
      at::Tensor vector = at::empty(p.vector.sizes(), at::kFloat);
      files.weights->read_rows(p.name, 0, 1, vector.mutable_data_ptr<float>());
      p.vector.copy_(vector);
    }
  }
}

Json spec_json(const ComponentSpec& spec, const char* none) {
  if (spec.name.empty()) return none;
  return {{"name", spec.name}, {"options", spec.options}};
}

}  // namespace

void TransformersModel::wait_for_save() { writer_.wait(); }

// Config, weights and tokenizer of a fully trained model.
void TransformersModel::save_full(const std::string& directory) {
  save_model(*shared_.model, directory, {.dtype = "fp32"});
  if (!tokenizer_id().empty()) save_tokenizer_files(tokenizer_id(), directory);
}

// Of a checkpoint that may be written now.
TrainerState TransformersModel::state_to_save(TrainGroup& g, const CheckpointOptions& options) {
  if (g.pending_calls() > 0) {
    throw conflict("[save] " + std::to_string(g.pending_calls()) + " of " +
                   std::to_string(g.gradient_accumulation_steps()) +
                   " accumulated calls are pending; save after a step");
  }
  g.prepare();
  if (const std::string bad = unusable_weight(g.trained()); !bad.empty()) {
    throw conflict("[save] '" + bad + "' holds numbers that are not finite, or too large to compute with");
  }
  return {.kind = g.adapter() ? "lora" : "full",
          .cur_step = g.cur_step(),
          .gradient_accumulation_steps = g.gradient_accumulation_steps(),
          .consumed_train_samples = options.consumed_train_samples,
          .data_state = options.data_state,
          .sequences_seen = g.sequences_seen(),
          .tokens_seen = g.tokens_seen(),
          .skipped_steps = g.skipped_steps(),
          .schedule_position = g.schedule_position(),
          .adapter_seed = g.adapter() ? g.adapter()->config().seed : 0,
          .has_optimizer = options.save_optimizer,
          .loss = g.loss_spec(),
          .optimizer = g.optimizer_spec(),
          .scheduler = g.scheduler_spec(),
          .base_model = model_id_,
          .isa = std::string(isa_name(active_isa())),
          .manifest = manifest_};
}

namespace {

// An adapter and its optimizer in memory of their own.
struct AdapterCopy {
  AdapterCopy(const Adapter& live, std::vector<Optimizer::StateTensor> state)
      : adapter(live), optimizer(std::move(state)) {
    make_own(adapter.modules(), adapter.saved_modules());
    for (auto& entry : optimizer) entry.value = own_copy(entry.value.cpu());
  }
  void write(const std::string& path, const TrainerState& state) const {
    write_checkpoint(path, state, optimizer, [&](const std::string& directory) { adapter.save(directory); });
  }
  Adapter adapter;
  std::vector<Optimizer::StateTensor> optimizer;
};

}  // namespace

std::optional<std::string> TransformersModel::save(const CheckpointOptions& options,
                                                   const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  if (options.interval < 1)
    throw invalid_argument("[save] interval must be >= 1, got " + std::to_string(options.interval));
  if (g.pending_calls() == 0 && g.cur_step() % options.interval != 0) return std::nullopt;
  const std::string name =
      options.name.empty() ? "checkpoint-step-" + std::to_string(g.cur_step()) : options.name;
  if (name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos || name.size() > 200) {
    throw invalid_argument("[save] name: '" + name + "' is not a plain file name");
  }
  const TrainerState state = state_to_save(g, options);
  const std::string path = (fs::path(options.output_dir) / name).string();
  const auto optimizer =
      options.save_optimizer ? g.optimizer().state() : std::vector<Optimizer::StateTensor>();
  writer_.wait();
  if (!g.adapter()) {
    write_checkpoint(path, state, optimizer, [&](const std::string& directory) { save_full(directory); });
    prune_checkpoints(options.output_dir, options.save_total_limit, path);
    return path;
  }
  // The weights change only at the next step, which waits until the copies below are made.
  writer_.start([=, live = g.adapter()](const std::function<void()>& done_reading) {
    const AdapterCopy copy(*live, optimizer);
    done_reading();
    copy.write(path, state);
    prune_checkpoints(options.output_dir, options.save_total_limit, path);
  });
  if (!options.background) writer_.wait();
  return path;
}

std::function<void()> TransformersModel::capture(const std::string& path, const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  if (!g.adapter()) throw invalid_argument("[save] only an adapter can be captured");
  return [path, state = state_to_save(g, {}),
          copy = std::make_shared<const AdapterCopy>(*g.adapter(), g.optimizer().state())] {
    copy->write(path, state);
  };
}

void TransformersModel::load_weights(TrainGroup& g, const std::string& directory) {
  writer_.wait();
  if (g.adapter()) {
    const auto loaded = Adapter::load(*shared_.model, directory);
    for (const auto& ours : g.adapter()->modules()) {
      for (const auto& theirs : loaded->modules()) {
        if (theirs.name != ours.name || theirs.slot.scale == ours.slot.scale) continue;
        throw invalid_argument("[checkpoint] '" + directory +
                               "' has another lora_alpha, alpha_pattern or use_rslora for '" + ours.name +
                               "' than this adapter: its weights would be scaled otherwise");
      }
    }
    loaded->make_trainable();
    g.adapter()->make_trainable();
    copy_values(g, loaded->trained(), directory);
  } else {
    g.prepare();
    load_full_weights(g, *shared_.model, directory);
  }
}

void TransformersModel::load(const std::string& name, const std::string& output_dir,
                             const std::string& adapter_name) {
  load_weights(group(adapter_name), output_dir.empty() ? name : (fs::path(output_dir) / name).string());
}

ResumeInfo TransformersModel::resume_from_checkpoint(const std::string& directory, bool resume_only_model,
                                                     const std::string& adapter_name) {
  writer_.wait();
  const TrainerState state = read_checkpoint(directory);
  const bool whole = groups_.contains("");
  const bool has_group = adapter_name.empty() ? !groups_.empty() : whole || groups_.contains(adapter_name);
  if (state.kind != "lora" || has_group)
    return resume_group(group(adapter_name), state, directory, resume_only_model);
  LoraConfig config = lora_config_from_json(read_json_file(directory + "/adapter_config.json"),
                                            directory + "/adapter_config.json");
  config.seed = state.adapter_seed;
  const std::string name = adapter_name.empty() ? "default" : adapter_name;
  add_adapter_to_model(name, config);
  try {
    return resume_group(group(adapter_name), state, directory, resume_only_model);
  } catch (...) {
    drop_group(name);
    throw;
  }
}

ResumeInfo TransformersModel::resume_group(TrainGroup& g, const TrainerState& state,
                                           const std::string& directory, bool resume_only_model) {
  const std::string kind = g.adapter() ? "lora" : "full";
  if (kind != state.kind) {
    throw invalid_argument("[checkpoint] '" + directory + "' is of " +
                           (state.kind == "lora" ? "an adapter" : "a whole model") + ", but " +
                           (kind == "lora" ? "an adapter" : "the whole model") + " is being trained");
  }
  ResumeInfo info{.cur_step = state.cur_step,
                  .consumed_train_samples = state.consumed_train_samples,
                  .gradient_accumulation_steps = state.gradient_accumulation_steps,
                  .skipped_steps = state.skipped_steps,
                  .data_state = state.data_state,
                  .manifest = state.manifest};
  const std::string isa(isa_name(active_isa()));
  if (state.isa != isa) {
    info.notes.push_back("the checkpoint was written with instruction set " + state.isa + ", this run uses " +
                         isa + ": it continues, but not bit for bit (TWINKLE_ISA=" + state.isa + " would)");
  }
  if (resume_only_model) {
    load_weights(g, directory);
    return info;
  }
  if (!state.has_optimizer) {
    throw invalid_argument(
        "[checkpoint] '" + directory +
        "' was saved without its optimizer; use resume_only_model to start from its weights");
  }
  // Components that the caller did not set come from the checkpoint; those that were set must be of the same
  // kind.
  if (g.optimizer_spec().name.empty() && !state.optimizer.name.empty()) {
    g.set_optimizer(Registry<Optimizer>::create(state.optimizer.name, state.optimizer.options),
                    state.optimizer);
  } else if (g.optimizer().name() != Catalog::instance().info(Optimizer::kKind, state.optimizer.name).name) {
    throw invalid_argument("[checkpoint] '" + directory + "' was trained with " + state.optimizer.name +
                           ", this run uses " + g.optimizer().name());
  }
  if (g.scheduler_spec().name.empty() && !state.scheduler.name.empty()) {
    g.set_lr_scheduler(Registry<LRScheduler>::create(state.scheduler.name, state.scheduler.options),
                       state.scheduler);
  }
  if (g.loss_spec().name.empty() && !state.loss.name.empty() && !g.has_loss()) {
    g.set_loss(Registry<Loss>::create(state.loss.name, state.loss.options), state.loss);
  }
  if (g.adapter() && g.adapter()->config().lora_dropout > 0 &&
      g.adapter()->config().seed != state.adapter_seed) {
    throw invalid_argument("[checkpoint] '" + directory + "' was trained with adapter seed " +
                           std::to_string(state.adapter_seed) + ", this adapter has " +
                           std::to_string(g.adapter()->config().seed) + ": dropout would differ");
  }
  g.prepare();
  load_weights(g, directory);
  g.optimizer().load_state(read_optimizer_state(directory), state.cur_step);
  g.set_gradient_accumulation_steps(state.gradient_accumulation_steps);
  g.restore(state.sequences_seen, state.tokens_seen, state.schedule_position, state.skipped_steps);
  return info;
}

std::map<std::string, at::Tensor> TransformersModel::get_state_dict(const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  std::map<std::string, at::Tensor> state;
  if (g.adapter()) {
    g.adapter()->make_trainable();
    for (const auto& t : g.adapter()->trained()) state[t.name] = t.value.cpu().clone();
    // Matrices trained in full lie packed in trained(); here they have their own shape.
    for (const auto& [name, p] : g.adapter()->saved_modules()) {
      if (p.is_matrix()) state["base_model.model." + name + ".weight"] = p.matrix.unpack(at::kFloat).cpu();
    }
  } else {
    for (const auto& p : shared_.model->parameters()) {
      state[p.name] = p.is_matrix() ? p.matrix.unpack(at::kFloat).cpu() : p.vector.cpu().clone();
    }
  }
  return state;
}

Json TransformersModel::train_configs(const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  int64_t total = 0;
  for (const auto& p : shared_.model->parameters()) {
    int64_t n = 1;
    for (const int64_t size : p.shape()) n *= size;
    total += n;
  }
  Json configs = {{"model", model_id_},
                  {"parameters", total},
                  {"trained_parameters", g.adapter() ? g.adapter()->num_parameters() : total},
                  {"gradient_accumulation_steps", g.gradient_accumulation_steps()},
                  {"micro_batch_tokens", g.passes().micro_batch_tokens},
                  {"loss", spec_json(g.loss_spec(), "CrossEntropyLoss (token_mean)")},
                  {"optimizer", spec_json(g.optimizer_spec(), "AdamW (lr 1e-5, weight_decay 0.01)")},
                  {"lr_scheduler", spec_json(g.scheduler_spec(), "constant")}};
  if (g.adapter()) configs["adapter"] = lora_config_to_json(g.adapter()->config());
  return configs;
}

std::string TransformersModel::get_train_configs(const std::string& adapter_name) {
  std::string text;
  const Json configs = train_configs(adapter_name);
  for (const auto& [key, value] : configs.items()) {
    text += key + ": " + (value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
  }
  return text;
}

}  // namespace twinkle
