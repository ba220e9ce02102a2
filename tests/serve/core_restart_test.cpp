// Operations over restarts, kills and snapshots: what was acknowledged is carried out once, with the same
// bits.
#include <gtest/gtest.h>

#include "tests/serve/core_testing.h"
#include "tests/serve/sim_disk.h"
#include "tests/thrown.h"

namespace twinkle::serve {
namespace {

TEST(CoreRestart, GoesOnAfterARestartWithTheSameBits) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  const std::string step = rig.submit(Rig::step(kAnn, m, 2));
  rig.result(step, kAnn);
  rig.reopen();
  const std::string call = rig.submit(Rig::call(kAnn, m, 3, {2}));
  rig.result(call, kAnn);
  rig.reopen();  // in the middle of an accumulation
  EXPECT_EQ(rig.submit(Rig::call(kAnn, m, 3, {2})), call);
  EXPECT_EQ(rig.result(step, kAnn), R"({"metrics":{"optimizer_step":1.0}})");
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 4)), R"({"metrics":{"optimizer_step":2.0}})");
  EXPECT_EQ(rig.weight(kAnn, m, 5), 27.5);
  rig.reopen();
  EXPECT_EQ(rig.weight(kAnn, m, 6), 27.5);
  EXPECT_EQ(rig.result("s:train:0:r999", kAnn), "missing");
}

