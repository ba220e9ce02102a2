#include "twinkle/sample/samplers.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/lora/adapter_copies.h"
#include "twinkle/sample/generate.h"
#include "twinkle/sample/weight_receiver.h"

namespace twinkle {
namespace {

// What the engine needs to know of an adapter, in memory that nobody else changes.
std::shared_ptr<const AdapterSnapshot> copy_of(const std::string& name, const Adapter& adapter) {
  auto out = std::make_shared<AdapterSnapshot>();
  out->name = name;
  out->config = adapter.config();
  out->modules = modules_without_gradients(adapter);
  out->saved_modules = saved_without_gradients(adapter);
  make_own(out->modules, out->saved_modules);
  return out;
}

// Without a thread of its own nobody would go on with the call after wake_up().
Error fell_asleep() { return unavailable("[sample] the sampler was put to sleep in the middle of a call"); }

size_t count_of(const SampleInputs& inputs) {
  return std::visit([](const auto& list) { return list.size(); }, inputs);
}

}  // namespace

const std::vector<ParamSpec>& engine_arg_specs() {
  static const std::vector<ParamSpec> specs = {
      {.name = "max_num_seqs",
       .type = ParamType::kInt,
       .default_value = 256,
       .help = "answers that grow at the same time",
       .min = 1},
      {.name = "max_num_batched_tokens",
       .type = ParamType::kInt,
       .default_value = 512,
       .help = "new tokens of one pass",
       .min = 1},
      {.name = "max_num_queued",
       .type = ParamType::kInt,
       .default_value = 16384,
       .help = "answers that may wait; more are refused",
       .min = 1},
      {.name = "kv_cache_memory_mb",
       .type = ParamType::kInt,
       .default_value = 0,
       .help = "memory for keys and values; 0: 30 % of what is available",
       .min = 0},
      {.name = "enable_prefix_caching",
       .type = ParamType::kBool,
       .default_value = true,
       .help = "keep prompts for requests that begin alike; changes no number"},
      {.name = "seed",
       .type = ParamType::kInt,
       .default_value = 42,
       .help = "of requests that bring none",
       .min = 0}};
  return specs;
}

Sampler::Sampler(const std::string& model_id, const Json& engine_args, const LoadOptions& load,
                 bool own_thread)
    : own_thread_(own_thread) {
  check_options(engine_arg_specs(), engine_args, "engine_args");  // before anything is read
  tokenizer_ = Tokenizer::load(model_id);
  model_ = CausalLM::load(model_id, load);
  start(*model_, engine_args, own_thread);
}

Sampler::Sampler(TransformersModel& trainer, const Json& engine_args, bool own_thread)
    : own_thread_(own_thread) {
  tokenizer_ = trainer.tokenizer();
  start(trainer.model(), engine_args, own_thread);
  if (trainer.get_template() != nullptr) set_template(trainer.get_template());
}

// Whatever waits hears of it, the thread that receives too.
Sampler::~Sampler() {
  if (engine_ != nullptr) shutdown();
}

void Sampler::start(CausalLM& model, const Json& engine_args, bool own_thread) {
  const Options o = check_options(engine_arg_specs(), engine_args, "engine_args");
  for (const int64_t id : model.config().eos_token_ids) end_ids_.push_back(static_cast<int32_t>(id));
  engine_ =
      std::make_unique<SampleEngine>(model, tokenizer_,
                                     EngineOptions{.kv_cache_mb = o.get_int("kv_cache_memory_mb"),
                                                   .max_tokens_per_pass = o.get_int("max_num_batched_tokens"),
                                                   .max_running = o.get_int("max_num_seqs"),
                                                   .max_queued = o.get_int("max_num_queued"),
                                                   .prefix_cache = o.get_bool("enable_prefix_caching"),
                                                   .own_thread = own_thread,
                                                   .seed = static_cast<uint64_t>(o.get_int("seed"))});
}

void Sampler::set_template(const std::string& name, const TemplateOptions& options) {
  set_template(make_template(name, tokenizer_, options));
}

void Sampler::set_template(std::shared_ptr<const Template> tmpl) {
  std::lock_guard lock(mutex_);
  template_ = std::move(tmpl);
  end_ids_ = template_->stop_ids();
  for (const int64_t id : engine_->model().config().eos_token_ids)
    end_ids_.push_back(static_cast<int32_t>(id));
}

const Template& Sampler::the_template() const {
  std::lock_guard lock(mutex_);
  if (template_ == nullptr)
    throw invalid_argument("[sample] conversations need a template; call set_template() first");
  return *template_;
}

std::vector<int32_t> Sampler::encode_trajectory(const Trajectory& trajectory) const {
  const Template& tmpl = the_template();
  std::vector<int32_t> ids = tmpl.encode_prompt(trajectory).input_ids;
  if (ids.empty()) {
    throw invalid_argument("[sample] the prompt is longer than the template's max_length " +
                           std::to_string(tmpl.options().max_length) + ", which deletes it");
  }
  return ids;
}

std::string Sampler::decode_response(std::span<const int32_t> ids) const {
  return tokenizer_->decode(ids, true);
}

// Asking.

void Sampler::check_args(const SampleArgs& args) {
  const int named = !args.adapter_name.empty() + !args.adapter_version.empty() + !args.adapter_path.empty();
  if (named > 1 && !args.use_base_model) {
    throw invalid_argument(
        "[sample] adapter_name, adapter_version and adapter_path exclude each other; give one");
  }
}

std::string Sampler::version_of(const SampleArgs& args) const {
  if (args.use_base_model) return "";
  if (!args.adapter_version.empty()) return args.adapter_version;
  const std::string& name = args.adapter_name.empty() ? default_ : args.adapter_name;
  if (name.empty()) return "";
  const auto found = names_.find(name);
  if (found == names_.end()) throw not_found("[sample] there is no adapter '" + name + "'");
  return found->second.back();
}

std::vector<SampleRequest> Sampler::requests_of(const SampleInputs& inputs, const SamplingParams& params,
                                                const SampleArgs& args) {
  std::vector<std::vector<int32_t>> prompts;
  if (const auto* features = std::get_if<std::vector<InputFeature>>(&inputs)) {
    for (const auto& f : *features) prompts.push_back(f.input_ids);
  } else {
    for (const auto& t : std::get<std::vector<Trajectory>>(inputs)) prompts.push_back(encode_trajectory(t));
  }
  std::vector<SampleRequest> out;
  std::lock_guard lock(mutex_);
  for (auto& prompt : prompts) {
    out.push_back(
        {.prompt = std::move(prompt), .params = params, .tenant = args.tenant, .end_ids = end_ids_});
  }
  return out;
}

std::shared_ptr<SampleJob> Sampler::submit(SampleRequest request, const SampleArgs& args) {
  // Under the lock the name means a version that the engine still has: newer weights come before or after.
  std::lock_guard lock(mutex_);
  request.version = version_of(args);
  return engine_->submit(std::move(request));
}

SampleResponse Sampler::response_of(SampleResult result, std::vector<int32_t> prompt) const {
  SampleResponse out;
  static_cast<SampleResult&>(out) = std::move(result);
  for (const auto& sequence : out.sequences) {
    InputFeature f;
    f.input_ids = prompt;
    f.input_ids.insert(f.input_ids.end(), sequence.tokens.begin(), sequence.tokens.end());
    f.labels.assign(f.input_ids.size(), kIgnoreIndex);
    // Labels are shifted: the last token of the prompt has the first of the answer as its target.
    std::ranges::copy(sequence.tokens, f.labels.begin() + static_cast<ptrdiff_t>(prompt.size()) - 1);
    out.new_input_features.push_back(std::move(f));
  }
  out.prompt_token_ids = std::move(prompt);
  return out;
}

std::vector<SampleResponse> Sampler::sample(const SampleInputs& inputs, const SamplingParams& params,
                                            const SampleArgs& args) {
  check_args(args);
  SampleArgs used = args;
  if (!args.adapter_path.empty() && !args.use_base_model) {
    used.adapter_path.clear();
    used.adapter_version = "path:" + args.adapter_path;
    {
      std::lock_guard lock(mutex_);
      used.adapter_version += "@" + std::to_string(next_version_++);
    }
    engine_->add_version(used.adapter_version,
                         std::shared_ptr<const Adapter>(Adapter::load(engine_->model(), args.adapter_path)));
    struct Forget {
      SampleEngine& engine;
      const std::string& version;
      ~Forget() { engine.remove_version(version); }
    } forget{*engine_, used.adapter_version};
    return sample(inputs, params, used);
  }
  std::unique_lock turn(turn_, std::defer_lock);
  if (!own_thread_) turn.lock();
  const auto requests = requests_of(inputs, params, used);
  std::vector<std::shared_ptr<SampleJob>> jobs;
  std::vector<SampleResponse> out;
  size_t at = 0;
  try {
    for (at = 0; at < requests.size(); ++at) jobs.push_back(submit(requests[at], used));
    while (!own_thread_ && engine_->step()) {
    }
    for (at = 0; at < jobs.size(); ++at) {
      if (!own_thread_ && !jobs[at]->done()) throw fell_asleep();
    }
    for (at = 0; at < jobs.size(); ++at) out.push_back(response_of(jobs[at]->wait(), requests[at].prompt));
  } catch (const Error& e) {
    for (const auto& job : jobs) job->cancel();
    while (!own_thread_ && engine_->step()) {
    }
    throw requests.size() > 1 ? naming(e, "input", at) : e;
  }
  return out;
}

SampleResponse Sampler::sample_stream(const SampleInputs& input, const SamplingParams& params,
                                      const std::function<bool(const std::string&)>& on_delta,
                                      const SampleArgs& args) {
  if (count_of(input) != 1 || params.num_samples != 1) {
    throw invalid_argument("[sample] a stream is one answer to one input, got " +
                           std::to_string(count_of(input)) + " inputs and num_samples " +
                           std::to_string(params.num_samples));
  }
  check_args(args);
  if (!args.adapter_path.empty())
    throw invalid_argument("[sample] a stream takes adapters by name; see add_adapter_to_sampler()");
  std::unique_lock turn(turn_, std::defer_lock);
  if (!own_thread_) turn.lock();
  SampleRequest request = requests_of(input, params, args).front();
  const std::vector<int32_t> prompt = request.prompt;
  request.pieces = true;
  const auto job = submit(std::move(request), args);
  struct CancelAtTheEnd {  // also when on_delta throws
    Sampler& sampler;
    SampleJob& job;
    ~CancelAtTheEnd() {
      job.cancel();
      while (!sampler.own_thread_ && sampler.engine_->step()) {
      }
    }
  } cancel{*this, *job};
  bool ended = false;
  for (;;) {
    if (!own_thread_ && !job->done() && !engine_->step() && !job->done()) throw fell_asleep();
    const auto piece = own_thread_ ? job->next() : job->poll();
    if (!piece && (own_thread_ || job->done())) break;
    if (!piece || ended || piece->text.empty() || on_delta(piece->text)) continue;
    ended = true;
    job->cancel();
  }
  SampleResult result = job->wait();
  for (auto& sequence : result.sequences) {
    if (ended && sequence.stop_reason == "abort") sequence.stop_reason = "stop";
  }
  return response_of(std::move(result), prompt);
}

// Weights.

std::string Sampler::add(const std::string& name,
                         const std::function<void(const std::string& version)>& to_engine) {
  if (name.empty()) throw invalid_argument("[sample] an adapter needs a name; '' is the base model");
  std::vector<std::string> old;
  std::string version;
  {
    std::lock_guard lock(mutex_);
    version = name + "@" + std::to_string(next_version_++);
    to_engine(version);
    auto& versions = names_[name];
    versions.push_back(version);
    while (static_cast<int64_t>(versions.size()) > keep_ + 1) {
      old.push_back(versions.front());
      versions.erase(versions.begin());
    }
  }
  for (const auto& gone : old) engine_->remove_version(gone);
  return version;
}

std::string Sampler::add_adapter_to_sampler(const std::string& name, const std::string& directory) {
  std::shared_ptr<const Adapter> adapter = Adapter::load(engine_->model(), directory);
  return add(name, [&](const std::string& version) { engine_->add_version(version, adapter); });
}

std::string Sampler::apply_weights(const std::string& name, const Adapter& adapter) {
  return apply_weights(name, copy_of(name, adapter));
}

std::string Sampler::apply_weights(const std::string& name, std::shared_ptr<const AdapterSnapshot> snapshot) {
  return add(name, [&](const std::string& version) { engine_->add_version(version, snapshot); });
}

void Sampler::set_default_adapter(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (!name.empty() && !names_.contains(name)) throw not_found("[sample] there is no adapter '" + name + "'");
  default_ = name;
}

void Sampler::remove_adapter(const std::string& name) {
  std::vector<std::string> gone;
  {
    std::lock_guard lock(mutex_);
    const auto found = names_.find(name);
    if (found == names_.end()) throw not_found("[sample] there is no adapter '" + name + "'");
    gone = std::move(found->second);
    names_.erase(found);
  }
  for (const auto& version : gone) engine_->remove_version(version);
}

void Sampler::keep_versions(int64_t count) {
  if (count < 0)
    throw invalid_argument("[sample] 'keep_versions' must be at least 0, got " + std::to_string(count));
  std::lock_guard lock(mutex_);
  keep_ = count;
}

void Sampler::update_base(const std::function<void(CausalLM&)>& change) {
  engine_->update_base([&] { change(engine_->model()); });
}

int64_t Sampler::replace_model_weights(std::vector<Parameter> weights) {
  if (model_ == nullptr) {
    throw conflict(
        "[sample] these are the weights of a model in training, which only the training changes; a sampler "
        "that "
        "opens the model itself can be given others");
  }
  std::map<std::string, Parameter*> known;
  for (auto& parameter : model_->parameters()) known[parameter.name] = &parameter;
  for (const auto& weight : weights) {
    const auto found = known.find(weight.name);
    if (found == known.end() || found->second->shape() != weight.shape())
      throw invalid_argument("[sample] the model has no weight '" + weight.name + "' of this shape");
  }
  if (engine_->asleep()) {
    const EngineStats stats = engine_->stats();
    if (stats.waiting + stats.running > 0) {
      throw unavailable(
          "[sample] the sampler sleeps while requests wait for the old weights; wake_up() lets them end");
    }
  }
  std::map<std::string, std::vector<std::string>> gone;
  {
    // Under one lock: who asks for an adapter gets it as it was, who asks without one after it went waits for
    // the new weights.
    std::lock_guard lock(mutex_);
    engine_->begin_replacing_base();
    gone.swap(names_);
    default_.clear();
  }
  for (const auto& [name, versions] : gone) {
    for (const auto& version : versions) engine_->remove_version(version);
  }
  int64_t version = 0;
  engine_->finish_replacing_base([&] {
    for (auto& weight : weights) {
      Parameter& target = *known.at(weight.name);
      target.matrix = std::move(weight.matrix);
      target.vector = std::move(weight.vector);
    }
    version = engine_->model_version() + 1;
  });
  return version;
}

void Sampler::receive_weights(const std::string& path, const ReceiveOptions& options) {
  if (model_ == nullptr) {
    throw conflict(
        "[sample] this sampler uses the weights of a model in training; sync them with "
        "CheckpointEngineManager(model, sampler)");
  }
  std::lock_guard lock(receiver_mutex_);
  if (receiver_ != nullptr)
    throw conflict("[sample] weights are received already, at '" + receiver_->path() + "'");
  receiver_ = std::make_unique<WeightReceiver>(*this, path, options);
}

void Sampler::stop_receiving() {
  std::unique_ptr<WeightReceiver> gone;  // ends outside the lock: on_weights may ask for the status meanwhile
  std::lock_guard lock(receiver_mutex_);
  if (receiver_ == nullptr) return;
  if (receiver_->is_this_thread()) {
    throw conflict("[sample] on_weights runs in the thread that receives, which cannot wait for its own end");
  }
  gone.swap(receiver_);
}

ReceiveStatus Sampler::receive_status() const {
  std::lock_guard lock(receiver_mutex_);
  return receiver_ == nullptr ? ReceiveStatus() : receiver_->status();
}

std::string Sampler::receives_at() const {
  std::lock_guard lock(receiver_mutex_);
  return receiver_ == nullptr ? "" : receiver_->path();
}

void Sampler::shutdown() {
  engine_->shutdown();
  stop_receiving();
}

void Sampler::sleep(int64_t level) {
  if (level != 1 && level != 2)
    throw invalid_argument("[sample] 'level' must be 1 or 2, got " + std::to_string(level));
  engine_->sleep();
}

void Sampler::wake_up() { engine_->wake_up(); }

std::vector<std::string> Sampler::get_state_keys() const {
  std::vector<std::string> out;
  for (const auto& parameter : engine_->model().parameters()) out.push_back(parameter.name);
  return out;
}

}  // namespace twinkle
