#include "twinkle/model/save.h"
#include "twinkle/model/weights_id.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "tests/needs.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/safetensors.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

using Folder = test::TempDir;

std::vector<float> read(const WeightSource& source, const WeightInfo& info) {
  int64_t count = 1;
  for (const int64_t n : info.shape) count *= n;
  std::vector<float> out(static_cast<size_t>(count));
  source.read_rows(info.name, 0, info.shape.size() == 1 ? 1 : info.shape[0], out.data());
  return out;
}

void expect_same_weights(const std::string& a, const std::string& b) {
  const ModelFiles x = open_model_files(a), y = open_model_files(b);
  const auto names = expected_weights(model_config_from_json(x.config, a));
  check_weights(model_config_from_json(y.config, b), *y.weights);
  for (const auto& info : names) EXPECT_EQ(read(*x.weights, info), read(*y.weights, info)) << info.name;
}

TEST(SaveModel, WritesTheFileItWasReadFrom) {
  const Folder folder;
  save_model(*CausalLM::load(test::stories()), folder.path());
  EXPECT_EQ(sha256_hex(read_file(folder / "model.safetensors")),
            sha256_hex(read_file(test::stories() + "/model.safetensors")));
  Json config = read_json_file(test::stories() + "/config.json");
  EXPECT_EQ(read_json_file(folder / "config.json"), config);
  EXPECT_EQ(read_json_file(folder / "generation_config.json"),
            Json({{"_from_model_config", true}, {"bos_token_id", 1}, {"eos_token_id", 2}}));
}

TEST(SaveModel, RefusesNumbersThatAreNotFinite) {
  const Folder folder;
  const auto model = CausalLM::load(test::stories());
  Parameter& norm = model->parameters().back();
  ASSERT_FALSE(norm.is_matrix());
  at::Tensor value = norm.vector[3];
  value.fill_(1e6);  // too large for fp16 alone
  save_model(*model, folder.path(), {.dtype = "bf16"});
  const auto error_of = [&](const std::string& dtype) {
    return test::thrown([&] { save_model(*model, folder.path(), {.dtype = dtype}); });
  };
  EXPECT_EQ(error_of("fp16"),
            "[save] tensor '" + norm.name +
                "' holds numbers that are not finite, or too large for the file's type (dtype)");
  value.fill_(NAN);
  EXPECT_EQ(error_of("fp32"), "[save] tensor '" + norm.name + "' holds numbers that are not finite");
  value.fill_(1);
  at::Tensor matrix = model->parameters().front().matrix.storage();
  matrix[5] = INFINITY;
  EXPECT_EQ(error_of("fp32"),
            "[save] tensor '" + model->parameters().front().name + "' holds numbers that are not finite");
}

