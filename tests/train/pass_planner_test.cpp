// labels: quick tenants
// What any plan must keep, over random loads: every sequence once, a tenant's requests in order, no pass over
// its budget, and work shared evenly among tenants that wait.
#include "twinkle/train/pass_planner.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

struct Sent {
  PlannedRequest request;
  int64_t done = 0;  // sequences that ran, in order
  bool finished = false;
};

// Checks each plan against the requests that were pushed.
class Checked {
 public:
  explicit Checked(const PassPlannerOptions& options) : options_(options), planner_(options) {}

  void push(PlannedRequest request) {
    const auto id = static_cast<int64_t>(sent_.size());
    by_tenant_[request.tenant].push_back(id);
    sent_.push_back({request});
    planner_.push(id, std::move(request));
  }

  bool empty() const { return planner_.empty(); }

  // Runs one plan; the cost that each tenant got.
  std::map<std::string, int64_t> next() {
    const PassPlanner::Plan plan = planner_.next();
    EXPECT_FALSE(plan.steps.empty() && plan.pieces.empty());
    for (const int64_t id : plan.steps) {
      EXPECT_EQ(at(id).request.kind, WorkKind::kStep);
      expect_turn(id);
      at(id).finished = true;
    }
    std::map<std::string, int64_t> cost;
    std::map<std::string, int> trained;
    std::set<std::string> adapters;
    int64_t tokens = 0, sequences = 0;
    bool alone = false;
    for (const auto& piece : plan.pieces) {
      Sent& sent = at(piece.id);
      EXPECT_NE(sent.request.kind, WorkKind::kStep);
      expect_turn(piece.id);
      EXPECT_EQ(piece.begin, sent.done);
      EXPECT_LT(piece.begin, piece.end);
      if (sent.request.whole) {
        EXPECT_EQ(piece.begin, 0);
        EXPECT_EQ(piece.end, static_cast<int64_t>(sent.request.lengths.size()));
      }
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        const int64_t length = sent.request.lengths[static_cast<size_t>(i)];
        tokens += length;
        cost[sent.request.tenant] += cost_of(sent.request.kind, length);
      }
      sequences += sent.request.whole ? 1 : piece.end - piece.begin;
      sent.done = piece.end;
      sent.finished = piece.end == static_cast<int64_t>(sent.request.lengths.size());
      alone |= sent.request.alone;
      if (!sent.request.tenant.empty()) adapters.insert(sent.request.tenant);
      if (sent.request.kind == WorkKind::kForwardBackward) {
        EXPECT_EQ(++trained[sent.request.tenant], 1) << "one training call of a tenant in a pass";
      }
    }
    if (!plan.pieces.empty()) {
      EXPECT_TRUE(tokens <= options_.token_budget || sequences == 1) << tokens << " tokens";
    }
    EXPECT_LE(static_cast<int64_t>(adapters.size()), options_.max_tenants);
    EXPECT_TRUE(!alone || plan.pieces.size() == 1);
    return cost;
  }

  void expect_all_done() const {
    for (const auto& sent : sent_) EXPECT_TRUE(sent.finished);
  }

 private:
  Sent& at(int64_t id) { return sent_.at(static_cast<size_t>(id)); }
  // Everything that the tenant asked for before is done.
  void expect_turn(int64_t id) {
    for (const int64_t before : by_tenant_.at(at(id).request.tenant)) {
      if (before == id) break;
      EXPECT_TRUE(at(before).finished) << before << " before " << id;
    }
  }

  PassPlannerOptions options_;
  PassPlanner planner_;
  std::vector<Sent> sent_;
  std::map<std::string, std::vector<int64_t>> by_tenant_;
};

PlannedRequest random_request(CounterRng& rng) {
  PlannedRequest request{.tenant = rng.next_below(12) == 0 ? "" : "t" + std::to_string(rng.next_below(9))};
  const auto kind = rng.next_below(5);
  request.kind = kind == 0                             ? WorkKind::kStep
                 : kind == 1 || request.tenant.empty() ? WorkKind::kForward
                                                       : WorkKind::kForwardBackward;
  if (request.tenant.empty()) request.kind = WorkKind::kForward;
  if (request.kind == WorkKind::kStep) return request;
  const auto count = 1 + rng.next_below(6);
  for (uint64_t i = 0; i < count; ++i)
    request.lengths.push_back(static_cast<int64_t>(1 + rng.next_below(rng.next_below(20) == 0 ? 150 : 30)));
  request.whole = request.kind == WorkKind::kForwardBackward && rng.next_below(6) == 0;
  request.alone = rng.next_below(15) == 0;
  return request;
}

