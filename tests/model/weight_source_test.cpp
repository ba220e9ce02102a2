#include "twinkle/model/weight_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/gguf.h"
#include "twinkle/core/rng.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/model/gguf_source.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

using test::thrown;
using Folder = test::TempDir;

Json tiny_config(const std::string& architecture = "LlamaForCausalLM") {
  return {{"architectures", {architecture}},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 10},
          {"head_dim", 4}};
}

std::vector<float> read(const WeightSource& source, const std::string& name) {
  const WeightInfo* info = source.find(name);
  if (info == nullptr) throw not_found("no tensor " + name);
  int64_t count = 1;
  for (const int64_t n : info->shape) count *= n;
  std::vector<float> out(static_cast<size_t>(count));
  source.read_rows(name, 0, info->shape.size() == 1 ? 1 : info->shape[0], out.data());
  return out;
}

/// Tensors of a source that lies in memory, fp32.
struct FakeSource : WeightSource {
  std::map<std::string, WeightInfo> infos;
  std::vector<WeightInfo> tensors() const override {
    std::vector<WeightInfo> out;
    for (const auto& [name, info] : infos) out.push_back(info);
    return out;
  }
  const WeightInfo* find(const std::string& name) const override {
    const auto it = infos.find(name);
    return it == infos.end() ? nullptr : &it->second;
  }
  void read_rows(const std::string&, int64_t, int64_t, float*) const override {}
  std::string where() const override { return "fake"; }
};

FakeSource source_of(const ModelConfig& config) {
  FakeSource out;
  for (const auto& info : expected_weights(config)) out.infos[info.name] = info;
  return out;
}

void write_model(const std::string& path, const WeightSource& source, const std::vector<std::string>& names,
                 const std::string& prefix_off = "") {
  std::vector<TensorToWrite> tensors;
  for (const auto& name : names) {
    const auto values = std::make_shared<std::vector<float>>(read(source, name));
    const bool cut = name.rfind(prefix_off, 0) == 0;
    tensors.push_back({cut ? name.substr(prefix_off.size()) : name, "F32", source.find(name)->shape,
                       [values](int64_t offset, std::span<std::byte> out) {
                         std::memcpy(out.data(), reinterpret_cast<const char*>(values->data()) + offset,
                                     out.size());
                       }});
  }
  write_safetensors(path, tensors, {{"format", "pt"}});
}

std::vector<std::string> names_of(const ModelConfig& config) {
  std::vector<std::string> out;
  for (const auto& info : expected_weights(config)) out.push_back(info.name);
  return out;
}

TEST(Weights, RealWeightMapsNameExactlyTheExpectedTensors) {
  const struct {
    const char *config, *map;
  } cases[] = {{"01-ai--Yi-1.5-6B-Chat.json", "Yi-1.5-6B.model.safetensors.index.json"},
               {"deepseek-ai--DeepSeek-R1-Distill-Qwen-32B.json",
                "DeepSeek-R1-Distill-Qwen-32B.model.safetensors.index.json"}};
  for (const auto& c : cases) {
    const std::string folder = test::test_data("model-configs/");
    const ModelConfig config = model_config_from_json(read_json_file(folder + c.config), c.config);
    const Json index = read_json_file(folder + "weight-maps/" + c.map);
    std::set<std::string> stored, expected;
    for (const auto& [name, file] : index["weight_map"].items()) stored.insert(name);
    int64_t parameters = 0;
    for (const auto& info : expected_weights(config)) {
      expected.insert(info.name);
      int64_t n = 1;
      for (const int64_t size : info.shape) n *= size;
      parameters += n;
    }
    EXPECT_EQ(stored, expected) << c.map;
    EXPECT_EQ(index["metadata"]["total_size"].get<int64_t>(), 2 * parameters) << c.map;  // bf16
  }
}

