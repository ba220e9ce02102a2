// A whole training run from its options: data, model, loop, reports, checkpoints, manifest. `sft`, `pt` and
// `replay` are this with other options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "twinkle/core/args.h"
#include "twinkle/core/json.h"
#include "twinkle/train/manifest.h"

namespace twinkle::cli {

struct TrainingRunOptions {
  std::string command = "sft";         // "sft" | "pt"
  bool quiet = false;                  // no progress (replay)
  bool checkpoints = true;             // false: only the digest and the metrics are written (replay)
  std::optional<int64_t> stop_after;   // end after this many steps of the run (replay)
  std::optional<RunManifest> repeats;  // conflict when rows or samples are not those of it (replay)
};

struct TrainingRunResult {
  int64_t steps = 0;  // optimizer steps taken by the whole run
  int64_t skipped_steps = 0;
  bool interrupted = false;    // Ctrl-C: the last checkpoint is whole
  std::vector<double> losses;  // by step of this process
  std::optional<double> last_loss, last_eval_loss;
  std::string checkpoint;  // the last one, "" when none
  std::string weights_sha256;
  int64_t tokens = 0;  // trained on by this process
  double seconds = 0, train_seconds = 0;
  double tokens_per_s = 0;
  double peak_rss_mb = 0;
  Json to_json() const;
};

/// Runs to the end (or Ctrl-C). Errors come before anything is written where the input is at fault.
TrainingRunResult run_training(const ParsedArgs& args, const TrainingRunOptions& options);

}  // namespace twinkle::cli