TEST(PassPlanner, KeepsItsPromisesUnderRandomLoads) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CounterRng rng(seed);
    Checked checked({.token_budget = static_cast<int64_t>(20 + rng.next_below(200)),
                     .max_tenants = static_cast<int64_t>(1 + rng.next_below(9))});
    for (int round = 0; round < 30; ++round) {
      const auto arrivals = rng.next_below(6);
      for (uint64_t i = 0; i < arrivals; ++i) checked.push(random_request(rng));
      if (!checked.empty()) checked.next();
    }
    for (int passes = 0; !checked.empty(); ++passes) {
      checked.next();
      ASSERT_LT(passes, 10000) << "seed " << seed << " never ends";
    }
    checked.expect_all_done();
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

// Tenants that always have work, each with its own habit: tiny or large sequences, forward only or training,
// many requests or few. Calls check(work of each in this pass) for every pass.
void run_waiting_tenants(uint64_t seed, int64_t largest,
                         const std::function<void(const std::vector<int64_t>& work)>& check) {
  CounterRng rng(seed, 1);
  const int64_t budget = 100;
  PassPlanner planner({.token_budget = budget});
  const auto tenants = 2 + rng.next_below(8);
  struct Of {
    size_t tenant;
    int64_t cost;  // of a sequence
  };
  std::map<int64_t, Of> sent;
  int64_t id = 0;
  for (uint64_t t = 0; t < tenants; ++t) {
    const auto size = static_cast<int64_t>(1 + rng.next_below(static_cast<uint64_t>(largest)));
    const auto kind = rng.next_below(2) == 0 ? WorkKind::kForward : WorkKind::kForwardBackward;
    // A training call that ends has to be closed before the next begins, so one goes on for ever here.
    const int64_t each = kind == WorkKind::kForward ? 1 + static_cast<int64_t>(rng.next_below(40))
                                                    : (60 * budget + 3000) / size;
    for (int64_t tokens = 0; tokens < 60 * budget + 3000; tokens += each * size, ++id) {
      sent[id] = {t, cost_of(kind, size)};
      planner.push(id, {.tenant = std::to_string(t),
                        .kind = kind,
                        .lengths = std::vector<int64_t>(static_cast<size_t>(each), size)});
    }
  }
  for (int pass = 0; pass < 60; ++pass) {
    std::vector<int64_t> work(tenants);
    for (const auto& piece : planner.next().pieces)
      work[sent.at(piece.id).tenant] += (piece.end - piece.begin) * sent.at(piece.id).cost;
    check(work);
  }
}

TEST(PassPlanner, WaitingTenantsGetEqualWork) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int64_t> all;
    run_waiting_tenants(seed, 20, [&](const std::vector<int64_t>& work) {
      all.resize(work.size());
      for (size_t t = 0; t < work.size(); ++t) all[t] += work[t];
      const auto [least, most] = std::minmax_element(all.begin(), all.end());
      EXPECT_LE(*most - *least, 600) << "seed " << seed;  // two passes of training
    });
  }
}

TEST(PassPlanner, NobodyStarvesWhateverTheSizes) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<size_t> waited;
    run_waiting_tenants(seed, 95, [&](const std::vector<int64_t>& work) {
      waited.resize(work.size());
      for (size_t t = 0; t < work.size(); ++t) {
        waited[t] = work[t] > 0 ? 0 : waited[t] + 1;
        // At most a pass of training ahead (300), while each other has at least half a pass of scoring (50).
        EXPECT_LE(waited[t], 6 * work.size()) << "seed " << seed;
      }
    });
  }
}

TEST(PassPlanner, AFloodDelaysANewcomerByOnePassOnly) {
  PassPlanner planner({.token_budget = 64});
  int64_t id = 0;
  for (; id < 1000; ++id)
    planner.push(id, {.tenant = "flood", .kind = WorkKind::kForwardBackward, .lengths = {16}});
  for (int i = 0; i < 10; ++i) planner.next();
  planner.push(id, {.tenant = "newcomer", .kind = WorkKind::kForwardBackward, .lengths = {16, 16}});
  const auto plan = planner.next();
  int64_t mine = 0;
  for (const auto& piece : plan.pieces) mine += piece.id == id ? piece.end - piece.begin : 0;
  EXPECT_GE(mine, 1);
}

