// Operations: once each, in the client's order, durable, and their results kept. The fake engine's weights
// show any operation that was carried out twice, never, or at another place.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "tests/serve/core_testing.h"
#include "tests/thrown.h"

namespace twinkle::serve {
namespace {

TEST(Core, TrainsAndAnswers) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  const std::string first = rig.submit(Rig::call(kAnn, m, 1, {1}));
  const std::string second = rig.submit(Rig::call(kAnn, m, 2, {2}));
  const std::string step = rig.submit(Rig::step(kAnn, m, 3));
  EXPECT_EQ(decode_call_result(rig.outcome(first, kAnn).result->bytes).loss, 101);
  EXPECT_EQ(decode_call_result(rig.outcome(second, kAnn).result->bytes).loss, 102);
  EXPECT_EQ(rig.result(step, kAnn), R"({"metrics":{"optimizer_step":1.0}})");
  EXPECT_EQ(rig.weight(kAnn, m, 4), 55);                                       // 100*0.5 + 1*3+2
  EXPECT_EQ(rig.result(step, kAnn), R"({"metrics":{"optimizer_step":1.0}})");  // fetched again
}

TEST(Core, SumsChunksByNumberWhateverOrderTheyArriveIn) {
  std::vector<int> order = {1, 2, 3};
  do {
    const test::TempDir dir;
    Rig rig(dir / "data");
    const std::string m = rig.make_model(kAnn);
    for (const int seq : order) rig.submit(Rig::call(kAnn, m, seq, {seq}));
    rig.run(Rig::step(kAnn, m, 4));
    EXPECT_EQ(rig.weight(kAnn, m, 5), kAfterThreeCalls) << order[0] << order[1] << order[2];
  } while (std::ranges::next_permutation(order).found);
}

// The first chunk comes when the others were carried out long ago.
TEST(Core, PutsALateChunkInItsPlace) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::call(kAnn, m, 3, {3}));
  rig.run(Rig::call(kAnn, m, 2, {2}));
  rig.run(Rig::call(kAnn, m, 1, {1}));
  rig.run(Rig::step(kAnn, m, 4));
  EXPECT_EQ(rig.weight(kAnn, m, 5), kAfterThreeCalls);
}

// A step that overtakes the calls before it on the wire waits for them.
TEST(Core, LetsAStepWaitForLowerNumbers) {
  const test::TempDir dir;
  Rig rig(dir / "data", {.gap_wait = std::chrono::seconds(10)});
  const std::string m = rig.make_model(kAnn);
  const std::string step = rig.submit(Rig::step(kAnn, m, 4));
  for (const int seq : {2, 3, 1}) rig.submit(Rig::call(kAnn, m, seq, {seq}));
  EXPECT_EQ(rig.result(step, kAnn), R"({"metrics":{"optimizer_step":1.0}})");
  EXPECT_EQ(rig.weight(kAnn, m, 5), kAfterThreeCalls);
}

TEST(Core, WaitsForNoNumberForEver) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 7)), R"({"metrics":{"optimizer_step":1.0}})");
  EXPECT_EQ(rig.run(Rig::call(kAnn, m, 6, {1})),
            "error: operation 6 arrived after operation 7 had been carried out, so it has no effect");
  EXPECT_EQ(rig.weight(kAnn, m, 8), 51);
}

TEST(Core, CarriesOutOnceHoweverOftenItIsSent) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::call(kAnn, m, 1, {1}));
  std::vector<std::string> ids(64);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < ids.size(); i += 8) ids[i] = rig.submit(Rig::step(kAnn, m, 2));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 1u);
  EXPECT_EQ(rig.weight(kAnn, m, 3), 51);
  EXPECT_EQ(rig.submit(Rig::step(kAnn, m, 2)), ids[0]);
  const std::lock_guard lock(rig.seen().mutex);
  EXPECT_EQ(std::ranges::count(rig.seen().train, m + ":s"), 1);
}

