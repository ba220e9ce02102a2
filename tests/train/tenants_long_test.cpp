// labels: slow bits tenants
// Eight tenants of every kind, fifty steps each, among up to 31 neighbours that join and leave at random and
// ask for anything; requests arrive in random groups, passes and memory are too small for all. Each of the
// eight ends with the bits it has alone: losses, log-probabilities, norms, weights, optimizer state.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_testing.h"
#include "tests/train/tenants_testing.h"

namespace twinkle {
namespace {

using testing::alone;
using testing::call_of;
using testing::lora_of;
using testing::mixed_tenants;
using testing::note;
using testing::requests_of;
using testing::set_up;
using testing::state_of;
using testing::stories;
using testing::Tenant;

constexpr int64_t kCalls = 50;

struct Script {
  Tenant tenant;
  std::vector<TenantRequest> requests;  // all of them, in order
  size_t next = 0;
  std::vector<std::string> record;
};

Tenant random_neighbour(CounterRng& rng, int64_t number) {
  const std::vector<std::string> modules = {"q_proj",    "k_proj",  "v_proj",    "o_proj",
                                            "gate_proj", "up_proj", "down_proj", "lm_head"};
  std::vector<std::string> targets;
  for (const auto& module : modules)
    if (rng.next_below(3) == 0) targets.push_back(module);
  if (targets.empty()) targets = {"q_proj"};
  const bool head = std::find(targets.begin(), targets.end(), "lm_head") != targets.end();
  Tenant t{.name = "neighbour " + std::to_string(number),
           .lora = lora_of(1 + static_cast<int64_t>(rng.next_below(40)), targets, rng.next_u64(),
                           !head && rng.next_below(2) == 0 ? 0.3 : 0.0),
           .accumulation = 1 + static_cast<int64_t>(rng.next_below(3)),
           .temperature = rng.next_below(2) == 0 ? 1.0 : 0.5,
           .seed = rng.next_u64() >> 16};
  if (rng.next_below(4) == 0) t.loss = "entropy";
  if (rng.next_below(6) == 0) t.optimizer_options = {{"lr", 1e30}};  // its weights will not stay finite
  return t;
}

// A request of a neighbour: mostly work, sometimes nonsense.
TenantRequest random_request(CounterRng& rng, const Tenant& t) {
  TenantRequest request{.adapter_name = rng.next_below(40) == 0 ? "nobody" : t.name};
  const auto kind = rng.next_below(4);
  request.kind = kind == 0 ? WorkKind::kStep : kind == 1 ? WorkKind::kForward : WorkKind::kForwardBackward;
  request.args.temperature = t.temperature;
  if (request.kind == WorkKind::kStep) return request;
  request.features = call_of(t, static_cast<int64_t>(rng.next_below(1000)));
  if (rng.next_below(30) == 0) request.features[0].input_ids[0] = -1;
  if (rng.next_below(30) == 0) request.features.clear();
  return request;
}

void run_among_neighbours(uint64_t seed, int64_t pass_tokens, int64_t max_loras,
                          const std::string& dtype = "auto") {
  CounterRng rng(seed, 77);
  MultiLoraTransformersModel model(stories(), {.max_loras = max_loras,
                                               .max_r = 64,
                                               .target_modules = {"all-linear", "embed_tokens"},
                                               .model = {.dtype = dtype, .micro_batch_tokens = pass_tokens}});
  std::vector<Script> scripts;
  for (const auto& t : mixed_tenants()) {
    set_up(model, t);
    Script script{.tenant = t};
    for (int64_t call = 0; call < kCalls; ++call)
      for (auto& request : requests_of(t, call)) script.requests.push_back(std::move(request));
    scripts.push_back(std::move(script));
  }
  std::vector<Tenant> neighbours;
  int64_t number = 0, most = 0;
  const auto waiting = [&] {
    return std::any_of(scripts.begin(), scripts.end(),
                       [](const Script& s) { return s.next < s.requests.size(); });
  };
  while (waiting()) {
    // Neighbours come and go.
    while (neighbours.size() < 31 && rng.next_below(4) != 0) {
      neighbours.push_back(random_neighbour(rng, number++));
      set_up(model, neighbours.back());
    }
    most = std::max(most, static_cast<int64_t>(neighbours.size()));
    while (!neighbours.empty() && rng.next_below(3) == 0) {
      const auto leaving = rng.next_below(neighbours.size());
      model.remove_adapter(neighbours[leaving].name);
      neighbours.erase(neighbours.begin() + static_cast<std::ptrdiff_t>(leaving));
    }
    // Each sends a few requests, in any order between tenants.
    std::vector<TenantRequest> requests;
    std::vector<Script*> owners;
    const auto sends = 1 + rng.next_below(24);
    for (uint64_t i = 0; i < sends; ++i) {
      if (rng.next_below(3) == 0 && !neighbours.empty()) {
        requests.push_back(random_request(rng, neighbours[rng.next_below(neighbours.size())]));
        owners.push_back(nullptr);
        continue;
      }
      Script& script = scripts[rng.next_below(scripts.size())];
      if (script.next == script.requests.size()) continue;
      requests.push_back(script.requests[script.next++]);
      owners.push_back(&script);
    }
    const auto results = model.run(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (owners[i] != nullptr) note(owners[i]->record, requests[i], results[i]);
    }
  }
  EXPECT_GE(most, 16);
  EXPECT_GT(model.pool().times_written(), 0);
  for (auto& script : scripts) {
    script.record.push_back(state_of(model, script.tenant.name));
    EXPECT_EQ(script.record, alone(script.tenant, kCalls, stories(), dtype))
        << script.tenant.name << ", seed " << seed;
  }
}

TEST(TenantsLong, FiftyStepsAmongNeighbours) { run_among_neighbours(1, 2048, 32); }
TEST(TenantsLong, FiftyStepsInSmallPassesAndLittleMemory) { run_among_neighbours(2, 64, 3); }
TEST(TenantsLong, FiftyStepsInPassesOfMiddleSize) { run_among_neighbours(3, 300, 12); }

TEST(TenantsLong, FiftyStepsOnEveryInstructionSet) {
  RestoreMachine restore;
  for (const auto& [isa, dtype] : product_kinds()) {
    SCOPED_TRACE(std::string(isa_name(isa)) + ", weights in " + dtype);
    force_isa(isa);
    run_among_neighbours(4, 500, 10, dtype);
  }
}

}  // namespace
}  // namespace twinkle
