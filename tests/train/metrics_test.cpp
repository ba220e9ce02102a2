#include "twinkle/train/metrics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "twinkle/core/files.h"
#include "twinkle/train/progress.h"

namespace twinkle {
namespace {

TEST(Metrics, LossIsAMeanOverEverythingSinceTheLastReport) {
  MetricSet set;
  set.add(Registry<Metric>::create("LossMetric"));
  const LossInput in;
  const LossOutput a{.sum_B = {2.0, 3.0}, .denominator_B = {1, 2}}, b{.sum_B = {5.0}, .denominator_B = {1}};
  set.accumulate(PassRecord{.input = in, .output = a});
  set.accumulate(PassRecord{.input = in, .output = b});
  EXPECT_DOUBLE_EQ(set.calculate()["loss"].get<double>(), 2.5);
  set.accumulate(PassRecord{.input = in, .output = b});
  EXPECT_DOUBLE_EQ(set.calculate()["loss"].get<double>(), 5.0);
  set.accumulate(PassRecord{.input = in, .output = a, .divides = false});
  const Json sum = set.calculate();
  EXPECT_DOUBLE_EQ(sum["loss_sum"].get<double>(), 5.0);
  EXPECT_FALSE(sum.contains("loss"));
}

TEST(Metrics, ASkippedStepHasNoLoss) {
  MetricSet set;
  set.add(Registry<Metric>::create("LossMetric"));
  set.add(Registry<Metric>::create("Accuracy"));
  const LossInput in{.targets_S = at::tensor({5, 6}, at::kInt), .weights_S = at::tensor({1.0f, 1.0f})};
  const LossOutput part{.sum_B = {2.0}, .denominator_B = {2}};
  const PassRecord pass{.input = in, .output = part, .argmax_S = at::tensor({5, 5}, at::kInt)};
  set.accumulate(pass);  // a second pass never ran
  set.accumulate(StepRecord{.step = 0, .skipped = true});
  const Json skipped = set.calculate();
  EXPECT_EQ(skipped["loss"], nullptr);
  EXPECT_EQ(skipped["accuracy"], nullptr);
  EXPECT_EQ(skipped["total_tokens"], 0);
  // In a report over several steps the skipped one does not count.
  set.accumulate(StepRecord{.step = 0, .skipped = true});
  set.accumulate(pass);
  set.accumulate(StepRecord{.step = 1});
  EXPECT_DOUBLE_EQ(set.calculate()["loss"].get<double>(), 1.0);
  set.accumulate(pass);
  EXPECT_DOUBLE_EQ(set.calculate()["accuracy"].get<double>(), 0.5);
}

TEST(Metrics, AccuracyCountsTrainedTokensOnly) {
  MetricSet set;
  set.add(Registry<Metric>::create("Accuracy"));
  EXPECT_TRUE(set.needs_argmax());
  const LossInput in{.targets_S = at::tensor({5, 6, 7, 8}, at::kInt),
                     .weights_S = at::tensor({1.0f, 0.0f, 2.0f, 1.0f})};
  const LossOutput out;
  set.accumulate(PassRecord{.input = in, .output = out, .argmax_S = at::tensor({5, 6, 1, 8}, at::kInt)});
  const Json values = set.calculate();
  EXPECT_DOUBLE_EQ(values["accuracy"].get<double>(), 2.0 / 3.0);
  EXPECT_EQ(values["correct_tokens"], 2);
  EXPECT_EQ(values["total_tokens"], 3);
  EXPECT_EQ(set.calculate()["accuracy"], 0.0);
}

TEST(Metrics, TrainMetricReportsTheRateUsedAndTheNormBeforeClipping) {
  MetricSet set;
  set.add(Registry<Metric>::create("TrainMetric"));
  const LossInput in;
  const LossOutput out;
  set.accumulate(PassRecord{.input = in, .output = out, .num_tokens = 70});
  set.accumulate(StepRecord{.step = 3, .lr = 0.25, .grad_norm = 5.0});
  ::usleep(2000);
  Json values = set.calculate();
  EXPECT_EQ(values["iters"], 3);
  EXPECT_EQ(values["learning_rate"], 0.25);
  EXPECT_EQ(values["grad_norm"], 5.0);
  EXPECT_EQ(values["tokens_seen"], 70);
  EXPECT_EQ(values["skipped_steps"], 0);
  EXPECT_GT(values["tokens_per_second"].get<double>(), 0.0);
  EXPECT_LE(values["tokens_per_second"].get<double>(), 35000.0);
  set.accumulate(StepRecord{.step = 3, .lr = 0.25, .grad_norm = INFINITY, .skipped = true});
  values = set.calculate();
  EXPECT_TRUE(values["grad_norm"].is_null());
  EXPECT_EQ(values["skipped_steps"], 1);
  EXPECT_EQ(values["tokens_seen"], 70);
  EXPECT_EQ(values["tokens_per_second"], 0.0);
}

TEST(Metrics, CountsGoOnWhereARunWasResumed) {
  MetricSet set;
  set.add(Registry<Metric>::create("LossMetric"));
  set.add(Registry<Metric>::create("TrainMetric"));
  set.resume({.tokens_seen = 1000, .skipped_steps = 2});
  const LossInput in;
  const LossOutput out;
  set.accumulate(PassRecord{.input = in, .output = out, .num_tokens = 70});
  set.accumulate(StepRecord{.step = 3, .skipped = true});
  const Json values = set.calculate();
  EXPECT_EQ(values["tokens_seen"], 1070);
  EXPECT_EQ(values["skipped_steps"], 3);
}

TEST(Progress, ReportFileIsCutWhereARunIsResumed) {
  char path[] = "/tmp/twinkle-report-XXXXXX";
  ::close(::mkstemp(path));
  {
    JsonlWriter report(path, 0);
    for (int step = 1; step <= 3; ++step) report.write({{"step", step}, {"loss", 1.0 / step}});
  }
  EXPECT_EQ(
      read_file(path),
      "{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"loss\":0.3333333333333333}\n");
  // A line that closed the run before, and a torn one.
  write_file_atomic(path, read_file(path) + "{\"steps\":3}\n{\"step\":4,\"lo");
  JsonlWriter(path, 2).write({{"step", 3}, {"loss", 9}});
  EXPECT_EQ(read_file(path),
            "{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"loss\":9}\n");
  ::unlink(path);
}

TEST(Progress, TextAndPlainLines) {
  const Json metrics = {{"loss", 1.23456},
                        {"accuracy", 0.61},
                        {"learning_rate", 1e-4},
                        {"grad_norm", 0.8312},
                        {"tokens_per_second", 245.4}};
  EXPECT_EQ(progress_text(12, 200, metrics),
            "step 12/200  loss 1.2346  acc 61.0%  lr 1.00e-04  grad 0.831  245 tok/s");
  EXPECT_EQ(progress_text(3, 0, {{"loss", nullptr}}), "step 3");
  std::FILE* file = std::tmpfile();
  ProgressLine line(file);
  line.update(1, 0, metrics);
  line.note("saved");
  line.finish();
  std::rewind(file);
  char buffer[256] = {};
  const size_t size = std::fread(buffer, 1, sizeof buffer, file);
  std::fclose(file);
  EXPECT_EQ(std::string(buffer, size),
            "step 1  loss 1.2346  acc 61.0%  lr 1.00e-04  grad 0.831  245 tok/s\nsaved\n");
}

TEST(Progress, Chart) {
  const std::vector<double> falling = {3, 2, 1};
  EXPECT_EQ(line_chart(falling, {.width = 3, .height = 3, .title = "loss", .ascii = true}),
            "loss\n"
            "       3 |*  \n"
            "         | * \n"
            "       1 |  *\n"
            "         +---\n"
            "          1 3\n");
  EXPECT_EQ(line_chart(std::vector<double>{0, 1}, {.width = 1, .height = 1}),
            "       1 \u2502\u2878\n         \u2514\u2500\n          1 2\n");
  EXPECT_EQ(line_chart(std::vector<double>{NAN}, {}), "(nothing to draw)\n");
  EXPECT_EQ(line_chart({}, {}), "(nothing to draw)\n");
  std::vector<double> many(1000, 2.0);
  many[500] = NAN;
  EXPECT_NE(line_chart(many, {.width = 40, .height = 5}).find("1000"), std::string::npos);
}

}  // namespace
}  // namespace twinkle
