#include "twinkle/serve/model_queue.h"

#include <algorithm>

namespace twinkle::serve {
namespace {

bool by_number(const OpPtr& a, const OpPtr& b) { return a->seq < b->seq; }

}  // namespace

int64_t ModelQueue::next_number() const {
  return (waiting_.empty() ? taken_ : std::max(taken_, waiting_.rbegin()->first)) + 1;
}

void ModelQueue::push(OpPtr op) {
  const int64_t seq = op->seq;
  waiting_.emplace(seq, std::move(op));
}

// What was carried out before a restart waits for nothing: nothing can come in between any more.
bool ModelQueue::ready(const Operation& op, Time now) const {
  return op.seq <= taken_ + 1 || op.known || op.arrived + gap_wait_ <= now;
}

ModelQueue::Turn ModelQueue::take(Time now, size_t most_bytes) {
  Turn turn;
  size_t bytes = 0;
  while (!waiting_.empty()) {
    const OpPtr op = waiting_.begin()->second;
    if (!ready(*op, now)) break;
    if (op->is_barrier() && !turn.empty()) break;
    if (!op->is_barrier() && !turn.calls.empty() && bytes + op->body.size() > most_bytes) break;
    waiting_.erase(waiting_.begin());
    taken_ = std::max(taken_, op->seq);
    if (op->is_barrier()) {
      closed_ = op->seq;
      turn.barrier = op;
      if (op->kind != OpKind::kOptimStep) break;
    } else {
      bytes += op->body.size();
      turn.calls.push_back(op);
    }
  }
  return turn;
}

std::optional<ModelQueue::Time> ModelQueue::ready_at() const {
  if (waiting_.empty()) return std::nullopt;
  const Operation& head = *waiting_.begin()->second;
  if (ready(head, head.arrived)) return head.arrived;
  return head.arrived + gap_wait_;
}

void ModelQueue::called(const OpPtr& op, bool failed, const std::string& why) {
  if (op->forward_only) return;
  if (!failed) return window_.push_back(op);
  if (!spoiled_.empty() && spoiled_by_ < op->seq) return;  // the first by number, whichever came first
  spoiled_by_ = op->seq;
  spoiled_ = "operation " + std::to_string(op->seq) + " failed: " + why;
}

std::vector<OpPtr> ModelQueue::pending_calls() const {
  std::vector<OpPtr> out = window_;
  std::sort(out.begin(), out.end(), by_number);
  return out;
}

bool ModelQueue::out_of_order() const { return !std::is_sorted(window_.begin(), window_.end(), by_number); }

void ModelQueue::put_in_order() { std::sort(window_.begin(), window_.end(), by_number); }

void ModelQueue::clear_gradients() {
  window_.clear();
  spoiled_.clear();
}

}  // namespace twinkle::serve
