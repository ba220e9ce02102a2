// The order of one model's operations. The client numbers them (seq); they arrive in any order, repeat, and
// some numbers never come.
//
//   - Barriers (a step, a save, a load) and calls (forward, forward_backward) take effect by number.
//     What a call adds to the gradients adds up by number too: calls that were carried out in another
//     order, because a lower number came late, are carried out again before the step.
//   - An operation behind a number that is missing waits for it, but no longer than `gap_wait`: a client
//     that was refused a number goes on with the next.
//   - What arrives behind the last barrier that was carried out is too late; see too_late().
//   - After a call that failed the gradients are not what the client thinks: the next step fails and
//     clears them.
//
// Time comes from the caller. Not thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/serve/operation.h"

namespace twinkle::serve {

class ModelQueue {
 public:
  using Time = Clock::time_point;

  explicit ModelQueue(std::chrono::milliseconds gap_wait, int64_t closed = -1)
      : gap_wait_(gap_wait), closed_(closed), taken_(closed) {}

  bool too_late(int64_t seq) const { return seq <= closed_; }
  /// The number for an operation whose client gives none: behind all that are known.
  int64_t next_number() const;
  void push(OpPtr op);

  struct Turn {
    OpPtr barrier;             // first
    std::vector<OpPtr> calls;  // then these; only a step is followed by calls in one turn
    bool empty() const { return !barrier && calls.empty(); }
  };
  /// What may be carried out now, at most `most_bytes` of calls (one at least); it is out of the queue then.
  Turn take(Time now, size_t most_bytes);
  /// When take() will have something, if nothing else arrives.
  std::optional<Time> ready_at() const;

  // ---- the gradients
  /// After a call that adds to them was carried out, or failed.
  void called(const OpPtr& op, bool failed, const std::string& why);
  /// Calls in the gradients, by number.
  std::vector<OpPtr> pending_calls() const;
  bool has_pending() const { return !window_.empty(); }
  /// They were added in another order than that of their numbers.
  bool out_of_order() const;
  /// They were added anew, by number.
  void put_in_order();
  /// Why a step must not use them, "" when it may.
  const std::string& spoiled() const { return spoiled_; }
  /// A step or a load was carried out: there are none.
  void clear_gradients();

  int64_t closed() const { return closed_; }

 private:
  bool ready(const Operation& op, Time now) const;

  std::chrono::milliseconds gap_wait_;
  std::map<int64_t, OpPtr> waiting_;
  int64_t closed_;  // number of the last barrier that was carried out
  int64_t taken_;   // highest number that was
  std::vector<OpPtr> window_;
  std::string spoiled_;
  int64_t spoiled_by_ = 0;  // its number
};

}  // namespace twinkle::serve
