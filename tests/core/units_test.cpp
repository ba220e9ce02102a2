#include "twinkle/core/units.h"

#include <gtest/gtest.h>

namespace twinkle {
namespace {

TEST(Units, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(1536 << 10), "1.5 MiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 30), "3.00 GiB");
}

}  // namespace
}  // namespace twinkle