TEST(Core, FailsTheStepAfterAFailedCallAndGoesOn) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  Operation refused = Rig::call(kAnn, m, 2, {2});
  refused.refused = "[forward_backward] datum 0: it has no targets";
  EXPECT_EQ(rig.run(refused), "error: [forward_backward] datum 0: it has no targets");
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 3)),
            "error: [optim_step] the gradients of this step are not complete: operation 2 failed: "
            "[forward_backward] "
            "datum 0: it has no targets. They were cleared; send the whole batch again");
  rig.submit(Rig::call(kAnn, m, 4, {666}));  // the engine refuses it
  EXPECT_TRUE(rig.run(Rig::step(kAnn, m, 5)).starts_with("error: [optim_step] the gradients"));
  rig.submit(Rig::call(kAnn, m, 6, {1}));
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 7)), R"({"metrics":{"optimizer_step":1.0}})");
  EXPECT_EQ(rig.weight(kAnn, m, 8), 51);
}

TEST(Core, KeepsModelsApart) {
  const test::TempDir dir;
  Rig rig(dir / "data", {.gap_wait = std::chrono::seconds(30)});
  const std::string a = rig.make_model(kAnn, "a:train:0"), b = rig.make_model(kBob, "b:train:0");
  rig.submit(Rig::step(kAnn, a, 5));  // waits for numbers that do not come
  rig.submit(Rig::call(kBob, b, 1, {1}));
  EXPECT_EQ(rig.run(Rig::step(kBob, b, 2)), R"({"metrics":{"optimizer_step":1.0}})");
}

TEST(Core, ShowsAResultToItsOwnerOnly) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  const std::string id = rig.submit(Rig::call(kAnn, m, 1, {1}));
  EXPECT_EQ(rig.result(id, kBob), "missing");
  EXPECT_EQ(rig.result("nothing", kAnn), "missing");
  EXPECT_EQ(rig.result(m + ":r999999", kAnn), "missing");
  EXPECT_NE(rig.result(id, kAnn), "missing");
}

TEST(Core, ForgetsResultsAfterTheirTime) {
  const test::TempDir dir;
  HandClock clock(1000);
  CoreOptions options{.result_seconds = 60, .world = clock.world()};
  Rig rig(dir / "data", options);
  const std::string m = rig.make_model(kAnn);
  const std::string id = rig.submit(Rig::call(kAnn, m, 1, {1}));
  EXPECT_NE(rig.result(id, kAnn), "expired");
  clock = 1061;
  for (int i = 0; i < 100 && rig.result(id, kAnn) != "expired"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.result(id, kAnn), "expired");
  EXPECT_EQ(rig.result(id, kBob), "missing");
  rig.run(Rig::step(kAnn, m, 2));  // what it added to the gradients is still there
  EXPECT_EQ(rig.weight(kAnn, m, 3), 51);
}

