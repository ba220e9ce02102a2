// The operations of all models and samplers: accepted once each, durable before anybody is told, carried out
// in each model's own order, and their results kept until they expire. Every API is a thin layer over this.
//
// How an operation lives: submit() claims (target, number) at once, so that whoever sends it again, even at
// the same moment, gets the same request id; the log makes it durable; then it is queued and acknowledged.
// One thread carries out: it takes what is ready of every model, merges it into shared passes, and turns
// between training and sampling. A result is durable before a client sees it.
//
// State is the newest snapshot of each model and the log since. Opening reads the log; what was accepted and
// not covered by a snapshot is queued again and carried out as before: same order, same bits. What has its
// result already is carried out for its effect only. Snapshots are written, and the log is written anew,
// beside the work: the engine's thread only takes a copy of the model.
//
// submit(), wait() and the like may be called from any thread; callbacks come from any thread and must not
// block.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <variant>

#include "twinkle/serve/background.h"
#include "twinkle/serve/log.h"
#include "twinkle/serve/model_queue.h"
#include "twinkle/serve/monitor.h"
#include "twinkle/serve/store.h"
#include "twinkle/serve/world.h"

namespace twinkle::serve {

struct CoreOptions {
  std::string data_dir;
  std::chrono::milliseconds gap_wait{250};      // for a number that is missing
  int64_t snapshot_operations = 64;             // of a model between two snapshots
  int64_t snapshot_bytes = 16 << 20;            // of their bodies
  int64_t log_bytes = 256 << 20;                // the log is written anew when it is larger
  double result_seconds = 3600;                 // results are kept so long
  int64_t result_bytes = int64_t{1} << 30;      // of all results; the oldest go first
  int64_t owner_operations = 20000;             // that wait, of one owner; more are refused
  int64_t owner_bytes = int64_t{1} << 30;       // with their arguments
  int64_t total_bytes = int64_t{4} << 30;       // of all owners
  double session_seconds = 12 * 3600;           // without a word; then its samplers end
  int64_t turn_bytes = 4 << 20;                 // of calls of one model in one turn
  std::chrono::milliseconds upkeep_wait{1000};  // between two looks at what is over
  size_t sampler_weights = 64;                  // versions in memory
  size_t samples_in_flight = 4096;
  bool accept_engine_change = false;  // models go on, on another base or instruction set than before
  std::function<int64_t(const std::string& owner)> priority;  // 1 to 100; null: all the same
  std::shared_ptr<Monitor> monitor;  // told of what is done; null: one that nobody reads
  World world;
};

class Core {
 public:
  /// Opens the data folder and reads the log. Nothing is carried out before start().
  Core(CoreOptions options, Store& store);
  /// Ends the pass under way and snapshots what it can; the rest is in the log.
  ~Core();
  /// Carries out from here on. conflict where the folder's models were trained on another base or instruction
  /// set.
  void start(std::unique_ptr<Engine> engine);
  bool started() const { return started_; }
  /// Nothing is accepted until it does again.
  bool disk_refuses() const { return log_->holds(); }
  const EngineInfo& engine_info() const { return engine_->info(); }  // once started

  /// A request id, or why there is none: exhausted (too much is waiting: later again), unavailable (the
  /// disk).
  using OnAccepted = std::function<void(const std::variant<std::string, Error>&)>;
  /// `op` needs kind, owner, target, seq (negative: behind all others), args and body. The target exists and
  /// is the owner's: the caller has looked.
  void submit(Operation op, OnAccepted on_accepted);

  struct Outcome {
    enum class State { kDone, kPending, kMissing, kExpired } state = State::kMissing;
    OpKind kind = OpKind::kCall;
    bool forward_only = false;
    std::string target;
    std::shared_ptr<const Result> result;
  };
  using OnOutcome = std::function<void(const Outcome&)>;
  /// The result, now or when it is there; kPending from stop_waiting() only. Returns what that takes, 0 when
  /// the call was made already.
  uint64_t wait(const std::string& request_id, const std::string& owner, OnOutcome on_outcome);
  /// Calls a waiter with kPending and forgets it; nothing when it was called already.
  void stop_waiting(const std::string& request_id, uint64_t waiter);

  /// A sample that nobody wants any more fails and is not computed further. Nothing for what is done, no
  /// sample, or not the owner's.
  void cancel(const std::string& request_id, const std::string& owner);

