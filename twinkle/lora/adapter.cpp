// Making, reading, writing and binding adapters. An adapter belongs to one thread at a time.
#include "twinkle/lora/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/gguf.h"
#include "twinkle/core/list_text.h"
#include "twinkle/core/rng.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/core/written_files.h"
#include "twinkle/lora/targets.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

const std::string kPrefix = "base_model.model.";

// The weight behind a module's name; a tied head has the embedding's.
const Parameter& weight_of(const CausalLM& model, const std::string& module) {
  const std::string name = module == kHeadModule && model.config().tie_word_embeddings
                               ? kEmbeddingModule + ".weight"
                               : module + ".weight";
  for (const auto& parameter : model.parameters()) {
    if (parameter.name == name) return parameter;
  }
  TW_CHECK(false, "no weight for module " + module);
}

std::vector<std::string> adaptable_names(const CausalLM& model) {
  std::vector<std::string> out = {kEmbeddingModule};
  for (const auto& linear : model.linears()) out.push_back(linear.name);
  return out;
}

int64_t linear_index(const CausalLM& model, const std::string& name) {
  for (size_t i = 0; i < model.linears().size(); ++i) {
    if (model.linears()[i].name == name) return static_cast<int64_t>(i);
  }
  return -1;
}

std::vector<std::string> names_to_save(const CausalLM& model, const LoraConfig& config) {
  std::vector<std::string> all;
  constexpr std::string_view kWeight = ".weight";
  for (const auto& parameter : model.parameters()) {
    if (parameter.name.ends_with(kWeight))
      all.push_back(parameter.name.substr(0, parameter.name.size() - kWeight.size()));
  }
  if (model.config().tie_word_embeddings) all.push_back(kHeadModule);
  const auto chosen = match_modules_to_save(config, all);
  for (const auto& name : chosen) {
    if (name != kEmbeddingModule && name != kHeadModule && weight_of(model, name).is_matrix()) {
      throw invalid_argument("[lora] 'modules_to_save': '" + name +
                             "' can not be trained whole here; embed_tokens, lm_head and norms can");
    }
  }
  return chosen;
}

// A whole copy in fp32.
Parameter copy_of(const Parameter& source, const std::string& module) {
  Parameter out;
  out.name = module + ".weight";
  if (!source.is_matrix()) {
    out.vector = source.vector.to(at::kFloat).clone();
  } else if (source.matrix.device().is_cpu()) {
    out.matrix = ops::PackedMatrix::build(
        source.matrix.rows(), source.matrix.cols(), at::kFloat, source.matrix.device(),
        [&](int64_t begin, int64_t end, float* rows) { source.matrix.read_rows(begin, end, rows); });
  } else {
    out.matrix = ops::PackedMatrix::pack(source.matrix.unpack(), at::kFloat);
  }
  return out;
}

at::Tensor plain_of(const Parameter& parameter) {
  return (parameter.is_matrix() ? parameter.matrix.unpack() : parameter.vector).cpu().contiguous();
}

std::string a_name(const LoraModule& m) {
  return kPrefix + m.name + (m.linear < 0 ? ".lora_embedding_A" : ".lora_A.weight");
}
std::string b_name(const LoraModule& m) {
  return kPrefix + m.name + (m.linear < 0 ? ".lora_embedding_B" : ".lora_B.weight");
}

// The matrix at an element of a flat tensor; undefined where that is.
at::Tensor matrix_in(const at::Tensor& flat, int64_t place, int64_t rows, int64_t columns) {
  return flat.defined() ? flat.as_strided({rows, columns}, {columns, 1}, place) : at::Tensor();
}

