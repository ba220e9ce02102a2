// Which sequences of which requests run in the next pass. Requests of one tenant run in the order in which
// they came; between tenants the one that has had the least work goes first, so that none starves and no
// flood of requests slows the others down by more than a pass. Pure bookkeeping; one thread.
//
// A pass holds up to `token_budget` tokens (memory); work is counted in cost (time): a token that goes
// forward and backward costs three that only go forward.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace twinkle {

enum class WorkKind { kForward, kForwardBackward, kStep };

struct PassPlannerOptions {
  int64_t token_budget = 2048;      // of a pass; a longer sequence gets a pass of its own
  int64_t max_tenants = INT64_MAX;  // with an adapter, in one pass
};

/// A request as the planner sees it.
struct PlannedRequest {
  std::string tenant;  // its adapter, "": the base model
  WorkKind kind = WorkKind::kForward;
  std::vector<int64_t> lengths;  // rows of each sequence, or of sequences that stay together; none for a step
  bool whole = false;            // all of them in one pass (the loss needs the whole batch)
  bool alone = false;            // no other tenant in the pass
};

class PassPlanner {
 public:
  explicit PassPlanner(const PassPlannerOptions& options);

  /// Takes a request; `id` is the caller's.
  void push(int64_t id, PlannedRequest request);
  bool empty() const { return waiting_ == 0; }

  struct Piece {
    int64_t id = 0;              // of the request
    int64_t begin = 0, end = 0;  // of its lengths
  };
  struct Plan {
    std::vector<int64_t> steps;  // step requests to carry out first
    std::vector<Piece> pieces;   // then the pass; pieces of one request in order
  };
  /// What to do next; nothing only when empty(). A request of kind kForwardBackward whose last piece is in
  /// the plan must be closed before next() is called again.
  Plan next();

 private:
  struct Waiting {
    int64_t id = 0;
    PlannedRequest request;
    int64_t arrival = 0;  // among all requests
    int64_t next = 0;     // first sequence that has not run
  };
  struct Tenant {
    std::deque<Waiting> queue;
    int64_t cost = 0;     // work done, as it counts against the others'
    bool closed = false;  // gives no more training work to the pass that is being made
  };

  PassPlannerOptions options_;
  std::map<std::string, Tenant> tenants_;
  int64_t waiting_ = 0, arrivals_ = 0;
};

/// Cost of a sequence.
int64_t cost_of(WorkKind kind, int64_t tokens);

}  // namespace twinkle
