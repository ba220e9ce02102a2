// Metrics: numbers about a run, gathered while it trains or evaluates. Components of kind "metric". Not
// thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/core/registry.h"
#include "twinkle/train/loss.h"

namespace twinkle {

/// The scored tokens of one pass.
struct PassRecord {
  const LossInput& input;
  const LossOutput& output;
  at::Tensor argmax_S;     // int32 most likely tokens; undefined unless some metric asked
  int64_t num_tokens = 0;  // tokens that went through the model
  bool divides = true;     // Loss::divides()
};

/// One optimizer step.
struct StepRecord {
  int64_t step = 0;                 // optimizer steps taken, this one included
  double lr = 0;                    // the rate this step used
  std::optional<double> grad_norm;  // of the whole accumulated batch, before clipping
  bool skipped = false;             // a non-finite loss or gradient: nothing was changed
};

/// Where a run goes on that was resumed: what it had counted.
struct ResumeRecord {
  int64_t tokens_seen = 0, skipped_steps = 0;
};

class Metric {
 public:
  static constexpr std::string_view kKind = "metric";
  virtual ~Metric() = default;
  virtual bool needs_argmax() const { return false; }
  virtual void accumulate(const PassRecord&) {}
  virtual void accumulate(const StepRecord&) {}
  virtual void resume(const ResumeRecord&) {}
  /// What was gathered since the last reset, as an object of numbers; a value that is not finite is null.
  virtual Json calculate() const = 0;
  virtual void reset() = 0;
};

/// Several metrics as one; their objects are merged in order.
class MetricSet {
 public:
  void add(std::unique_ptr<Metric> metric) { metrics_.push_back(std::move(metric)); }
  bool needs_argmax() const;
  template <class Record>
  void accumulate(const Record& record) {
    for (auto& metric : metrics_) metric->accumulate(record);
  }
  void resume(const ResumeRecord& record) {
    for (auto& metric : metrics_) metric->resume(record);
  }
  /// Calculates, then resets.
  Json calculate();

 private:
  std::vector<std::unique_ptr<Metric>> metrics_;
};

}  // namespace twinkle
