// What the engine is made of; only the engine's own files include it. `mutex` guards the part that other
// threads reach; the rest belongs to whoever holds `pass_mutex` (the thread that runs passes).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <thread>

#include "twinkle/sample/answer_text.h"
#include "twinkle/sample/engine.h"

namespace twinkle {

/// Weights under a name. Immutable but for `gone`.
struct EngineVersion {
  std::string name;
  uint64_t id = 0;
  AdapterUse use;  // nothing for the base
  std::shared_ptr<const void> keep_alive;
  bool base = false;
  bool alone = false;  // replaces whole weights of the model: its requests have passes of their own
  bool gone = false;   // pass thread
  // While it is bound: its modules with their panels. Pass thread.
  std::vector<LoraModule> packed;
};

/// One answer being made.
struct Answer {
  std::shared_ptr<SampleJob> job;
  size_t index = 0;  // among the job's answers
  std::shared_ptr<EngineVersion> version;
  std::vector<int32_t> tokens;  // prompt and answer
  int64_t prompt_tokens = 0, most_tokens = 0;
  std::vector<int32_t> end_ids;  // what ends it, but for stop strings
  uint64_t seed = 0;
  AnswerText text;

  // Held: waits for the job's first answer, so that the prompt is cached.
  enum class State { kHeld, kWaiting, kRunning, kDone } state = State::kHeld;
  bool admitted_before = false;
  bool in_pass = false;
  int64_t computed = 0;  // positions whose keys and values are in the cache
  std::vector<int32_t> blocks;
  int64_t committed = 0;   // blocks that were made findable
  bool forgotten = false;  // the cache was reset since it began to run: nothing more of it is made findable
  KvBlocks::Node node = 0;
  int64_t prompt_scored = 0;  // the token behind this place of the prompt is the next to score

  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - computed; }
  int64_t drawn() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  const SamplingParams& params() const;
  bool scores_prompt() const;
};

struct EngineState : std::enable_shared_from_this<EngineState> {
  EngineState(CausalLM& model, std::shared_ptr<const Tokenizer> tokenizer, const EngineOptions& options);

  // ---- engine.cpp: what other threads reach
  std::shared_ptr<SampleJob> submit(SampleRequest request);
  uint64_t next_seed(const std::string& tenant);
  KvBlocks::Node root_of(const std::string& tenant);
  void loop();
  bool step();
  void between_passes(const std::function<void()>& fn);
  void begin_replacing_base();
  void finish_replacing_base(const std::function<void()>& change);
  bool wait_for_base();
  void stop();
  void fail_all(const std::exception_ptr& error);

  // ---- scheduler.cpp: who runs
  struct Tenant {
    std::deque<std::shared_ptr<Answer>> waiting;
    double served = 0;  // tokens computed for it, lifted when it comes back from being idle
    int64_t running = 0;
  };
  struct Item {
    std::shared_ptr<Answer> answer;
    int64_t count = 0;  // new positions
  };
  void take_orders();
  void enqueue(const std::shared_ptr<Answer>& answer, bool front);
  std::vector<Item> plan();
  bool place(std::vector<Item>& items, const std::shared_ptr<Answer>& answer, int64_t count);
  bool admit(int64_t* budget, std::vector<Item>& items);
  bool fits(Answer& answer);
  bool make_room_for(const std::string& tenant, int64_t* budget, std::vector<Item>& items);
  std::shared_ptr<Answer> next_waiting();
  void preempt(const std::shared_ptr<Answer>& answer);
  void forget_computed();
  void leave(Answer& answer);
  void finish(const std::shared_ptr<Answer>& answer, const std::string& reason);
  void fail(const std::shared_ptr<SampleJob>& job, std::exception_ptr error);
  void end_job(const std::shared_ptr<SampleJob>& job);
  void fail_held_back();
  Tenant& tenant_of(const Answer& answer) { return tenants[answer.job->request_.tenant]; }

  // ---- engine_pass.cpp: what a pass computes
  void run(std::vector<Item> items);
  void run_group(std::vector<Item>& items);
  void bind(const std::vector<Item>& items);
  /// Lets go of what the binding keeps.
  void unbind();
  void score_prompts(const std::vector<Item>& items, const at::Tensor& hidden_TK);
  void draw_for_prompts(const std::vector<Item>& items, const at::Tensor& hidden_TK);
  void draw(const std::vector<Item>& items, const at::Tensor& hidden_TK);
  void accept(const std::shared_ptr<Answer>& answer, int32_t id, double sampled_logprob, float logprob,
              std::vector<TokenLogprob> top);
  void commit_blocks(Answer& answer);
  /// The pass's binding for rows that lie item after item, so many of each; null when no adapter is used.
  const nn::LoraBinding* lora_for(const std::vector<int64_t>& rows_of_item);

  CausalLM& model;
  const std::shared_ptr<const Tokenizer> tokenizer;
  EngineOptions options;
  int64_t context = 0, drawable = -1, num_blocks = 0;
  std::shared_ptr<EngineVersion> base;

  std::mutex mutex;
  std::condition_variable wake;
  std::map<std::string, std::shared_ptr<EngineVersion>> versions;
  uint64_t next_version = 1;
  std::map<std::string, uint64_t> requests_of_tenant;  // without a seed
  std::map<std::string, KvBlocks::Node> roots;         // of the tenants' cached prefixes
  std::vector<std::shared_ptr<SampleJob>> arrived;
  std::vector<std::shared_ptr<SampleJob>> accepted;  // those that had arrived when the draining began
  std::vector<std::shared_ptr<SampleJob>> cancelled;
  std::deque<std::packaged_task<void()>> commands;
  int64_t queued = 0;  // answers accepted and never yet run
  bool asleep = false, stopping = false;
  bool draining = false;  // arrivals are held back until the model's own weights are replaced
  std::thread thread;

  std::mutex pass_mutex;
  KvBlocks blocks;
  CausalLM::KvStorage kv;
  nn::Arena arena;
  std::map<std::string, Tenant> tenants;
  std::vector<std::shared_ptr<Answer>> running;  // in the order of admission
  int64_t waiting = 0;                           // answers that are not running, held ones included
  nn::LoraBinding binding;                       // of the versions in `bound`, in that order
  std::vector<std::shared_ptr<EngineVersion>> bound;
  std::vector<int32_t> slot_of_item;
  EngineStats counts;
  std::atomic<int64_t> model_version = 0;
};

}  // namespace twinkle
