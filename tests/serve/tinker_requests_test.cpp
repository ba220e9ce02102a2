// What requests have beside their bodies: times and queries.
#include "twinkle/serve/tinker_requests.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"

namespace twinkle::serve::tinker {
namespace {

TEST(TinkerRequests, ReadTimes) {
  // From `date -u -d ... +%s`.
  EXPECT_EQ(seconds_of("2026-01-31"), 1769817600);
  EXPECT_EQ(seconds_of("2026-01-31T23:59:59Z"), 1769903999);
  EXPECT_EQ(seconds_of("2026-01-31 23:59:59.25+01:30"), 1769898599.25);
  EXPECT_EQ(iso_time(1769903999), "2026-01-31T23:59:59Z");
  for (const std::string text :
       {"", "2026", "2026-01-31T", "2026-01-31T00:00:00ZZ", "2026-01-31T00:00+", "now"})
    EXPECT_HAS(test::thrown([&] { seconds_of(text); }), "is not a time as 2026-01-31T00:00:00Z") << text;
  const std::string cut("2026-01-31\0Z", 12);
  EXPECT_EQ(test::thrown([&] { seconds_of(cut); }), "'2026-01-31' is not a time as 2026-01-31T00:00:00Z");
}

TEST(TinkerRequests, ReadQueries) {
  EXPECT_EQ(query_text("/a?xy=1&x=%41+b%&x=2", "x"), "A b%");
  EXPECT_EQ(query_text("/a?x=", "x"), "");
  EXPECT_FALSE(query_text("/a?x", "x"));
  EXPECT_FALSE(query_text("/x=1", "x"));
  EXPECT_EQ(query_number("/a?n=12", "n", 5, 12), 12);
  EXPECT_EQ(query_number("/a", "n", 5, 12), 5);
  for (const char* target : {"/a?n=13", "/a?n=-1", "/a?n=", "/a?n=1x", "/a?n=99999999999999999999"})
    EXPECT_EQ(test::thrown([&] { query_number(target, "n", 5, 12); }),
              "'n' must be a whole number from 0 to 12");
}

}  // namespace
}  // namespace twinkle::serve::tinker
