#include "twinkle/sample/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"
#include "twinkle/core/units.h"
#include "twinkle/sample/engine_state.h"
#include "twinkle/train/planner.h"

namespace twinkle {
namespace {

static_assert(KvBlocks::kTokens == ops::kAttentionBlock);

constexpr int64_t kMostBlocks = int64_t{1} << 24;

int64_t blocks_for(int64_t positions) { return (positions + KvBlocks::kTokens - 1) / KvBlocks::kTokens; }

int64_t context_of(const ModelConfig& config) {
  // Dynamic rotary scaling would turn the cached keys of a sequence that grows past its first length.
  if (config.rope.type == "dynamic" && config.rope.original_max_position > 0)
    return std::min(config.rope.original_max_position, config.max_position);
  return config.max_position;
}

int64_t choose_blocks(const ModelConfig& config, const EngineOptions& o, bool on_cpu) {
  const int64_t bytes = CausalLM::kv_block_bytes(config);
  if (o.kv_blocks > 0 && o.kv_cache_mb > 0)
    throw invalid_argument("[sample] kv_blocks and kv_cache_mb exclude each other; give one");
  if (o.kv_blocks > 0) return std::min(o.kv_blocks, kMostBlocks);
  if (o.kv_cache_mb > 0) {
    const int64_t blocks = (o.kv_cache_mb << 20) / bytes;
    if (blocks < 1) {
      throw invalid_argument("[sample] 'kv_cache_mb': " + std::to_string(o.kv_cache_mb) +
                             " MB do not hold one block of " + bytes_text(bytes));
    }
    return std::min(blocks, kMostBlocks);
  }
  if (!on_cpu) return std::max(int64_t{1}, (int64_t{1} << 30) / bytes);
  const int64_t useful = 2 * o.max_running * blocks_for(context_of(config));
  return std::clamp(available_memory_bytes() * 3 / 10 / bytes, int64_t{1}, std::min(useful, kMostBlocks));
}

EngineOptions checked(EngineOptions o) {
  const auto from = [](const char* field, int64_t value, int64_t least) {
    if (value < least) {
      throw invalid_argument("[sample] '" + std::string(field) + "' must be at least " +
                             std::to_string(least) + ", got " + std::to_string(value));
    }
  };
  from("kv_blocks", o.kv_blocks, 0);
  from("kv_cache_mb", o.kv_cache_mb, 0);
  o.kv_cache_mb = std::min(o.kv_cache_mb, int64_t{1} << 40);  // of megabytes; more is more than there is
  from("max_tokens_per_pass", o.max_tokens_per_pass, 1);
  from("max_running", o.max_running, 1);
  from("max_queued", o.max_queued, 1);
  o.max_running = std::min(o.max_running, o.max_tokens_per_pass);
  return o;
}

void check_prompt_targets(const std::vector<PromptTarget>& targets, int64_t length, int64_t vocab,
                          const std::string& where) {
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto& [place, id] = targets[i];
    if (place < 1 || place >= length || (i > 0 && place < targets[i - 1].place)) {
      throw invalid_argument(where + "place " + std::to_string(place) +
                             " of a target is not behind the first token of the prompt, or out of order");
    }
    if (id < 0 || id >= vocab) {
      throw invalid_argument(where + "target " + std::to_string(id) + " at place " + std::to_string(place) +
                             " of the prompt is not in the vocabulary of " + std::to_string(vocab));
    }
  }
}

// The place before the first token of the prompt of which anything is asked; the last place when nothing is.
int64_t first_scored_place(const SampleRequest& request) {
  const SamplingParams& p = request.params;
  const int64_t last = static_cast<int64_t>(request.prompt.size()) - 1;
  int64_t first = last;
  if (!request.prompt_targets.empty()) first = request.prompt_targets.front().place - 1;
  if (p.prompt_draws > 0) first = 0;
  if (p.prompt_logprobs)
    first = std::min(
        first, p.prompt_logprobs_last_n > 0 ? std::max<int64_t>(last - p.prompt_logprobs_last_n, 0) : 0);
  return first;
}

}  // namespace

