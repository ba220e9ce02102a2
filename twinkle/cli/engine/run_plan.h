// What a training run will need of memory, from its options, before any weight is loaded. Shared by `plan`
// and the runs themselves. Reads headers of files only.
#pragma once

#include <cstdint>
#include <span>

#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/data/types.h"
#include "twinkle/model/weight_source.h"
#include "twinkle/train/planner.h"

namespace twinkle::cli {

/// The model, what is trained of it (an adapter of the options or of --lora-path, modules trained whole, all
/// weights) and the optimizer. Passes and data are left to the caller.
PlanInput plan_input(const ParsedArgs& args, const ModelFiles& files);

/// exhausted, with the whole plan, when the largest pass that batches of these features can give does not
/// fit.
void check_run_fits(const ParsedArgs& args, PlanInput input, std::span<const InputFeature> features);

}  // namespace twinkle::cli