// A call that comes in one turn with the step before it, and fails without the engine.
TEST(Core, ARefusedCallBehindAStepSpoilsTheNextStep) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::call(kAnn, m, 1, {1}));
  rig.seen().step_delay_ms = 200;
  rig.submit(Rig::step(kAnn, m, 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  rig.submit(Rig::call(kAnn, m, 3, {1}));
  rig.submit(Rig::step(kAnn, m, 4));
  Operation bad = Rig::call(kAnn, m, 5, {1});
  bad.refused = "bad";
  rig.submit(bad);
  rig.submit(Rig::call(kAnn, m, 6, {1}));
  EXPECT_HAS(rig.run(Rig::step(kAnn, m, 7)), "operation 5 failed: bad");
}

TEST(Core, KeepsResultsWhoeverSetsTheClock) {
  const test::TempDir dir;
  std::atomic<double> wall{1000};
  CoreOptions options{.result_seconds = 60, .upkeep_wait = std::chrono::milliseconds(1)};
  options.world.clocks.wall = [&wall] { return wall.load(); };
  Rig rig(dir / "data", options);
  const std::string m = rig.make_model(kAnn);
  const std::string id = rig.submit(Rig::call(kAnn, m, 1, {1}));
  EXPECT_NE(rig.result(id, kAnn), "expired");
  wall = 1e9;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_NE(rig.result(id, kAnn), "expired");
  EXPECT_EQ(rig.submit(Rig::call(kAnn, m, 1, {1})), id);
}

// Upkeep is not left undone because somebody samples at all times.
TEST(Core, ForgetsResultsWhileSamplesGoOn) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir / "data",
          {.result_seconds = 60, .upkeep_wait = std::chrono::milliseconds(50), .world = clock.world()});
  const std::string m = rig.make_model(kAnn);
  const std::string id = rig.submit(Rig::call(kAnn, m, 1, {1}));
  EXPECT_NE(rig.result(id, kAnn), "expired");
  rig.seen().hold_samples = true;
  rig.submit({.kind = OpKind::kSample,
              .owner = kAnn,
              .target = "s:sample:0",
              .seq = 0,
              .body = encode(SampleCall{.prompt = {1}, .seed = 7})});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  clock = 1061;
  for (int i = 0; i < 100 && rig.result(id, kAnn) != "expired"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.result(id, kAnn), "expired");
  rig.seen().hold_samples = false;
}

TEST(Core, RefusesMoreThanAnOwnerMayHaveWaiting) {
  const test::TempDir dir;
  Rig rig(dir / "data", {.gap_wait = std::chrono::seconds(30), .owner_operations = 3});
  const std::string m = rig.make_model(kAnn);
  for (const int seq : {5, 6, 7}) rig.submit(Rig::call(kAnn, m, seq, {1}));  // wait for number 1
  EXPECT_HAS(test::thrown([&] { rig.submit(Rig::call(kAnn, m, 8, {1})); }, ErrorKind::kExhausted), "[queue]");
  const std::string other = rig.make_model(kBob, "b:train:0");
  EXPECT_EQ(rig.weight(kBob, other, 1), 100);
}

// Arguments are memory too.
TEST(Core, CountsWhatWaitsInBytes) {
  const test::TempDir dir;
  Rig rig(dir / "data", {.gap_wait = std::chrono::seconds(30), .owner_bytes = 50'000, .total_bytes = 70'000});
  const std::string m = rig.make_model(kAnn), other = rig.make_model(kBob, "b:train:0");
  const auto large = [&](const std::string& owner, const std::string& model, int64_t seq) {
    Operation op = Rig::save(owner, model, seq, std::string(30'000, 'n'));
    rig.submit(op);
  };
  large(kAnn, m, 5);
  EXPECT_HAS(test::thrown([&] { large(kAnn, m, 6); }, ErrorKind::kExhausted), "too much of yours");
  large(kBob, other, 5);
  EXPECT_HAS(test::thrown(
                 [&] {
                   rig.make_model("cyd", "c:train:0");
                   large("cyd", "c:train:0", 5);
                 },
                 ErrorKind::kExhausted),
             "[queue] too much is waiting");
}

TEST(Core, UnloadsAModelForGood) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  rig.run(Rig::step(kAnn, m, 2));
  rig.run(Rig::save(kAnn, m, 3, "x"));
  rig.submit(Rig::call(kAnn, m, 4, {1}));
  const Operation unload{.kind = OpKind::kUnload, .owner = kAnn, .target = m, .seq = -1};
  rig.make_model(kAnn, "s:train:9", 1000);  // which is refused
  EXPECT_EQ(rig.core().counts().models, 1);
  const std::string id = rig.submit(unload);
  EXPECT_EQ(rig.result(id, kAnn), R"({"model_id":"s:train:0","type":"unload_model"})");
  EXPECT_EQ(rig.core().counts().models, 0);
  EXPECT_EQ(rig.submit(unload), id);
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 5)), "error: [model] this model was unloaded");
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 6)), "error: [model] this model was unloaded");
  rig.reopen();
  EXPECT_EQ(rig.run(Rig::call(kAnn, m, 7, {1})), "error: [model] this model was unloaded");
  EXPECT_EQ(rig.run(Rig::load(kAnn, m, 8, "tinker://s:train:0/weights/x")),
            "error: [model] this model was unloaded");
  const std::string other = rig.make_model(kAnn, "s:train:1");  // its checkpoints stay
  rig.run(Rig::load(kAnn, other, 1, "tinker://s:train:0/weights/x"));
  EXPECT_EQ(rig.weight(kAnn, other, 2), 51);
}

