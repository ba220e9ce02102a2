// Qwen3, dense: q and k are normalised per head, heads have a size of their own, no biases by default.
#include "twinkle/core/registry.h"
#include "twinkle/model/config_reader.h"
#include "twinkle/model/model_config.h"

namespace twinkle {
namespace {

class Qwen3Family : public ModelFamily {
 public:
  std::string_view model_type() const override { return "qwen3"; }
  void read(const Json& raw, ModelConfig& config) const override {
    const ConfigReader reader(raw);
    config.max_position = reader.integer("max_position_embeddings", 32768);
    reader.integer("num_key_value_heads", std::nullopt);  // transformers' default, 32, fits one model only
    if (config.head_dim == 0) config.head_dim = 128;
    config.qkv_bias = config.o_bias = reader.boolean("attention_bias", false);
    config.qk_norm = true;
    config.sliding_window =
        reader.boolean("use_sliding_window", false) ? reader.integer("sliding_window", 0) : 0;
    read_sliding_layers(reader, reader.integer("max_window_layers", 28, 0), config);
  }
};

const Registry<ModelFamily>::Add qwen3{
    {.name = "Qwen3ForCausalLM", .help = "Qwen3, dense: normalised q and k, head size of its own."},
    [](const Options&) { return std::make_unique<Qwen3Family>(); }};

}  // namespace
}  // namespace twinkle
