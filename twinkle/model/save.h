// Writes a model as Hugging Face files.
#pragma once

#include <span>
#include <string>

#include "twinkle/core/safetensors.h"
#include "twinkle/model/causal_lm.h"

namespace twinkle {

struct SaveOptions {
  std::string dtype = "auto";               // auto: as stored in memory
  int64_t max_shard_bytes = 5'000'000'000;  // as transformers
};

/// config.json, generation_config.json, model*.safetensors (+ index) into an existing directory, so that
/// transformers.AutoModelForCausalLM.from_pretrained loads it. Tied heads are stored once. invalid_argument
/// naming the tensor when a number is not finite as the file has it.
void save_model(const CausalLM& model, const std::string& directory, const SaveOptions& options = {});

/// Whether these numbers, fp32, fp16 or bf16, are numbers all.
bool all_finite(std::span<const std::byte> values, at::ScalarType type);

/// One weight as it would be written, in the type it has in memory. It must live until it is.
TensorToWrite weight_to_write(const Parameter& parameter);

}  // namespace twinkle