const SamplingParams& Answer::params() const { return job->request_.params; }

bool Answer::scores_prompt() const { return index == 0 && prompt_scored < prompt_tokens - 1; }

EngineState::EngineState(CausalLM& model, std::shared_ptr<const Tokenizer> tokenizer,
                         const EngineOptions& options)
    : model(model),
      tokenizer(std::move(tokenizer)),
      options(checked(options)),
      context(context_of(model.config())),
      num_blocks(choose_blocks(model.config(), this->options, model.device().is_cpu())),
      blocks(num_blocks),
      kv(model.make_kv_storage(num_blocks)),
      arena(model.device()) {
  if (this->tokenizer != nullptr) drawable = this->tokenizer->vocab_size();
  base = std::make_shared<EngineVersion>();
  base->base = true;
}

std::shared_ptr<SampleJob> EngineState::submit(SampleRequest request) {
  const int64_t vocab = model.config().vocab_size;
  const std::string place = "[sample] ";
  const SamplingParams& p = request.params;
  check_sampling_params(p, vocab, place);
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) throw invalid_argument(place + "the prompt has no tokens");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      throw invalid_argument(place + "token " + std::to_string(request.prompt[i]) + " at position " +
                             std::to_string(i) + " of the prompt is not in the vocabulary of " +
                             std::to_string(vocab));
    }
  }
  check_prompt_targets(request.prompt_targets, length, vocab, place);
  if (length > context || (p.max_tokens > 0 && length == context)) {
    throw invalid_argument(place + "the prompt has " + std::to_string(length) +
                           " tokens, the model's context is " + std::to_string(context));
  }
  const int64_t most = std::min(p.max_tokens, context - length);
  // The last token drawn is never put through the model.
  if (const int64_t needed = blocks_for(length + std::max<int64_t>(most - 1, 0)); needed > num_blocks) {
    throw exhausted(place + "the request may need " + std::to_string(length + most) + " tokens, that is " +
                    std::to_string(needed) + " blocks of " + std::to_string(KvBlocks::kTokens) +
                    ", and the cache holds " + std::to_string(num_blocks) +
                    "; lower max_tokens or give the cache more memory");
  }
  std::vector<std::string> stops;
  std::vector<int32_t> end_ids = p.stop_token_ids;
  if (!p.ignore_eos) end_ids.insert(end_ids.end(), request.end_ids.begin(), request.end_ids.end());
  for (const auto& stop : p.stop) {
    if (tokenizer == nullptr)
      throw invalid_argument(place + "'stop' has strings, but the engine has no tokenizer");
    const int32_t id = tokenizer->token_to_id(stop);
    if (id >= 0 && tokenizer->is_special(id)) {
      end_ids.push_back(id);  // special tokens have no text
    } else {
      stops.push_back(stop);
    }
  }

  auto job = std::make_shared<SampleJob>();
  job->request_ = std::move(request);
  SampleResult& result = job->result_;
  result.version = job->request_.version;
  result.prompt_tokens = length;
  result.sequences.resize(static_cast<size_t>(p.num_samples));
  if (job->request_.params.prompt_logprobs) {
    result.prompt_logprobs.resize(static_cast<size_t>(length));
    if (job->request_.params.topk_prompt_logprobs > 0)
      result.topk_prompt_logprobs.resize(static_cast<size_t>(length));
  }
  const SamplingParams& params = job->request_.params;
  result.prompt_target_logprobs.resize(job->request_.prompt_targets.size());
  if (params.prompt_draws > 0) result.prompt_draws.resize(static_cast<size_t>(length - 1));
  const int64_t first_scored = first_scored_place(job->request_);
  int64_t answers = params.num_samples;
  if (params.max_tokens == 0) {
    for (auto& sequence : result.sequences) sequence.stop_reason = "length";
    answers = first_scored < length - 1 ? 1 : 0;
  }
  job->unfinished_ = answers;
  job->on_cancel_ = [weak = weak_from_this()](std::shared_ptr<SampleJob> which) {
    const auto engine = weak.lock();  // a job may outlive its engine
    if (engine == nullptr) return;
    std::lock_guard lock(engine->mutex);
    if (engine->stopping) return;
    engine->cancelled.push_back(std::move(which));
    engine->wake.notify_one();
  };

  std::lock_guard lock(mutex);
  if (stopping) throw unavailable(place + "the sampler was shut down");
  if (asleep) throw unavailable(place + "the sampler is asleep; wake_up() lets it go on");
  std::shared_ptr<EngineVersion> version = base;
  if (!job->request_.version.empty()) {
    const auto found = versions.find(job->request_.version);
    if (found == versions.end())
      throw not_found(place + "there are no weights '" + job->request_.version + "' (any more)");
    version = found->second;
  }
  if (queued + answers > options.max_queued) {
    throw exhausted(place + std::to_string(queued) + " answers wait already, at most " +
                    std::to_string(options.max_queued) + " may; ask again later");
  }
  const uint64_t seed = params.seed ? *params.seed : next_seed(job->request_.tenant);
  for (int64_t i = 0; i < answers; ++i) {
    auto answer = std::make_shared<Answer>(
        Answer{.job = job, .index = static_cast<size_t>(i), .version = version, .text = {tokenizer, stops}});
    answer->tokens = job->request_.prompt;
    answer->prompt_tokens = length;
    answer->prompt_scored = first_scored;
    answer->most_tokens = most;
    answer->end_ids = end_ids;
    answer->seed = seed;
    job->answers_.push_back(std::move(answer));
  }
  if (answers == 0) {
    job->done_ = true;
    return job;
  }
  queued += answers;
  arrived.push_back(job);
  wake.notify_one();
  return job;
}

