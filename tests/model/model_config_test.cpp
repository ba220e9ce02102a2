#include "twinkle/model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/needs.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/model/rope.h"

namespace twinkle {
namespace {

std::string refusal(const Json& raw) {
  return test::thrown([&] { model_config_from_json(raw, "x/config.json"); });
}

Json tiny(const std::string& architecture = "LlamaForCausalLM") {
  return {{"architectures", {architecture}},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"vocab_size", 100}};
}

Json with(Json raw, const Json& keys) {
  raw.update(keys);
  return raw;
}

TEST(ModelConfig, RealConfigsGiveTheirNumbers) {
  struct Case {
    const char* file;
    int64_t hidden, mlp, layers, heads, kv_heads, head_dim, vocab, positions;
    double eps, theta;
    const char* rope;
    bool tied, qkv_bias, qk_norm;
  };
  const Case cases[] = {
      {"01-ai--Yi-1.5-6B-Chat", 4096, 11008, 32, 32, 4, 128, 64000, 4096, 1e-6, 5e6, "default", false, false,
       false},
      {"Qwen--Qwen2.5-0.5B-Instruct", 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e-6, 1e6, "default", true,
       true, false},
      {"Qwen--Qwen2.5-3B", 2048, 11008, 36, 16, 2, 128, 151936, 32768, 1e-6, 1e6, "default", true, true,
       false},
      {"Qwen--Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e-6, 1e6, "default", true, false,
       true},
      {"Qwen--Qwen3-1.7B", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e-6, 1e6, "default", true, false,
       true},
      {"Qwen--Qwen3-4B", 2560, 9728, 36, 32, 8, 128, 151936, 40960, 1e-6, 1e6, "default", true, false, true},
      {"Qwen--Qwen3-8B", 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e-6, 1e6, "default", false, false,
       true},
      {"Qwen--Qwen3-Embedding-0.6B", 1024, 3072, 28, 16, 8, 128, 151669, 32768, 1e-6, 1e6, "default", true,
       false, true},
      {"deepseek-ai--DeepSeek-R1-Distill-Qwen-32B", 5120, 27648, 64, 40, 8, 128, 152064, 131072, 1e-5, 1e6,
       "default", false, true, false},
      {"dunzhang--stella_en_1.5B_v5", 1536, 8960, 28, 12, 2, 128, 151646, 131072, 1e-6, 1e6, "default", false,
       true, false},
      {"meta-llama--Llama-3.1-8B-Instruct", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 5e5, "llama3",
       false, false, false},
      {"meta-llama--Llama-3.2-1B-Instruct", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 1e-5, 5e5, "llama3",
       true, false, false},
      {"meta-llama--Llama-3.2-3B-Instruct.mediatek", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 1e-5, 5e5,
       "default", true, false, false},
      {"meta-llama--Meta-Llama-3.1-8B", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 1e-5, 5e5, "llama3",
       false, false, false},
      {"mistralai--Mistral-7B-Instruct-v0.3", 4096, 14336, 32, 32, 8, 128, 32768, 32768, 1e-5, 1e6, "default",
       false, false, false},
  };
  for (const auto& c : cases) {
    const std::string path = test::test_data("model-configs/" + std::string(c.file) + ".json");
    const ModelConfig m = model_config_from_json(read_json_file(path), path);
    EXPECT_EQ(m.hidden_size, c.hidden) << c.file;
    EXPECT_EQ(m.intermediate_size, c.mlp) << c.file;
    EXPECT_EQ(m.num_layers, c.layers) << c.file;
    EXPECT_EQ(m.num_heads, c.heads) << c.file;
    EXPECT_EQ(m.num_kv_heads, c.kv_heads) << c.file;
    EXPECT_EQ(m.head_dim, c.head_dim) << c.file;
    EXPECT_EQ(m.vocab_size, c.vocab) << c.file;
    EXPECT_EQ(m.max_position, c.positions) << c.file;
    EXPECT_EQ(m.rms_norm_eps, c.eps) << c.file;
    EXPECT_EQ(m.rope.theta, c.theta) << c.file;
    EXPECT_EQ(m.rope.type, c.rope) << c.file;
    EXPECT_EQ(m.tie_word_embeddings, c.tied) << c.file;
    EXPECT_EQ(m.qkv_bias, c.qkv_bias) << c.file;
    EXPECT_EQ(m.qk_norm, c.qk_norm) << c.file;
    EXPECT_EQ(m.o_bias || m.mlp_bias, false) << c.file;
    EXPECT_EQ(m.initializer_range, 0.02) << c.file;
    for (int64_t l = 0; l < m.num_layers; ++l) EXPECT_EQ(m.window_of(l), 0) << c.file;
  }
  const ModelConfig llama = model_config_from_json(
      read_json_file(test::test_data("model-configs/meta-llama--Llama-3.2-1B-Instruct.json")), "x");
  EXPECT_EQ(llama.rope.factor, 32.0);
  EXPECT_EQ(llama.rope.low_freq_factor, 1.0);
  EXPECT_EQ(llama.rope.high_freq_factor, 4.0);
  EXPECT_EQ(llama.rope.original_max_position, 8192);
  EXPECT_EQ(llama.eos_token_ids, (std::vector<int64_t>{128001, 128008, 128009}));
  EXPECT_EQ(llama.bos_token_id, 128000);
}

TEST(ModelConfig, EveryOtherRealConfigIsRefusedByName) {
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::test_data("model-configs"))) {
    if (entry.path().extension() != ".json") continue;
    const Json raw = read_json_file(entry.path().string());
    const std::string name = raw.contains("architectures") ? raw["architectures"][0].get<std::string>() : "";
    if (name == "LlamaForCausalLM" || name == "MistralForCausalLM" || name == "Qwen2ForCausalLM" ||
        name == "Qwen3ForCausalLM") {
      continue;
    }
    ++refused;
    const std::string message = refusal(raw);
    const std::string expected =
        name.empty() ? "[config] x/config.json: 'architectures': is missing"
                     : "[config] x/config.json: the architecture '" + name +
                           "' is not supported (supported: LlamaForCausalLM, MistralForCausalLM, "
                           "Qwen2ForCausalLM, Qwen3ForCausalLM)";
    EXPECT_EQ(message.substr(0, expected.size()), expected) << entry.path();
  }
  EXPECT_EQ(refused, 31);
}