at::Tensor read_tensor(const SafeTensor& tensor, const std::string& path) {
  GgmlType type;
  if (tensor.dtype == "F32") {
    type = GgmlType::kF32;
  } else if (tensor.dtype == "F16") {
    type = GgmlType::kF16;
  } else if (tensor.dtype == "BF16") {
    type = GgmlType::kBF16;
  } else {
    throw invalid_argument("[lora] '" + path + "': tensor '" + tensor.name + "' is " + tensor.dtype +
                           ", expected F32, F16 or BF16");
  }
  at::Tensor out = at::empty(tensor.shape, at::kFloat);
  dequantize(type, tensor.data.data(), tensor.num_elements(), out.mutable_data_ptr<float>());
  const auto finite = [](const at::Tensor& bound) { return std::isfinite(bound.item<float>()); };
  const auto [least, most] = out.numel() > 0 ? at::aminmax(out) : std::tuple(at::zeros({}), at::zeros({}));
  if (!finite(least) || !finite(most)) {
    throw invalid_argument("[lora] '" + path + "': tensor '" + tensor.name +
                           "' holds numbers that are not finite");
  }
  return out;
}

// PEFT stores the frozen weight beside an adapter on the embedding or head. It must be this model's: up to
// the rounding of a half type.
void check_base_layer(const CausalLM& model, const SafeTensor& tensor, const std::string& module,
                      const std::string& path) {
  const at::Tensor own = plain_of(weight_of(model, module));
  const auto fail = [&](const std::string& why) {
    return invalid_argument("[lora] '" + path + "': '" + tensor.name + "' " + why);
  };
  if (at::IntArrayRef(tensor.shape) != own.sizes()) {
    throw fail("is " + shape_text(tensor.shape) + ", this model's is " + shape_text(own.sizes()));
  }
  const at::Tensor theirs = read_tensor(tensor, path);
  const double largest = own.abs().max().item<double>();
  if (!((theirs - own).abs().max().item<double>() <= largest / 128)) {
    throw fail("differs from this model's weight: the adapter was trained on another base");
  }
}

}  // namespace

// Memory.

// Modules with zeroed pairs of the right shapes, in one piece of memory.
void Adapter::lay_out(const CausalLM& model, bool every_entry) {
  constexpr int64_t kAligned = 16;  // floats of 64 bytes
  const auto take = [&](int64_t elements) {
    const int64_t place = flat_elements_;
    flat_elements_ += (elements + kAligned - 1) / kAligned * kAligned;
    return place;
  };
  for (const auto& target : match_targets(config_, adaptable_names(model), every_entry)) {
    LoraModule module;
    module.name = target.name;
    module.linear = linear_index(model, target.name);
    const auto shape = weight_of(model, target.name).shape();  // [out, in]; for the embedding [vocab, hidden]
    Place place{.rank = target.rank,
                .in = module.linear < 0 ? shape[0] : shape[1],
                .out = module.linear < 0 ? shape[1] : shape[0]};
    place.a = take(place.rank * place.in);
    place.b = take(place.out * place.rank);
    module.slot.scale = static_cast<float>(config_.scale_of(target.rank, target.alpha));
    modules_.push_back(std::move(module));
    places_.push_back(place);
  }
  set_values(at::zeros({flat_elements_}, at::TensorOptions().dtype(at::kFloat).device(model.device())));
}

void Adapter::save_whole(const CausalLM& model) {
  for (const auto& name : names_to_save(model, config_)) {
    saved_modules_.emplace(name, copy_of(weight_of(model, name), name));
  }
}

void Adapter::set_values(at::Tensor flat) {
  TW_CHECK(!flat.defined() || flat.numel() == flat_elements_, "values have the adapter's size");
  values_ = std::move(flat);
  for (size_t i = 0; i < modules_.size(); ++i) {
    const Place& p = places_[i];
    modules_[i].slot.a_rK = matrix_in(values_, p.a, p.rank, p.in);
    modules_[i].slot.b_Nr = matrix_in(values_, p.b, p.out, p.rank);
  }
}

