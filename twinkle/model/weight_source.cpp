// Weights from safetensors files and from a seed, and the opening of model folders. Sources only map and
// check; reading is thread-safe.
#include "twinkle/model/weight_source.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/core/gguf.h"
#include "twinkle/core/no_model.h"
#include "twinkle/core/normal.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/core/written_files.h"
#include "twinkle/model/gguf_source.h"
#include "twinkle/model/named_source.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

GgmlType float_type(const std::string& dtype) {
  if (dtype == "F32") return GgmlType::kF32;
  if (dtype == "F16") return GgmlType::kF16;
  TW_CHECK(dtype == "BF16", "check_weights let dtype " + dtype + " pass");
  return GgmlType::kBF16;
}

struct SafetensorsEntry {
  WeightInfo info;
  const SafeTensor* tensor;
};

class SafetensorsSource : public NamedSource<SafetensorsEntry> {
 public:
  /// `weight_map`: the index's tensor -> file; null for one file that names itself.
  SafetensorsSource(std::string where, const std::vector<std::string>& files, const Json* weight_map)
      : where_(std::move(where)) {
    for (const auto& file : files)
      files_.push_back(SafetensorsFile::open((fs::path(where_) / file).string()));
    for (size_t i = 0; i < files.size(); ++i) {
      for (const auto& tensor : files_[i].tensors()) {
        WeightInfo info{tensor.name, tensor.shape, tensor.dtype};
        if (!tensors_.emplace(tensor.name, SafetensorsEntry{std::move(info), &tensor}).second) {
          throw invalid_argument("[weights] '" + where_ + "': tensor '" + tensor.name +
                                 "' lies in two files");
        }
      }
    }
    if (weight_map != nullptr) {
      for (const auto& [name, file] : weight_map->items()) {
        const size_t i = static_cast<size_t>(std::find(files.begin(), files.end(), file.get<std::string>()) -
                                             files.begin());
        if (files_[i].find(name) == nullptr) {
          throw invalid_argument("[weights] '" + where_ + "': the index places '" + name + "' in '" +
                                 files[i] + "', which does not hold it");
        }
      }
    }
    add_prefix();
  }

  void read_rows(const std::string& name, int64_t row_begin, int64_t row_end, float* out) const override {
    const auto it = tensors_.find(name);
    TW_CHECK(it != tensors_.end(), "no tensor " + name);
    const SafeTensor& tensor = *it->second.tensor;
    const int64_t row =
        tensor.shape.size() < 2 ? tensor.num_elements() : tensor.num_elements() / tensor.shape[0];
    const std::byte* data = tensor.data.data() + row_begin * row * safetensors_dtype_bytes(tensor.dtype);
    dequantize(float_type(tensor.dtype), data, (row_end - row_begin) * row, out);
  }

  std::span<const std::byte> bytes(const std::string& name) const override {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? std::span<const std::byte>() : it->second.tensor->data;
  }

  std::string where() const override { return where_; }

 private:
  // Checkpoints of the bare body (embedding models) lack the prefix that the whole model's names have.
  void add_prefix() {
    if (!tensors_.contains("embed_tokens.weight") || tensors_.contains("model.embed_tokens.weight")) return;
    std::map<std::string, SafetensorsEntry> renamed;
    for (auto& [name, entry] : tensors_) {
      if (name.rfind("lm_head.", 0) != 0) entry.info.name = "model." + name;
      const std::string key = entry.info.name;
      renamed.emplace(key, std::move(entry));
    }
    tensors_ = std::move(renamed);
  }

  std::string where_;
  std::vector<SafetensorsFile> files_;
};

class RandomSource : public WeightSource {
 public:
  RandomSource(const ModelConfig& config, uint64_t seed)
      : seed_(seed), std_(static_cast<float>(config.initializer_range)) {
    for (auto& info : expected_weights(config)) {
      order_.push_back(info.name);
      infos_.emplace(info.name, std::move(info));
    }
  }

  std::vector<WeightInfo> tensors() const override {
    std::vector<WeightInfo> out;
    for (const auto& name : order_) out.push_back(infos_.at(name));
    return out;
  }

  const WeightInfo* find(const std::string& name) const override {
    const auto it = infos_.find(name);
    return it == infos_.end() ? nullptr : &it->second;
  }

