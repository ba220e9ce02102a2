// The sampling engine: continuous batching over one model. Requests of many adapters and of the base share
// each pass, prompts go in by chunks beside answers that grow, keys and values lie in ref-counted blocks with
// a prefix cache, and what runs out of room is computed again later, with the same bits: a request's tokens
// and log-probabilities depend on itself only.
//
// Threads: one thread runs passes (the engine's own, or the caller of step()); every other method may be
// called from any thread. While the weights of the model itself are changed no pass may run: do it inside
// between_passes(). Adapters are taken as snapshots, which nobody may change.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/lora/adapter_pool.h"
#include "twinkle/sample/job.h"
#include "twinkle/sample/kv_blocks.h"
#include "twinkle/text/tokenizer.h"

namespace twinkle {

struct EngineOptions {
  int64_t kv_blocks = 0;              // blocks of 64 positions; 0: by kv_cache_mb
  int64_t kv_cache_mb = 0;            // 0: 30 % of the memory that is available now (1 GB on a device)
  int64_t max_tokens_per_pass = 512;  // new tokens of one pass; a long prompt takes several
  int64_t max_running = 256;          // answers that grow at the same time, at most max_tokens_per_pass
  int64_t max_queued = 16384;         // answers that wait; more are refused
  bool prefix_cache = true;
  bool own_thread = true;  // false: passes run in step()
  uint64_t seed = 42;      // of requests without one: each gets its own, by tenant and order
};

struct EngineStats {
  KvBlocks::Counters blocks;
  int64_t waiting = 0, running = 0;  // answers
  int64_t passes = 0, preemptions = 0;
  int64_t computed_tokens = 0, sampled_tokens = 0;  // a token computed again counts again
  int64_t most_rows = 0, most_versions = 0;         // of one pass
};

class SampleEngine {
 public:
  /// The model must outlive the engine. `tokenizer` may be null: then answers have no text and stop strings
  /// are refused. Ids the tokenizer does not know are never drawn. invalid_argument for options out of range.
  SampleEngine(CausalLM& model, std::shared_ptr<const Tokenizer> tokenizer,
               const EngineOptions& options = {});
  ~SampleEngine();

  /// Makes weights known under a name; `conflict` when the name is taken. They must not change any more.
  void add_version(const std::string& name, std::shared_ptr<const Adapter> adapter);
  void add_version(const std::string& name, std::shared_ptr<const AdapterSnapshot> snapshot);
  /// Forgets a version; not_found when there is none. Requests that were accepted keep its weights and are
  /// answered, or, with `end_requests`, end with not_found.
  void remove_version(const std::string& name, bool end_requests = false);
  std::vector<std::string> versions() const;

  /// Checks and queues. invalid_argument: no or bad tokens, no room in the model's context, parameters out of
  /// range; not_found: the version is gone; exhausted: the queue is full, or the cache could never hold the
  /// request; unavailable: asleep or shut down.
  std::shared_ptr<SampleJob> submit(SampleRequest request);

  /// Runs one pass; false when there is nothing to do. Waits for weights that are being replaced when nothing
  /// else is left. Only without own_thread.
  bool step();
  /// Runs `fn` where no pass runs and waits for it; its exception comes out here. `fn` must not call the
  /// engine: this, and whatever changes it between passes (remove_version, update_base, sleep, stats ...),
  /// would wait for itself.
  void between_passes(const std::function<void()>& fn);
  /// The same for a change of the model's own weights: running answers go on with the new ones, their prompt
  /// and what they said so far computed again, and nothing cached from the old ones is used.
  void update_base(const std::function<void()>& change);
  /// The same, but what was accepted so far is answered first, with the old weights; what comes meanwhile
  /// waits for the new ones. conflict while another call does it; unavailable once shut down.
  void replace_base(const std::function<void()>& change);
  /// The two halves of replace_base: the moment that parts what was accepted from what waits, and the change.
  /// Between them the caller removes the versions that sit on the old weights; whoever asked for one of them
  /// after the first half gets not_found. The second must follow the first.
  void begin_replacing_base();
  void finish_replacing_base(const std::function<void()>& change);
  /// How often the model's own weights were changed.
  int64_t model_version() const;
  /// Forgets all cached prefixes.
  void reset_prefix_cache();
  /// Gives the cache's memory back. Running requests are computed again after wake_up; new ones are refused.
  void sleep();
  void wake_up();
  bool asleep() const;
  EngineStats stats();
  /// Ends all requests with `unavailable`; the destructor does it too.
  void shutdown();

  CausalLM& model();
  const std::shared_ptr<const Tokenizer>& tokenizer() const;
  /// Longest prompt and answer together.
  int64_t context() const;

 private:
  void add_version(const std::string& name, const AdapterUse& use, std::shared_ptr<const void> keep_alive);

  std::shared_ptr<struct EngineState> state_;
};

}  // namespace twinkle
