// Hugging Face files of a model. Weights go from the packed matrices to the disk piece by piece; several
// threads unpack each piece while the last one is written. The model must not change meanwhile.
#include "twinkle/model/save.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/kernels/packed_rows.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

struct FileType {
  at::ScalarType type = at::kFloat;
  const char* safetensors = "F32";
  const char* torch = "float32";
};

FileType file_type(at::ScalarType type) {
  if (type == at::kBFloat16) return {type, "BF16", "bfloat16"};
  if (type == at::kHalf) return {type, "F16", "float16"};
  return {};
}

FileType choose_type(const CausalLM& model, const std::string& wanted) {
  if (wanted == "fp32") return file_type(at::kFloat);
  if (wanted == "bf16") return file_type(at::kBFloat16);
  if (wanted == "fp16") return file_type(at::kHalf);
  if (wanted != "auto") {
    throw invalid_argument("[save] dtype: must be one of auto, fp32, bf16, fp16, got '" + wanted + "'");
  }
  // Norms and biases are fp32 in memory whatever the file had; the matrices tell.
  for (const auto& parameter : model.parameters()) {
    if (parameter.is_matrix()) return file_type(parameter.matrix.dtype());
  }
  return file_type(at::kFloat);
}

// Elements [begin, end) of a matrix in row-major order, in the file's type. Threads take panels of rows.
void fill_matrix(const ops::PackedMatrix& matrix, const at::Tensor& plain, int64_t begin, int64_t end,
                 at::ScalarType type, std::byte* out) {
  const int64_t cols = matrix.cols(), size = static_cast<int64_t>(c10::elementSize(type));
  constexpr int64_t kRows = ops::PackedMatrix::kPanel;
  const int64_t first = begin / cols / kRows, last = ((end - 1) / cols) / kRows + 1;
  parallel_for(last - first, 4, [&](int64_t block_begin, int64_t block_end) {
    std::vector<float> rows;
    std::vector<std::byte> moved;
    for (int64_t block = first + block_begin; block < first + block_end; ++block) {
      const int64_t from = std::max(begin, block * kRows * cols),
                    to = std::min(end, (block + 1) * kRows * cols);
      const int64_t row_begin = from / cols, row_end = (to - 1) / cols + 1;
      std::byte* target = out + (from - begin) * size;
      if (!plain.defined() && matrix.dtype() == type) {
        if (from == row_begin * cols && to == row_end * cols) {
          ops::copy_rows(matrix, row_begin, row_end, target);
        } else {  // a piece of the file begins or ends within a row
          moved.resize(static_cast<size_t>((row_end - row_begin) * cols * size));
          ops::copy_rows(matrix, row_begin, row_end, moved.data());
          std::memcpy(target, moved.data() + (from - row_begin * cols) * size,
                      static_cast<size_t>((to - from) * size));
        }
        continue;
      }
      const float* values;
      if (plain.defined()) {
        values = plain.const_data_ptr<float>() + row_begin * cols;
      } else {
        rows.resize(static_cast<size_t>((row_end - row_begin) * cols));
        matrix.read_rows(row_begin, row_end, rows.data());
        values = rows.data();
      }
      ops::narrow(values + (from - row_begin * cols), to - from, type, target);
    }
  });
}

template <class Word>
bool no_special(std::span<const std::byte> values, Word exponent) {
  bool finite = true;
  for (size_t at = 0; at < values.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, values.data() + at, sizeof(Word));
    finite &= (word & exponent) != exponent;
  }
  return finite;
}

// What is written was narrowed already: a number that is too large for the file's type shows here too.
void check_finite(std::span<const std::byte> values, at::ScalarType type, const std::string& name) {
  if (all_finite(values, type)) return;
  throw invalid_argument("[save] tensor '" + name + "' holds numbers that are not finite" +
                         (type == at::kFloat ? "" : ", or too large for the file's type (dtype)"));
}

