// labels: quick bits tenants
// The pool of adapters: limits, least recently used ones written and read back bit for bit, snapshots that
// keep their weights, and nothing left behind by removal or failure.
#include "twinkle/lora/adapter_pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/lora/lora_testing.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

using test::thrown;
using test::tiny_model;

LoraConfig config_of(int64_t r, std::vector<std::string> targets = {"q_proj", "v_proj"}, uint64_t seed = 1) {
  LoraConfig config;
  config.r = r;
  config.target_modules = std::move(targets);
  config.seed = seed;
  return config;
}

class Pool : public ::testing::Test {
 protected:
  AdapterPool make(int64_t max_loras, AdapterPoolOptions options = {}) {
    options.max_loras = max_loras;
    options.spill_dir = folder_;
    return AdapterPool(*model_, options);
  }
  int64_t num_files() const {
    int64_t count = 0;
    for (const auto& found : fs::recursive_directory_iterator(folder_)) count += found.is_regular_file();
    return count;
  }

  std::unique_ptr<CausalLM> model_ = tiny_model();
  const test::TempDir temp_;
  const std::string folder_ = temp_.path();
};

TEST_F(Pool, PaysForTheRankOfEachAdapter) {
  AdapterPool pool = make(4, {.max_r = 64});
  // q_proj 16 -> 16, v_proj 16 -> 8, two layers: r (32 + 24) * 2 floats.
  pool.create("small", config_of(8));
  EXPECT_EQ(pool.resident_bytes(), 8 * (32 + 24) * 2 * 4);
  pool.create("large", config_of(64));
  EXPECT_EQ(pool.resident_bytes(), (8 + 64) * (32 + 24) * 2 * 4);
  pool.remove("small");
  EXPECT_EQ(pool.resident_bytes(), 64 * (32 + 24) * 2 * 4);
}

TEST_F(Pool, MakingAndRemovingMovesNoOther) {
  AdapterPool pool = make(8);
  const auto kept = pool.create("kept", config_of(4));
  const void* values = kept->values().const_data_ptr();
  const at::Tensor before = kept->values().clone();
  for (int i = 0; i < 20; ++i) {
    pool.create("other", config_of(1 + i));
    pool.remove("other");
  }
  EXPECT_EQ(kept->values().const_data_ptr(), values);
  EXPECT_TRUE(kept->values().equal(before));
  EXPECT_EQ(pool.num_resident(), 1);
}

TEST_F(Pool, WritesTheLeastRecentlyUsedAndReadsTheSameBits) {
  AdapterPool pool = make(2);
  std::vector<at::Tensor> values, gradients, moments;
  std::vector<std::vector<at::Tensor>> states(5);
  for (int i = 0; i < 5; ++i) {
    const std::string name = "a" + std::to_string(i);
    const auto adapter = pool.create(name, config_of(1 + i, {"q_proj"}, static_cast<uint64_t>(i)));
    adapter->make_trainable();
    at::Tensor flat = adapter->gradients();
    flat.normal_();
    auto& state = states[static_cast<size_t>(i)];
    state = {at::randn({adapter->flat_elements()}), at::Tensor()};
    pool.set_state(name, {.get = [&state] { return state; },
                          .set = [&state](std::vector<at::Tensor> given) { state = std::move(given); }});
    values.push_back(adapter->values().clone());
    gradients.push_back(flat.clone());
    moments.push_back(state[0].clone());
  }
  EXPECT_EQ(pool.num_resident(), 2);
  EXPECT_EQ(num_files(), 3);
  EXPECT_GT(pool.written_bytes(), 0);
  for (const int i : {0, 3, 1, 4, 2, 0}) {
    const std::string name = "a" + std::to_string(i);
    pool.use(name);
    const auto& state = states[static_cast<size_t>(i)];
    const auto snapshot = pool.snapshot(name);
    ASSERT_EQ(state.size(), 2U);
    EXPECT_TRUE(state[0].equal(moments[static_cast<size_t>(i)])) << i;
    EXPECT_FALSE(state[1].defined());
    EXPECT_TRUE(snapshot->modules[0].slot.a_rK.flatten().equal(
        values[static_cast<size_t>(i)].narrow(0, 0, (1 + i) * 16)));
    EXPECT_EQ(pool.num_resident(), 2);
  }
  // a0 and a2 are there now; a3 was used before a4 and is out as well.
  EXPECT_FALSE(states[3][0].defined());
  for (int i = 0; i < 5; ++i) pool.remove("a" + std::to_string(i));
  EXPECT_EQ(num_files(), 0);
  EXPECT_EQ(pool.resident_bytes() + pool.written_bytes(), 0);
  EXPECT_EQ(pool.num_resident(), 0);
}