// Checkpoints.

TEST(Core, SharesACheckpointThatIsPublished) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string a = rig.make_model(kAnn, "a:train:0"), b = rig.make_model(kBob, "b:train:0");
  rig.submit(Rig::call(kAnn, a, 1, {1}));
  rig.run(Rig::step(kAnn, a, 2));
  rig.run(Rig::save(kAnn, a, 3, "x"));
  const std::string path = "tinker://a:train:0/weights/x";
  const std::string none = "error: [load] there is no checkpoint '" + path + "'";
  Store& store = rig.store();
  EXPECT_EQ(rig.run(Rig::load(kBob, b, 1, path)), none);
  EXPECT_FALSE(store.set_public(path, kBob, true, 0));
  EXPECT_TRUE(store.set_public(path, kAnn, true, 0));
  rig.run(Rig::load(kBob, b, 2, path));
  EXPECT_EQ(rig.weight(kBob, b, 3), 51);
  EXPECT_FALSE(store.set_expiry(path, kBob, 0.0, 0));
  EXPECT_FALSE(store.set_public(path, kBob, false, 0));
  const auto copied = store.copy(path, kBob, {.owner = kBob}, {.id = "copy-1", .owner = kBob}, 0);
  ASSERT_TRUE(copied);
  EXPECT_EQ(
      store.copy(path, kBob, {.owner = kBob, .created = 5}, {.id = "copy-1", .owner = kBob}, 0)->created, 0);
  EXPECT_TRUE(store.set_public(path, kAnn, false, 0));
  EXPECT_EQ(rig.run(Rig::load(kBob, b, 4, path)), none);
  Operation with_token = Rig::load(kBob, b, 5, path);
  with_token.args["reader"] = kAnn;
  EXPECT_FALSE(rig.run(with_token).starts_with("error"));
  // The copy has the files, whatever becomes of the first.
  EXPECT_TRUE(store.set_expiry(path, kAnn, rig.core().now(), rig.core().now()));
  for (int i = 0; i < 60 && !store.expired_checkpoints(rig.core().now()).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(store.expired_checkpoints(rig.core().now()).size(), 0u);
  rig.submit(Rig::call(kBob, b, 6, {9}));
  rig.run(Rig::step(kBob, b, 7));
  rig.run(Rig::load(kBob, b, 8, copied->path()));
  EXPECT_EQ(rig.weight(kBob, b, 9), 51);
}

// A checkpoint without a run would be listed nowhere: here the disk refuses the run.
TEST(Core, CopiesACheckpointWithItsRunOrNotAtAll) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::save(kAnn, m, 1, "x"));
  const std::string path = "tinker://s:train:0/weights/x", copied = "tinker://copy-1/weights/x";
  const auto copy = [&] {
    return rig.store().copy(path, kAnn, {.owner = kAnn}, {.id = "copy-1", .owner = kAnn}, 0);
  };
  const Database database(dir / "data/store.db");
  database.run(
      "CREATE TRIGGER refuses BEFORE INSERT ON things WHEN NEW.kind = 'model' BEGIN SELECT RAISE(ABORT, "
      "'no'); "
      "END");
  EXPECT_THROW(copy(), Error);
  EXPECT_FALSE(rig.store().checkpoint(copied, kAnn, 0));
  rig.reopen();
  EXPECT_FALSE(rig.store().checkpoint(copied, kAnn, 0));
  database.run("DROP TRIGGER refuses");
  EXPECT_EQ(copy()->path(), copied);
  rig.reopen();
  EXPECT_TRUE(rig.store().checkpoint(copied, kAnn, 0));
  EXPECT_EQ(rig.store().model("copy-1", kAnn)->base_model, "base");
}

