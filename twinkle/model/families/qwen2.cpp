// Qwen2 and Qwen2.5, dense: a Llama with biases on q, k and v and, in upper layers, an optional sliding
// window.
#include "twinkle/core/registry.h"
#include "twinkle/model/config_reader.h"
#include "twinkle/model/model_config.h"

namespace twinkle {
namespace {

class Qwen2Family : public ModelFamily {
 public:
  std::string_view model_type() const override { return "qwen2"; }
  void read(const Json& raw, ModelConfig& config) const override {
    const ConfigReader reader(raw);
    config.max_position = reader.integer("max_position_embeddings", 32768);
    reader.integer("num_key_value_heads", std::nullopt);  // transformers' default, 32, fits one model only
    if (reader.boolean("use_mrope", false))
      reader.fail("use_mrope", "rotary positions of images are not supported");
    config.qkv_bias = true;
    config.sliding_window =
        reader.boolean("use_sliding_window", false) ? reader.integer("sliding_window", 0) : 0;
    read_sliding_layers(reader, reader.integer("max_window_layers", 28, 0), config);
  }
};

const Registry<ModelFamily>::Add qwen2{
    {.name = "Qwen2ForCausalLM", .help = "Qwen2 and Qwen2.5, dense: biases on q, k and v."},
    [](const Options&) { return std::make_unique<Qwen2Family>(); }};

}  // namespace
}  // namespace twinkle
