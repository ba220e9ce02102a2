// A GGUF file as a model: its config in config.json form and its tensors under Hugging Face names.
#pragma once

#include <memory>
#include <string>

#include "twinkle/model/weight_source.h"

namespace twinkle {

class GgufFile;

struct GgufModel {
  Json config;
  std::shared_ptr<WeightSource> weights;
};

/// Opens the file. What only its tensors tell (a tied head, biases, Llama 3's rotary factors) is put into the
/// config.
GgufModel open_gguf_model(const std::string& path);
/// The same over a parsed file (tests).
GgufModel make_gguf_model(std::shared_ptr<const GgufFile> file, const std::string& where);

}  // namespace twinkle