// Saves that were sent together pass the check at the door; those behind the limit fail in their turn.
TEST(Core, LooksAtTheLimitOfCheckpointsAgainBeforeItSaves) {
  const test::TempDir dir;
  Rig rig(dir / "data", {.gap_wait = std::chrono::seconds(10)});
  const std::string m = rig.make_model(kAnn);
  std::vector<std::string> ids(4);
  for (const int64_t seq : {4, 3, 2, 1}) {  // nothing is carried out before number 1 is there
    Operation op = Rig::save(kAnn, m, seq, "x" + std::to_string(seq));
    op.args["most_checkpoint_bytes"] = 30;  // two of about 25
    ids[static_cast<size_t>(seq - 1)] = rig.submit(op);
  }
  EXPECT_FALSE(rig.result(ids[0], kAnn).starts_with("error"));
  EXPECT_FALSE(rig.result(ids[1], kAnn).starts_with("error"));
  for (const int i : {2, 3}) {
    EXPECT_TRUE(rig.result(ids[static_cast<size_t>(i)], kAnn)
                    .starts_with("error: [limit] this key may have 30 bytes of checkpoints, and has "));
    EXPECT_FALSE(rig.store().checkpoint("tinker://s:train:0/weights/x" + std::to_string(i + 1), kAnn, 0));
  }
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "data/checkpoints"))
    folders += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(folders, 2u);
}

TEST(Core, SavesBetweenCallsWithoutTouchingTheGradients) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  rig.submit(Rig::call(kAnn, m, 2, {2}));
  EXPECT_EQ(rig.run(Rig::save(kAnn, m, 3, "mid")), R"({"path":"tinker://s:train:0/weights/mid"})");
  rig.submit(Rig::call(kAnn, m, 4, {3}));
  rig.run(Rig::step(kAnn, m, 5));
  EXPECT_EQ(rig.weight(kAnn, m, 6), kAfterThreeCalls);
  rig.run(Rig::load(kAnn, m, 7, "tinker://s:train:0/weights/mid"));
  EXPECT_EQ(rig.weight(kAnn, m, 8), 100);
}

TEST(Core, GivesANameOnceUnlessToldOtherwise) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::save(kAnn, m, 1, "x"));
  EXPECT_EQ(rig.run(Rig::save(kAnn, m, 2, "x")),
            "error: ResourceAlreadyExists: there is a checkpoint 'tinker://s:train:0/weights/x' already");
  EXPECT_EQ(rig.run(Rig::save(kAnn, m, 3, "x", "sampler_weights")),
            R"({"path":"tinker://s:train:0/sampler_weights/x"})");
  rig.submit(Rig::call(kAnn, m, 4, {1}));
  rig.submit(Rig::step(kAnn, m, 5));
  EXPECT_EQ(rig.run(Rig::save(kAnn, m, 6, "x", "weights", true)),
            R"({"path":"tinker://s:train:0/weights/x"})");
  const std::string other = rig.make_model(kAnn, "s:train:1");
  rig.run(Rig::load(kAnn, other, 1, "tinker://s:train:0/weights/x"));
  EXPECT_EQ(rig.weight(kAnn, other, 2), 51);
}

TEST(Core, LoadsOnlyWhatIsOnesOwnAndFits) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string a = rig.make_model(kAnn, "a:train:0"), b = rig.make_model(kBob, "b:train:0");
  const std::string wide = rig.make_model(kAnn, "a:train:1", 16);
  rig.run(Rig::save(kAnn, a, 1, "x"));
  const std::string path = "tinker://a:train:0/weights/x";
  EXPECT_EQ(rig.run(Rig::load(kBob, b, 1, path)), "error: [load] there is no checkpoint '" + path + "'");
  EXPECT_TRUE(rig.run(Rig::load(kAnn, wide, 1, path)).starts_with("error: [load] '" + path + "' has rank 8"));
  rig.run(Rig::save(kAnn, a, 2, "y", "sampler_weights"));
  EXPECT_TRUE(
      rig.run(Rig::load(kAnn, a, 3, "tinker://a:train:0/sampler_weights/y")).starts_with("error: [load]"));
}