  void read_rows(const std::string& name, int64_t row_begin, int64_t row_end, float* out) const override {
    const auto& shape = infos_.at(name).shape;
    if (shape.size() == 1) {
      std::fill(out, out + shape[0], name.ends_with(".bias") ? 0.0f : 1.0f);
      return;
    }
    const uint64_t key = mix_key(mix_key(seed_, hash_name("weights")), hash_name(name));
    fill_normal_range(out, row_begin * shape[1], row_end * shape[1], key, std_);
  }

  std::string where() const override { return "random weights of seed " + std::to_string(seed_); }

 private:
  uint64_t seed_;
  float std_;
  std::vector<std::string> order_;
  std::map<std::string, WeightInfo> infos_;
};

std::shared_ptr<WeightSource> open_sharded(const std::string& path, const std::string& index_path) {
  const Json index = read_json_file(index_path);
  const auto fail = [&](const std::string& message) {
    return invalid_argument("[weights] '" + index_path + "': " + message);
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw fail("expected an object with 'weight_map'");
  }
  const Json& map = index["weight_map"];
  std::vector<std::string> files;
  for (const auto& [name, file] : map.items()) {
    if (!file.is_string()) throw fail("the file of '" + name + "' must be a string");
    const auto text = file.get<std::string>();
    if (text.find('/') != std::string::npos || text.find('\\') != std::string::npos || text == ".." ||
        !text.ends_with(".safetensors")) {
      throw fail("'" + text + "' is not the name of a safetensors file in this folder");
    }
    files.push_back(text);
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  for (const auto& file : files) {
    if (!file_exists((fs::path(path) / file).string())) {
      throw not_found("[weights] '" + path + "': the index names '" + file + "', which is not there");
    }
  }
  return std::make_shared<SafetensorsSource>(path, files, &map);
}

std::shared_ptr<WeightSource> open_folder_weights(const std::string& path) {
  const std::string index = (fs::path(path) / "model.safetensors.index.json").string();
  if (file_exists(index)) return open_sharded(path, index);
  std::vector<std::string> safetensors, pickles;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
    if (extension == ".safetensors") safetensors.push_back(name);
    if ((extension == ".bin" && name.rfind("pytorch_model", 0) == 0) || extension == ".pt" ||
        extension == ".pth") {
      pickles.push_back(name);
    }
  }
  std::sort(safetensors.begin(), safetensors.end());
  std::sort(pickles.begin(), pickles.end());
  if (std::find(safetensors.begin(), safetensors.end(), "model.safetensors") != safetensors.end()) {
    return std::make_shared<SafetensorsSource>(path, std::vector<std::string>{"model.safetensors"}, nullptr);
  }
  if (safetensors.size() == 1) return std::make_shared<SafetensorsSource>(path, safetensors, nullptr);
  if (safetensors.size() > 1) {
    throw invalid_argument(
        "[weights] '" + path + "' holds " + std::to_string(safetensors.size()) +
        " safetensors files but no model.safetensors.index.json that says what lies where");
  }
  if (!pickles.empty()) {
    throw invalid_argument("[weights] '" + path + "' holds pickled weights only ('" + pickles.front() +
                           "'), which can run code when read and are refused; convert them to safetensors");
  }
  return nullptr;
}

bool looks_like_gguf(const std::string& path) {
  const MappedFile file(path);
  return file.text().substr(0, 4) == "GGUF";
}

}  // namespace

ModelFiles open_model_files(const std::string& path) {
  ModelFiles out;
  out.path = path;
  if (!file_exists(path)) throw not_found("[model] there is nothing at '" + path + "'");
  if (!is_directory(path)) {
    if (!looks_like_gguf(path)) {
      throw invalid_argument("[model] '" + path + "' is neither a folder with config.json nor a GGUF file");
    }
    out.gguf = true;
    GgufModel model = open_gguf_model(path);
    out.config = std::move(model.config);
    out.weights = std::move(model.weights);
    return out;
  }
  const auto in_folder = [&](const char* name) { return (fs::path(path) / name).string(); };
  if (!file_exists(in_folder("config.json"))) {
    throw no_model(path);
  }
  check_weights_as_written(path);
  out.config = read_json_file(in_folder("config.json"));
  if (file_exists(in_folder("generation_config.json"))) {
    out.generation_config = read_json_file(in_folder("generation_config.json"));
  }
  out.weights = open_folder_weights(path);
  return out;
}

std::shared_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_shared<RandomSource>(config, seed);
}

}  // namespace twinkle
