// What decides which samples a run has, kept in its manifest and so in its checkpoints: a position in the
// data counts samples and means nothing among others. Free functions over values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "twinkle/core/args.h"
#include "twinkle/data/template.h"
#include "twinkle/train/manifest.h"

namespace twinkle::cli {

/// By name: options that make samples of rows as they are, the chat template and the tokenizer as SHA-256,
/// and "num_samples", those of an epoch (null for a stream).
Json samples_of_run(const ParsedArgs& args, const Template& tmpl, std::optional<int64_t> num_samples);

/// conflict naming what differs when a position of the run in `recorded` is one among other rows or samples
/// than this run's. Where something differs that leaves their number as it was, a line that says so; else "".
/// `checkpoint`: where it was recorded, for the messages. A manifest without "samples" is compared by its
/// options alone.
std::string check_same_samples(const RunManifest& recorded, const ParsedArgs& args,
                               const std::string& dataset_hash, const Json& samples,
                               const std::string& checkpoint);

/// conflict naming what differs from the samples of the run that is repeated.
void check_repeated_samples(const RunManifest& recorded, const ParsedArgs& args,
                            const std::string& dataset_hash, const Json& samples);

}  // namespace twinkle::cli