// Sampling.

TEST(Core, ComputesNoSampleThatWasCancelled) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  SampleCall call{.prompt = {1}, .num_samples = 1, .seed = 7};
  const auto sample = [&](int64_t seq) {
    return rig.submit(
        {.kind = OpKind::kSample, .owner = kAnn, .target = "s:sample:0", .seq = seq, .body = encode(call)});
  };
  // The engine is busy, so that the samples wait.
  rig.seen().step_delay_ms = 300;
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  rig.submit(Rig::step(kAnn, m, 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::string wanted = sample(0), unwanted = sample(1);
  rig.core().cancel(unwanted, kBob);
  rig.core().cancel(wanted, kBob);
  rig.core().cancel(unwanted, kAnn);
  rig.core().cancel("unknown", kAnn);
  EXPECT_EQ(rig.result(unwanted, kAnn), "error: [sample] its client has cancelled it");
  EXPECT_FALSE(rig.result(wanted, kAnn).starts_with("error"));
  rig.core().cancel(wanted, kAnn);  // too late
  EXPECT_FALSE(rig.result(wanted, kAnn).starts_with("error"));
  EXPECT_EQ(sample(1), unwanted);
}

// As after a data folder was put back: what comes then must not be behind it.
TEST(Core, TakesACursorThatNobodyWasGivenForNone) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  Core::Completions told{.cursor = 7};
  const uint64_t waiter = rig.core().wait_for_any("s:sample:0", 0, uint64_t{1} << 60,
                                                  [&](const Core::Completions& got) { told = got; });
  EXPECT_NE(waiter, 0u);
  rig.core().stop_waiting_for_any(waiter);
  EXPECT_EQ(told.cursor, 0u);
}

TEST(Core, EndsSamplersOfSilentSessions) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir / "data", {.session_seconds = 60, .world = clock.world()});
  const std::string m = rig.make_model(kAnn);
  rig.store().put(Session{.id = "s", .owner = kAnn, .created = 1000});
  for (int i = 0; i < 2; ++i) {
    Operation save{.kind = OpKind::kSaveForSampler, .owner = kAnn, .target = m, .seq = 1 + i};
    save.args = {{"sampler", "s:sample:" + std::to_string(i)}};
    rig.run(save);
  }
  const auto ended = [&] { return rig.store().sampler("s:sample:0", kAnn)->ended; };
  const std::string folder = dir / ("data/" + rig.store().sampler("s:sample:0", kAnn)->folder);
  clock = 1055;
  rig.store().touch_session("s");
  clock = 1110;
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(ended());
  EXPECT_TRUE(is_directory(folder));
  clock = 1116;
  for (int i = 0; i < 100 && is_directory(folder); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(ended());
  EXPECT_FALSE(is_directory(folder));
}

