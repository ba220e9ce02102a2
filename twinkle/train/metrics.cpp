#include "twinkle/train/metrics.h"

#include <ATen/ATen.h>

#include <cmath>

#include "twinkle/core/clock.h"

namespace twinkle {
namespace {

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

// What passes add is kept apart until their step is taken: a skipped step's passes are dropped, for some of
// them never ran.
template <class Sums>
class SumsBySteps {
 public:
  Sums& open() { return open_; }
  void step(const StepRecord& step) {
    if (!step.skipped) taken_ += open_;
    dropped_ |= step.skipped;
    open_ = {};
  }
  Sums all() const {
    Sums sums = taken_;
    return sums += open_;
  }
  /// Every step since the last reset was skipped: there is no number to give.
  bool nothing_left() const { return dropped_ && all() == Sums{}; }
  void reset() { *this = {}; }

 private:
  Sums taken_, open_;
  bool dropped_ = false;
};

// The loss as it is optimised: a mean over everything since the last reset, or the sum for a sum loss.
class LossMetric : public Metric {
 public:
  void accumulate(const PassRecord& pass) override {
    for (const double part : pass.output.sum_B) sums_.open().sum += part;
    for (const double part : pass.output.denominator_B) sums_.open().denominator += part;
    divides_ = pass.divides;
  }
  void accumulate(const StepRecord& step) override { sums_.step(step); }
  Json calculate() const override {
    const Sums all = sums_.all();
    const double value = divides_ ? mean_or_zero(all.sum, all.denominator) : all.sum;
    return {{divides_ ? "loss" : "loss_sum", sums_.nothing_left() ? Json(nullptr) : number(value)}};
  }
  void reset() override { sums_.reset(); }

 private:
  struct Sums {
    double sum = 0, denominator = 0;
    Sums& operator+=(const Sums& other) {
      sum += other.sum;
      denominator += other.denominator;
      return *this;
    }
    bool operator==(const Sums&) const = default;
  };
  SumsBySteps<Sums> sums_;
  bool divides_ = true;
};

class Accuracy : public Metric {
 public:
  bool needs_argmax() const override { return true; }
  void accumulate(const PassRecord& pass) override {
    if (!pass.argmax_S.defined()) return;
    const int32_t* predicted = pass.argmax_S.const_data_ptr<int32_t>();
    const int32_t* target = pass.input.targets_S.const_data_ptr<int32_t>();
    const float* weight = pass.input.weights_S.const_data_ptr<float>();
    Sums& open = sums_.open();
    for (int64_t s = 0; s < pass.argmax_S.numel(); ++s) {
      if (weight[s] == 0) continue;
      ++open.total;
      open.correct += predicted[s] == target[s];
    }
  }
  void accumulate(const StepRecord& step) override { sums_.step(step); }
  Json calculate() const override {
    const Sums all = sums_.all();
    const double share =
        all.total > 0 ? static_cast<double>(all.correct) / static_cast<double>(all.total) : 0;
    return {{"accuracy", sums_.nothing_left() ? Json(nullptr) : Json(share)},
            {"correct_tokens", all.correct},
            {"total_tokens", all.total}};
  }
  void reset() override { sums_.reset(); }

 private:
  struct Sums {
    int64_t correct = 0, total = 0;
    Sums& operator+=(const Sums& other) {
      correct += other.correct;
      total += other.total;
      return *this;
    }
    bool operator==(const Sums&) const = default;
  };
  SumsBySteps<Sums> sums_;
};

class TrainMetric : public Metric {
 public:
  void accumulate(const PassRecord& pass) override {
    tokens_ += pass.num_tokens;
    tokens_seen_ += pass.num_tokens;
  }
  void accumulate(const StepRecord& step) override {
    last_ = step;
    skipped_ += step.skipped;
  }
  void resume(const ResumeRecord& record) override {
    tokens_seen_ = record.tokens_seen;
    skipped_ = record.skipped_steps;
  }
  Json calculate() const override {
    const double seconds = seconds_since(since_);
    Json values = {{"iters", last_.step}, {"learning_rate", number(last_.lr)}};
    if (last_.grad_norm) values["grad_norm"] = number(*last_.grad_norm);
    values["tokens_per_second"] = number(seconds > 0 ? static_cast<double>(tokens_) / seconds : 0.0);
    values["tokens_seen"] = tokens_seen_;
    values["skipped_steps"] = skipped_;
    values["seconds"] = seconds_since(start_);
    return values;
  }
  void reset() override {
    tokens_ = 0;
    since_ = Clock::now();
  }

 private:
  StepRecord last_;
  int64_t tokens_ = 0, tokens_seen_ = 0, skipped_ = 0;
  Clock::time_point start_ = Clock::now(), since_ = start_;
};

const Registry<Metric>::Add loss_metric{
    {.name = "LossMetric", .help = "`loss` (a mean), or `loss_sum` for a sum loss."},
    [](const Options&) { return std::make_unique<LossMetric>(); }};
const Registry<Metric>::Add accuracy{
    {.name = "Accuracy",
     .help = "`accuracy`: share of the trained tokens that are the model's most likely ones."},
    [](const Options&) { return std::make_unique<Accuracy>(); }};
const Registry<Metric>::Add train_metric{
    {.name = "TrainMetric",
     .help =
         "`iters`, `learning_rate` used, `grad_norm` before clipping, `tokens_per_second`, `tokens_seen`, "
         "`skipped_steps`, `seconds`."},
    [](const Options&) { return std::make_unique<TrainMetric>(); }};

}  // namespace

bool MetricSet::needs_argmax() const {
  for (const auto& metric : metrics_) {
    if (metric->needs_argmax()) return true;
  }
  return false;
}

Json MetricSet::calculate() {
  Json all = Json::object();
  for (auto& metric : metrics_) {
    const Json values = metric->calculate();
    for (const auto& [name, value] : values.items()) all[name] = value;
    metric->reset();
  }
  return all;
}

}  // namespace twinkle