TEST(ModelConfig, FamiliesReadTheirOwnKeys) {
  const ModelConfig llama = model_config_from_json(with(tiny(), {{"attention_bias", true},
                                                                 {"mlp_bias", true},
                                                                 {"eos_token_id", 3},
                                                                 {"num_key_value_heads", nullptr}}),
                                                   "x");
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  EXPECT_EQ(llama.num_kv_heads, 8);
  EXPECT_EQ(llama.max_position, 2048);
  EXPECT_EQ(llama.eos_token_ids, std::vector<int64_t>{3});
  EXPECT_EQ(llama.bos_token_id, -1);

  EXPECT_EQ(model_config_from_json(tiny("MistralForCausalLM"), "x").window_of(0), 4096);
  EXPECT_EQ(model_config_from_json(with(tiny("MistralForCausalLM"), {{"sliding_window", nullptr}}), "x")
                .window_of(0),
            0);
  EXPECT_EQ(
      model_config_from_json(with(tiny("MistralForCausalLM"), {{"sliding_window", 7}}), "x").window_of(3), 7);

  const Json qwen = with(tiny("Qwen2ForCausalLM"), {{"sliding_window", 16}, {"max_window_layers", 3}});
  EXPECT_EQ(model_config_from_json(qwen, "x").window_of(3), 0);
  const ModelConfig sliding = model_config_from_json(with(qwen, {{"use_sliding_window", true}}), "x");
  EXPECT_EQ(sliding.window_of(2), 0);
  EXPECT_EQ(sliding.window_of(3), 16);
  EXPECT_TRUE(sliding.qkv_bias && !sliding.o_bias);
  const ModelConfig typed = model_config_from_json(
      with(qwen,
           {{"use_sliding_window", true},
            {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}}),
      "x");
  EXPECT_EQ(typed.window_of(0), 16);
  EXPECT_EQ(typed.window_of(3), 0);

  const ModelConfig qwen3 = model_config_from_json(tiny("Qwen3ForCausalLM"), "x");
  EXPECT_EQ(qwen3.head_dim, 128);
  for (const auto& [architecture, type] : {std::pair{"LlamaForCausalLM", "llama"},
                                           {"MistralForCausalLM", "mistral"},
                                           {"Qwen2ForCausalLM", "qwen2"},
                                           {"Qwen3ForCausalLM", "qwen3"}}) {
    const Json raw = with(tiny(architecture), {{"model_type", type}});
    EXPECT_EQ(model_config_from_json(raw, "x").model_type, type);
  }
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
}