TEST(Weights, ExpectedTensorsFollowTheConfig) {
  const auto has = [](const Json& raw, const std::string& name) {
    const auto names = names_of(model_config_from_json(raw, "x"));
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  Json llama = tiny_config();
  EXPECT_TRUE(has(llama, "lm_head.weight"));
  llama["tie_word_embeddings"] = true;
  EXPECT_FALSE(has(llama, "lm_head.weight"));
  EXPECT_FALSE(has(llama, "model.layers.0.self_attn.q_proj.bias"));
  llama["attention_bias"] = true;
  llama["mlp_bias"] = true;
  EXPECT_TRUE(has(llama, "model.layers.1.self_attn.o_proj.bias"));
  EXPECT_TRUE(has(llama, "model.layers.1.mlp.down_proj.bias"));
  EXPECT_TRUE(has(tiny_config("Qwen2ForCausalLM"), "model.layers.1.self_attn.v_proj.bias"));
  EXPECT_FALSE(has(tiny_config("Qwen2ForCausalLM"), "model.layers.1.self_attn.o_proj.bias"));
  EXPECT_TRUE(has(tiny_config("Qwen3ForCausalLM"), "model.layers.0.self_attn.q_norm.weight"));
}

TEST(Weights, CheckNamesWhatIsMissingMisshapenOrUnused) {
  const ModelConfig config = model_config_from_json(tiny_config(), "x");
  check_weights(config, source_of(config));
  FakeSource source = source_of(config);
  source.infos.erase("model.norm.weight");
  source.infos["model.layers.1.mlp.up_proj.weight"].shape = {12, 9};
  source.infos["model.layers.0.self_attn.q_proj.weight"].dtype = "I32";
  source.infos["visual.weight"] = {"visual.weight", {1}, "F32"};
  const std::string message = thrown([&] { check_weights(config, source); });
  EXPECT_EQ(
      message,
      "[weights] 'fake' does not fit LlamaForCausalLM: tensors 1 missing: 'model.norm.weight'; 1 of the "
      "wrong shape: "
      "'model.layers.1.mlp.up_proj.weight' is [12, 9], expected [12, 8]; 1 of an unsupported type (F32, F16 "
      "and "
      "BF16 are read): 'model.layers.0.self_attn.q_proj.weight' is I32; 1 that no part of the model uses: "
      "'visual.weight'");
  EXPECT_HAS(thrown([&] { check_weights(config, FakeSource()); }), "and 16 more");
  // Let pass: a stored tied head, rotary buffers of old files.
  Json tied_raw = tiny_config();
  tied_raw["tie_word_embeddings"] = true;
  const ModelConfig tied = model_config_from_json(tied_raw, "x");
  FakeSource whole = source_of(config);
  whole.infos["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
      "model.layers.0.self_attn.rotary_emb.inv_freq", {2}, "F32"};
  check_weights(tied, whole);
}

TEST(Weights, OpensASingleFile) {
  const ModelFiles files = open_model_files(test::stories());
  EXPECT_FALSE(files.gguf);
  EXPECT_EQ(files.generation_config.at("eos_token_id"), Json({1, 2}));
  const ModelConfig config = model_config_from_json(files.config, files.path);
  check_weights(config, *files.weights);
  // Rows against the raw llama2.c file, whose embedding follows a header of seven ints.
  const std::string raw = read_file(test::test_data("models/stories260k/stories260K.bin"));
  std::vector<float> rows(3 * 64);
  files.weights->read_rows("model.embed_tokens.weight", 5, 8, rows.data());
  EXPECT_EQ(std::memcmp(rows.data(), raw.data() + 28 + 5 * 64 * 4, rows.size() * 4), 0);
}

TEST(Weights, OpensShardsAndChecksTheIndex) {
  const Folder folder;
  const ModelConfig config = model_config_from_json(tiny_config(), "x");
  const auto source = random_weights(config, 3);
  auto names = names_of(config);
  const std::vector<std::string> first(names.begin(), names.begin() + 5),
      second(names.begin() + 5, names.end());
  write_model(folder / "model-00001-of-00002.safetensors", *source, first);
  write_model(folder / "model-00002-of-00002.safetensors", *source, second);
  write_file_atomic(folder / "config.json", tiny_config().dump());
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }),
             "holds 2 safetensors files but no model.safetensors.index.json");

  Json map = Json::object();
  for (const auto& name : first) map[name] = "model-00001-of-00002.safetensors";
  for (const auto& name : second) map[name] = "model-00002-of-00002.safetensors";
  const auto put_index = [&](const Json& weight_map) {
    write_file_atomic(folder / "model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
  };
  put_index(map);
  const ModelFiles files = open_model_files(folder.path());
  check_weights(config, *files.weights);
  for (const auto& name : names) EXPECT_EQ(read(*files.weights, name), read(*source, name)) << name;

  Json wrong = map;
  wrong["model.norm.weight"] = "model-00001-of-00002.safetensors";
  put_index(wrong);
  EXPECT_HAS(
      thrown([&] { open_model_files(folder.path()); }),
      "the index places 'model.norm.weight' in 'model-00001-of-00002.safetensors', which does not hold it");
  wrong["model.norm.weight"] = "../secret.safetensors";
  put_index(wrong);
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }),
             "'../secret.safetensors' is not the name of a safetensors file");
  wrong["model.norm.weight"] = "model-3.safetensors";
  put_index(wrong);
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }, ErrorKind::kNotFound),
             "the index names 'model-3.safetensors'");
  write_file_atomic(folder / "model.safetensors.index.json", "{}");
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }), "expected an object with 'weight_map'");
}