// Whoever asks what came since is told of it, also when the clock was set back meanwhile.
TEST(CoreRestart, TellsOfSamplesBehindThoseOfAnEarlierStart) {
  const test::TempDir dir;
  std::atomic<double> wall{1e9};
  CoreOptions options;
  options.world.clocks.wall = [&wall] { return wall.load(); };
  Rig rig(dir / "data", options);
  const auto sample = [&](int64_t seq) {
    return rig.submit({.kind = OpKind::kSample,
                       .owner = kAnn,
                       .target = "s:sample:0",
                       .seq = seq,
                       .body = encode(SampleCall{.prompt = {1}, .seed = 7})});
  };
  const std::string first = sample(0);
  rig.result(first, kAnn);
  const uint64_t cursor = rig.core().completions("s:sample:0", 0, 0).cursor;
  EXPECT_GT(cursor, uint64_t{1'800'000'000'000'000});  // which earlier servers gave
  wall = 5e8;
  rig.reopen();
  const std::string second = sample(1);
  rig.result(second, kAnn);
  std::vector<std::string> told;
  for (const auto& one : rig.core().completions("s:sample:0", 0, cursor).list) told.push_back(one.request_id);
  EXPECT_EQ(told, (std::vector{first, second}));
}

// Also when the disk refused at first to take down that there was an earlier start: whichever call of it
// failed.
TEST(CoreRestart, TellsOfSamplesBehindThoseOfAStartThatWasNotNoted) {
  const CoreOptions options{.upkeep_wait = std::chrono::milliseconds(20)};
  const auto sample = [](Rig& rig, int64_t seq) {
    const std::string id = rig.submit({.kind = OpKind::kSample,
                                       .owner = kAnn,
                                       .target = "s:sample:0",
                                       .seq = seq,
                                       .body = encode(SampleCall{.prompt = {1}, .seed = 7})});
    rig.result(id, kAnn);
    return id;
  };
  // Asks until it is told of as many as it should be, or has waited for long.
  const auto told_behind = [](Rig& rig, uint64_t cursor, size_t wanted) {
    Core::Completions got;
    for (int i = 0; i < 100 && got.list.size() < wanted; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      got = rig.core().completions("s:sample:0", 0, cursor);
    }
    return got;
  };
  for (int64_t failing = 0; failing < 6; ++failing) {
    const test::TempDir dir;
    SimDisk disk(dir / "data");
    {
      Rig rig(dir / "data", options, 0, disk.disk());
    }
    uint64_t cursor = 0;
    {
      disk.follow({.from = failing, .until = failing + 1, .one_in = 1, .parts = {SimDisk::kLog}});
      Rig rig(dir / "data", options, 0, disk.disk());
      int64_t taken = 0;
      for (int64_t seq = 0; seq < 4 && taken < 3; ++seq) {
        try {
          sample(rig, seq);
          ++taken;
        } catch (const Error&) {  // which the disk did not take: sent again, with the next number here
        }
      }
      cursor = told_behind(rig, 0, 3).cursor;
      disk.stop();
    }
    disk.restart();
    disk.follow({});
    Rig rig(dir / "data", options, 0, disk.disk());
    const std::string late = sample(rig, 9);
    bool heard = false;
    for (const auto& one : told_behind(rig, cursor, 1).list) heard |= one.request_id == late;
    EXPECT_TRUE(heard) << failing;
  }
}

// Its gradient waits for the step: whoever sends the call again must not add to it.
TEST(CoreRestart, KnowsACallWhoseResultIsForgotten) {
  const test::TempDir dir;
  HandClock clock(1000);
  Rig rig(dir / "data", {.result_seconds = 60, .world = clock.world()});
  const std::string m = rig.make_model(kAnn);
  const std::string id = rig.submit(Rig::call(kAnn, m, 1, {1}));
  EXPECT_NE(rig.result(id, kAnn), "expired");
  clock = 1061;
  for (int i = 0; i < 100 && rig.result(id, kAnn) != "expired"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.submit(Rig::call(kAnn, m, 1, {1})), id);
  rig.run(Rig::step(kAnn, m, 2));
  EXPECT_EQ(rig.weight(kAnn, m, 3), 51);
}

TEST(CoreRestart, GoesOnOnlyOnTheBaseAndInstructionSetOfBefore) {
  const test::TempDir dir;
  CoreOptions options;
  Rig rig(dir / "data", options);
  rig.seen().isa = "avx2";
  rig.reopen();  // nothing was trained
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::call(kAnn, m, 1, {1}));
  rig.seen().isa = "avx512";
  EXPECT_EQ(
      test::thrown([&] { rig.reopen(); }, ErrorKind::kConflict),
      "[data_dir] '" + (dir / "data") +
          "' holds models that were trained on the instruction set avx2, not avx512; they would go on with "
          "other numbers. Start as before (TWINKLE_ISA=avx2), use another --data-dir, or say "
          "--accept-engine-change");
  rig.seen().isa = "avx2";
  rig.seen().weights = "another";
  EXPECT_EQ(
      test::thrown([&] { rig.reopen(); }, ErrorKind::kConflict),
      "[data_dir] '" + (dir / "data") +
          "' holds models that were trained on other weights of the base (another model, or held in "
          "another --dtype); they would go on with other numbers. Start as before, use another --data-dir, "
          "or say --accept-engine-change");
  rig.accept_engine_change(true);
  for (const char* broken : {"", "[]", R"({"weights": 1})"}) {
    write_file_atomic(dir / "data/basis.json", broken);
    EXPECT_EQ(test::thrown([&] { rig.reopen(); }, ErrorKind::kUnavailable),
              "[data_dir] '" + (dir / "data/basis.json") +
                  "' is damaged; restore it, or remove it to go on with the present engine");
  }
  write_file_atomic(dir / "data/basis.json", R"({"weights": "base", "isa": "avx2"})");
  rig.reopen();
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 2)), R"({"metrics":{"optimizer_step":1.0}})");
  EXPECT_EQ(rig.weight(kAnn, m, 3), 51);
  rig.accept_engine_change(false);
  rig.reopen();  // it is the basis now
  EXPECT_EQ(rig.weight(kAnn, m, 4), 51);
}

TEST(CoreRestart, AnswersAnOperationWithBytesThatAreNoText) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  Operation op = Rig::step(kAnn, m, 1);
  op.refused = "no such loss: caf\xC3";
  const std::string id = rig.submit(op);
  EXPECT_TRUE(rig.result(id, kAnn).starts_with("error: no such loss: caf"));
  EXPECT_EQ(rig.submit(op), id);
  rig.reopen();
  EXPECT_EQ(rig.submit(op), id);
}

// The folder of a snapshot is removed when there is a newer one.
TEST(CoreRestart, TakesNoOtherFolderForASnapshot) {
  for (const char* folder :
       {"../other", "snapshots/../../other", "snapshots/", "snapshots/1/", "/other", "snapshots/-1"}) {
    const test::TempDir dir;
    test::write_text(dir / "other/kept", "x");
    {
      Log log(dir / "data/log", [](std::string_view) {});
      log.append(join_record(
                     {{"record", "snapshot"}, {"model", "s:train:0"}, {"folder", folder}, {"closed", 1}}, ""),
                 nullptr);
    }
    EXPECT_EQ(test::thrown([&] { Rig rig(dir / "data"); }, ErrorKind::kUnavailable),
              std::string("[log] a record speaks of a snapshot in '") + folder + "', which is none");
    EXPECT_TRUE(file_exists(dir / "other/kept"));
  }
}

