// `twinkle` becomes twinkle-engine for commands that need tensors, and the engine knows every component.
#include <gtest/gtest.h>

#include <set>

#include "tests/cli/run_program.h"
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

TEST(Engine, MistakesHaveTheSameFace) {
  const test::Ran ran = test::run_program("twinkle", {"list", "optimiser"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "error: [list] no kind 'optimiser' (did you mean 'optimizer'?)\n");
}

}  // namespace
}  // namespace twinkle