TEST(Weights, OpensACheckpointOfTheBareBody) {
  const Folder folder;
  Json raw = tiny_config();
  raw["tie_word_embeddings"] = true;
  const ModelConfig config = model_config_from_json(raw, "x");
  const auto source = random_weights(config, 3);
  write_model(folder / "model.safetensors", *source, names_of(config), "model.");
  write_file_atomic(folder / "config.json", raw.dump());
  const ModelFiles files = open_model_files(folder.path());
  check_weights(config, *files.weights);
  EXPECT_EQ(read(*files.weights, "model.norm.weight"), read(*source, "model.norm.weight"));
}

TEST(Weights, RefusesFoldersThatAreNoModel) {
  const Folder folder;
  EXPECT_HAS(thrown([&] { open_model_files(folder / "none"); }, ErrorKind::kNotFound), "there is nothing at");
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }, ErrorKind::kNotFound), "has no config.json");
  write_file_atomic(folder / "adapter_config.json", "{}");
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }),
             "holds an adapter (adapter_config.json), not a model");
  EXPECT_HAS(thrown([&] { open_model_files(folder / "adapter_config.json"); }),
             "is neither a folder with config.json nor a GGUF");
  write_file_atomic(folder / "config.json", tiny_config().dump());
  EXPECT_EQ(open_model_files(folder.path()).weights, nullptr);
  write_file_atomic(folder / "pytorch_model.bin", "x");
  EXPECT_HAS(thrown([&] { open_model_files(folder.path()); }), "pickled weights only ('pytorch_model.bin')");
}

TEST(Weights, RandomWeightsDependOnSeedAndNameOnly) {
  const ModelConfig small = model_config_from_json(tiny_config(), "x");
  Json deeper_raw = tiny_config();
  deeper_raw["num_hidden_layers"] = 5;
  const auto a = random_weights(small, 7), b = random_weights(model_config_from_json(deeper_raw, "x"), 7),
             c = random_weights(small, 8);
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(read(*a, q), read(*b, q));
  EXPECT_NE(read(*a, q), read(*c, q));
  EXPECT_NE(read(*a, q), read(*a, "model.layers.0.self_attn.q_proj.weight"));
  // Rows one by one are the rows of the whole, even where a row is no multiple of the generator's block.
  Json odd = tiny_config();
  odd["intermediate_size"] = 7;
  const auto o = random_weights(model_config_from_json(odd, "x"), 7);
  const std::string down = "model.layers.0.mlp.down_proj.weight";
  const auto whole = read(*o, down);
  for (int64_t r = 0; r < 8; ++r) {
    std::vector<float> row(7);
    o->read_rows(down, r, r + 1, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), whole.begin() + 7 * r));
  }
  std::vector<float> same(whole.size());
  fill_normal(same.data(), static_cast<int64_t>(same.size()),
              mix_key(mix_key(7, hash_name("weights")), hash_name(down)), 0.02f);
  EXPECT_EQ(whole, same);
  for (const float v : read(*a, "model.norm.weight")) EXPECT_EQ(v, 1.0f);
  const auto qwen = random_weights(model_config_from_json(tiny_config("Qwen2ForCausalLM"), "x"), 7);
  for (const float v : read(*qwen, "model.layers.0.self_attn.q_proj.bias")) EXPECT_EQ(v, 0.0f);
  check_weights(small, *a);
}

TEST(Weights, RandomWeightsHaveTheConfigsSpread) {
  Json raw = tiny_config();
  raw["vocab_size"] = 5000;
  raw["initializer_range"] = 0.5;
  const auto values = read(*random_weights(model_config_from_json(raw, "x"), 1), "model.embed_tokens.weight");
  double sum = 0, squares = 0;
  for (const float v : values) sum += v, squares += static_cast<double>(v) * v;
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / n), 0.5, 0.01);
}

// GGUF.

