// A core over the fake engine, and a client of it.
#pragma once

#include <future>
#include <memory>
#include <string>

#include "tests/serve/fake_engine.h"
#include "tests/serve/hand_clock.h"
#include "tests/temp_dir.h"
#include "twinkle/serve/core.h"

namespace twinkle::serve {

inline constexpr const char* kAnn = "ann";
inline constexpr const char* kBob = "bob";

// From weight 100: gradient ((1)*3+2)*3+3 = 18, then 100*0.5 + 18.
inline constexpr double kAfterThreeCalls = 68;

class Rig {
 public:
  using Seen = FakeEngine::Seen;

  /// `failures`: so many calls of the engine's train() fail at first.
  explicit Rig(const std::string& dir, CoreOptions options = {.gap_wait = std::chrono::milliseconds(30)},
               int failures = 0, Disk disk = {})
      : dir_(dir), options_(std::move(options)) {
    seen_->failures = failures;
    options_.data_dir = dir_;
    options_.world.disk = std::move(disk);
    make_directories(dir_);
    open();
  }
  Rig(const std::string& dir, CoreOptions options, std::shared_ptr<Seen> seen)
      : dir_(dir), options_(std::move(options)), seen_(std::move(seen)) {
    options_.data_dir = dir_;
    make_directories(dir_);
    open();
  }
  /// Ends in order and opens again.
  void reopen() {
    core_.reset();
    store_.reset();
    open();
  }
  void accept_engine_change(bool accept) { options_.accept_engine_change = accept; }
  Core& core() { return *core_; }
  Store& store() { return *store_; }
  Seen& seen() { return *seen_; }

  /// A model of `owner`, made with its weight at 100.
  std::string make_model(const std::string& owner, const std::string& name = "s:train:0", int64_t rank = 8) {
    const LoraShape shape{.rank = rank, .seed = 100};
    store_->put(ModelEntry{.id = name, .session = "s", .owner = owner, .base_model = "base", .shape = shape});
    Operation op{.kind = OpKind::kCreateModel, .owner = owner, .target = name, .seq = 0};
    op.args = {{"rank", rank}, {"seed", 100}, {"attention", true}, {"mlp", true}, {"unembedding", true}};
    result(submit(std::move(op)), owner);
    return name;
  }

  static Operation call(const std::string& owner, const std::string& model, int64_t seq,
                        const std::vector<int32_t>& tokens, bool forward_only = false) {
    TrainCall call{.loss = "cross_entropy", .forward_only = forward_only};
    call.data.push_back({.tokens = tokens, .targets = tokens});
    return {.kind = OpKind::kCall,
            .owner = owner,
            .target = model,
            .seq = seq,
            .body = encode(call),
            .forward_only = forward_only};
  }
  static Operation step(const std::string& owner, const std::string& model, int64_t seq) {
    return {.kind = OpKind::kOptimStep,
            .owner = owner,
            .target = model,
            .seq = seq,
            .args = {{"learning_rate", 1.0},
                     {"beta1", 0.9},
                     {"beta2", 0.95},
                     {"eps", 1e-8},
                     {"weight_decay", 0.0},
                     {"grad_clip_norm", 0.0}}};
  }
  static Operation save(const std::string& owner, const std::string& model, int64_t seq,
                        const std::string& name, const std::string& kind = "weights",
                        bool overwrite = false) {
    return {.kind = OpKind::kSaveWeights,
            .owner = owner,
            .target = model,
            .seq = seq,
            .args = {{"kind", kind}, {"name", name}, {"overwrite", overwrite}, {"ttl_seconds", nullptr}}};
  }
  static Operation load(const std::string& owner, const std::string& model, int64_t seq,
                        const std::string& path) {
    return {.kind = OpKind::kLoadWeights,
            .owner = owner,
            .target = model,
            .seq = seq,
            .args = {{"path", path}, {"optimizer", true}}};
  }

  std::string submit(Operation op) {
    std::promise<std::variant<std::string, Error>> promise;
    core_->submit(std::move(op),
                  [&](const std::variant<std::string, Error>& answer) { promise.set_value(answer); });
    const auto answer = promise.get_future().get();
    if (const auto* error = std::get_if<Error>(&answer)) throw *error;
    return std::get<std::string>(answer);
  }
  Core::Outcome outcome(const std::string& request_id, const std::string& owner) {
    auto promise = std::make_shared<std::promise<Core::Outcome>>();
    core_->wait(request_id, owner, [promise](const Core::Outcome& outcome) { promise->set_value(outcome); });
    auto future = promise->get_future();
    if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready)
      throw std::runtime_error("no result of " + request_id);
    return future.get();
  }
  /// The result's bytes; "error: ..." when it failed, "missing" and "expired" when there is none.
  std::string result(const std::string& request_id, const std::string& owner) {
    const Core::Outcome got = outcome(request_id, owner);
    if (got.state == Core::Outcome::State::kMissing) return "missing";
    if (got.state == Core::Outcome::State::kExpired) return "expired";
    return (got.result->failed() ? "error: " : "") + got.result->bytes;
  }
  std::string run(Operation op) {
    const std::string owner = op.owner;
    return result(submit(std::move(op)), owner);
  }
  /// The model's weight, asked for by a forward; `seq` is its number.
  double weight(const std::string& owner, const std::string& model, int64_t seq) {
    const Core::Outcome got = outcome(submit(call(owner, model, seq, {0}, true)), owner);
    return decode_call_result(got.result->bytes).loss;
  }

 private:
  void open() {
    store_ = std::make_unique<Store>(dir_ + "/store.db", options_.world);
    core_ = std::make_unique<Core>(options_, *store_);
    core_->start(std::make_unique<FakeEngine>(seen_));
  }

  std::string dir_;
  CoreOptions options_;
  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  std::unique_ptr<Store> store_;
  std::unique_ptr<Core> core_;
};

}  // namespace twinkle::serve