// Its queue is empty after each pass, so it starts level with the one that waits, again and again.
TEST(PassPlanner, WhoKeepsComingBackDoesNotOvertake) {
  for (const bool waits_first : {true, false}) {
    PassPlanner planner({.token_budget = 10});
    const PlannedRequest one{.tenant = "a", .kind = WorkKind::kForward, .lengths = {10}};
    if (!waits_first) planner.push(0, one);
    planner.push(-1, {.tenant = "z", .kind = WorkKind::kForward, .lengths = {10}});
    if (waits_first) planner.push(0, one);
    std::vector<int64_t> order;
    for (int64_t id = 1; id < 4; ++id) {
      const auto plan = planner.next();
      ASSERT_EQ(plan.pieces.size(), 1U);
      order.push_back(plan.pieces[0].id);
      if (order.back() >= 0) planner.push(id, one);
    }
    EXPECT_EQ(order[waits_first ? 0 : 1], -1);
  }
}

TEST(PassPlanner, ABudgetWithoutEnd) {
  PassPlanner planner({.token_budget = INT64_MAX});
  for (int64_t id = 0; id < 4; ++id)
    planner.push(id,
                 {.tenant = id % 2 == 0 ? "a" : "b", .kind = WorkKind::kForwardBackward, .lengths = {10}});
  EXPECT_EQ(planner.next().pieces.size(), 2U);
  EXPECT_EQ(planner.next().pieces.size(), 2U);
  EXPECT_TRUE(planner.empty());
}

TEST(PassPlanner, CreditIsForThoseWhoWait) {
  PassPlanner planner({.token_budget = 100});
  int64_t id = 0;
  // `calm` wants 10 tokens a pass and gets them; `busy` has the rest.
  for (; id < 200; ++id) planner.push(id, {.tenant = "busy", .kind = WorkKind::kForward, .lengths = {30}});
  for (int pass = 0; pass < 20; ++pass) {
    planner.push(id++, {.tenant = "calm", .kind = WorkKind::kForwardBackward, .lengths = {10}});
    planner.push(id++, {.tenant = "calm", .kind = WorkKind::kStep});
    planner.next();
  }
  // A burst of calm's does not shut busy out.
  const int64_t first = id;
  for (; id < first + 100; ++id)
    planner.push(id, {.tenant = "calm", .kind = WorkKind::kForward, .lengths = {10}});
  int64_t busy = 0;
  for (int pass = 0; pass < 4; ++pass) {
    for (const auto& piece : planner.next().pieces) busy += piece.id < 200 ? 30 : 0;
  }
  EXPECT_GE(busy, 120);
}

TEST(PassPlanner, StepsComeBetweenCallsOfTheirTenantOnly) {
  PassPlanner planner({.token_budget = 100});
  planner.push(0, {.tenant = "a", .kind = WorkKind::kForwardBackward, .lengths = {10, 10}});
  planner.push(1, {.tenant = "a", .kind = WorkKind::kStep});
  planner.push(2, {.tenant = "a", .kind = WorkKind::kForwardBackward, .lengths = {10}});
  planner.push(3, {.tenant = "b", .kind = WorkKind::kForwardBackward, .lengths = {10}});
  planner.push(4, {.tenant = "a", .kind = WorkKind::kStep});
  const auto first = planner.next();
  EXPECT_TRUE(first.steps.empty());
  ASSERT_EQ(first.pieces.size(), 2U);  // a's first call and b's
  const auto second = planner.next();
  EXPECT_EQ(second.steps, std::vector<int64_t>{1});
  ASSERT_EQ(second.pieces.size(), 1U);
  EXPECT_EQ(second.pieces[0].id, 2);
  const auto third = planner.next();
  EXPECT_EQ(third.steps, std::vector<int64_t>{4});
  EXPECT_TRUE(third.pieces.empty());
  EXPECT_TRUE(planner.empty());
}

TEST(PassPlanner, ForwardsOfATenantShareAPass) {
  PassPlanner planner({.token_budget = 100});
  for (int64_t id = 0; id < 5; ++id)
    planner.push(id, {.tenant = "a", .kind = WorkKind::kForward, .lengths = {10}});
  EXPECT_EQ(planner.next().pieces.size(), 5U);
}

TEST(PassPlanner, LongSequencesAndAloneRequestsHaveTheirOwnPass) {
  PassPlanner planner({.token_budget = 50});
  planner.push(0, {.tenant = "a", .kind = WorkKind::kForward, .lengths = {80, 10}});
  planner.push(1, {.tenant = "b", .kind = WorkKind::kForward, .lengths = {10}, .alone = true});
  planner.push(2, {.tenant = "c", .kind = WorkKind::kForward, .lengths = {10}});
  std::vector<size_t> sizes;
  while (!planner.empty()) sizes.push_back(planner.next().pieces.size());
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 1, 2}));
}

}  // namespace
}  // namespace twinkle