uint64_t EngineState::next_seed(const std::string& tenant) {
  // By tenant, so that what others ask does not change a tenant's draws.
  return mix_key(mix_key(options.seed, hash_name(tenant)), ++requests_of_tenant[tenant]);
}

void EngineState::loop() {
  bool more = false;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] {
        return more || stopping || (!arrived.empty() && !draining) || !accepted.empty() ||
               !cancelled.empty() || !commands.empty();
      });
      if (stopping) return;
    }
    try {
      more = step();
    } catch (...) {  // a bug, or no memory: whoever waits must hear of it
      std::lock_guard pass(pass_mutex);
      fail_all(std::current_exception());
      more = true;
    }
  }
}

bool EngineState::step() {
  std::lock_guard pass(pass_mutex);
  take_orders();
  {
    std::lock_guard lock(mutex);
    if (asleep || stopping) return false;
  }
  std::vector<Item> items = plan();
  if (items.empty()) return false;
  run(std::move(items));
  return true;
}

void EngineState::between_passes(const std::function<void()>& fn) {
  std::future<void> finished;
  {
    std::lock_guard lock(mutex);
    if (options.own_thread && !stopping) {
      commands.emplace_back(fn);
      finished = commands.back().get_future();
      wake.notify_one();
    }
  }
  if (finished.valid()) return finished.get();
  std::lock_guard pass(pass_mutex);
  take_orders();
  fn();
}

void EngineState::begin_replacing_base() {
  std::lock_guard lock(mutex);
  if (stopping) throw unavailable("[sample] the sampler was shut down");
  if (draining) throw conflict("[sample] the model's weights are being replaced already");
  draining = true;
  accepted.swap(arrived);
  wake.notify_one();
}