  /// Samples of one sampler that have a result, in the order in which they got it.
  struct Completions {
    struct One {
      std::string request_id;
      bool failed = false;
      int64_t bytes = 0;
    };
    std::vector<One> list;
    uint64_t cursor = 0;  // what comes later is behind it, also after a restart
  };
  using OnCompletions = std::function<void(const Completions&)>;
  /// Those behind `cursor` with numbers of one client (number / kClientNumbers), at once. A cursor that
  /// nobody was given counts as 0.
  static constexpr int64_t kClientNumbers = 1'000'000'000;
  Completions completions(const std::string& sampler, int64_t client, uint64_t cursor) const;
  /// The same when there are any. Returns what stop_waiting_for_any() takes, 0 when the call was made
  /// already.
  uint64_t wait_for_any(const std::string& sampler, int64_t client, uint64_t cursor, OnCompletions on_any);
  /// Calls a waiter with what there is, nothing mostly.
  void stop_waiting_for_any(uint64_t waiter);
  /// Whether it was accepted before.
  bool knows(const Operation& op) const;
  /// Models and samplers that have operations without a result.
  std::set<std::string> busy_targets() const;
  /// Models of sessions that are over (Store::session_ended) leave the memory, and the folders of samplers
  /// that are gone the disk: soon, on the core's thread.
  void drop_ended();

  /// Whether its client unloaded the model, for good.
  bool unloaded(const std::string& model) const;
  /// When the last operation of a model was accepted; 0 when the log no longer knows.
  double last_request(const std::string& target) const;

  struct Counts {
    int64_t waiting = 0, results = 0, snapshots = 0, log_bytes = 0;
    int64_t log_pending = 0;                    // records that are not durable yet
    int64_t models = 0, samples = 0;            // samples: that are not begun
    std::map<std::string, int64_t> waiting_of;  // operations by owner
  };
  Counts counts() const;
  /// Seconds since 1970.
  double now() const { return clocks().wall(); }
  const Clocks& clocks() const { return options_.world.clocks; }

 private:
  struct Future {
    Operation head;  // without body
    OpPtr op;        // while the log has to keep it
    bool durable = false, queued = false;
    std::vector<OnAccepted> acks;
    std::shared_ptr<const Result> result;
    Clock::time_point done;
    uint64_t place = 0;  // among the completions of its sampler
    std::map<uint64_t, OnOutcome> waiters;
  };
  using FuturePtr = std::shared_ptr<Future>;
  struct Snapshot {
    std::string folder;
    int64_t closed = -1;
    bool unloaded = false;    // the model is gone: its client said so
    uint64_t number() const;  // of the folder; later ones are larger
    std::string record(const std::string& model) const;
    static Snapshot from(const Json& head);  // of the record
  };
  struct Model {
    explicit Model(std::chrono::milliseconds gap_wait, int64_t closed) : queue(gap_wait, closed) {}
    ModelQueue queue;
    std::string owner;
    Snapshot snapshot;                  // the newest that is durable
    bool being_written = false;         // there is one that is not yet
    bool wanted = false;                // soon, whatever was carried out since
    int failures = 0;                   // of the disk, since the last that was written
    Clock::time_point not_before{};     // so the next one waits
    bool made = false;                  // in this start; otherwise there may be a snapshot
    std::deque<FuturePtr> kept;         // operations since the snapshot
    int64_t operations = 0, bytes = 0;  // the thread's own: carried out since the last one was taken
  };
  struct OwnerLoad {
    int64_t operations = 0, bytes = 0;
  };
  struct Turn {
    std::string id;
    Model* model = nullptr;
    ModelQueue::Turn ready;
  };
  struct AnyWaiter {
    std::string sampler;
    int64_t client = 0;
    uint64_t cursor = 0;
    OnCompletions on_any;
  };

  // Opening and keeping (core_state.cpp, core_snapshots.cpp).
  struct Recovered;
  void recover();
  void read_record(Recovered& found, std::string_view record);
  void requeue(Recovered& found);
  std::string numbers_record() const;  // under mutex_
  void note_start();                   // under mutex_
  void remove_stray_snapshots();
  bool can_snapshot(const Model& model) const;
  bool snapshot_is_due(const Model& model) const;
  bool is_due(const Model& model) const;
  std::set<const Turn*> turns_to_snapshot(const std::vector<Turn>& turns);
  void take_snapshot(const std::string& id, Model& model);
  void note_unloaded(const std::string& id, const Model& model);
  void record_snapshot(const std::string& id, const Snapshot& snapshot);
  void snapshot_written(const std::string& id, const Snapshot& snapshot, const std::exception_ptr& error);
  void snapshot_failed(const std::string& id, const Snapshot& snapshot);
  void take_wanted_snapshots();
  void snapshot_all();
  void remove_folder(const std::string& folder);
  void housekeeping();
  void end_samplers();
  void remove_dead_checkpoints();
  bool replays_a_load() const;
  void drop_ended_now();
  void rewrite_log();
  class Needed;
  void forget(const FuturePtr& future);
  std::string path(const std::string& folder) const { return options_.data_dir + "/" + folder; }

