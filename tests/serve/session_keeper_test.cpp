// Sessions end by silence, and never while an operation waits or runs.
#include "twinkle/serve/session_keeper.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/serve/core_testing.h"
#include "tests/serve/sim_disk.h"

namespace twinkle::serve {
namespace {

CoreOptions options_with(const HandClock& clock) {
  return {.gap_wait = std::chrono::milliseconds(30), .world = clock.world()};
}

using Names = std::vector<std::string>;

TEST(SessionKeeper, EndsWhatIsSilent) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir.path(), options_with(clock));
  for (const char* id : {"quiet", "loud"}) rig.store().put(Session{.id = id, .owner = "ann"});
  SessionKeeper keeper(rig.core(), rig.store(), 300);
  clock.pass(299);
  EXPECT_TRUE(keeper.sweep().empty());
  EXPECT_TRUE(keeper.touch("loud"));
  clock.pass(1);
  EXPECT_EQ(keeper.sweep(), Names{"quiet"});
  EXPECT_FALSE(keeper.touch("quiet"));
  EXPECT_TRUE(keeper.touch("loud"));
  EXPECT_TRUE(rig.store().session("quiet", "ann")->ended.has_value());
  // It is so after a restart too, and whoever lives has a whole time again.
  rig.reopen();
  SessionKeeper again(rig.core(), rig.store(), 300);
  EXPECT_FALSE(again.touch("quiet"));
  clock.pass(299);
  EXPECT_TRUE(again.sweep().empty());
  clock.pass(1);
  EXPECT_EQ(again.sweep(), Names{"loud"});
  SessionKeeper never(rig.core(), rig.store(), 0);
  clock.pass(1e9);
  EXPECT_TRUE(never.sweep().empty());
}

TEST(SessionKeeper, EndsWhatItsClientHasFinished) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir.path(), options_with(clock));
  for (const char* id : {"over", "open"}) rig.store().put(Session{.id = id, .owner = "ann"});
  SessionKeeper keeper(rig.core(), rig.store(), 0);
  rig.store().finish_session("over", "ann", "success");
  EXPECT_EQ(keeper.sweep(), Names{"over"});
  EXPECT_TRUE(keeper.sweep().empty());
  EXPECT_TRUE(rig.store().session("over", "ann")->ended.has_value());
}

// Whichever call of the disk fails meanwhile, a session ends whole or not yet, and then in the end.
TEST(SessionKeeper, EndsAWholeSessionOnADiskThatFails) {
  int late = 0;
  for (int64_t from = 0; from < 12; ++from) {
    const test::TempDir dir;
    SimDisk disk(dir / "data");
    Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(5)}, 0, disk.disk());
    rig.store().put(Session{.id = "s", .owner = "ann"});
    for (const char* name : {"s:sample:0", "s:sample:1"})
      rig.store().put(SamplerEntry{.id = name, .session = "s", .owner = "ann", .folder = "samplers/1"});
    rig.store().finish_session("s", "ann", "success");
    SessionKeeper keeper(rig.core(), rig.store(), 0);
    disk.follow({.from = from, .until = from + 1, .one_in = 1, .parts = {SimDisk::kStore}, .syncs = true});
    const size_t ended = keeper.sweep().size();
    EXPECT_EQ(rig.store().session_ended("s"), ended == 1) << from;
    EXPECT_EQ(rig.store().samplers_of("ann", "s").size(), ended == 1 ? 0u : 2u) << from;
    if (ended == 1) continue;
    ++late;
    EXPECT_EQ(keeper.sweep(), Names{"s"}) << from;
    EXPECT_TRUE(rig.store().samplers_of("ann", "s").empty()) << from;
  }
  EXPECT_GT(late, 0);
}

TEST(SessionKeeper, EndsNoneWhileAnOperationRuns) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir.path(), options_with(clock));
  rig.store().put(Session{.id = "s", .owner = "ann"});
  SessionKeeper keeper(rig.core(), rig.store(), 10);
  const std::string model = rig.make_model("ann");
  rig.run(Rig::call("ann", model, 1, {1, 2}));
  rig.seen().step_delay_ms = 300;
  const std::string step = rig.submit(Rig::step("ann", model, 2));
  clock.pass(100);
  EXPECT_TRUE(keeper.sweep().empty());
  EXPECT_EQ(rig.result(step, "ann").find("error"), std::string::npos);
  EXPECT_EQ(keeper.sweep(), Names{"s"});
}

TEST(SessionKeeper, WhatASessionSavedStaysAndItsModelsGo) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir.path(), options_with(clock));
  rig.store().put(Session{.id = "s", .owner = "ann"});
  SessionKeeper keeper(rig.core(), rig.store(), 10);
  const std::string model = rig.make_model("ann");
  rig.run(Rig::save("ann", model, 1, "kept"));
  rig.run({.kind = OpKind::kSaveForSampler,
           .owner = "ann",
           .target = model,
           .seq = 2,
           .args = {{"sampler", "s:sample:0"}}});
  const std::string folder = rig.store().sampler("s:sample:0", "ann")->folder;
  EXPECT_TRUE(std::filesystem::exists(dir / folder));
  EXPECT_EQ(rig.core().counts().models, 1);
  clock.pass(11);
  EXPECT_EQ(keeper.sweep(), Names{"s"});
  for (int tries = 0; tries < 100 && std::filesystem::exists(dir / folder); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(std::filesystem::exists(dir / folder));
  EXPECT_EQ(rig.core().counts().models, 0);
  EXPECT_FALSE(rig.store().sampler("s:sample:0", "ann"));
  EXPECT_TRUE(rig.store().checkpoint("tinker://" + model + "/weights/kept", "ann", rig.core().now()));
  // What comes for it is refused through its future, also after a restart, and makes nothing anew.
  Operation late = Rig::call("ann", model, 3, {1});
  late.ended = true;
  late.refused = "[session] over";
  const std::string id = rig.submit(std::move(late));
  EXPECT_EQ(rig.result(id, "ann"), "error: [session] over");
  rig.reopen();
  EXPECT_EQ(rig.result(id, "ann"), "error: [session] over");
  EXPECT_EQ(rig.core().counts().models, 0);
}

}  // namespace
}  // namespace twinkle::serve