TEST(Core, CountsWhatIsUsed) {
  const test::TempDir dir;
  HandClock clock(7200);
  Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(30), .world = clock.world()});
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::call(kAnn, m, 1, {1, 2, 3}));
  rig.run(Rig::call(kAnn, m, 2, {4, 5}));
  rig.run(Rig::save(kAnn, m, 3, "x"));
  rig.reopen();
  rig.run(Rig::step(kAnn, m, 4));
  rig.reopen();  // what is replayed is not used again
  const auto used = rig.store().usage_of(kAnn, 7200, 10800);
  ASSERT_EQ(used.size(), 2u);
  EXPECT_EQ(used[0].kind + " " + std::to_string(used[0].count), "training 5");
  EXPECT_EQ(used[0].session + " " + used[0].base_model, "s base");
  EXPECT_EQ(used[1].kind + " " + std::to_string(used[1].count), "checkpoint 1");
  EXPECT_TRUE(rig.store().usage_of(kAnn, 0, 7200).empty());
  EXPECT_TRUE(rig.store().usage_of(kBob, 0, 1e9).empty());
}

TEST(Core, SamplesWithTheWeightsOfItsSampler) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  Operation save{.kind = OpKind::kSaveForSampler, .owner = kAnn, .target = m, .seq = 1};
  save.args = {{"sampler", "s:sample:0"}};
  EXPECT_EQ(rig.run(save), R"({"sampling_session_id":"s:sample:0"})");
  rig.submit(Rig::call(kAnn, m, 2, {1}));
  rig.run(Rig::step(kAnn, m, 3));
  const auto sampler = rig.store().sampler("s:sample:0", kAnn);
  ASSERT_TRUE(sampler);
  EXPECT_FALSE(rig.store().sampler("s:sample:0", kBob));
  const auto sample = [&](int64_t seq) {
    SampleCall call{.prompt = {1}, .weights = sampler->folder, .num_samples = 2, .seed = 7};
    Operation op{
        .kind = OpKind::kSample, .owner = kAnn, .target = sampler->id, .seq = seq, .body = encode(call)};
    return decode_sample_result(rig.outcome(rig.submit(op), kAnn).result->bytes);
  };
  const SampleDone done = sample(0);
  ASSERT_EQ(done.sequences.size(), 2u);
  EXPECT_EQ(done.sequences[0].tokens, std::vector<int32_t>{7});
  EXPECT_EQ(done.sequences[1].tokens, std::vector<int32_t>{8});
  EXPECT_EQ(done.sequences[0].logprobs, std::vector<float>{100});  // of before the step
  rig.reopen();
  EXPECT_EQ(sample(1).sequences[0].logprobs, std::vector<float>{100});
}

TEST(Core, OwnersShareTurnsByPriority) {
  const test::TempDir dir;
  CoreOptions options{.gap_wait = std::chrono::milliseconds(30)};
  options.turn_bytes = 4 * static_cast<int64_t>(Rig::call("ann", "m", 1, {1, 2}).body.size());
  options.priority = [](const std::string& owner) { return owner == "ann" ? 4 : 1; };
  Rig rig(dir.path(), options);
  const std::string ann = rig.make_model("ann", "a:train:0"), bob = rig.make_model("bob", "b:train:0"),
                    blocker = rig.make_model("cat", "c:train:0");
  rig.run(Rig::call("cat", blocker, 1, {1}));
  rig.seen().step_delay_ms = 1000;
  rig.submit(Rig::step("cat", blocker, 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is at work
  {
    const std::lock_guard lock(rig.seen().mutex);
    rig.seen().train.clear();
  }
  std::vector<std::pair<std::string, std::string>> ids;
  for (int i = 1; i <= 6; ++i) {
    ids.emplace_back(rig.submit(Rig::call("ann", ann, i, {1, 2})), "ann");
    ids.emplace_back(rig.submit(Rig::call("bob", bob, i, {1, 2})), "bob");
  }
  for (const auto& [id, owner] : ids) rig.result(id, owner);
  // Four and one of each turn, and alone whatever there is.
  std::string order;
  for (const auto& entry : rig.seen().train) {
    if (entry.ends_with(":c")) order += entry[0];
  }
  EXPECT_EQ(order, "aaaabaabbbbb");
}

}  // namespace
}  // namespace twinkle::serve
