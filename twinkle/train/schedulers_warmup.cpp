// The schedules with warm-up of upstream and transformers.optimization: the rate climbs from 0 to the base
// over num_warmup_steps, then falls over the rest of num_training_steps. As there, the very first step of a
// warm-up has rate 0.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "twinkle/core/error.h"
#include "twinkle/train/scheduler.h"

namespace twinkle {
namespace {

// Share of the base rate after the warm-up, as a function of progress in [0, 1] (past 1 once ended).
using Decay = std::function<double(double progress)>;

class Warmup : public LRScheduler {
 public:
  Warmup(double warmup, double total, Decay decay)
      : warmup_(warmup), total_(total), decay_(std::move(decay)) {}

  double lr(double base_lr, int64_t step) const override {
    const auto t = static_cast<double>(step);
    if (t < warmup_) return base_lr * t / std::max(1.0, warmup_);
    return base_lr * decay_((t - warmup_) / std::max(1.0, total_ - warmup_));
  }

 private:
  double warmup_, total_;
  Decay decay_;
};

void check_warmup(const Options& o) {
  if (o.get_int("num_warmup_steps") <= o.get_int("num_training_steps")) return;
  throw invalid_argument("[scheduler] 'num_warmup_steps' (" + std::to_string(o.get_int("num_warmup_steps")) +
                         ") is more than 'num_training_steps' (" +
                         std::to_string(o.get_int("num_training_steps")) + ")");
}

std::unique_ptr<LRScheduler> make(const Options& o, Decay decay) {
  check_warmup(o);
  return std::make_unique<Warmup>(o.get_float("num_warmup_steps"), o.get_float("num_training_steps"),
                                  std::move(decay));
}

std::vector<ParamSpec> warmup_params(std::vector<ParamSpec> more = {}) {
  std::vector<ParamSpec> list = {{.name = "num_warmup_steps",
                                  .type = ParamType::kInt,
                                  .default_value = 0,
                                  .help = "steps of the climb",
                                  .min = 0.0},
                                 {.name = "num_training_steps",
                                  .type = ParamType::kInt,
                                  .help = "optimizer steps of the whole run",
                                  .required = true,
                                  .min = 1.0}};
  for (auto& spec : more) list.push_back(std::move(spec));
  return list;
}

const Registry<LRScheduler>::Add constant_warmup{{.name = "ConstantWarmupScheduler",
                                                  .help = "Warm-up, then the base rate for ever.",
                                                  .params = {{.name = "num_warmup_steps",
                                                              .type = ParamType::kInt,
                                                              .default_value = 0,
                                                              .help = "steps of the climb",
                                                              .min = 0.0}},
                                                  .aliases = {"constant", "constant_with_warmup"}},
                                                 [](const Options& o) {
                                                   const double warmup = o.get_float("num_warmup_steps");
                                                   return std::make_unique<Warmup>(
                                                       warmup, warmup + 1, [](double) { return 1.0; });
                                                 }};

const Registry<LRScheduler>::Add linear_warmup{
    {.name = "LinearWarmupScheduler",
     .help = "Warm-up, then a straight line to 0.",
     .params = warmup_params(),
     .aliases = {"linear"}},
    [](const Options& o) { return make(o, [](double progress) { return std::max(0.0, 1.0 - progress); }); }};

const Registry<LRScheduler>::Add cosine_warmup{
    {.name = "CosineWarmupScheduler",
     .help = "Warm-up, then a cosine; half a cycle ends at 0 and stays there.",
     .params =
         warmup_params({{.name = "num_cycles",
                         .type = ParamType::kFloat,
                         .default_value = 0.5,
                         .help = "0.5: from base to 0 once",
                         .min = 0.0},
                        {.name = "after_end",
                         .type = ParamType::kString,
                         .default_value = "hold",
                         .help = "hold: stay where the cosine ended; rebound: go on as transformers does",
                         .choices = {"hold", "rebound"}}}),
     .aliases = {"cosine"}},
    [](const Options& o) {
      const double cycles = o.get_float("num_cycles");
      const bool hold = o.get_string("after_end") == "hold";
      return make(o, [=](double progress) {
        const double at = hold ? std::min(progress, 1.0) : progress;
        return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * at)));
      });
    }};

const Registry<LRScheduler>::Add warmup_restarts{
    {.name = "CosineWithRestartsScheduler",
     .help = "Warm-up, then num_cycles half cosines, each from the base rate to 0; 0 once ended.",
     .params = warmup_params(
         {{.name = "num_cycles", .type = ParamType::kInt, .default_value = 1, .help = "falls", .min = 1.0}}),
     .aliases = {"cosine_with_restarts"}},
    [](const Options& o) {
      const double cycles = o.get_float("num_cycles");
      return make(o, [=](double progress) {
        if (progress >= 1.0) return 0.0;
        return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(cycles * progress, 1.0))));
      });
    }};

// The end rate is absolute, so this one is not a share of the base alone.
class PolynomialWarmup : public LRScheduler {
 public:
  PolynomialWarmup(double warmup, double total, double lr_end, double power)
      : warmup_(warmup), total_(total), lr_end_(lr_end), power_(power) {}

  double lr(double base_lr, int64_t step) const override {
    if (!(base_lr > lr_end_)) {  // transformers refuses it too: the rate would climb
      throw invalid_argument("[scheduler] 'lr_end' (" + Json(lr_end_).dump() +
                             ") is not below the learning rate (" + Json(base_lr).dump() + ")");
    }
    const auto t = static_cast<double>(step);
    if (t < warmup_) return base_lr * t / std::max(1.0, warmup_);
    if (t > total_) return lr_end_;
    const double remaining = total_ > warmup_ ? 1.0 - (t - warmup_) / (total_ - warmup_) : 0.0;
    return (base_lr - lr_end_) * std::pow(remaining, power_) + lr_end_;
  }

 private:
  double warmup_, total_, lr_end_, power_;
};

const Registry<LRScheduler>::Add polynomial_warmup{{.name = "PolynomialWarmupScheduler",
                                                    .help = "Warm-up, then down to lr_end by a power.",
                                                    .params = warmup_params({{.name = "lr_end",
                                                                              .type = ParamType::kFloat,
                                                                              .default_value = 1e-7,
                                                                              .help = "rate at the end",
                                                                              .min = 0.0},
                                                                             {.name = "power",
                                                                              .type = ParamType::kFloat,
                                                                              .default_value = 1.0,
                                                                              .help = "1: a straight line",
                                                                              .min = 0.0}}),
                                                    .aliases = {"polynomial"}},
                                                   [](const Options& o) {
                                                     check_warmup(o);
                                                     return std::make_unique<PolynomialWarmup>(
                                                         o.get_float("num_warmup_steps"),
                                                         o.get_float("num_training_steps"),
                                                         o.get_float("lr_end"), o.get_float("power"));
                                                   }};

}  // namespace
}  // namespace twinkle
