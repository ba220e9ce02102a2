// `twinkle` becomes twinkle-engine for commands that need tensors, and the engine knows every component.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "tests/cli/run_program.h"
#include "tests/tiny_model.h"
#include "twinkle/cli/command.h"
#include "twinkle/core/json.h"

namespace twinkle {
namespace {

TEST(Engine, ListsComponentsOfEveryRoom) {
  const test::Ran ran = test::run_program("twinkle", {"list", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::set<std::string> names;
  for (const auto& component : Json::parse(ran.out))
    names.insert(component.at("kind").get<std::string>() + "/" + component.at("name").get<std::string>());
  for (const char* want : {"preprocessor/SelfCognitionProcessor", "loss/CrossEntropyLoss", "optimizer/AdamW"})
    EXPECT_TRUE(names.contains(want)) << want;
}

TEST(Engine, EveryCommandIsRunByOneOfTheTwo) {
  std::set<std::string> run, declared;
  for (const char* program : {"twinkle", "twinkle-engine"}) {
    std::istringstream names(test::run_program(program, {"--commands"}).out);
    for (std::string name; std::getline(names, name);) run.insert(name);
  }
  for (const auto* spec : cli::commands()) declared.insert(spec->name);
  EXPECT_EQ(run, declared);
}

TEST(Engine, MistakesHaveTheSameFace) {
  const test::Ran ran = test::run_program("twinkle", {"list", "optimiser"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "error: [list] no kind 'optimiser' (did you mean 'optimizer'?)\n");
}

TEST(Engine, DoctorMeasuresThisMachine) {
  const test::Ran ran =
      test::run_program("twinkle", {"doctor", "--json", "--threads", "1", "--isa", "plain"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json got = Json::parse(ran.out);
  EXPECT_EQ(got.at("isa"), "plain");
  EXPECT_EQ(got.at("isas")[0], "plain");
  EXPECT_EQ(got.at("threads"), 1);
  EXPECT_EQ(got.at("torch"), "2.11.0");
  for (const char* rate : {"fma_gflops", "product_gflops", "copy_gbs"})
    EXPECT_GT(got.at(rate).get<double>(), 0.1) << rate;
  EXPECT_GT(got.at("memory_bytes").get<int64_t>(), got.at("available_memory_bytes").get<int64_t>());
}

TEST(Engine, BenchMeasuresManyTenants) {
  const test::TempDir temp;
  const std::string& dir = temp.path();
  test::write_tiny_model(dir);
  const test::Ran ran =
      test::run_program("twinkle", {"bench", "tenants", "--model-id", dir, "--init", "random", "--tenants",
                                    "3", "--tokens-each", "4,9", "--ranks", "2,5", "--rounds", "1",
                                    "--memory-tenants", "2", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json got = Json::parse(ran.out);
  EXPECT_EQ(got.at("tenants"), 3);
  EXPECT_EQ(got.at("ranks"), Json({2, 5, 2}));
  ASSERT_EQ(got.at("sizes").size(), 2U);
  EXPECT_EQ(got.at("sizes")[1].at("tokens_each"), 9);
  for (const char* way : {"together", "one_tenant", "one_after_another"})
    EXPECT_GT(got.at("sizes")[0].at(way).at("step_tokens_per_s").get<double>(), 0.0) << way;
  EXPECT_EQ(got.at("memory").at("tenants"), 2);
  // Rank 16 on the seven linears of two layers, with weights and two moments; gradients are freed.
  EXPECT_EQ(got.at("memory").at("bytes_of_an_adapter"), 16 * 2 * (64 + 48 + 48 + 64 + 80 + 80 + 80) * 4 * 3);
}

}  // namespace
}  // namespace twinkle