  // Accepting and answering (core.cpp).
  void accepted(const FuturePtr& future, std::exception_ptr error);
  void enqueue(const FuturePtr& future);  // under mutex_
  void finish(const OpPtr& op, Result result);
  void deliver(const std::string& request_id, std::shared_ptr<const Result> result);
  Model& model_of(const std::string& id);  // under mutex_
  static Outcome outcome_of(const Future& future);
  void charge(Operation& op);  // under mutex_, as all of these
  void discharge(const Operation& op);
  using Told = std::vector<std::pair<OnCompletions, Completions>>;
  Told take_told(const std::string& sampler);
  void remember_result(const FuturePtr& future, std::shared_ptr<const Result> result);
  Completions completions_of(const std::string& sampler, int64_t client, uint64_t cursor) const;
  static std::string number_key(const std::string& target, int64_t seq) {
    return target + "#" + std::to_string(seq);
  }

  // Carrying out (core_run.cpp), on the one thread.
  void run();
  bool train_round();
  std::vector<Turn> take_turns(Clock::time_point now);
  std::optional<Clock::time_point> ready_at(const std::string& id, const Model& model) const;
  void carry_out_alone(Turn& turn);
  void finish_doubtful();
  template <class Entry>
  void put_down(const Entry& entry);
  void make_resident(const Turn& turn);
  Json create_model(const Operation& op);
  Json load_weights(Turn& turn, const Operation& op);
  Json save_weights(Turn& turn, const Operation& op);
  Json save_for_sampler(const Operation& op);
  void before_store_changes();
  void run_merged(std::vector<Turn>& turns);
  void before_step(Turn& turn);
  void run_works(const std::vector<std::pair<Turn*, OpPtr>>& items);
  void redo(Turn& turn);
  void discard(const std::string& id);
  bool sample_round();
  bool sample_for_a_while(Clock::time_point begin, Monitor::Pass& pass);
  void begin_samples();
  void drop_cancelled();
  void count_usage(const Operation& op, const std::string& session, const std::string& base_model,
                   const char* kind, int64_t count);
  void count_calls(const Operation& op, const TrainCall& call);
  void count_sample(const Operation& op, int64_t prompt_tokens, const SampleDone& done);
  void write_usage();
  void load_sampler_weights(const std::string& folder);

  CoreOptions options_;
  Store& store_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> started_{false};

  mutable std::mutex mutex_;  // guards all down to the thread
  std::condition_variable changed_;
  std::unordered_map<std::string, FuturePtr> futures_;    // by request id
  std::unordered_map<std::string, FuturePtr> by_number_;  // by target and number
  std::map<std::string, std::unique_ptr<Model>> models_;
  std::deque<OpPtr> samples_;
  std::map<std::string, OwnerLoad> loads_;
  std::map<std::string, int64_t> unanswered_of_;                // operations without a result, by target
  std::map<std::string, double> last_requests_;                 // by target
  std::map<Clock::time_point, std::vector<FuturePtr>> by_age_;  // those with a result
  int64_t result_bytes_ = 0, waiting_bytes_ = 0;
  std::map<std::string, std::map<uint64_t, FuturePtr>> by_sampler_;  // those with a result, by place
  uint64_t next_place_ = 0, first_place_ = 0;                        // first: of this start
  // Whether the log has this start; once it has, the next one gives none of its places again.
  enum class Noted { kUnderWay, kRefused, kDone } start_ = Noted::kUnderWay;
  std::map<uint64_t, AnyWaiter> any_waiters_;
  bool cancelled_ = false;  // a sample that is being computed
  uint64_t next_id_ = 1, next_waiter_ = 1;
  bool stopping_ = false;
  std::atomic<bool> drop_ended_{true};  // at a start there may be what a crash left
  Counts counts_;

  // The thread's own.
  struct InFlight {
    OpPtr op;
    int64_t prompt_tokens = 0;
  };
  std::unordered_map<uint64_t, InFlight> sampling_;  // by ticket
  struct InLine {
    std::string model;
    std::optional<Clock::time_point> until;  // from when on others go first
  };
  std::deque<InLine> line_;                       // models whose snapshot is due
  std::map<std::string, uint64_t> weights_used_;  // when each was
  uint64_t uses_ = 0;
  std::set<std::string> lost_;  // models that could not be brought back after a restart
  struct Failed {
    OpPtr op;
    Result result;
  };
  std::map<std::string, Failed> doubtful_;  // by model: Store::in_doubt
  bool put_failed_ = false;                 // the store, with what an operation wrote: it is in doubt
  bool sweep_ = true;                       // there may be folders of checkpoints that nobody has
  std::map<std::tuple<double, std::string, std::string, std::string, std::string>, int64_t> used_;
  Clock::time_point last_housekeeping_{};
  Clock::duration train_time_{};

  std::atomic<int64_t> rewrite_at_{0};  // the log's size
  Background files_{"snapshot"}, removing_{"removal"}, rewriting_{"log"};
  std::unique_ptr<Log> log_;  // its callbacks use the above: it goes first
  std::thread thread_;
};

}  // namespace twinkle::serve