void EngineState::finish_replacing_base(const std::function<void()>& change) {
  for (bool done = false; !done;) {
    between_passes([&] {
      struct LetIn {  // also after an error
        EngineState& s;
        bool now = false;
        ~LetIn() {
          if (!now) return;
          std::lock_guard lock(s.mutex);
          s.draining = false;
          s.wake.notify_all();
        }
      } let_in{*this};
      {
        std::lock_guard lock(mutex);
        let_in.now = stopping;
      }
      if (let_in.now) throw unavailable("[sample] the sampler was shut down");
      const auto runs = [](const auto& answer) { return answer->state == Answer::State::kRunning; };
      if (waiting > 0 || std::ranges::any_of(running, runs)) return;
      let_in.now = done = true;
      forget_computed();
      change();
      ++model_version;
      fail_held_back();
    });
    if (done) return;
    constexpr auto kOften = std::chrono::milliseconds(1);
    if (options.own_thread || !step()) std::this_thread::sleep_for(kOften);
  }
}

// Those that wait for the new weights but want an adapter that was removed with the old ones.
void EngineState::fail_held_back() {
  std::vector<std::shared_ptr<SampleJob>> stale;
  {
    std::lock_guard lock(mutex);
    const auto gone = [&](const auto& job) {
      const auto& version = job->answers_.front()->version;
      const auto found = versions.find(version->name);
      return !version->base && (found == versions.end() || found->second != version);
    };
    std::ranges::copy_if(arrived, std::back_inserter(stale), gone);
    std::erase_if(arrived, gone);
  }
  for (const auto& job : stale) {
    waiting += static_cast<int64_t>(job->answers_.size());
    fail(job, std::make_exception_ptr(
                  not_found("[sample] the weights '" + job->request_.version + "' were removed meanwhile")));
  }
}

bool EngineState::wait_for_base() {
  std::unique_lock lock(mutex);
  wake.wait(lock, [&] { return !draining || stopping; });
  return !arrived.empty() && !stopping;
}

void EngineState::stop() {
  {
    std::lock_guard lock(mutex);
    if (stopping) return;
    stopping = true;
    draining = false;
    wake.notify_all();
  }
  if (thread.joinable()) thread.join();
  std::lock_guard pass(pass_mutex);
  take_orders();
  fail_all(std::make_exception_ptr(unavailable("[sample] the sampler was shut down")));
}

void EngineState::fail_all(const std::exception_ptr& error) {
  std::vector<std::shared_ptr<SampleJob>> jobs;
  for (const auto& answer : running) jobs.push_back(answer->job);
  for (const auto& [name, tenant] : tenants) {
    for (const auto& answer : tenant.waiting) jobs.push_back(answer->job);
  }
  for (const auto& job : jobs) fail(job, error);
  running.clear();
  tenants.clear();
}

// The public face.

SampleEngine::SampleEngine(CausalLM& model, std::shared_ptr<const Tokenizer> tokenizer,
                           const EngineOptions& options)
    : state_(std::make_shared<EngineState>(model, std::move(tokenizer), options)) {
  if (options.own_thread) state_->thread = std::thread([state = state_.get()] { state->loop(); });
}

SampleEngine::~SampleEngine() { shutdown(); }

void SampleEngine::add_version(const std::string& name, std::shared_ptr<const Adapter> adapter) {
  const AdapterUse use = use_of(*adapter, false, false);
  add_version(name, use, std::move(adapter));
}

void SampleEngine::add_version(const std::string& name, std::shared_ptr<const AdapterSnapshot> snapshot) {
  const AdapterUse use = snapshot->use();
  add_version(name, use, std::move(snapshot));
}

void SampleEngine::add_version(const std::string& name, const AdapterUse& use,
                               std::shared_ptr<const void> keep_alive) {
  if (name.empty()) throw invalid_argument("[sample] weights need a name; '' is the base model");
  auto version = std::make_shared<EngineVersion>();
  version->name = name;
  version->alone = use.saved_modules != nullptr && !use.saved_modules->empty();
  version->use = use;
  version->keep_alive = std::move(keep_alive);
  std::lock_guard lock(state_->mutex);
  if (state_->versions.contains(name)) throw conflict("[sample] there are weights '" + name + "' already");
  version->id = state_->next_version++;
  state_->versions.emplace(name, std::move(version));
}

