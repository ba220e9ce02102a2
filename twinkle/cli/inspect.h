// What `twinkle inspect` is looking at, and what it shows of things that need no torch.
#pragma once

#include <string>

#include "twinkle/core/args.h"

namespace twinkle::cli {

/// "dataset", "tokenizer", "gguf", "safetensors", "model", "adapter" or "checkpoint": `kind` unless it is
/// auto. not_found when the path does not exist, invalid_argument when it is none of these.
std::string inspect_kind(const std::string& path, const std::string& kind);
/// An option that was given for another kind of thing is invalid_argument: --rows and --text-split are for
/// data sets, --tensors for files and folders of weights.
void check_inspect_options(const ParsedArgs& args, const std::string& kind);
/// Whether the engine has to look (models, adapters, checkpoints).
bool kind_needs_engine(const std::string& kind);

}  // namespace twinkle::cli