void Adapter::set_gradients(at::Tensor flat) {
  TW_CHECK(!flat.defined() || flat.numel() == flat_elements_, "gradients have the adapter's size");
  gradients_ = std::move(flat);
  for (size_t i = 0; i < modules_.size(); ++i) {
    const Place& p = places_[i];
    modules_[i].slot.da_rK = matrix_in(gradients_, p.a, p.rank, p.in);
    modules_[i].slot.db_Nr = matrix_in(gradients_, p.b, p.out, p.rank);
  }
}

void Adapter::make_trainable() {
  if (!gradients_.defined()) {
    const bool kept = gradient_memory_ != nullptr && values_.is_cpu();
    set_gradients(kept ? gradient_memory_->take(flat_elements_) : at::zeros_like(values_));
  }
  for (auto& [name, parameter] : saved_modules_) parameter.make_trainable();
}

void Adapter::zero_grad() {
  if (gradients_.defined()) gradients_.zero_();
  for (auto& [name, parameter] : saved_modules_) parameter.zero_grad();
}

// Making and files.

std::unique_ptr<Adapter> Adapter::create(const CausalLM& model, const LoraConfig& config) {
  auto out = std::make_unique<Adapter>();
  out->config_ = expand_all_linear(config, adaptable_names(model));
  out->save_whole(model);
  out->lay_out(model, true);
  check_trainable(*out);
  const uint64_t key_a = mix_key(config.seed, hash_name("lora_A")),
                 key_b = mix_key(config.seed, hash_name("lora_B"));
  for (auto& module : out->modules_) {
    // kaiming_uniform(a = sqrt 5) is U(-1/sqrt(in), 1/sqrt(in)); an embedding starts from A = 0 and B ~ N(0,
    // 1).
    at::Tensor& drawn = module.linear < 0 ? module.slot.b_Nr : module.slot.a_rK;
    at::Tensor host = at::empty(drawn.sizes(), at::kFloat);
    if (module.linear < 0) {
      fill_normal(host.mutable_data_ptr<float>(), host.numel(), mix_key(key_b, hash_name(module.name)), 1.0f);
    } else {
      const float bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(host.size(1))));
      fill_uniform(host.mutable_data_ptr<float>(), host.numel(), mix_key(key_a, hash_name(module.name)),
                   -bound, bound);
    }
    drawn.copy_(host);
  }
  return out;
}

std::unique_ptr<Adapter> Adapter::load(const CausalLM& model, const std::string& directory) {
  const auto in_folder = [&](const char* name) { return (fs::path(directory) / name).string(); };
  const std::string config_path = in_folder("adapter_config.json"),
                    path = in_folder("adapter_model.safetensors");
  if (!file_exists(config_path)) throw not_found("[lora] '" + directory + "' has no adapter_config.json");
  if (!file_exists(path)) {
    if (file_exists(in_folder("adapter_model.bin"))) {
      throw invalid_argument("[lora] '" + directory +
                             "' holds a pickled adapter_model.bin only, which can run code when " +
                             "read and is refused; save it as safetensors");
    }
    throw not_found("[lora] '" + directory + "' has no adapter_model.safetensors");
  }
  check_weights_as_written(directory);
  return read(model, read_json_file(config_path), SafetensorsFile::open(path), path);
}