void SampleEngine::remove_version(const std::string& name, bool end_requests) {
  std::shared_ptr<EngineVersion> version;
  {
    std::lock_guard lock(state_->mutex);
    const auto found = state_->versions.find(name);
    if (found == state_->versions.end()) throw not_found("[sample] there are no weights '" + name + "'");
    version = found->second;
    state_->versions.erase(found);
  }
  between_passes([&] {
    EngineState& s = *state_;
    version->gone = true;
    s.unbind();  // a binding keeps its weights alive
    s.blocks.forget_version(version->id);
    if (!end_requests) return;
    std::vector<std::shared_ptr<SampleJob>> jobs;
    const auto collect = [&](const auto& answers) {
      for (const auto& answer : answers) {
        if (answer->version == version) jobs.push_back(answer->job);
      }
    };
    collect(s.running);
    for (const auto& [tenant, entry] : s.tenants) collect(entry.waiting);
    const auto error =
        std::make_exception_ptr(not_found("[sample] the weights '" + name + "' were removed meanwhile"));
    for (const auto& job : jobs) s.fail(job, error);
  });
}

std::vector<std::string> SampleEngine::versions() const {
  std::lock_guard lock(state_->mutex);
  std::vector<std::string> out;
  for (const auto& [name, version] : state_->versions) out.push_back(name);
  return out;
}

std::shared_ptr<SampleJob> SampleEngine::submit(SampleRequest request) {
  return state_->submit(std::move(request));
}

bool SampleEngine::step() {
  TW_CHECK(!state_->options.own_thread, "passes run in the engine's own thread");
  return state_->step() || state_->wait_for_base();
}

void SampleEngine::between_passes(const std::function<void()>& fn) { state_->between_passes(fn); }

void SampleEngine::update_base(const std::function<void()>& change) {
  between_passes([&] {
    state_->forget_computed();
    change();
    ++state_->model_version;
  });
}

void SampleEngine::replace_base(const std::function<void()>& change) {
  begin_replacing_base();
  finish_replacing_base(change);
}

void SampleEngine::begin_replacing_base() { state_->begin_replacing_base(); }
void SampleEngine::finish_replacing_base(const std::function<void()>& change) {
  state_->finish_replacing_base(change);
}

int64_t SampleEngine::model_version() const { return state_->model_version; }

void SampleEngine::reset_prefix_cache() {
  between_passes([this] {
    for (const auto& answer : state_->running) answer->forgotten = true;
    state_->blocks.forget_all();
  });
}

void SampleEngine::sleep() {
  between_passes([this] {
    EngineState& s = *state_;
    {
      std::lock_guard lock(s.mutex);
      if (s.asleep) return;
      s.asleep = true;
    }
    s.forget_computed();
    s.kv = {};
    s.unbind();
    s.arena.release({});
    s.arena.trim();
  });
}

void SampleEngine::wake_up() {
  between_passes([this] {
    EngineState& s = *state_;
    std::lock_guard lock(s.mutex);
    if (!s.asleep) return;
    s.kv = s.model.make_kv_storage(s.num_blocks);
    s.asleep = false;
  });
}

bool SampleEngine::asleep() const {
  std::lock_guard lock(state_->mutex);
  return state_->asleep;
}

EngineStats SampleEngine::stats() {
  EngineStats out;
  between_passes([&] {
    EngineState& s = *state_;
    out = s.counts;
    out.blocks = s.blocks.counters();
    out.waiting = s.waiting;
    out.running = std::ranges::count_if(
        s.running, [](const auto& answer) { return answer->state == Answer::State::kRunning; });
  });
  return out;
}

void SampleEngine::shutdown() { state_->stop(); }

CausalLM& SampleEngine::model() { return state_->model; }
const std::shared_ptr<const Tokenizer>& SampleEngine::tokenizer() const { return state_->tokenizer; }
int64_t SampleEngine::context() const { return state_->context; }

}  // namespace twinkle
