#include "twinkle/train/pass_planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <span>

namespace twinkle {

int64_t cost_of(WorkKind kind, int64_t tokens) {
  return kind == WorkKind::kForwardBackward ? 3 * tokens : tokens;
}

PassPlanner::PassPlanner(const PassPlannerOptions& options) : options_(options) {
  // Costs of a pass stay numbers that can be added.
  options_.token_budget = std::min(options_.token_budget, INT64_MAX / 8);
}

void PassPlanner::push(int64_t id, PlannedRequest request) {
  Tenant& tenant = tenants_[request.tenant];
  if (tenant.queue.empty()) {
    // Having waited for nothing earns no credit: it starts level with the least served.
    int64_t least = INT64_MAX;
    for (const auto& [name, other] : tenants_)
      if (!other.queue.empty()) least = std::min(least, other.cost);
    tenant.cost = least == INT64_MAX ? 0 : least;
  }
  tenant.queue.push_back({id, std::move(request), arrivals_++, 0});
  ++waiting_;
}

PassPlanner::Plan PassPlanner::next() {
  Plan plan;
  int64_t room = options_.token_budget;
  std::optional<int64_t> alone;  // the request that has the pass for itself
  std::set<std::string> inside;  // tenants with an adapter that are in the pass
  for (auto& [name, tenant] : tenants_) {
    tenant.closed = false;
    while (!tenant.queue.empty() && tenant.queue.front().request.kind == WorkKind::kStep) {
      plan.steps.push_back(tenant.queue.front().id);
      tenant.queue.pop_front();
      --waiting_;
    }
  }
  // How many sequences of the tenant's first request the pass can take now; 0: none.
  const auto takes = [&](const std::string& name, const Tenant& tenant) -> int64_t {
    if (tenant.queue.empty() || (alone && *alone != tenant.queue.front().id)) return 0;
    const Waiting& first = tenant.queue.front();
    const PlannedRequest& request = first.request;
    if (request.kind == WorkKind::kStep || (request.kind == WorkKind::kForwardBackward && tenant.closed))
      return 0;
    const bool fresh = plan.pieces.empty();
    if (request.alone && !fresh && !alone) return 0;
    if (!name.empty() && !inside.contains(name) &&
        static_cast<int64_t>(inside.size()) >= options_.max_tenants)
      return 0;
    const auto lengths = std::span(request.lengths).subspan(static_cast<size_t>(first.next));
    const int64_t needed =
        request.whole ? std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) : lengths.front();
    if (needed > room && !fresh) return 0;
    return request.whole ? static_cast<int64_t>(lengths.size()) : 1;
  };
  // Of tenants that are level the one whose request came first: one that keeps coming back level with the
  // least served does not pass it each time.
  const auto before = [](const Tenant& a, const Tenant& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.queue.front().arrival < b.queue.front().arrival;
  };
  while (true) {
    Tenant* chosen = nullptr;
    const std::string* name = nullptr;
    int64_t count = 0;
    for (auto& [candidate_name, candidate] : tenants_) {
      if (candidate.queue.empty() || (chosen != nullptr && !before(candidate, *chosen))) continue;
      if (const int64_t n = takes(candidate_name, candidate); n > 0) {
        chosen = &candidate;
        name = &candidate_name;
        count = n;
      }
    }
    if (chosen == nullptr) break;
    Waiting& first = chosen->queue.front();
    const WorkKind kind = first.request.kind;
    for (int64_t i = first.next; i < first.next + count; ++i) {
      const int64_t length = first.request.lengths[static_cast<size_t>(i)];
      room -= length;
      chosen->cost += twinkle::cost_of(kind, length);
    }
    if (!name->empty()) inside.insert(*name);
    const auto same = std::find_if(plan.pieces.rbegin(), plan.pieces.rend(),
                                   [&](const Piece& piece) { return piece.id == first.id; });
    if (same != plan.pieces.rend()) {
      same->end += count;
    } else {
      plan.pieces.push_back({first.id, first.next, first.next + count});
    }
    first.next += count;
    if (first.request.alone) alone = first.id;
    if (first.next == static_cast<int64_t>(first.request.lengths.size())) {
      // Numbering and gradients of the next training call build on this one being closed.
      chosen->closed |= kind == WorkKind::kForwardBackward;
      chosen->queue.pop_front();
      --waiting_;
    }
  }
  // Credit is for those who had to wait: a tenant that had nothing more for this pass keeps none.
  int64_t least = INT64_MAX;
  const auto waits = [](const Tenant& tenant) {
    if (tenant.queue.empty()) return false;
    const WorkKind kind = tenant.queue.front().request.kind;
    return kind != WorkKind::kStep && !(kind == WorkKind::kForwardBackward && tenant.closed);
  };
  for (const auto& [name, tenant] : tenants_)
    if (waits(tenant)) least = std::min(least, tenant.cost);
  // And using room that the others' sequences did not fit into is held against nobody for longer than a pass.
  for (auto& [name, tenant] : tenants_) {
    if (least == INT64_MAX) {
      tenant.cost = 0;
    } else {
      tenant.cost =
          std::min(tenant.cost, least + twinkle::cost_of(WorkKind::kForwardBackward, options_.token_budget));
      if (!waits(tenant)) tenant.cost = std::max(tenant.cost, least);
    }
  }
  std::erase_if(tenants_, [](const auto& item) { return item.second.queue.empty(); });
  return plan;
}

}  // namespace twinkle