std::unique_ptr<Adapter> Adapter::read(const CausalLM& model, const Json& config, const SafetensorsFile& file,
                                       const std::string& path) {
  auto out = std::make_unique<Adapter>();
  const std::string config_path = (fs::path(path).parent_path() / "adapter_config.json").string();
  out->config_ = expand_all_linear(lora_config_from_json(config, config_path), adaptable_names(model));
  out->lay_out(model, false);
  out->save_whole(model);

  std::vector<std::string> missing, misshapen, unexpected;
  std::set<std::string> known;
  size_t matched = 0;
  const auto take = [&](const std::string& name, at::IntArrayRef shape) -> const SafeTensor* {
    known.insert(name);
    const SafeTensor* tensor = file.find(name);
    if (tensor == nullptr) {
      missing.push_back("'" + name + "'");
    } else if (at::IntArrayRef(tensor->shape) != shape) {
      misshapen.push_back("'" + name + "' is " + shape_text(tensor->shape) + ", expected " +
                          shape_text(shape));
      tensor = nullptr;
    } else {
      ++matched;
    }
    return tensor;
  };
  for (auto& module : out->modules_) {
    if (const auto* a = take(a_name(module), module.slot.a_rK.sizes()))
      module.slot.a_rK.copy_(read_tensor(*a, path));
    if (const auto* b = take(b_name(module), module.slot.b_Nr.sizes()))
      module.slot.b_Nr.copy_(read_tensor(*b, path));
  }
  for (auto& [name, parameter] : out->saved_modules_) {
    const SafeTensor* tensor = take(kPrefix + name + ".weight", parameter.shape());
    if (tensor == nullptr) continue;
    const at::Tensor value = read_tensor(*tensor, path);
    if (parameter.is_matrix()) {
      parameter.matrix = ops::PackedMatrix::pack(value.to(model.device()), at::kFloat);
    } else {
      parameter.vector = value.to(model.device());
    }
  }
  for (const auto& tensor : file.tensors()) {
    if (known.contains(tensor.name)) continue;
    const bool base = tensor.name == kPrefix + kEmbeddingModule + ".base_layer.weight" ||
                      tensor.name == kPrefix + kHeadModule + ".base_layer.weight";
    if (base) {
      check_base_layer(
          model, tensor,
          tensor.name.find(kEmbeddingModule) != std::string::npos ? kEmbeddingModule : kHeadModule, path);
    } else {
      unexpected.push_back("'" + tensor.name + "'");
    }
  }
  if (!missing.empty() || !misshapen.empty() || !unexpected.empty()) {
    std::string message = "[lora] '" + path + "' does not fit this model and its adapter_config.json: " +
                          std::to_string(matched) + " of " + std::to_string(known.size()) + " tensors match";
    const auto add = [&](const char* what, const std::vector<std::string>& items) {
      if (!items.empty())
        message += "; " + std::to_string(items.size()) + " " + what + ": " + first_few(items);
    };
    add("missing", missing);
    add("of the wrong shape", misshapen);
    add("unexpected", unexpected);
    const std::string& base = out->config_.base_model_name_or_path;
    throw invalid_argument(message + "; an adapter goes with the model it was trained on" +
                           (base.empty() ? "" : ", '" + base + "'"));
  }
  return out;
}

std::vector<TensorToWrite> Adapter::to_write() const {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const at::Tensor& value) {
    tensors.push_back({name, "F32", value.sizes().vec(), [value](int64_t offset, std::span<std::byte> out) {
                         std::memcpy(out.data(),
                                     static_cast<const std::byte*>(value.const_data_ptr()) + offset,
                                     out.size());
                       }});
  };
  for (const auto& module : modules_) {
    add(a_name(module), module.slot.a_rK.cpu().contiguous());
    add(b_name(module), module.slot.b_Nr.cpu().contiguous());
  }
  for (const auto& [name, parameter] : saved_modules_) add(kPrefix + name + ".weight", plain_of(parameter));
  return tensors;
}

void Adapter::save(const std::string& directory) const {
  write_safetensors((fs::path(directory) / "adapter_model.safetensors").string(), to_write(),
                    {{"format", "pt"}});
  write_file_atomic((fs::path(directory) / "adapter_config.json").string(),
                    lora_config_to_json(config_).dump(2));
}

int64_t Adapter::num_parameters() const {
  int64_t count = 0;
  for (const auto& module : modules_) count += module.slot.a_rK.numel() + module.slot.b_Nr.numel();
  for (const auto& [name, parameter] : saved_modules_) {
    int64_t n = 1;
    for (const int64_t size : parameter.shape()) n *= size;
    count += n;
  }
  return count;
}

