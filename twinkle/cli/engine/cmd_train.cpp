// twinkle sft, twinkle pt.
#include <cstdio>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/training_run.h"
#include "twinkle/cli/output.h"
#include "twinkle/train/progress.h"

namespace twinkle::cli {
namespace {

std::string summary_of(const TrainingRunResult& r, const std::string& output_dir) {
  char speed[64], memory[64], time[64];
  std::snprintf(speed, sizeof(speed), "%.0f tokens/s", r.tokens_per_s);
  std::snprintf(memory, sizeof(memory), "%.0f MB", r.peak_rss_mb);
  std::snprintf(time, sizeof(time), "%.1f s", r.seconds);
  std::vector<std::pair<std::string, std::string>> rows = {{"steps", with_commas(r.steps)},
                                                           {"tokens", with_commas(r.tokens)},
                                                           {"speed", speed},
                                                           {"peak memory", memory},
                                                           {"time", time}};
  if (r.skipped_steps > 0) rows.emplace_back("skipped steps", with_commas(r.skipped_steps));
  if (!r.checkpoint.empty()) rows.emplace_back("checkpoint", r.checkpoint);
  rows.emplace_back("metrics", output_dir + "/metrics.jsonl");
  return table_text(rows, 2);
}

int train(const ParsedArgs& args, const std::string& command) {
  const TrainingRunResult result = run_training(args, {.command = command});
  if (args.get_bool("json")) {
    write_json(result.to_json());
  } else {
    if (result.losses.size() > 1) write_out("\n" + line_chart(result.losses, {.title = "loss by step"}));
    write_out("\n" + summary_of(result, args.get_string("output_dir")));
  }
  if (!result.interrupted) return 0;
  write_error(result.checkpoint.empty()
                  ? "interrupted; no checkpoint was written\n"
                  : "interrupted; go on with --resume-from-checkpoint " + result.checkpoint + "\n");
  return 130;  // as a shell reports Ctrl-C
}

const AddRun sft("sft", [](const ParsedArgs& args) { return train(args, "sft"); });
const AddRun pt("pt", [](const ParsedArgs& args) { return train(args, "pt"); });

}  // namespace
}  // namespace twinkle::cli
