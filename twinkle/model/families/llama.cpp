// Llama 2 and 3, and what shares its code: SmolLM2, Yi.
#include "twinkle/core/registry.h"
#include "twinkle/model/config_reader.h"
#include "twinkle/model/model_config.h"

namespace twinkle {
namespace {

class LlamaFamily : public ModelFamily {
 public:
  std::string_view model_type() const override { return "llama"; }
  void read(const Json& raw, ModelConfig& config) const override {
    const ConfigReader reader(raw);
    config.max_position = reader.integer("max_position_embeddings", 2048);
    config.qkv_bias = config.o_bias = reader.boolean("attention_bias", false);
    config.mlp_bias = reader.boolean("mlp_bias", false);
  }
};

const Registry<ModelFamily>::Add llama{
    {.name = "LlamaForCausalLM", .help = "Llama 2 and 3.x, SmolLM2, Yi: grouped-query attention, gated MLP."},
    [](const Options&) { return std::make_unique<LlamaFamily>(); }};

}  // namespace
}  // namespace twinkle