// What succeeded once and fails when it is carried out again, after a kill (the folder as it was then).
TEST(CoreRestart, TrainsOnNothingThatCouldNotBeRestored) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn), other = rig.make_model(kAnn, "s:train:1");
  rig.run(Rig::call(kAnn, m, 1, {1}));
  rig.run(Rig::step(kAnn, m, 2));
  std::filesystem::copy(dir / "data", dir / "killed", std::filesystem::copy_options::recursive);
  std::filesystem::copy(dir / "data", dir / "again", std::filesystem::copy_options::recursive);
  {
    Rig killed(dir / "killed", {.gap_wait = std::chrono::milliseconds(30)}, 1);
    EXPECT_TRUE(killed.run(Rig::call(kAnn, m, 3, {0})).starts_with("error: "));
    EXPECT_EQ(killed.weight(kAnn, other, 1), 100);
  }
  Rig again(dir / "again");
  EXPECT_EQ(again.weight(kAnn, m, 3), 51);
}

// The operations of `b` were accepted before the snapshot of `a` was numbered, and are carried out after a
// restart at which nothing else is accepted.
TEST(CoreRestart, NeverWritesASnapshotOverAnother) {
  const test::TempDir dir;
  const std::string a = "s:train:0", b = "s:train:1";
  std::string step;
  {
    Rig rig(dir / "data", {.gap_wait = std::chrono::seconds(10), .snapshot_operations = 1});
    rig.make_model(kAnn, a);
    rig.make_model(kAnn, b);
    rig.submit(Rig::call(kAnn, b, 2, {40}));  // it waits for number 1
    step = rig.submit(Rig::step(kAnn, b, 3));
    rig.submit(Rig::call(kAnn, a, 1, {1}));
    EXPECT_EQ(rig.run(Rig::step(kAnn, a, 2)), R"({"metrics":{"optimizer_step":1.0}})");
  }
  {
    Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(0), .snapshot_operations = 1});
    EXPECT_EQ(rig.result(step, kAnn), R"({"metrics":{"optimizer_step":1.0}})");
  }
  Rig rig(dir / "data");
  EXPECT_EQ(rig.weight(kAnn, a, 3), 51);
  EXPECT_EQ(rig.weight(kAnn, b, 4), 90);
}

// The disk takes its time; nobody waits for it.
TEST(CoreRestart, GoesOnWhileASnapshotIsWritten) {
  const test::TempDir dir;
  Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(5), .snapshot_operations = 1});
  const std::string m = rig.make_model(kAnn);
  std::promise<void> begun, answered;
  rig.seen().on_write = [&, first = true](const char* moment) mutable {
    if (std::string_view(moment) != "begin" || !std::exchange(first, false)) return;
    begun.set_value();
    EXPECT_EQ(answered.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  };
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  rig.run(Rig::step(kAnn, m, 2));
  begun.get_future().wait();
  rig.submit(Rig::call(kAnn, m, 3, {2}));
  EXPECT_EQ(rig.run(Rig::step(kAnn, m, 4)), R"({"metrics":{"optimizer_step":2.0}})");
  EXPECT_EQ(rig.core().counts().snapshots, 0);
  std::filesystem::copy(dir / "data", dir / "killed", std::filesystem::copy_options::recursive);
  answered.set_value();
  rig.reopen();
  EXPECT_GT(std::distance(std::filesystem::directory_iterator(dir / "data/snapshots"), {}), 0);
  EXPECT_EQ(rig.weight(kAnn, m, 5), 27.5);
  Rig killed(dir / "killed");  // what the snapshot did not cover is carried out again
  EXPECT_EQ(killed.weight(kAnn, m, 5), 27.5);
}

