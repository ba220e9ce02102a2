// twinkle plan: predicts the peak memory of a training run without loading the weights.
#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/engine/run_plan.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/units.h"
#include "twinkle/train/planner.h"

namespace twinkle::cli {
namespace {

struct Pass {
  int64_t tokens = 0, scored = 0, data_bytes = 0;
  bool shares = false;  // some rows begin alike
};

// Rows that are encoded during the run are read here for what is wrong with them at its start.
void check_rows(const ParsedArgs& args, const ModelConfig& config) {
  std::shared_ptr<const Template> tmpl = load_template(args, load_tokenizer(args), config.max_position);
  if (args.get_bool("streaming")) {
    load_stream(args, std::move(tmpl));
  } else {
    make_lazy_loader(args, load_dataset(args), std::move(tmpl));
  }
}

// The largest pass of the first epoch, or of full rows when none are encoded before the run.
Pass largest_pass(const ParsedArgs& args, const ModelConfig& config, int64_t budget) {
  Pass out;
  const int64_t batch = args.get_int("batch_size"),
                length = std::min(args.get_int("max_length"), config.max_position);
  const bool streaming = args.get_bool("streaming"), lazy = args.get_bool("lazy");
  if (!args.has("dataset_id") || streaming || lazy) {
    if (args.has("dataset_id")) check_rows(args, config);
    out.tokens = std::min(batch * length, std::max(budget / length * length, length));
    out.scored = out.tokens;
    return out;
  }
  const auto tmpl = load_template(args, load_tokenizer(args), config.max_position);
  Dataset data = load_dataset(args);
  encode_for_training(args, *tmpl, data);
  for (const auto& f : data.features()) out.data_bytes += static_cast<int64_t>(f.input_ids.size()) * 8;
  std::string note;
  DataLoader loader = make_loader(args, data.take_features(), tmpl->options().max_length, &note);
  for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const auto features = loader.next();
    out.shares |= share_prefixes(features);
    int64_t begin = 0;
    for (const int64_t end : split_by_tokens(features, budget)) {
      Pass pass;
      for (int64_t f = begin; f < end; ++f) {
        pass.tokens += static_cast<int64_t>(features[static_cast<size_t>(f)].input_ids.size());
        pass.scored += features[static_cast<size_t>(f)].num_trained();
      }
      out.tokens = std::max(out.tokens, pass.tokens);
      out.scored = std::max(out.scored, pass.scored);
      begin = end;
    }
  }
  return out;
}

int plan(const ParsedArgs& args) {
  const ModelFiles files = open_model_files(checked_model_path(args));
  check_components(args, kAnySteps);
  PlanInput in = plan_input(args, files);
  const TransformersModelOptions defaults;
  const Pass pass = largest_pass(
      args, in.config,
      args.has("max_tokens_per_pass") ? args.get_int("max_tokens_per_pass") : defaults.micro_batch_tokens);
  in.tokens = pass.tokens;
  in.scored = pass.scored;
  if (pass.shares) in.spread = in.tokens;
  in.data_bytes = pass.data_bytes;
  const int64_t available = args.has("memory_limit_mb") ? args.get_int("memory_limit_mb") * 1'000'000
                                                        : available_memory_bytes() + resident_bytes();

  in.recompute = args.has("recompute") && args.get_bool("recompute");
  MemoryPlan result = plan_memory(in);
  if (!args.has("recompute") && result.peak_bytes > available) {
    in.recompute = true;
    result = plan_memory(in);
  }
  const bool fits = result.peak_bytes <= available;
  if (args.get_bool("json")) {
    Json out = result.to_json();
    out["recompute"] = in.recompute;
    out["tokens_per_pass"] = in.tokens;
    out["available_bytes"] = available;
    out["fits"] = fits;
    write_json(out);
  } else {
    write_out("passes of " + with_commas(in.tokens) + " tokens, activations " +
              (in.recompute ? "recomputed" : "kept") + "\n" + result.to_text() + "  available" +
              std::string(29, ' ') + "  " + bytes_text(available) + "\n" +
              (fits ? "fits\n"
                    : "does not fit: shorter rows (--max-length), smaller passes (--max-tokens-per-pass) or "
                      "--recompute help\n"));
  }
  return fits ? 0 : 2;
}

const AddRun run_plan("plan", plan);

}  // namespace
}  // namespace twinkle::cli
