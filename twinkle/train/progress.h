// What a person and a program see of a running job: one JSON line a report, a live line on a terminal, a
// chart of the loss. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "twinkle/core/json.h"

namespace twinkle {

/// Appends objects to a file, one a line, each flushed to the system at once.
class JsonlWriter {
 public:
  /// Opens for appending. Lines whose "step" is above `keep_up_to_step` are dropped first (a run resumed from
  /// there would repeat them), and so are lines without a step (they closed a run that goes on now) and a
  /// torn last line. 0 begins anew.
  JsonlWriter(const std::string& path, int64_t keep_up_to_step);
  ~JsonlWriter();
  JsonlWriter(const JsonlWriter&) = delete;
  JsonlWriter& operator=(const JsonlWriter&) = delete;
  void write(const Json& line);

 private:
  std::string path_;
  std::FILE* file_ = nullptr;
};

/// "step 12/200  loss 1.2345  acc 61.0%  lr 1.00e-04  grad 0.831  245 tok/s": what of it is there.
std::string progress_text(int64_t step, int64_t total_steps, const Json& metrics);

/// The line of a running job: rewritten in place on a terminal, plain lines elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(std::FILE* out);
  /// Shows the report; `total_steps` 0: unknown.
  void update(int64_t step, int64_t total_steps, const Json& metrics);
  /// A line that stays (a warning, a saved checkpoint).
  void note(const std::string& line);
  /// Ends the live line.
  void finish();

 private:
  std::FILE* out_;
  bool live_ = false, open_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t first_step_ = -1;
};

struct ChartOptions {
  int64_t width = 60, height = 10;  // of the plot, in characters
  std::string title;                // above the plot
  bool ascii = false;               // '*' instead of Unicode braille
};

/// A line chart of `values` over their index, with the range of both axes; values that are not finite are
/// left out. Returns lines ending in '\n', or one that says there is nothing to draw.
std::string line_chart(std::span<const double> values, const ChartOptions& options = {});

}  // namespace twinkle