// A snapshot that the disk refused is tried again without another step, after a longer while each time.
TEST(CoreRestart, TriesASnapshotAgain) {
  const test::TempDir dir;
  std::vector<Clock::time_point> tries;  // the last one when the rig goes
  Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(5),
                         .snapshot_operations = 1,
                         .upkeep_wait = std::chrono::milliseconds(20)});
  const std::string m = rig.make_model(kAnn);
  rig.seen().on_write = [&](const char* moment) {
    if (moment == std::string("end")) return;
    tries.push_back(Clock::now());
    if (tries.size() <= 3) throw exhausted("the disk is full");
  };
  rig.submit(Rig::call(kAnn, m, 1, {1}));
  rig.run(Rig::step(kAnn, m, 2));
  for (int i = 0; i < 400 && rig.core().counts().snapshots == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.core().counts().snapshots, 1);
  ASSERT_EQ(tries.size(), 4u);
  for (size_t i = 1; i < tries.size(); ++i)
    EXPECT_GE(tries[i] - tries[i - 1], std::chrono::milliseconds(20 << i)) << i;
  EXPECT_EQ(rig.weight(kAnn, m, 3), 51);
}

// One snapshot is written in the time in which every model makes a step: each has its turn, and none of them
// has more to carry out again than the steps of one time round.
TEST(CoreRestart, SnapshotsGoRoundAmongTheModels) {
  const test::TempDir dir;
  std::atomic<int> may_write{0};
  Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(5), .snapshot_operations = 2});
  constexpr int64_t kModels = 6, kRounds = 24;
  std::vector<std::string> models;
  for (int64_t i = 0; i < kModels; ++i)
    models.push_back(rig.make_model(kAnn, "s:train:" + std::to_string(i)));
  rig.seen().on_write = [&](const char* moment) {
    if (std::string_view(moment) != "begin") return;
    while (may_write <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --may_write;
  };
  for (int64_t round = 0; round < kRounds; ++round) {
    std::vector<std::string> steps;
    for (const auto& m : models) rig.submit(Rig::call(kAnn, m, 2 * round + 1, {1}));
    for (const auto& m : models) steps.push_back(rig.submit(Rig::step(kAnn, m, 2 * round + 2)));
    for (const auto& step : steps) rig.result(step, kAnn);
    const int64_t written = rig.core().counts().snapshots;
    ++may_write;
    for (int i = 0; i < 2000 && rig.core().counts().snapshots == written; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  // Folders of old snapshots may go away meanwhile.
  const auto copied = [&] {
    std::error_code error;
    std::filesystem::remove_all(dir / "killed");
    std::filesystem::copy(dir / "data", dir / "killed", std::filesystem::copy_options::recursive, error);
    return !error;
  };
  while (!copied()) {
  }
  may_write = 1000;
  Rig killed(dir / "killed");
  for (const auto& m : models) killed.weight(kAnn, m, 2 * kRounds + 1);
  std::map<std::string, int64_t> steps;
  for (const auto& seen : killed.seen().train) steps[seen.substr(0, seen.rfind(':'))] += seen.ends_with(":s");
  for (const auto& m : models) EXPECT_LE(steps[m], kModels + 3) << m;
}

// A start that has much to carry out again keeps some of it early, so that a storm of kills gets somewhere.
TEST(CoreRestart, AStartKeepsWhatItHasDoneEarly) {
  const test::TempDir dir;
  constexpr int64_t kSteps = 12;
  Rig rig(dir / "data", {.gap_wait = std::chrono::milliseconds(5), .snapshot_operations = 1000});
  const std::string m = rig.make_model(kAnn);
  for (int64_t i = 0; i < kSteps; ++i) {
    rig.submit(Rig::call(kAnn, m, 2 * i + 1, {1}));
    rig.run(Rig::step(kAnn, m, 2 * i + 2));
  }
  std::filesystem::copy(dir / "data", dir / "killed", std::filesystem::copy_options::recursive);
  rig.reopen();
  std::atomic<size_t> done_before{0};
  const auto seen = std::make_shared<Rig::Seen>();
  seen->step_delay_ms = 50;
  seen->on_write = [&, first = true](const char*) mutable {
    if (!std::exchange(first, false)) return;
    const std::lock_guard lock(seen->mutex);
    done_before = seen->train.size();
  };
  Rig killed(dir / "killed",
             {.gap_wait = std::chrono::milliseconds(5), .snapshot_operations = 2 * kSteps - 4}, seen);
  killed.weight(kAnn, m, 2 * kSteps + 1);
  EXPECT_GT(done_before, 0u);
  EXPECT_LT(done_before, kSteps) << "operations until the first snapshot, of " << 2 * kSteps;
}

// Snapshots bound the replay, and the log is written anew before it grows without end.
TEST(CoreRestart, BoundsTheLog) {
  const test::TempDir dir;
  CoreOptions options{.snapshot_operations = 10, .log_bytes = 20000, .result_seconds = 0.5};
  Rig rig(dir / "data", options);
  const std::string m = rig.make_model(kAnn);
  double expected = 100;
  int64_t seq = 0;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 50; ++i) {
      rig.submit(Rig::call(kAnn, m, ++seq, {1}));
      rig.result(rig.submit(Rig::step(kAnn, m, ++seq)), kAnn);
      expected = expected * 0.5 + 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
  }
  for (int i = 0; i < 400 && rig.core().counts().log_bytes >= 60000; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(rig.core().counts().log_bytes, 60000);
  EXPECT_GT(rig.core().counts().snapshots, 20);
  rig.reopen();
  {
    const std::lock_guard lock(rig.seen().mutex);
    rig.seen().train.clear();
  }
  EXPECT_EQ(rig.weight(kAnn, m, ++seq), expected);
  const std::lock_guard lock(rig.seen().mutex);
  EXPECT_LT(rig.seen().train.size(), 20u);
}

// A checkpoint that was loaded and then replaced is not needed again by a replay.
TEST(CoreRestart, ReplaysALoadWhoseCheckpointIsGone) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::save(kAnn, m, 1, "x"));
  rig.submit(Rig::call(kAnn, m, 2, {1}));
  rig.run(Rig::step(kAnn, m, 3));
  rig.run(Rig::load(kAnn, m, 4, "tinker://s:train:0/weights/x"));
  rig.submit(Rig::call(kAnn, m, 5, {8}));
  rig.run(Rig::step(kAnn, m, 6));
  rig.run(Rig::save(kAnn, m, 7, "x", "weights", true));
  rig.reopen();
  EXPECT_EQ(rig.weight(kAnn, m, 8), 58);
}

