// Routing from the facade to its groups. Files are in transformers_model_files.cpp.
#include "twinkle/train/transformers_model.h"

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle {
namespace {

std::unique_ptr<CausalLM> open_model(const std::string& model_id, const TransformersModelOptions& options) {
  const LoadOptions load{.dtype = options.dtype, .device = options.device};
  if (options.load_weights) return CausalLM::load(model_id, load);
  const ModelConfig config = model_config_from_json(open_model_files(model_id).config, model_id);
  return CausalLM::build(config, *random_weights(config, options.seed), load);
}

}  // namespace

TransformersModel::TransformersModel(const std::string& model_id, const TransformersModelOptions& options)
    : TransformersModel(open_model(model_id, options), model_id, options) {}

TransformersModel::TransformersModel(std::unique_ptr<CausalLM> model, std::string model_id,
                                     const TransformersModelOptions& options)
    : model_id_(std::move(model_id)),
      options_(options),
      processor_(Registry<InputProcessor>::create("InputProcessor")) {
  if (options_.micro_batch_tokens < 1) {
    throw invalid_argument("[model] micro_batch_tokens must be >= 1, got " +
                           std::to_string(options_.micro_batch_tokens));
  }
  shared_.model = std::move(model);
}

// The writer goes first: it may still read what the groups hold.
TransformersModel::~TransformersModel() {
  try {
    writer_.wait();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
}

// Groups.

TrainGroup& TransformersModel::add_group(const std::string& name, std::shared_ptr<Adapter> adapter) {
  auto made = std::make_unique<TrainGroup>(shared_, std::move(adapter));
  made->set_gradient_accumulation_steps(options_.gradient_accumulation_steps);
  made->set_before_update([this] { writer_.wait_read(); });
  made->passes() = {.micro_batch_tokens = options_.micro_batch_tokens,
                    .recompute = options_.gradient_checkpointing == Recompute::kAlways,
                    .packing = options_.packing,
                    .sharing = options_.share_prefix};
  return *(groups_[name] = std::move(made));
}

void TransformersModel::drop_group(const std::string& name) {
  shared_.live = nullptr;  // a pass of the group that goes
  groups_.erase(name);
}

void TransformersModel::add_adapter_to_model(const std::string& name, const LoraConfig& config) {
  if (name.empty()) throw invalid_argument("[model] an adapter needs a name");
  if (groups_.contains(""))
    throw conflict("[model] the whole model is being trained; add adapters before anything else");
  if (groups_.contains(name)) throw conflict("[model] there is an adapter '" + name + "' already");
  LoraConfig own = config;
  if (own.base_model_name_or_path.empty()) own.base_model_name_or_path = model_id_;
  add_group(name, Adapter::create(*shared_.model, own));
}

void TransformersModel::add_adapter_to_model(const std::string& name, const std::string& directory,
                                             uint64_t seed) {
  if (name.empty()) throw invalid_argument("[model] an adapter needs a name");
  if (groups_.contains(""))
    throw conflict("[model] the whole model is being trained; add adapters before anything else");
  if (groups_.contains(name)) throw conflict("[model] there is an adapter '" + name + "' already");
  auto adapter = Adapter::load(*shared_.model, directory);
  adapter->set_seed(seed);
  check_trainable(*adapter);
  add_group(name, std::move(adapter));
}

TrainGroup& TransformersModel::group(const std::string& adapter_name) {
  if (adapter_name.empty()) {
    if (groups_.empty()) return add_group("", nullptr);
    if (groups_.size() == 1) return *groups_.begin()->second;
    throw invalid_argument("[model] there are " + std::to_string(groups_.size()) +
                           " adapters; say which by adapter_name");
  }
  const auto found = groups_.find(adapter_name);
  if (found != groups_.end()) return *found->second;
  std::vector<std::string> known;
  for (const auto& [name, unused] : groups_) known.push_back(name);
  throw not_found("[model] there is no adapter '" + adapter_name + "'" + did_you_mean(adapter_name, known));
}

// Parts.

void TransformersModel::set_loss(const std::string& name, const Json& options,
                                 const std::string& adapter_name) {
  group(adapter_name)
      .set_loss(Registry<Loss>::create(name, options), {name, options.is_null() ? Json::object() : options});
}

void TransformersModel::set_loss(std::unique_ptr<Loss> loss, const std::string& adapter_name) {
  if (!loss) throw invalid_argument("[set_loss] the loss is null");
  group(adapter_name).set_loss(std::move(loss), {});
}

void TransformersModel::set_optimizer(const std::string& name, const Json& options,
                                      const std::string& adapter_name) {
  group(adapter_name)
      .set_optimizer(Registry<Optimizer>::create(name, options),
                     {name, options.is_null() ? Json::object() : options});
}

void TransformersModel::set_lr_scheduler(const std::string& name, const Json& options,
                                         const std::string& adapter_name) {
  group(adapter_name)
      .set_lr_scheduler(Registry<LRScheduler>::create(name, options),
                        {name, options.is_null() ? Json::object() : options});
}

void TransformersModel::set_template(const std::string& name, const TemplateOptions& options) {
  template_ = make_template(name, tokenizer(), options);
}

void TransformersModel::set_processor(const std::string& name, const Json& options) {
  processor_ = Registry<InputProcessor>::create(name, options);
}

void TransformersModel::add_metric(const std::string& name, const Json& options,
                                   std::optional<bool> is_training, const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  if (is_training.value_or(true)) g.train_metrics().add(Registry<Metric>::create(name, options));
  if (!is_training.value_or(false)) g.eval_metrics().add(Registry<Metric>::create(name, options));
}

void TransformersModel::set_gradient_accumulation_steps(int64_t steps, const std::string& adapter_name) {
  group(adapter_name).set_gradient_accumulation_steps(steps);
}

std::shared_ptr<const Tokenizer> TransformersModel::tokenizer() {
  if (!tokenizer_) {
    if (tokenizer_id().empty())
      throw not_found("[model] this model was built in memory and has no tokenizer");
    tokenizer_ = Tokenizer::load(tokenizer_id());
  }
  return tokenizer_;
}

std::vector<InputFeature> TransformersModel::features_of(const ModelInputs& inputs) const {
  if (const auto* features = std::get_if<std::vector<InputFeature>>(&inputs.value()))
    return (*processor_)(*features);
  const auto& trajectories = std::get<std::vector<Trajectory>>(inputs.value());
  if (!template_) throw conflict("[model] conversations need a template: call set_template first");
  std::vector<InputFeature> features;
  for (size_t i = 0; i < trajectories.size(); ++i) {
    auto encoded = template_->encode(trajectories[i]);
    if (encoded.empty()) {
      throw invalid_argument("[model] conversation " + std::to_string(i) +
                             " was deleted by the template (longer than max_length " +
                             std::to_string(template_->options().max_length) + ")");
    }
    for (auto& feature : encoded) features.push_back(std::move(feature));
  }
  return (*processor_)(std::move(features));
}

// A step.

TrainGroup& TransformersModel::training_group(const std::string& adapter_name,
                                              const std::vector<InputFeature>& features) {
  TrainGroup& g = group(adapter_name);
  const PassSize most = largest_pass(features, options_.share_prefix, options_.micro_batch_tokens);
  PassSize& planned = g.passes().planned;
  if (!planned.holds(most)) {
    const bool check = options_.check_memory && options_.device.is_cpu();
    const PassSize both = planned.with(most);
    const PassPlan plan = plan_passes(*shared_.model, g, both, options_.gradient_checkpointing, check);
    g.passes().recompute = plan.recompute;
    planned = both;
    shared_.live = nullptr;  // a pass that was held is run again when it is asked for
    shared_.model->finish();
    shared_.model->arena().reserve(plan.arena_bytes);
  }
  g.prepare();
  return g;
}

ModelOutput TransformersModel::forward(const ModelInputs& inputs, const ForwardArgs& args,
                                       const std::string& adapter_name) {
  const auto features = features_of(inputs);
  return training_group(adapter_name, features).forward(features, args);
}

ModelOutput TransformersModel::forward_only(const ModelInputs& inputs, const ForwardArgs& args,
                                            const std::string& adapter_name) {
  return group(adapter_name).forward_only(features_of(inputs), args);
}

ModelOutput TransformersModel::forward_backward(const ModelInputs& inputs, const ForwardArgs& args,
                                                const std::string& adapter_name) {
  const auto features = features_of(inputs);
  return training_group(adapter_name, features).forward_backward(features, args);
}

double TransformersModel::calculate_loss(const std::string& adapter_name) {
  return group(adapter_name).calculate_loss();
}

void TransformersModel::backward(const std::string& adapter_name) { group(adapter_name).backward(); }

std::optional<double> TransformersModel::clip_grad_norm(double max_grad_norm, double norm_type,
                                                        const std::string& adapter_name) {
  return group(adapter_name).clip_grad_norm(max_grad_norm, norm_type);
}

StepResult TransformersModel::step(const StepOverrides& optim_params, const std::string& adapter_name) {
  return group(adapter_name).step(optim_params);
}

void TransformersModel::zero_grad(const std::string& adapter_name) { group(adapter_name).zero_grad(); }

void TransformersModel::lr_step(const std::string& adapter_name) { group(adapter_name).lr_step(); }

StepResult TransformersModel::clip_grad_and_step(double max_grad_norm, double norm_type,
                                                 const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  g.clip_grad_norm(max_grad_norm, norm_type);
  const StepResult result = g.step();
  g.zero_grad();
  g.lr_step();
  return result;
}

void TransformersModel::flush_accumulation(const std::string& adapter_name) {
  group(adapter_name).flush_accumulation();
}

Json TransformersModel::calculate_metric(bool is_training, const std::string& adapter_name) {
  TrainGroup& g = group(adapter_name);
  return (is_training ? g.train_metrics() : g.eval_metrics()).calculate();
}

}  // namespace twinkle