TEST(GgufModel, SmolLM2GivesItsConfigAndWeights) {
  const ModelFiles files = open_model_files(test::smollm2());
  EXPECT_TRUE(files.gguf);
  // As in the model's own config.json.
  const Json expected = {{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"hidden_size", 576},
                         {"intermediate_size", 1536},
                         {"num_hidden_layers", 30},
                         {"num_attention_heads", 9},
                         {"num_key_value_heads", 3},
                         {"head_dim", 64},
                         {"max_position_embeddings", 8192},
                         {"rms_norm_eps", 1e-5},
                         {"rope_theta", 100000.0},
                         {"rope_scaling", nullptr},
                         {"tie_word_embeddings", true},
                         {"vocab_size", 49152},
                         {"bos_token_id", 1},
                         {"eos_token_id", 2},
                         {"pad_token_id", 2}};
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(files.config.at(key), value) << key;
  }
  const ModelConfig config = model_config_from_json(files.config, "x");
  check_weights(config, *files.weights);
  EXPECT_EQ(files.weights->find("model.layers.29.mlp.down_proj.weight")->dtype, "Q4_1");

  // q and k come back in rotate-half order: row s * 32 + i of a head is the file's row 2 i + s.
  const GgufFile raw = GgufFile::open(test::smollm2());
  for (const auto& [hf, gguf, rows] : {std::tuple{"q", "q", 576}, {"k", "k", 192}, {"v", "v", 192}}) {
    const GgufTensor* tensor = raw.find(std::string("blk.7.attn_") + gguf + ".weight");
    std::vector<float> stored(static_cast<size_t>(rows) * 576), got(576);
    dequantize(tensor->type, tensor->data.data(), rows * 576, stored.data());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t within = row % 64, s = within / 32, i = within % 32;
      const int64_t at = std::string(hf) == "v" ? row : row - within + 2 * i + s;
      files.weights->read_rows(std::string("model.layers.7.self_attn.") + hf + "_proj.weight", row, row + 1,
                               got.data());
      ASSERT_TRUE(std::equal(got.begin(), got.end(), stored.begin() + at * 576)) << hf << row;
    }
  }
}

Json metadata_of(const std::string& arch) {
  return {{"general.architecture", arch},
          {arch + ".block_count", 2u},
          {arch + ".context_length", 128u},
          {arch + ".embedding_length", 64u},
          {arch + ".feed_forward_length", 96u},
          {arch + ".attention.head_count", 4u},
          {arch + ".attention.head_count_kv", 2u},
          {arch + ".attention.layer_norm_rms_epsilon", static_cast<double>(1e-6f)},
          {arch + ".rope.freq_base", static_cast<double>(1e6f)},
          {arch + ".vocab_size", 100u}};
}

TEST(GgufModel, MetadataOfEveryFamilyBecomesAConfig) {
  const auto config = [](Json metadata) {
    return model_config_from_json(config_json_from_gguf(metadata, "x.gguf"), "x");
  };
  EXPECT_EQ(config(metadata_of("llama")).architecture, "LlamaForCausalLM");
  EXPECT_EQ(config(metadata_of("llama")).rms_norm_eps, 1e-6);
  EXPECT_EQ(config(metadata_of("llama")).head_dim, 16);
  EXPECT_EQ(config(metadata_of("qwen2")).architecture, "Qwen2ForCausalLM");
  EXPECT_TRUE(config(metadata_of("qwen2")).qkv_bias);
  Json qwen3 = metadata_of("qwen3");
  qwen3["qwen3.attention.key_length"] = 32u;
  qwen3["qwen3.attention.value_length"] = 32u;
  EXPECT_EQ(config(qwen3).head_dim, 32);
  EXPECT_TRUE(config(qwen3).qk_norm);
  Json mistral = metadata_of("llama");
  mistral["llama.attention.sliding_window"] = 16u;
  EXPECT_EQ(config(mistral).architecture, "MistralForCausalLM");
  EXPECT_EQ(config(mistral).window_of(1), 16);
  Json yarn = metadata_of("qwen2");
  yarn["qwen2.rope.scaling.type"] = "yarn";
  yarn["qwen2.rope.scaling.factor"] = 4.0;
  yarn["qwen2.rope.scaling.original_context_length"] = 32u;
  EXPECT_EQ(config(yarn).rope.type, "yarn");
  EXPECT_EQ(config(yarn).rope.factor, 4.0);
  EXPECT_EQ(config(yarn).rope.original_max_position, 32);
  Json linear = metadata_of("llama");
  linear["llama.rope.scale_linear"] = 2.0;
  EXPECT_EQ(config(linear).rope.type, "linear");
}

