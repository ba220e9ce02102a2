#include "twinkle/core/registry.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

const std::vector<ParamSpec> kSpecs = {
    {.name = "epsilon", .type = ParamType::kFloat, .default_value = 0.2, .min = 0.0, .exclusive_min = true},
    {.name = "steps", .type = ParamType::kInt, .default_value = 3, .min = 1.0},
    {.name = "reduction", .type = ParamType::kString, .default_value = "sum", .choices = {"sum", "mean"}}};

std::string message_of(const Json& given) {
  return test::thrown([&] { check_options(kSpecs, given, "GRPOLoss"); });
}

TEST(Registry, FillsDefaultsAndConvertsIntegralNumbers) {
  const Options options = check_options(kSpecs, Json{{"epsilon", 1}, {"steps", 4.0}}, "GRPOLoss");
  EXPECT_EQ(options.get_float("epsilon"), 1.0);
  EXPECT_EQ(options.get_int("steps"), 4);
  EXPECT_EQ(options.get_string("reduction"), "sum");
}

TEST(Registry, RefusesWithTheNameAndTheReason) {
  EXPECT_EQ(message_of(Json{{"epsilom", 1}}),
            "[GRPOLoss] unknown option 'epsilom' (did you mean 'epsilon'?)");
  EXPECT_EQ(message_of(Json{{"epsilon", 0}}), "[GRPOLoss] 'epsilon': must be > 0, got 0");
  EXPECT_EQ(message_of(Json{{"steps", 1.5}}), "[GRPOLoss] 'steps': expected a whole number, got number 1.5");
  EXPECT_EQ(message_of(Json{{"steps", 0}}), "[GRPOLoss] 'steps': must be >= 1, got 0");
  EXPECT_EQ(message_of(Json{{"reduction", "max"}}),
            "[GRPOLoss] 'reduction': must be one of sum, mean, got 'max'");
  EXPECT_EQ(message_of(Json::array()), "[GRPOLoss] expected an object of options, got list");
}

}  // namespace
}  // namespace twinkle