// Whichever call of the disk is the first that fails while a checkpoint is put down, with all behind it: what
// its client is told of it, now or after a crash, is what the next start has.
TEST(CoreRestart, TellsOfASaveWhatTheNextStartHas) {
  const std::string path = "tinker://s:train:0/weights/x";
  int untold = 0, told = 0;
  for (int64_t from = 0; from < 16; ++from) {
    const test::TempDir dir;
    SimDisk disk(dir / "data");
    const CoreOptions options{.gap_wait = std::chrono::milliseconds(5)};
    std::string id;
    {
      Rig rig(dir / "data", options, 0, disk.disk());
      const std::string m = rig.make_model(kAnn);
      disk.follow({.from = from, .until = INT64_MAX, .one_in = 1, .parts = {SimDisk::kStore}, .syncs = true});
      id = rig.submit(Rig::save(kAnn, m, 1, "x"));
      for (int i = 0; i < 20 && rig.core().counts().waiting > 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ++(rig.core().counts().waiting > 0 ? untold : told);
      disk.stop();
    }
    disk.restart();
    disk.follow({});
    Rig rig(dir / "data", options, 0, disk.disk());
    EXPECT_EQ(rig.result(id, kAnn), R"({"path":"tinker://s:train:0/weights/x"})") << from;
    EXPECT_TRUE(rig.store().checkpoint(path, kAnn, 0).has_value()) << from;
  }
  EXPECT_GT(untold, 0);
  EXPECT_GT(told, 0);
}

// A doubt whether the disk has a checkpoint ends with the disk's trouble, in the same life, and its model
// goes on.
TEST(CoreRestart, TellsOfADoubtfulSaveOnceTheDiskAnswers) {
  int failures = 0;
  for (const int64_t long_so : {1, 8}) {
    for (int64_t from = 0; from < 10; ++from) {
      const test::TempDir dir;
      SimDisk disk(dir / "data");
      const CoreOptions options{.gap_wait = std::chrono::milliseconds(5),
                                .upkeep_wait = std::chrono::milliseconds(10)};
      std::string id, told;
      bool there = false;
      const auto has = [](Rig& rig) {
        return rig.store().checkpoint("tinker://s:train:0/weights/x", kAnn, 0).has_value();
      };
      {
        Rig rig(dir / "data", options, 0, disk.disk());
        const std::string m = rig.make_model(kAnn);
        disk.follow(
            {.from = from, .until = from + long_so, .one_in = 1, .parts = {SimDisk::kStore}, .syncs = true});
        id = rig.submit(Rig::save(kAnn, m, 1, "x"));
        const std::string next = rig.submit(Rig::call(kAnn, m, 2, {1}));
        told = rig.result(id, kAnn);
        there = has(rig);
        EXPECT_EQ(told.starts_with("error"), !there) << from << ": " << told;
        EXPECT_FALSE(rig.result(next, kAnn).starts_with("error")) << from;
        disk.stop();
      }
      disk.restart();
      disk.follow({});
      Rig rig(dir / "data", options, 0, disk.disk());
      EXPECT_EQ(rig.result(id, kAnn), told) << from;
      EXPECT_EQ(has(rig), there) << from;
      failures += there ? 0 : 1;
    }
  }
  EXPECT_GT(failures, 0);
}

// A start must not train again what its client unloaded, also when the disk was full just then.
TEST(CoreRestart, NotesThatAModelWasUnloadedOnceTheDiskTakesIt) {
  const test::TempDir dir;
  SimDisk disk(dir / "data");
  const CoreOptions options{.gap_wait = std::chrono::milliseconds(5)};
  const Operation unload{.kind = OpKind::kUnload, .owner = kAnn, .target = "s:train:0", .seq = -1};
  {
    Rig rig(dir / "data", options, 0, disk.disk());
    const std::string m = rig.make_model(kAnn);
    rig.seen().step_delay_ms = 200;  // all is accepted before it is full
    rig.submit(Rig::call(kAnn, m, 1, {1}));
    rig.submit(Rig::step(kAnn, m, 2));
    const std::string id = rig.submit(unload);
    disk.follow({.until = INT64_MAX, .one_in = 1, .parts = {SimDisk::kLog}, .full = true});
    for (int i = 0; i < 200 && !rig.core().disk_refuses(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(rig.core().disk_refuses());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the unloading is carried out meanwhile
    disk.follow({});
    EXPECT_FALSE(rig.result(id, kAnn).starts_with("error"));
    for (int i = 0; i < 200 && rig.core().counts().log_pending > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    disk.stop();
  }
  disk.restart();
  Rig rig(dir / "data", options, 0, disk.disk());
  EXPECT_EQ(rig.run(Rig::step(kAnn, "s:train:0", 3)), "error: [model] this model was unloaded");
  const std::lock_guard lock(rig.seen().mutex);
  EXPECT_TRUE(rig.seen().train.empty());
}

// So is one that was deleted; its folder goes when nobody needs it.
TEST(CoreRestart, DropsCheckpointsThatAreOver) {
  const test::TempDir dir;
  Rig rig(dir / "data");
  const std::string m = rig.make_model(kAnn);
  rig.run(Rig::save(kAnn, m, 1, "x"));
  rig.submit(Rig::call(kAnn, m, 2, {1}));
  rig.run(Rig::step(kAnn, m, 3));
  const std::string path = "tinker://s:train:0/weights/x";
  rig.run(Rig::load(kAnn, m, 4, path));
  const std::string folder = dir / ("data/" + rig.store().checkpoint(path, kAnn, 0)->folder);
  EXPECT_TRUE(is_directory(folder));
  EXPECT_FALSE(rig.store().set_expiry(path, kBob, rig.core().now(), rig.core().now()));
  EXPECT_TRUE(rig.store().set_expiry(path, kAnn, rig.core().now(), rig.core().now()));
  EXPECT_FALSE(rig.store().checkpoint(path, kAnn, rig.core().now()));
  for (int i = 0; i < 100 && is_directory(folder); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_directory(folder));
  rig.reopen();
  EXPECT_EQ(rig.weight(kAnn, m, 5), 100);
  EXPECT_EQ(rig.run(Rig::load(kAnn, m, 6, path)), "error: [load] there is no checkpoint '" + path + "'");
}

}  // namespace
}  // namespace twinkle::serve