TEST(GgufModel, RefusesMetadataByName) {
  const auto refusal = [](const std::string& key, const Json& value) {
    Json metadata = metadata_of("llama");
    metadata[key] = value;
    return thrown([&] { config_json_from_gguf(metadata, "x.gguf"); });
  };
  EXPECT_EQ(
      refusal("general.architecture", "gemma"),
      "[gguf] x.gguf: 'general.architecture': 'gemma' is not supported (supported: llama, qwen2, qwen3)");
  EXPECT_EQ(refusal("llama.block_count", nullptr), "[gguf] x.gguf: 'llama.block_count': is missing");
  EXPECT_EQ(refusal("llama.expert_count", 8u),
            "[gguf] x.gguf: 'llama.expert_count': mixtures of experts are not supported");
  EXPECT_HAS(refusal("llama.rope.dimension_count", 8u), "partial rotary embeddings are not supported");
  EXPECT_HAS(refusal("llama.rope.scaling.type", "longrope"), "'longrope' is not supported");
  EXPECT_HAS(refusal("llama.attention.head_count_kv", Json({2, 1})),
             "layers that differ in it are not supported");
  EXPECT_HAS(refusal("llama.attention.value_length", 8u), "values of another size than keys");
}

// A file of the llama architecture with Llama 3's factors, as llama.cpp's converter stores them.
std::shared_ptr<const GgufFile> file_with_factors(const std::vector<float>& factors, std::string& bytes) {
  const auto put = [&](const auto& v) { bytes.append(reinterpret_cast<const char*>(&v), sizeof(v)); };
  const auto text = [&](std::string_view s) { put(uint64_t{s.size()}), bytes.append(s); };
  const auto u32 = [&](std::string_view key, uint32_t v) { text(key), put(uint32_t{4}), put(v); };
  const auto f32 = [&](std::string_view key, float v) { text(key), put(uint32_t{6}), put(v); };
  bytes = "GGUF";
  put(uint32_t{3}), put(uint64_t{1}), put(uint64_t{10});
  text("general.architecture"), put(uint32_t{8}), text("llama");
  u32("llama.block_count", 1), u32("llama.context_length", 131072), u32("llama.embedding_length", 2048);
  u32("llama.feed_forward_length", 8), u32("llama.attention.head_count", 32),
      u32("llama.attention.head_count_kv", 8);
  u32("llama.vocab_size", 10), f32("llama.attention.layer_norm_rms_epsilon", 1e-5f),
      f32("llama.rope.freq_base", 5e5f);
  text("rope_freqs.weight"), put(uint32_t{1}), put(uint64_t{factors.size()}), put(uint32_t{0}),
      put(uint64_t{0});
  bytes.resize((bytes.size() + 31) / 32 * 32);
  bytes.append(reinterpret_cast<const char*>(factors.data()), factors.size() * 4);
  return std::make_shared<const GgufFile>(GgufFile::parse(std::as_bytes(std::span(bytes)), "x.gguf"));
}

TEST(GgufModel, RotaryFactorsOfLlama3AreRecognised) {
  // The factors of Llama 3.2 1B, by the formula of llama.cpp's converter.
  std::vector<float> factors;
  for (int i = 0; i < 32; ++i) {
    const double wavelength = 2 * M_PI * std::pow(5e5, 2.0 * i / 64);
    if (wavelength < 8192.0 / 4) {
      factors.push_back(1);
    } else if (wavelength > 8192.0) {
      factors.push_back(32);
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      factors.push_back(static_cast<float>(1 / ((1 - smooth) / 32 + smooth)));
    }
  }
  std::string bytes;
  const ModelConfig config =
      model_config_from_json(make_gguf_model(file_with_factors(factors, bytes), "x").config, "x");
  EXPECT_EQ(config.rope.type, "llama3");
  EXPECT_EQ(config.rope.factor, 32.0);
  EXPECT_EQ(config.rope.original_max_position, 8192);
  factors[20] *= 1.01f;
  EXPECT_HAS(thrown([&] { make_gguf_model(file_with_factors(factors, bytes), "x"); }),
             "'rope_freqs.weight' holds factors that are not those of llama3 scaling");
  EXPECT_HAS(thrown([&] { make_gguf_model(file_with_factors({1, 2}, bytes), "x"); }),
             "is not one fp32 factor a frequency");
}

}  // namespace
}  // namespace twinkle