TEST_F(Pool, BringsSeveralInTogetherOrSaysWhyNot) {
  AdapterPool pool = make(2);
  for (const char* name : {"a", "b", "c"}) pool.create(name, config_of(2));
  const std::vector<std::string> both = {"a", "c"};
  pool.use(both);
  EXPECT_EQ(pool.num_resident(), 2);
  const std::vector<std::string> all = {"a", "b", "c"};
  EXPECT_HAS(thrown([&] { pool.use(all); }, ErrorKind::kExhausted), "3 adapters are needed together, 2 fit");
}

TEST_F(Pool, RefusesWhatIsNotAllowedAndKeepsNothing) {
  AdapterPool pool = make(3, {.max_r = 8, .target_modules = {"q_proj", "up_proj", "lm_head"}, .mlp = false});
  pool.create("a", config_of(8, {"q_proj"}));
  const int64_t bytes = pool.resident_bytes();
  EXPECT_HAS(thrown([&] { pool.create("a", config_of(2)); }, ErrorKind::kConflict), "'a' already");
  EXPECT_HAS(thrown([&] { pool.create("", config_of(2)); }), "needs a name");
  EXPECT_HAS(thrown([&] { pool.create("b", config_of(9, {"q_proj"})); }), "r is 9, at most 8");
  EXPECT_HAS(thrown([&] { pool.create("b", config_of(0, {"q_proj"})); }), "r");
  EXPECT_HAS(thrown([&] { pool.create("b", config_of(2, {"v_proj"})); }),
             "'model.layers.0.self_attn.v_proj' is not among the modules allowed here: q_proj, up_proj");
  EXPECT_HAS(thrown([&] { pool.create("b", config_of(2, {"up_proj"})); }), "is part of the MLP");
  EXPECT_HAS(thrown([&] { pool.create("b", config_of(2, {"nothing"})); }), "nothing");
  LoraConfig dropped = config_of(2, {"lm_head"});
  dropped.lora_dropout = 0.1;
  EXPECT_HAS(thrown([&] { pool.create("b", dropped); }), "lora_dropout");
  LoraConfig pattern = config_of(2, {"q_proj"});
  pattern.rank_pattern = {{"q_proj", 16}};
  EXPECT_HAS(thrown([&] { pool.create("b", pattern); }), "is 16, at most 8");
  EXPECT_HAS(thrown([&] { pool.load("b", folder_); }, ErrorKind::kNotFound), "adapter_config.json");
  EXPECT_FALSE(pool.contains("b"));
  EXPECT_EQ(pool.resident_bytes(), bytes);
  EXPECT_EQ(pool.num_resident(), 1);
  EXPECT_EQ(num_files(), 0);
  EXPECT_HAS(thrown([&] { pool.remove("b"); }, ErrorKind::kNotFound), "no adapter 'b'");
  pool.create("b", config_of(2, {"lm_head"}));
}

