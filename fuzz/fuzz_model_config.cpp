// deps: lora
// Any JSON as config.json, as GGUF metadata and as adapter_config.json: each is read or refused as
// invalid_argument, and what was read can be used.
#include <cmath>
#include <cstdint>

#include "twinkle/core/error.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/rope.h"
#include "twinkle/model/weight_source.h"

namespace {

using namespace twinkle;

template <class Work>
void must_be_read_or_refused(const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) __builtin_trap();
  }
}

void use(const ModelConfig& config) {
  if (config.head_dim < 2 || config.head_dim % 2 != 0 || config.num_heads % config.num_kv_heads != 0)
    __builtin_trap();
  for (int64_t l = 0; l < config.num_layers; ++l) {
    if (config.window_of(l) < 0) __builtin_trap();
  }
  if (config.head_dim <= 256) {
    if (rope_frequencies(config, 7).inv_freq.size() != static_cast<size_t>(config.head_dim / 2))
      __builtin_trap();
  }
  if (config.num_layers <= 8) {
    if (expected_weights(config).size() < 2) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Json raw;
  try {
    raw = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  must_be_read_or_refused([&] { use(model_config_from_json(raw, "fuzz")); });
  must_be_read_or_refused([&] { use(model_config_from_json(config_json_from_gguf(raw, "fuzz"), "fuzz")); });
  must_be_read_or_refused([&] {
    const LoraConfig config = lora_config_from_json(raw, "fuzz");
    if (lora_config_to_json(lora_config_from_json(lora_config_to_json(config), "fuzz")) !=
        lora_config_to_json(config)) {
      __builtin_trap();
    }
    match_targets(
        config,
        {"model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.10.mlp.up_proj", "lm_head"},
        true);
  });
  return 0;
}