std::vector<Adapter::Trained> Adapter::trained() {
  if (file_order_.empty()) {
    for (size_t i = 0; i < modules_.size(); ++i) {
      file_order_.push_back({a_name(modules_[i]), 2 * i});
      file_order_.push_back({b_name(modules_[i]), 2 * i + 1});
    }
    for (const auto& [name, parameter] : saved_modules_)
      file_order_.push_back({kPrefix + name + ".weight", file_order_.size()});
    std::sort(file_order_.begin(), file_order_.end());
  }
  std::vector<Trained> out;
  for (const auto& [name, place] : file_order_) {
    if (place >= 2 * modules_.size()) {
      Parameter& whole =
          std::next(saved_modules_.begin(), static_cast<std::ptrdiff_t>(place - 2 * modules_.size()))->second;
      out.push_back({name, whole.flat(), whole.flat_grad()});
      continue;
    }
    const ops::LoraSlot& slot = modules_[place / 2].slot;
    const bool a = place % 2 == 0;
    out.push_back({name, a ? slot.a_rK : slot.b_Nr, a ? slot.da_rK : slot.db_Nr});
  }
  return out;
}

void check_trainable(const Adapter& adapter) {
  for (const auto& module : adapter.modules()) {
    if (module.name == kHeadModule && adapter.config().lora_dropout > 0) {
      throw invalid_argument(
          "[lora] lora_dropout cannot be used with an adapter on lm_head; set lora_dropout to 0 or leave "
          "lm_head out of target_modules");
    }
  }
}

// Binding.

AdapterUse use_of(const Adapter& adapter, bool training, bool gradients) {
  return {.modules = &adapter.modules(),
          .saved_modules = &adapter.saved_modules(),
          .gradients = gradients,
          .dropout = training ? adapter.config().lora_dropout : 0.0,
          .dropout_seed = mix_key(adapter.config().seed, hash_name("lora_dropout"))};
}

nn::LoraBinding bind_adapters(const CausalLM& model, std::span<const AdapterUse> adapters,
                              std::vector<ops::LoraSpan> spans) {
  nn::LoraBinding out;
  out.spans = std::move(spans);
  out.slots.resize(model.linears().size());
  for (size_t i = 0; i < adapters.size(); ++i) {
    const AdapterUse& use = adapters[i];
    for (const auto& module : *use.modules) {
      auto& slots = module.linear < 0 ? out.embedding : out.slots[static_cast<size_t>(module.linear)];
      slots.resize(adapters.size());
      slots[i] = module.slot;
      if (!use.gradients) slots[i].da_rK = slots[i].db_Nr = at::Tensor();
    }
    out.dropout.push_back(use.dropout);
    out.dropout_seed.push_back(use.dropout_seed);
    if (use.saved_modules == nullptr || use.saved_modules->empty()) continue;
    if (adapters.size() > 1) {
      throw invalid_argument("[lora] an adapter with modules_to_save needs a pass of its own");
    }
    for (const auto& [name, parameter] : *use.saved_modules) {
      // A pass writes gradients of trainable parameters only.
      Parameter* whole = const_cast<Parameter*>(&parameter);
      if (name == kEmbeddingModule) {
        out.replaced_embedding = whole;
      } else if (name == kHeadModule) {
        out.replaced_head = whole;
      } else {
        out.replaced_norms[&weight_of(model, name)] = whole;
      }
    }
  }
  return out;
}

nn::LoraBinding bind_adapter(const CausalLM& model, Adapter& adapter, const PackedBatch& batch,
                             bool training) {
  std::vector<ops::LoraSpan> spans;
  for (const int64_t b : batch.reduction_order()) {
    const int64_t begin = batch.cu_seqlens[static_cast<size_t>(b)],
                  end = batch.cu_seqlens[static_cast<size_t>(b) + 1];
    if (end > begin) spans.push_back({begin, end, 0});
  }
  const AdapterUse use = use_of(adapter, training, true);
  return bind_adapters(model, std::span(&use, 1), std::move(spans));
}

}  // namespace twinkle