TEST_F(Pool, AdapterThatCanNotBeWrittenStays) {
  AdapterPool pool = make(1);
  const auto first = pool.create("first", config_of(2));
  const at::Tensor before = first->values().clone();
  fs::remove_all(folder_);
  std::ofstream(folder_) << "a file where the folder should be";
  EXPECT_NE(thrown([&] { pool.create("second", config_of(2)); }, ErrorKind::kUnavailable), "");
  EXPECT_FALSE(pool.contains("second"));
  EXPECT_TRUE(first->values().equal(before));
  EXPECT_EQ(pool.num_resident(), 1);
}

TEST_F(Pool, WrittenAdapterThatIsDamagedIsAnErrorOfItsOwn) {
  AdapterPool pool = make(1);
  pool.create("a", config_of(2));
  pool.create("b", config_of(2));
  for (const auto& found : fs::recursive_directory_iterator(folder_)) {
    if (found.is_regular_file()) fs::resize_file(found.path(), fs::file_size(found.path()) - 4);
  }
  pool.use("b");
  const std::string message = thrown([&] { pool.use("a"); }, ErrorKind::kUnavailable);
  EXPECT_HAS(message, "adapter 'a' was written to");
  pool.remove("a");
  pool.use("b");
  EXPECT_EQ(num_files(), 0);
}

TEST_F(Pool, ABitThatTurnedInAFileIsFound) {
  AdapterPool pool = make(1);
  pool.create("one", config_of(4));
  pool.create("two", config_of(4));
  std::string path;
  for (const auto& found : fs::recursive_directory_iterator(folder_)) {
    if (found.is_regular_file()) path = found.path().string();
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-40, std::ios::end);
  const auto turned = static_cast<char>(file.get() ^ 0x10);
  file.seekp(-40, std::ios::end);
  file.put(turned);
  file.close();
  EXPECT_NE(thrown([&] { pool.use("one"); }, ErrorKind::kUnavailable)
                .find("the checksum of 'values' differs; the file is damaged"),
            std::string::npos);
}

TEST_F(Pool, SnapshotKeepsItsWeightsWhileTrainingGoesOn) {
  AdapterPool pool = make(2);
  const auto adapter = pool.create("a", config_of(2));
  const auto first = pool.snapshot("a");
  EXPECT_EQ(pool.snapshot("a"), first);
  EXPECT_EQ(pool.snapshot_of(first->version), first);
  EXPECT_EQ(first->name, "a");
  EXPECT_EQ(first->config.r, 2);
  // Shared while nothing changes.
  EXPECT_EQ(first->modules[0].slot.a_rK.const_data_ptr(), adapter->modules()[0].slot.a_rK.const_data_ptr());
  const at::Tensor before = adapter->values().clone();
  pool.before_update("a");
  at::Tensor changed = adapter->values();
  EXPECT_TRUE(changed.equal(before));
  changed.add_(1.0f);
  EXPECT_TRUE(first->modules[0].slot.a_rK.flatten().equal(before.narrow(0, 0, 32)));
  const auto second = pool.snapshot("a");
  EXPECT_GT(second->version, first->version);
  EXPECT_FALSE(second->modules[0].slot.a_rK.equal(first->modules[0].slot.a_rK));
  // Nobody holds it: the next step changes the weights in place.
  const int64_t version = second->version;
  const void* place = adapter->values().const_data_ptr();
  pool.remove("a");
  EXPECT_EQ(pool.snapshot_of(version), second);
  EXPECT_EQ(place, adapter->values().const_data_ptr());
}

TEST_F(Pool, VersionThatNobodyHoldsIsGone) {
  AdapterPool pool = make(2);
  const auto adapter = pool.create("a", config_of(2));
  const int64_t version = pool.snapshot("a")->version;
  EXPECT_HAS(thrown([&] { pool.snapshot_of(version); }, ErrorKind::kNotFound), "is gone");
  // The weights are the same still, and so is their version.
  EXPECT_EQ(pool.snapshot("a")->version, version);
  const void* place = adapter->values().const_data_ptr();
  pool.before_update("a");
  EXPECT_EQ(place, adapter->values().const_data_ptr());
  EXPECT_GT(pool.snapshot("a")->version, version);
  EXPECT_HAS(thrown([&] { pool.snapshot_of(12345); }, ErrorKind::kNotFound), "12345");
}

