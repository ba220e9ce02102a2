// Lists of numbers come back bit for bit, and take as few bytes as promised.
#include "twinkle/serve/short_lists.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>

#include "tests/thrown.h"

namespace twinkle::serve {
namespace {

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> out;
  for (const float value : values) out.push_back(std::bit_cast<uint32_t>(value));
  return out;
}

TEST(ShortLists, WholeNumbersComeBackInAsFewBytesAsTheLargestNeeds) {
  constexpr int32_t most = std::numeric_limits<int32_t>::max(), least = std::numeric_limits<int32_t>::min();
  const std::vector<std::pair<int32_t, size_t>> width_of = {
      {0, 1},       {255, 1},  {256, 2}, {65535, 2}, {65536, 3}, {(1 << 24) - 1, 3},
      {1 << 24, 4}, {most, 4}, {-1, 4},  {least, 4}};
  for (const auto& [value, width] : width_of) {
    const std::vector<int32_t> values = {1, value, 0, 7};
    const std::string bytes = shorten(values);
    EXPECT_EQ(bytes.size(), 1 + 4 * width) << value;
    EXPECT_EQ(ints_from_short(bytes, "x"), values) << value;
  }
  EXPECT_TRUE(ints_from_short(shorten(std::vector<int32_t>{}), "x").empty());
}

TEST(ShortLists, FractionsComeBackBitForBit) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  std::mt19937 random(1);
  std::vector<std::vector<float>> lists = {{},
                                           {1},
                                           {0.0f, -0.0f, -0.0f},
                                           {nan, -nan, inf, -inf},
                                           std::vector<float>(255, 1),
                                           std::vector<float>(256, 1),
                                           std::vector<float>(257, 1),
                                           std::vector<float>(1000, nan)};
  for (size_t i = 0; i < 200; ++i) {
    std::vector<float> list;
    while (list.size() < 300)
      list.resize(list.size() + 1 + random() % (1 + i), static_cast<float>(random()) / 7);
    lists.push_back(std::move(list));
  }
  for (const auto& list : lists) {
    const std::string bytes = shorten(list);
    EXPECT_EQ(bits_of(floats_from_short(bytes, "x")), bits_of(list));
    EXPECT_LE(bytes.size(), 1 + 4 * list.size() + (list.size() == 1 ? 1 : 0));
  }
}

TEST(ShortLists, WeightsThatRepeatTakeNextToNothing) {
  std::vector<float> weights(100, 0);
  weights.resize(500, 1);
  EXPECT_EQ(shorten(weights).size(), 16u);  // 100 of one, 256 and 144 of the other
}

TEST(ShortLists, TellsDamage) {
  const auto ints = [](std::string_view bytes) {
    return test::thrown([&] { ints_from_short(bytes, "x"); }, ErrorKind::kInvalidArgument);
  };
  const auto floats = [](std::string_view bytes) {
    return test::thrown([&] { floats_from_short(bytes, "x"); }, ErrorKind::kInvalidArgument);
  };
  for (const std::string_view bytes :
       {std::string_view(), std::string_view("\5abcde"), std::string_view("\0a", 2)})
    EXPECT_EQ(ints(bytes), "x: a list of whole numbers of another kind");
  EXPECT_EQ(ints("\3abcd"), "x: 4 bytes are not a whole number of values of 3 bytes");
  for (const std::string_view bytes :
       {std::string_view(), std::string_view("\2abcd"), std::string_view("\1abc")})
    EXPECT_EQ(floats(bytes), "x: a list of fractions of another kind");
  EXPECT_EQ(floats(std::string_view("\0abcde", 6)), "x: 5 bytes are not a whole number of values of 4 bytes");
}

}  // namespace
}  // namespace twinkle::serve