TEST(ModelConfig, RefusesWhatIsWrongOrUnsupported) {
  const auto rope = [](Json section) { return with(tiny(), {{"rope_scaling", section}}); };
  const struct {
    const char* message;
    Json raw;
  } cases[] = {
      {"expected an object, got list", Json::array()},
      {"'architectures': is missing", Json::object()},
      {"'architectures': expected a list of one name", {{"architectures", "LlamaForCausalLM"}}},
      {"'hidden_size': is missing", {{"architectures", {"LlamaForCausalLM"}}}},
      {"'hidden_size': expected a whole number, got string", with(tiny(), {{"hidden_size", "64"}})},
      {"'hidden_size': expected a whole number, got 1.5", with(tiny(), {{"hidden_size", 1.5}})},
      {"'hidden_size': must be from 1 to 1073741824, got 0", with(tiny(), {{"hidden_size", 0}})},
      {"'vocab_size': must be from 1 to 1073741824, got 1e+30", with(tiny(), {{"vocab_size", 1e30}})},
      {"'num_hidden_layers': must be from 1 to 65536, got -1", with(tiny(), {{"num_hidden_layers", -1}})},
      {"'hidden_size': 60 is not a multiple of num_attention_heads 8", with(tiny(), {{"hidden_size", 60}})},
      {"'head_dim': rotary embeddings need an even head size, got 7", with(tiny(), {{"head_dim", 7}})},
      {"'num_key_value_heads': num_attention_heads 8 is not a multiple of 3",
       with(tiny(), {{"num_key_value_heads", 3}})},
      {"'num_key_value_heads': is missing",
       with(tiny("Qwen2ForCausalLM"), {{"num_key_value_heads", nullptr}})},
      {"'rms_norm_eps': must be > 0", with(tiny(), {{"rms_norm_eps", 0}})},
      {"'hidden_act': 'gelu' is not supported for LlamaForCausalLM (silu is)",
       with(tiny(), {{"hidden_act", "gelu"}})},
      {"'attention_dropout': dropout within attention is not supported",
       with(tiny(), {{"attention_dropout", 0.1}})},
      {"'partial_rotary_factor': partial rotary", with(tiny(), {{"partial_rotary_factor", 0.5}})},
      {"'quantization_config': weights quantised by 'gptq' are not supported",
       with(tiny(), {{"quantization_config", {{"quant_method", "gptq"}}}})},
      {"'tie_word_embeddings': expected true or false, got number",
       with(tiny(), {{"tie_word_embeddings", 1}})},
      {"'eos_token_id': expected a token id or a list of them", with(tiny(), {{"eos_token_id", {1, "a"}}})},
      {"'layer_types': expected a list of 4 names",
       with(tiny("Qwen3ForCausalLM"), {{"layer_types", {"full_attention"}}})},
      {"'layer_types': layer 1 is \"linear_attention\"",
       with(tiny("Qwen3ForCausalLM"),
            {{"layer_types", {"full_attention", "linear_attention", "full_attention", "full_attention"}}})},
      {"'layer_types': layers of different kinds are not supported for MistralForCausalLM",
       with(tiny("MistralForCausalLM"), {{"layer_types", {"full_attention"}}})},
      {"'use_mrope': rotary positions of images", with(tiny("Qwen2ForCausalLM"), {{"use_mrope", true}})},
      {"'rope_theta': must be > 0", with(tiny(), {{"rope_theta", -1}})},
      {"'rope_scaling': expected an object, got string", with(tiny(), {{"rope_scaling", "yarn"}})},
      {"'rope_scaling.rope_type': 'longrope' is not supported (supported: default, linear, dynamic, llama3, "
       "yarn)",
       rope({{"type", "longrope"}})},
      {"'rope_scaling.rope_type': 'mrope' is not supported",
       rope({{"type", "mrope"}, {"mrope_section", {1, 2}}})},
      {"'rope_scaling.factor': is missing", rope({{"rope_type", "linear"}})},
      {"'rope_scaling.factor': must be > 0", rope({{"rope_type", "linear"}, {"factor", 0}})},
      {"'rope_scaling.low_freq_factor': is missing", rope({{"rope_type", "llama3"}, {"factor", 8}})},
      {"'rope_scaling.high_freq_factor': must be greater than low_freq_factor",
       rope({{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}})},
      {"'rope_parameters.full_attention': rotary parameters by layer type are not supported",
       with(tiny(), {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}})},
      {"'rope_parameters.partial_rotary_factor': partial rotary embeddings are not supported",
       with(tiny(), {{"rope_parameters", {{"partial_rotary_factor", 0.25}}}})},
      {"'rope_scaling': {\"type\":\"linear\",\"factor\":2.0} contradicts 'rope_parameters': "
       "{\"rope_type\":\"linear\",\"factor\":4.0}; keep the one that the model was trained with",
       with(rope({{"type", "linear"}, {"factor", 2.0}}),
            {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}})},
      {"'rope_scaling': {\"rope_theta\":1000} contradicts 'rope_parameters': {\"rope_theta\":2000}",
       with(rope({{"rope_theta", 1000}}), {{"rope_parameters", {{"rope_theta", 2000}}}})},
      {"'model_type': 'qwen3' contradicts 'architectures': LlamaForCausalLM is of type 'llama'",
       with(tiny(), {{"model_type", "qwen3"}})},
      {"'model_type': 'qwen3_moe' contradicts 'architectures': Qwen3ForCausalLM is of type 'qwen3'",
       with(tiny("Qwen3ForCausalLM"), {{"model_type", "qwen3_moe"}})},
  };
  for (const auto& c : cases) {
    const std::string message = refusal(c.raw),
                      expected = std::string("[config] x/config.json: ") + c.message;
    EXPECT_EQ(message.substr(0, expected.size()), expected);
  }
}