TEST(SaveModel, ShardsWithAnIndexAndStoresATiedHeadOnce) {
  const Folder folder;
  save_model(*CausalLM::load(test::stories()), folder.path(), {.max_shard_bytes = 300'000});
  const Json index = read_json_file(folder / "model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 1040128);
  EXPECT_EQ(index["metadata"]["total_parameters"], 1040128 / 4);
  EXPECT_EQ(index["weight_map"].size(), 47u);
  EXPECT_FALSE(index["weight_map"].contains("lm_head.weight"));
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    files.insert(file.get<std::string>());
    EXPECT_NE(SafetensorsFile::open(folder / file.get<std::string>()).find(name), nullptr);
  }
  EXPECT_EQ(files,
            (std::set<std::string>{"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                   "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"}));
  for (const auto& file : files) EXPECT_LE(fs::file_size(folder / file), 310'000u);
  expect_same_weights(test::stories(), folder.path());
}

TEST(SaveModel, ConvertsToTheTypeAsked) {
  const Folder half, again;
  save_model(*CausalLM::load(test::stories()), half.path(), {.dtype = "bf16"});
  EXPECT_EQ(read_json_file(half / "config.json").at("torch_dtype"), "bfloat16");
  const SafetensorsFile original = SafetensorsFile::open(test::stories() + "/model.safetensors");
  const SafetensorsFile file = SafetensorsFile::open(half / "model.safetensors");
  for (const auto& tensor : file.tensors()) {
    EXPECT_EQ(tensor.dtype, "BF16");
    const auto* want = original.find(tensor.name);
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      float value;
      std::memcpy(&value, want->data.data() + 4 * i, 4);
      const at::BFloat16 rounded(value);
      ASSERT_EQ(std::memcmp(&rounded, tensor.data.data() + 2 * i, 2), 0) << tensor.name;
    }
  }
  // What is bf16 in memory is written as it is, norms too.
  save_model(*CausalLM::load(half.path()), again.path());
  EXPECT_EQ(sha256_hex(read_file(half / "model.safetensors")),
            sha256_hex(read_file(again / "model.safetensors")));
  const Folder fp16;
  save_model(*CausalLM::load(test::stories()), fp16.path(), {.dtype = "fp16"});
  EXPECT_EQ(SafetensorsFile::open(fp16 / "model.safetensors").tensors()[0].dtype, "F16");
}

// Pieces of the writer end within rows; the weights must not.
TEST(SaveModel, LargeTensorsArriveWhole) {
  const Json raw = {{"architectures", {"LlamaForCausalLM"}},
                    {"hidden_size", 130},
                    {"intermediate_size", 35},
                    {"num_hidden_layers", 1},
                    {"num_attention_heads", 1},
                    {"vocab_size", 50003}};
  const ModelConfig config = model_config_from_json(raw, "x");
  const auto source = random_weights(config, 11);
  for (const char* dtype : {"fp32", "bf16"}) {
    const Folder folder;
    save_model(*CausalLM::build(config, *source), folder.path(), {.dtype = dtype});
    const ModelFiles files = open_model_files(folder.path());
    for (const auto& info : expected_weights(config)) {
      std::vector<float> want = read(*source, info);
      if (std::string(dtype) == "bf16") {
        for (float& v : want) v = static_cast<float>(at::BFloat16(v));
      }
      EXPECT_EQ(read(*files.weights, info), want) << info.name << dtype;
    }
  }
}

TEST(SaveModel, KeepsAGenerationConfigAndRefusesNonsense) {
  const Folder folder;
  const auto model = CausalLM::load(test::stories());
  write_file_atomic(folder / "generation_config.json", R"({"temperature": 0.5})");
  save_model(*model, folder.path());
  EXPECT_EQ(read_json_file(folder / "generation_config.json").at("temperature"), 0.5);
  EXPECT_THROW(save_model(*model, folder.path(), {.dtype = "int8"}), Error);
  EXPECT_THROW(save_model(*model, folder.path(), {.max_shard_bytes = 0}), Error);
  EXPECT_THROW(save_model(*model, folder / "no/such", {}), Error);
}

TEST(WeightsSampleId, NamesTheWeightsAsTheyAreHeld) {
  const auto id = [](const std::string& path, const std::string& dtype) {
    return weights_sample_id(*CausalLM::load(path, {.dtype = dtype}));
  };
  const std::string held = id(test::stories(), "fp32");
  EXPECT_EQ(id(test::stories(), "fp32"), held);
  EXPECT_NE(id(test::stories(), "bf16"), held);
  const Folder dir;
  const auto model = CausalLM::load(test::stories(), {.dtype = "fp32"});
  save_model(*model, dir.path());
  EXPECT_EQ(id(dir.path(), "fp32"), held) << "wherever the files lie";
  for (auto& parameter : model->parameters()) {
    if (!parameter.is_matrix()) parameter.vector.mul_(1.5f);
  }
  EXPECT_NE(weights_sample_id(*model), held);
}

}  // namespace
}  // namespace twinkle
