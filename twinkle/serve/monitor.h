// What the server is doing and did lately, for /metrics and the live page: the core tells it, replies read
// it. Thread-safe; what it keeps is bounded. Counts are since the start of the program.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "twinkle/serve/engine.h"
#include "twinkle/serve/operation.h"

namespace twinkle::serve {

class Monitor {
 public:
  static constexpr size_t kMostPasses = 512;  // that are kept

  /// One turn of training or sampling.
  struct Pass {
    double begin = 0, seconds = 0;  // begin: seconds since 1970
    bool training = true;
    int64_t models = 0, operations = 0, tokens = 0;
  };
  struct Totals {
    int64_t turns = 0, tokens = 0;
    double seconds = 0;
  };
  /// Tokens of an owner.
  struct Usage {
    int64_t trained = 0, scored = 0, prompts = 0, sampled = 0;  // scored: forward only
    int64_t operations = 0;
  };
  struct Point {
    int64_t step = 0;
    double loss = 0, grad_norm = 0;  // loss: of a target, over the calls of the step
  };
  struct Curve {
    std::string owner;
    std::deque<Point> points;
    double loss = 0;  // of the calls since the last step
    int64_t targets = 0;
    double touched = 0;
  };

  /// Told of the tokens of every answer.
  std::function<void(const std::string& owner, int64_t tokens)> on_sampled;

  void pass(const Pass& pass);
  void finished(const Operation& op, const Result& result);
  void called(const Operation& op, double loss, int64_t targets, int64_t tokens, double now);
  void stepped(const Operation& op, int64_t step, double grad_norm, double now);
  void sampled(const Operation& op, const SampleDone& done);
  void engine(const EngineCounts& counts);
  void forget_model(const std::string& model);

  struct View {
    Totals training, sampling;
    std::map<std::string, Usage> usage;                                 // by owner
    std::map<std::pair<std::string, std::string>, int64_t> operations;  // by kind and outcome
    std::deque<Pass> passes;                                            // the newest last
    std::map<std::string, Curve> curves;                                // by model
    EngineCounts engine;
  };
  View view() const;

 private:
  Curve& curve_of(const Operation& op, double now);

  mutable std::mutex mutex_;
  View view_;
};

/// "forward_backward", "optim_step", ... as people know them.
std::string_view operation_name(const Operation& op);

}  // namespace twinkle::serve
