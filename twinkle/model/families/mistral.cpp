// Mistral: a Llama whose every layer may look at a sliding window only.
#include "twinkle/core/registry.h"
#include "twinkle/model/config_reader.h"
#include "twinkle/model/model_config.h"

namespace twinkle {
namespace {

class MistralFamily : public ModelFamily {
 public:
  std::string_view model_type() const override { return "mistral"; }
  void read(const Json& raw, ModelConfig& config) const override {
    const ConfigReader reader(raw);
    config.max_position = reader.integer("max_position_embeddings", 4096 * 32);
    reader.integer("num_key_value_heads", std::nullopt);  // transformers' default, 8, fits one model only
    if (reader.find("layer_types") != nullptr) {
      reader.fail("layer_types", "layers of different kinds are not supported for MistralForCausalLM");
    }
    // Null means no window; a config without the key has transformers' default.
    const bool given = raw.contains("sliding_window");
    config.sliding_window = given ? reader.integer("sliding_window", 0) : 4096;
    read_sliding_layers(reader, 0, config);
  }
};

const Registry<ModelFamily>::Add mistral{
    {.name = "MistralForCausalLM",
     .help = "Mistral 7B and its kin, with or without sliding-window attention."},
    [](const Options&) { return std::make_unique<MistralFamily>(); }};

}  // namespace
}  // namespace twinkle
