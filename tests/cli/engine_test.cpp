// `twinkle` becomes twinkle-engine for commands that need tensors, and the engine knows every component.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "tests/cli/run_program.h"
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

}  // namespace
}  // namespace twinkle