TEST_F(Pool, OtherThreadsReadSnapshotsWhileWeightsChange) {
  AdapterPool pool = make(1);
  const auto adapter = pool.create("a", config_of(4));
  pool.create("b", config_of(4));
  std::atomic<int64_t> version = pool.snapshot("a")->version;
  std::shared_ptr<const AdapterSnapshot> held = pool.snapshot("a");
  std::atomic<bool> stop = false;
  std::atomic<int64_t> reads = 0;
  std::thread reader([&] {
    while (!stop) {
      try {
        const auto snapshot = pool.snapshot_of(version);
        // Every element of a version has the same value.
        const float* b = snapshot->modules[0].slot.b_Nr.const_data_ptr<float>();
        for (int64_t i = 1; i < snapshot->modules[0].slot.b_Nr.numel(); ++i) ASSERT_EQ(b[i], b[0]);
        ++reads;
      } catch (const Error& e) {
        ASSERT_EQ(e.kind(), ErrorKind::kNotFound);
      }
    }
  });
  for (int step = 0; step < 200 || reads < 10; ++step) {
    pool.use("a");
    pool.before_update("a");
    adapter->modules()[0].slot.b_Nr.fill_(static_cast<float>(step));
    held = pool.snapshot("a");
    version = held->version;
    if (step % 20 == 0) pool.use("b");  // a leaves; its snapshot stays
  }
  stop = true;
  reader.join();
}

TEST_F(Pool, FoldersOfProcessesThatDiedAreRemoved) {
  const std::string dead = folder_ + "/twinkle-adapters-abcdef", alive = folder_ + "/twinkle-adapters-ghijkl";
  fs::create_directory(dead);
  fs::create_directory(alive);
  const FolderLock other(alive);
  {
    AdapterPool pool = make(1);
    pool.create("a", config_of(2));
    pool.create("b", config_of(2));
    EXPECT_FALSE(fs::exists(dead));
    EXPECT_TRUE(fs::exists(alive));
    EXPECT_EQ(num_files(), 1);
  }
  fs::remove(alive);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Pool, StateKeepsItsShapeAndType) {
  AdapterPool pool = make(1);
  pool.create("a", config_of(2));
  std::vector<at::Tensor> state = {at::randn({3, 5}).to(at::kBFloat16), at::arange(4)};
  const std::vector<at::Tensor> before = state;
  pool.set_state("a", {.get = [&] { return state; },
                       .set = [&](std::vector<at::Tensor> given) { state = std::move(given); }});
  pool.create("b", config_of(2));
  EXPECT_FALSE(state[0].defined());
  pool.use("a");
  for (const size_t i : {0U, 1U}) {
    EXPECT_EQ(state[i].scalar_type(), before[i].scalar_type());
    EXPECT_TRUE(state[i].equal(before[i]));
  }
}

TEST_F(Pool, UpdateOfOneThatIsWrittenOutLeavesItsSnapshot) {
  AdapterPool pool = make(1);
  pool.create("a", config_of(2));
  const auto held = pool.snapshot("a");
  const at::Tensor weights = held->modules[0].slot.a_rK.clone();
  pool.create("b", config_of(2));
  pool.before_update("a");
  EXPECT_TRUE(held->modules[0].slot.a_rK.equal(weights));
  EXPECT_GT(pool.snapshot("a")->version, held->version);
}

TEST(PoolParts, NamesOfTheModelsParts) {
  EXPECT_EQ(modules_of_parts(false, true, true),
            (std::vector<std::string>{"gate_proj", "up_proj", "down_proj", "lm_head"}));
}

}  // namespace
}  // namespace twinkle