// Some tools write the old form and the new one.
TEST(Rope, BothFormsMaySayTheSame) {
  const auto rope = [](const Json& parameters, const Json& scaling) {
    const Json both = {{"rope_theta", 5e5}, {"rope_parameters", parameters}, {"rope_scaling", scaling}};
    return model_config_from_json(with(tiny(), both), "x").rope;
  };
  const Json linear = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e6}};
  EXPECT_EQ(rope(linear, {{"type", "linear"}, {"factor", 2}}), rope(linear, nullptr));
  EXPECT_EQ(rope(linear, linear).theta, 1e6);
  EXPECT_EQ(rope({{"rope_type", "default"}}, Json::object()).theta, 5e5);
}

int64_t ulps(float a, float b) {
  int32_t x, y;
  std::memcpy(&x, &a, 4);
  std::memcpy(&y, &b, 4);
  return std::abs(static_cast<int64_t>(x) - y);
}

// Goldens by tests/parity/make_rope_goldens.py; torch's vectorised pow, cos and sin may differ in the last
// bits.
TEST(Rope, EveryScalingAgreesWithTransformers) {
  const Json cases = read_json_file(TWINKLE_SOURCE_DIR "/tests/model/data/rope.json");
  ASSERT_EQ(cases.size(), 13u);
  for (const auto& c : cases) {
    const ModelConfig config = model_config_from_json(c["config"], "x");
    const int64_t length = c["length"].get<int64_t>();
    const RopeFrequencies f = rope_frequencies(config, length);
    ASSERT_EQ(f.inv_freq.size(), c["inv_freq"].size());
    EXPECT_EQ(f.attention_factor, c["attention_factor"].get<float>()) << c["config"];
    for (size_t i = 0; i < f.inv_freq.size(); ++i) {
      EXPECT_LE(ulps(f.inv_freq[i], c["inv_freq"][i].get<float>()), 2) << c["config"] << " " << i;
    }
    const RopeTables tables = rope_tables(config, length);
    ASSERT_EQ(tables.cos.size(), static_cast<size_t>(length * config.head_dim / 2));
    for (size_t i = 0; i < f.inv_freq.size(); ++i) {
      const size_t at = static_cast<size_t>(length - 1) * f.inv_freq.size() + i;
      // An angle's last bit is worth up to length * 2^-23.
      const double tolerance = 1e-7 * static_cast<double>(length) * static_cast<double>(f.inv_freq[i]) + 2e-7;
      EXPECT_NEAR(tables.cos[at], c["cos"][i].get<double>(), tolerance) << c["config"] << " " << i;
      EXPECT_NEAR(tables.sin[at], c["sin"][i].get<double>(), tolerance) << c["config"] << " " << i;
    }
  }
}

TEST(Rope, TablesDoNotDependOnTheirLength) {
  const ModelConfig config = model_config_from_json(tiny(), "x");
  const RopeTables a = rope_tables(config, 10), b = rope_tables(config, 300);
  EXPECT_TRUE(std::equal(a.cos.begin(), a.cos.end(), b.cos.begin()));
  EXPECT_TRUE(std::equal(a.sin.begin(), a.sin.end(), b.sin.begin()));
}

}  // namespace
}  // namespace twinkle
