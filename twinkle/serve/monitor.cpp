#include "twinkle/serve/monitor.h"

#include <algorithm>

namespace twinkle::serve {
namespace {

constexpr size_t kMostPoints = 512, kMostCurves = 256;

}  // namespace

std::string_view operation_name(const Operation& op) {
  switch (op.kind) {
    case OpKind::kCreateModel:
      return "create_model";
    case OpKind::kCall:
      return op.forward_only ? "forward" : "forward_backward";
    case OpKind::kOptimStep:
      return "optim_step";
    case OpKind::kSaveWeights:
      return "save_weights";
    case OpKind::kLoadWeights:
      return "load_weights";
    case OpKind::kSaveForSampler:
      return "save_weights_for_sampler";
    case OpKind::kSample:
      return "sample";
    case OpKind::kUnload:
      return "unload_model";
  }
  return "other";
}

void Monitor::pass(const Pass& pass) {
  const std::lock_guard lock(mutex_);
  Totals& totals = pass.training ? view_.training : view_.sampling;
  ++totals.turns;
  totals.tokens += pass.tokens;
  totals.seconds += pass.seconds;
  view_.passes.push_back(pass);
  if (view_.passes.size() > kMostPasses) view_.passes.pop_front();
}

void Monitor::finished(const Operation& op, const Result& result) {
  const char* outcome = result.kind == Result::Kind::kUserError     ? "user_error"
                        : result.kind == Result::Kind::kServerError ? "server_error"
                                                                    : "ok";
  const std::lock_guard lock(mutex_);
  ++view_.operations[{std::string(operation_name(op)), outcome}];
  ++view_.usage[op.owner].operations;
}

// The oldest curve makes room.
Monitor::Curve& Monitor::curve_of(const Operation& op, double now) {
  auto found = view_.curves.find(op.target);
  if (found == view_.curves.end()) {
    if (view_.curves.size() >= kMostCurves) {
      view_.curves.erase(
          std::ranges::min_element(view_.curves, {}, [](const auto& entry) { return entry.second.touched; }));
    }
    found = view_.curves.emplace(op.target, Curve{.owner = op.owner}).first;
  }
  found->second.touched = now;
  return found->second;
}

void Monitor::called(const Operation& op, double loss, int64_t targets, int64_t tokens, double now) {
  const std::lock_guard lock(mutex_);
  Usage& usage = view_.usage[op.owner];
  (op.forward_only ? usage.scored : usage.trained) += tokens;
  if (op.forward_only) return;
  Curve& curve = curve_of(op, now);
  curve.loss += loss;
  curve.targets += targets;
}

void Monitor::stepped(const Operation& op, int64_t step, double grad_norm, double now) {
  const std::lock_guard lock(mutex_);
  Curve& curve = curve_of(op, now);
  curve.points.push_back({.step = step,
                          .loss = curve.targets > 0 ? curve.loss / static_cast<double>(curve.targets) : 0,
                          .grad_norm = grad_norm});
  if (curve.points.size() > kMostPoints) curve.points.pop_front();
  curve.loss = 0;
  curve.targets = 0;
}

void Monitor::sampled(const Operation& op, const SampleDone& done) {
  int64_t tokens = 0;
  for (const auto& sequence : done.sequences) tokens += static_cast<int64_t>(sequence.tokens.size());
  {
    const std::lock_guard lock(mutex_);
    Usage& usage = view_.usage[op.owner];
    usage.prompts += op.tokens;
    usage.sampled += tokens;
  }
  if (on_sampled) on_sampled(op.owner, tokens);
}

void Monitor::engine(const EngineCounts& counts) {
  const std::lock_guard lock(mutex_);
  view_.engine = counts;
}

void Monitor::forget_model(const std::string& model) {
  const std::lock_guard lock(mutex_);
  view_.curves.erase(model);
}

Monitor::View Monitor::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

}  // namespace twinkle::serve