TensorToWrite to_write(const Parameter& parameter, const FileType& type) {
  // Weights on another device come over whole, one at a time, when their turn is there.
  const auto plain = std::make_shared<at::Tensor>();
  const Parameter* p = &parameter;
  return {parameter.name, type.safetensors, parameter.shape(), [=](int64_t offset, std::span<std::byte> out) {
            const int64_t size = static_cast<int64_t>(c10::elementSize(type.type));
            const int64_t begin = offset / size, end = begin + static_cast<int64_t>(out.size()) / size;
            if (!p->is_matrix()) {
              const at::Tensor vector = p->vector.cpu().contiguous();
              ops::narrow(vector.const_data_ptr<float>() + begin, end - begin, type.type, out.data());
              return check_finite(out, type.type, p->name);
            }
            if (!p->matrix.device().is_cpu() && !plain->defined())
              *plain = p->matrix.unpack().cpu().contiguous();
            fill_matrix(p->matrix, *plain, begin, end, type.type, out.data());
            check_finite(out, type.type, p->name);
            if (end == p->matrix.rows() * p->matrix.cols()) *plain = at::Tensor();
          }};
}

int64_t num_elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

Json saved_config(const ModelConfig& config, const FileType& type) {
  Json out = config.raw;
  // transformers 4 reads the old name, 5 either.
  if (out.contains("dtype")) out["dtype"] = type.torch;
  if (out.contains("torch_dtype") || !out.contains("dtype")) out["torch_dtype"] = type.torch;
  out.erase("_name_or_path");
  out.erase("auto_map");  // names code that is not saved with the weights
  return out;
}

Json generation_config(const ModelConfig& config) {
  Json out = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.raw.contains(key) && !config.raw[key].is_null()) out[key] = config.raw[key];
  }
  return out;
}

}  // namespace

bool all_finite(std::span<const std::byte> values, at::ScalarType type) {
  return type == at::kFloat  ? no_special<uint32_t>(values, 0x7F800000u)
         : type == at::kHalf ? no_special<uint16_t>(values, 0x7C00u)
                             : no_special<uint16_t>(values, 0x7F80u);
}

TensorToWrite weight_to_write(const Parameter& parameter) {
  return to_write(parameter, file_type(parameter.is_matrix() ? parameter.matrix.dtype() : at::kFloat));
}

void save_model(const CausalLM& model, const std::string& directory, const SaveOptions& options) {
  const FileType type = choose_type(model, options.dtype);
  if (options.max_shard_bytes < 1) throw invalid_argument("[save] max_shard_bytes: must be >= 1");
  std::vector<std::vector<const Parameter*>> shards(1);
  int64_t shard_bytes = 0, total = 0, elements = 0;
  for (const auto& parameter : model.parameters()) {
    const int64_t count = num_elements(parameter.shape());
    const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type.type));
    if (!shards.back().empty() && shard_bytes + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(&parameter);
    shard_bytes += bytes;
    total += bytes;
    elements += count;
  }
  const auto in_folder = [&](const std::string& name) { return (fs::path(directory) / name).string(); };
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string name = "model.safetensors";
    if (shards.size() > 1) {
      char text[64];
      std::snprintf(text, sizeof(text), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
      name = text;
    }
    std::vector<TensorToWrite> tensors;
    for (const Parameter* parameter : shards[i]) {
      tensors.push_back(to_write(*parameter, type));
      weight_map[parameter->name] = name;
    }
    write_safetensors(in_folder(name), tensors, {{"format", "pt"}});
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_parameters", elements}, {"total_size", total}}},
                        {"weight_map", weight_map}};
    write_file_atomic(in_folder("model.safetensors.index.json"), index.dump(2) + "\n");
  }
  write_file_atomic(in_folder("config.json"), saved_config(model.config(), type).dump(2) + "\n");
  // A folder may already hold the base model's own.
  if (!file_exists(in_folder("generation_config.json"))) {
    write_file_atomic(in_folder("generation_config.json"), generation_config(model.config()).dump(2) + "\n");
  }
}

}  // namespace twinkle
