// The access log, the counts by route, and the text of metrics.
#include "twinkle/serve/access_log.h"

#include <gtest/gtest.h>

#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json.h"
#include "twinkle/serve/http_counts.h"
#include "twinkle/serve/metrics_text.h"

namespace twinkle::serve {
namespace {

HttpDone done() {
  return {.method = "GET",
          .target = "/api/v1/training_runs/secret?token=secret",
          .who = "key-1",
          .status = 200,
          .bytes_in = 3,
          .bytes_out = 5,
          .seconds = 0.0125};
}

TEST(AccessLog, SaysWhatWasAskedAndNothingOfItsContent) {
  const test::TempDir dir;
  {
    AccessLog log(dir / "access.jsonl");
    log.write(done(), "training_runs/*", 1764510639.1234);
    log.write({.status = 400}, "", 0);
  }
  EXPECT_EQ(read_file(dir / "access.jsonl"),
            R"({"time":"2025-11-30T13:50:39.123Z","method":"GET","route":"training_runs/*","status":200,)"
            R"("key":"key-1","bytes_in":3,"bytes_out":5,"ms":12.5})"
            "\n"
            R"({"time":"1970-01-01T00:00:00.000Z","method":null,"route":null,"status":400,"key":null,)"
            R"("bytes_in":0,"bytes_out":0,"ms":0.0})"
            "\n");
}

TEST(AccessLog, BeginsAnewWhenItIsLarge) {
  const test::TempDir dir;
  for (int i = 0; i < 3; ++i) {
    AccessLog log(dir / "a", 100);
    log.write(done(), "r", 0);
  }
  EXPECT_EQ(read_file(dir / "a").find('\n'), read_file(dir / "a").size() - 1);  // one line
  EXPECT_TRUE(file_exists(dir / "a.1"));
  EXPECT_HAS(test::thrown([&] { AccessLog(dir / "no/folder"); }, ErrorKind::kUnavailable), "no/folder");
}

TEST(HttpCounts, ByRouteAndTime) {
  HttpCounts counts;
  counts.note("GET", "samplers/*", 200, 0.005);
  counts.note("GET", "samplers/*", 200, 20);
  counts.note("BREW", "coffee", 405, 0);
  counts.note("POST", "", 404, 100);
  const auto view = counts.view();
  EXPECT_EQ(view.requests.at({"GET", "samplers/*", 200}), 2);
  EXPECT_EQ(view.requests.at({"other", "other", 405}), 1);
  EXPECT_EQ(view.requests.at({"other", "other", 404}), 1);
  const auto& times = view.times.at("samplers/*");
  EXPECT_EQ(times.count, 2);
  EXPECT_DOUBLE_EQ(times.sum, 20.005);
  EXPECT_EQ(times.within, (std::array<int64_t, 6>{0, 1, 1, 1, 1, 2}));
}

// As the format is described: https://prometheus.io/docs/instrumenting/exposition_formats/
TEST(MetricsText, IsPrometheusText) {
  MetricsText out;
  out.family("a_total", "counter", "Help with \\ and\nline.")
      .sample(3, {{"x", "a\"b\\c\nd"}, {"y", ""}})
      .sample(0.25);
  out.family("h", "histogram", "H.").sample(1e18, {{"le", "+Inf"}}, "_bucket");
  EXPECT_EQ(out.text(),
            "# HELP a_total Help with \\\\ and\\nline.\n# TYPE a_total counter\n"
            "a_total{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 3\na_total 0.25\n"
            "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1e+18\n");
}

}  // namespace
}  // namespace twinkle::serve
