// The schedules of torch.optim.lr_scheduler in closed form; t is the number of steps taken.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "twinkle/core/error.h"
#include "twinkle/train/scheduler.h"

namespace twinkle {
namespace {

using Formula = std::function<double(double base, double t)>;

class ClosedForm : public LRScheduler {
 public:
  explicit ClosedForm(Formula formula) : formula_(std::move(formula)) {}
  double lr(double base_lr, int64_t step) const override {
    return formula_(base_lr, static_cast<double>(step));
  }

 private:
  Formula formula_;
};

std::unique_ptr<LRScheduler> closed_form(Formula formula) {
  return std::make_unique<ClosedForm>(std::move(formula));
}

ParamSpec number_param(std::string name, Json value, std::string help, std::optional<double> min = {}) {
  const bool required = value.is_null();
  return {.name = std::move(name),
          .type = ParamType::kFloat,
          .default_value = std::move(value),
          .help = std::move(help),
          .required = required,
          .min = min};
}

ParamSpec count(std::string name, Json value, std::string help) {
  const bool required = value.is_null();
  return {.name = std::move(name),
          .type = ParamType::kInt,
          .default_value = std::move(value),
          .help = std::move(help),
          .required = required,
          .min = 1.0};
}

const Registry<LRScheduler>::Add constant_lr{
    {.name = "ConstantLR",
     .help = "base * factor for total_iters steps, then base.",
     .params = {number_param("factor", 1.0 / 3.0, "share of the base rate at the start", 0.0),
                count("total_iters", 5, "steps at the reduced rate")}},
    [](const Options& o) {
      const double factor = o.get_float("factor"), total = o.get_float("total_iters");
      return closed_form([=](double base, double t) { return t < total ? base * factor : base; });
    }};

const Registry<LRScheduler>::Add linear_lr{
    {.name = "LinearLR",
     .help = "From base * start_factor to base * end_factor in total_iters equal steps.",
     .params = {number_param("start_factor", 1.0 / 3.0, "share of the base rate at the start", 0.0),
                number_param("end_factor", 1.0, "share at the end", 0.0),
                count("total_iters", 5, "steps from start to end")}},
    [](const Options& o) {
      const double start = o.get_float("start_factor"), end = o.get_float("end_factor"),
                   total = o.get_float("total_iters");
      return closed_form(
          [=](double base, double t) { return base * (start + (end - start) * std::min(total, t) / total); });
    }};

const Registry<LRScheduler>::Add step{
    {.name = "StepLR",
     .help = "Multiplied by gamma every step_size steps.",
     .params = {count("step_size", nullptr, "steps between changes"),
                number_param("gamma", 0.1, "factor of each change", 0.0)}},
    [](const Options& o) {
      const double size = o.get_float("step_size"), gamma = o.get_float("gamma");
      return closed_form([=](double base, double t) { return base * std::pow(gamma, std::floor(t / size)); });
    }};

const Registry<LRScheduler>::Add multi_step{
    {.name = "MultiStepLR",
     .help = "Multiplied by gamma at each milestone.",
     .params = {{.name = "milestones",
                 .type = ParamType::kIntList,
                 .help = "step numbers",
                 .required = true,
                 .min = 0.0},
                number_param("gamma", 0.1, "factor of each change", 0.0)}},
    [](const Options& o) {
      const auto milestones = o.get("milestones").get<std::vector<double>>();
      const double gamma = o.get_float("gamma");
      return closed_form([=](double base, double t) {
        const auto passed =
            std::count_if(milestones.begin(), milestones.end(), [&](double m) { return m <= t; });
        return base * std::pow(gamma, static_cast<double>(passed));
      });
    }};

const Registry<LRScheduler>::Add exponential{
    {.name = "ExponentialLR",
     .help = "Multiplied by gamma every step.",
     .params = {number_param("gamma", nullptr, "factor of each step", 0.0)}},
    [](const Options& o) {
      const double gamma = o.get_float("gamma");
      return closed_form([=](double base, double t) { return base * std::pow(gamma, t); });
    }};

const Registry<LRScheduler>::Add polynomial_lr{
    {.name = "PolynomialLR",
     .help = "Down to 0 in total_iters steps by a power.",
     .params = {count("total_iters", 5, "steps to 0"),
                number_param("power", 1.0, "1: a straight line", 0.0)}},
    [](const Options& o) {
      const double total = o.get_float("total_iters"), power = o.get_float("power");
      return closed_form(
          [=](double base, double t) { return base * std::pow(1.0 - std::min(total, t) / total, power); });
    }};

const Registry<LRScheduler>::Add cosine_annealing{
    {.name = "CosineAnnealingLR",
     .help = "Half a cosine from base to eta_min in T_max steps; then it stays at eta_min.",
     .params = {count("T_max", nullptr, "steps from base to eta_min"),
                number_param("eta_min", 0.0, "the floor", 0.0),
                {.name = "after_end",
                 .type = ParamType::kString,
                 .default_value = "hold",
                 .help = "hold: stay at the floor; rebound: go on along the cosine as torch does",
                 .choices = {"hold", "rebound"}}}},
    [](const Options& o) {
      const double t_max = o.get_float("T_max"), floor = o.get_float("eta_min");
      const bool hold = o.get_string("after_end") == "hold";
      return closed_form([=](double base, double t) {
        const double at = hold ? std::min(t, t_max) : t;
        return floor + (base - floor) * (1.0 + std::cos(std::numbers::pi * at / t_max)) / 2.0;
      });
    }};

const Registry<LRScheduler>::Add annealing_restarts{
    {.name = "CosineAnnealingWarmRestarts",
     .help = "Half a cosine over T_0 steps, then again from the top, each time T_mult times longer.",
     .params = {count("T_0", nullptr, "steps of the first fall"),
                count("T_mult", 1, "growth of each next one"),
                number_param("eta_min", 0.0, "the floor", 0.0)}},
    [](const Options& o) {
      const double t_0 = o.get_float("T_0"), t_mult = o.get_float("T_mult"), floor = o.get_float("eta_min");
      return closed_form([=](double base, double t) {
        double length = t_0, at = t;
        if (t_mult == 1) {
          at = std::fmod(t, t_0);
        } else {
          while (at >= length) at -= length, length *= t_mult;
        }
        return floor + (base - floor) * (1.0 + std::cos(std::numbers::pi * at / length)) / 2.0;
      });
    }};

}  // namespace
}  // namespace twinkle
