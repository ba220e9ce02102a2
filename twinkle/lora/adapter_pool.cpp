#include "twinkle/lora/adapter_pool.h"

#include <ATen/ATen.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/list_text.h"
#include "twinkle/core/safetensors.h"
#include "twinkle/core/suggest.h"
#include "twinkle/lora/adapter_copies.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "twinkle-adapters-";
constexpr int kAttempts = 10;  // to make a folder that nobody else touches
constexpr std::string_view kAllLinear = "all-linear";

std::string last_component(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool listed(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// What state may be made of.
constexpr std::pair<at::ScalarType, const char*> kTypes[] = {
    {at::kFloat, "F32"}, {at::kBFloat16, "BF16"}, {at::kHalf, "F16"}, {at::kDouble, "F64"},
    {at::kLong, "I64"},  {at::kInt, "I32"},       {at::kByte, "U8"}};

std::string safetensors_name(at::ScalarType type) {
  for (const auto& [known, name] : kTypes) {
    if (known == type) return name;
  }
  TW_CHECK(false, std::string("state of type ") + c10::toString(type) + " can not be written");
}

at::ScalarType scalar_type_of(const std::string& name) {
  for (const auto& [type, known] : kTypes) {
    if (name == known) return type;
  }
  throw unavailable("the file is not what was written");
}

// Weights that come back otherwise than they went would train on in silence.
std::string checksum_of(const at::Tensor& host) {
  return std::to_string(
      crc32c({static_cast<const std::byte*>(host.const_data_ptr()), static_cast<size_t>(host.nbytes())}));
}

// Folders of owners that died: nobody holds their lock. Where there are no locks nobody knows, and they stay.
void remove_left_overs(const fs::path& parent) {
  std::error_code ignored;
  for (const auto& found : fs::directory_iterator(parent, ignored)) {
    if (!found.path().filename().string().starts_with(kFolder) || !found.is_directory(ignored)) continue;
    try {
      const FolderLock lock(found.path().string());
      if (lock.guarded()) fs::remove_all(found.path(), ignored);
    } catch (const Error&) {  // it is in use, or not ours to remove
    }
  }
}

}  // namespace

std::vector<std::string> modules_of_parts(bool attention, bool mlp, bool unembedding) {
  std::vector<std::string> out;
  if (attention) out.insert(out.end(), {"q_proj", "k_proj", "v_proj", "o_proj"});
  if (mlp) out.insert(out.end(), {"gate_proj", "up_proj", "down_proj"});
  if (unembedding) out.emplace_back("lm_head");
  return out;
}

AdapterPool::AdapterPool(const CausalLM& model, AdapterPoolOptions options)
    : model_(model), options_(std::move(options)) {
  if (options_.max_loras < 1) {
    throw invalid_argument("[pool] max_loras must be >= 1, got " + std::to_string(options_.max_loras));
  }
  if (options_.max_r < 1)
    throw invalid_argument("[pool] max_r must be >= 1, got " + std::to_string(options_.max_r));
  if (options_.target_modules.empty()) throw invalid_argument("[pool] target_modules must name some module");
}

AdapterPool::~AdapterPool() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

const std::string& AdapterPool::folder() {
  if (!folder_.empty()) return folder_;
  const fs::path parent =
      options_.spill_dir.empty() ? fs::temp_directory_path() : fs::path(options_.spill_dir);
  make_directories(parent.string());
  remove_left_overs(parent);
  for (int attempt = 1;; ++attempt) {
    std::string path = (parent / (std::string(kFolder) + "XXXXXX")).string();
    if (::mkdtemp(path.data()) == nullptr) {
      throw unavailable("[pool] cannot make a folder in '" + parent.string() + "': " + std::strerror(errno));
    }
    // Before it is locked, another run may take it for a left-over and remove it.
    try {
      auto lock = std::make_unique<FolderLock>(path);
      if (is_directory(path)) {
        folder_lock_ = std::move(lock);
        return folder_ = path;
      }
    } catch (const Error&) {
      std::error_code ignored;
      fs::remove(path, ignored);
      if (attempt == kAttempts) throw;
    }
    if (attempt == kAttempts)
      throw unavailable("[pool] other runs keep removing the folders made in '" + parent.string() + "'");
  }
}

AdapterPool::Entry& AdapterPool::entry(const std::string& name) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  throw not_found("[pool] there is no adapter '" + name + "'" + did_you_mean(name, names()));
}

std::vector<std::string> AdapterPool::names() const {
  std::vector<std::string> out;
  for (const auto& [name, unused] : entries_) out.push_back(name);
  return out;
}

// Making and removing.

void AdapterPool::check_config(const std::string& name, const LoraConfig& config) const {
  if (name.empty()) throw invalid_argument("[pool] an adapter needs a name");
  if (entries_.contains(name)) throw conflict("[pool] there is an adapter '" + name + "' already");
  check_lora_config(config);
  const auto check_rank = [&](const std::string& what, int64_t rank) {
    if (rank <= options_.max_r) return;
    throw invalid_argument("[pool] adapter '" + name + "': " + what + " is " + std::to_string(rank) +
                           ", at most " + std::to_string(options_.max_r) + " is allowed here (max_r)");
  };
  check_rank("r", config.r);
  for (const auto& [module, rank] : config.rank_pattern) check_rank("rank_pattern '" + module + "'", rank);
}

void AdapterPool::check_modules(const Adapter& adapter) const {
  check_trainable(adapter);
  const bool all = listed(options_.target_modules, std::string(kAllLinear));
  const auto refuse = [](const std::string& module, const std::string& why) {
    return invalid_argument("[pool] target_modules: '" + module + "' " + why);
  };
  for (const auto& module : adapter.modules()) {
    const std::string last = last_component(module.name);
    if (!(all && module.linear >= 0) && !listed(options_.target_modules, last)) {
      throw refuse(module.name, "is not among the modules allowed here: " + joined(options_.target_modules));
    }
    const auto closed = [&](bool open, const std::vector<std::string>& part, const char* what) {
      if (!open && listed(part, last))
        throw refuse(module.name,
                     std::string("is part of the ") + what + ", which adapters may not touch here");
    };
    closed(options_.attention, modules_of_parts(true, false, false), "attention");
    closed(options_.mlp, modules_of_parts(false, true, false), "MLP");
    closed(options_.unembedding, modules_of_parts(false, false, true), "unembedding");
  }
  for (const auto& [name, unused] : adapter.saved_modules()) {
    if (name == "lm_head" && !options_.unembedding) {
      throw invalid_argument("[pool] modules_to_save: '" + name +
                             "' is the unembedding, which adapters may not touch here");
    }
  }
}

std::shared_ptr<Adapter> AdapterPool::create(const std::string& name, const LoraConfig& config) {
  check_config(name, config);
  return insert(name, Adapter::create(model_, config));
}

std::shared_ptr<Adapter> AdapterPool::load(const std::string& name, const std::string& directory) {
  const std::string path = (fs::path(directory) / "adapter_config.json").string();
  if (!file_exists(path)) throw not_found("[lora] '" + directory + "' has no adapter_config.json");
  check_config(name, lora_config_from_json(read_json_file(path), path));
  return insert(name, Adapter::load(model_, directory));
}

std::shared_ptr<Adapter> AdapterPool::insert(const std::string& name, std::shared_ptr<Adapter> adapter) {
  check_modules(*adapter);
  make_room({});
  adapter->set_gradient_memory(gradient_memory_);
  Entry fresh;
  fresh.adapter = adapter;
  fresh.id = next_id_++;
  fresh.last_used = ++clock_;
  entries_.emplace(name, std::move(fresh));
  ++num_resident_;
  return adapter;
}

void AdapterPool::remove(const std::string& name) {
  const Entry& gone = entry(name);
  if (gone.resident()) {
    --num_resident_;
  } else {
    std::error_code ignored;
    fs::remove(gone.file, ignored);
  }
  gone.adapter->set_gradients({});
  gradient_memory_->trim();
  const std::lock_guard lock(versions_mutex_);
  entries_.erase(name);
  std::erase_if(versions_, [](const auto& known) { return known.second.expired(); });
}

void AdapterPool::set_state(const std::string& name, State state) { entry(name).state = std::move(state); }

// In and out of memory.

void AdapterPool::use(std::span<const std::string> names) {
  std::vector<Entry*> wanted;
  for (const auto& name : names) {
    Entry* found = &entry(name);
    if (std::find(wanted.begin(), wanted.end(), found) == wanted.end()) wanted.push_back(found);
  }
  if (static_cast<int64_t>(wanted.size()) > options_.max_loras) {
    throw exhausted("[pool] " + std::to_string(wanted.size()) + " adapters are needed together, " +
                    std::to_string(options_.max_loras) + " fit into memory (max_loras)");
  }
  for (const auto& name : names) {
    Entry& found = entry(name);
    if (!found.resident()) {
      make_room(names);
      bring_in(name, found);
    }
    found.last_used = ++clock_;
  }
}

// Room for one more, without letting go of `kept`.
void AdapterPool::make_room(std::span<const std::string> kept) {
  while (num_resident_ >= options_.max_loras) {
    const std::string* oldest = nullptr;
    Entry* leaving = nullptr;
    for (auto& [name, candidate] : entries_) {
      // Whole copies of an embedding or head stay: they are as large as a part of the model.
      if (!candidate.resident() || !candidate.adapter->saved_modules().empty() ||
          std::find(kept.begin(), kept.end(), name) != kept.end())
        continue;
      if (leaving == nullptr || candidate.last_used < leaving->last_used) {
        leaving = &candidate;
        oldest = &name;
      }
    }
    if (leaving == nullptr) {
      throw exhausted("[pool] all " + std::to_string(options_.max_loras) +
                      " adapters in memory are in use or hold modules_to_save, which stay in memory; remove "
                      "one or raise max_loras");
    }
    write_out(*oldest, *leaving);
  }
}

void AdapterPool::write_out(const std::string& name, Entry& leaving) {
  std::vector<TensorToWrite> tensors;
  std::map<std::string, std::string> about = {{"adapter", name}};
  const auto add = [&](const std::string& key, const at::Tensor& value) {
    const at::Tensor host = value.cpu().contiguous();
    about["crc32c." + key] = checksum_of(host);
    tensors.push_back(
        {key, safetensors_name(host.scalar_type()), host.sizes().vec(),
         [host](int64_t offset, std::span<std::byte> out) {
           std::memcpy(out.data(), static_cast<const std::byte*>(host.const_data_ptr()) + offset, out.size());
         }});
  };
  Adapter& adapter = *leaving.adapter;
  add("values", adapter.values());
  if (adapter.gradients().defined()) add("gradients", adapter.gradients());
  std::vector<at::Tensor> state;
  if (leaving.state.get) state = leaving.state.get();
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].defined()) add("state." + std::to_string(i), state[i]);
  }
  const std::string path = folder() + "/" + std::to_string(leaving.id) + ".safetensors";
  about["state"] = std::to_string(state.size());
  write_safetensors(path, tensors, about);
  std::error_code ignored;
  leaving.file_bytes = static_cast<int64_t>(fs::file_size(path, ignored));
  leaving.file = path;
  leaving.last_used = 0;
  --num_resident_;
  ++times_written_;
  adapter.set_gradients({});
  gradient_memory_->trim();
  adapter.set_values({});
  if (leaving.state.set) leaving.state.set(std::vector<at::Tensor>(state.size()));
  state.clear();
  tensors.clear();
  ::malloc_trim(0);  // otherwise the memory stays with the process
}

void AdapterPool::bring_in(const std::string& name, Entry& entering) {
  Adapter& adapter = *entering.adapter;
  at::Tensor values, gradients;
  std::vector<at::Tensor> state;
  try {
    const SafetensorsFile file = SafetensorsFile::open(entering.file);
    const auto size = file.metadata().find("state");
    state.resize(size == file.metadata().end() ? 0 : std::stoul(size->second));
    const auto read = [&](const std::string& key) -> at::Tensor {
      const SafeTensor* tensor = file.find(key);
      if (tensor == nullptr) return {};
      at::Tensor host = at::empty(tensor->shape, scalar_type_of(tensor->dtype));
      std::memcpy(host.mutable_data_ptr(), tensor->data.data(), tensor->data.size());
      const auto checksum = file.metadata().find("crc32c." + key);
      if (checksum == file.metadata().end() || checksum->second != checksum_of(host))
        throw unavailable("the checksum of '" + key + "' differs; the file is damaged");
      return host.to(model_.device());
    };
    values = read("values");
    gradients = read("gradients");
    for (size_t i = 0; i < state.size(); ++i) state[i] = read("state." + std::to_string(i));
    const auto fits = [&](const at::Tensor& x) {
      return x.numel() == adapter.flat_elements() && x.scalar_type() == at::kFloat;
    };
    if (!values.defined() || !fits(values) || (gradients.defined() && !fits(gradients))) {
      throw unavailable("the file is not what was written");
    }
  } catch (const std::exception& e) {
    throw unavailable("[pool] adapter '" + name + "' was written to '" + entering.file +
                      "' to make room and can not be read again: " + e.what());
  }
  // The one that may refuse what it gets goes first, so that nothing has changed then.
  if (entering.state.set) entering.state.set(std::move(state));
  adapter.set_values(std::move(values));
  adapter.set_gradients(std::move(gradients));
  std::error_code ignored;
  fs::remove(entering.file, ignored);
  entering.file.clear();
  entering.file_bytes = 0;
  ++num_resident_;
}

// Versions.

std::shared_ptr<const AdapterSnapshot> AdapterPool::snapshot(const std::string& name) {
  Entry& from = entry(name);
  {
    const std::lock_guard lock(versions_mutex_);
    if (auto held = from.snapshot.lock()) return held;
  }
  use(name);
  auto fresh = std::make_shared<AdapterSnapshot>();
  fresh->name = name;
  fresh->config = from.adapter->config();
  fresh->modules = modules_without_gradients(*from.adapter);
  fresh->saved_modules = saved_without_gradients(*from.adapter);
  const std::lock_guard lock(versions_mutex_);
  if (from.version == 0) from.version = next_version_++;
  fresh->version = from.version;
  from.snapshot = fresh;
  std::erase_if(versions_, [](const auto& known) { return known.second.expired(); });
  versions_[fresh->version] = fresh;
  return fresh;
}

std::shared_ptr<const AdapterSnapshot> AdapterPool::snapshot_of(int64_t version) const {
  const std::lock_guard lock(versions_mutex_);
  const auto found = versions_.find(version);
  if (found != versions_.end()) {
    if (auto held = found->second.lock()) return held;
  }
  throw not_found("[pool] adapter version " + std::to_string(version) + " is gone: nobody holds its weights");
}

void AdapterPool::before_update(const std::string& name) {
  Entry& changing = entry(name);
  const std::lock_guard lock(versions_mutex_);
  // Written out, the snapshot has the memory for itself.
  if (const auto held = changing.snapshot.lock(); held && changing.resident()) {
    Adapter& adapter = *changing.adapter;
    adapter.set_values(own_copy(adapter.values()));
    for (auto& [module, parameter] : adapter.saved_modules()) {
      Parameter own = own_copy(parameter);
      parameter.matrix = std::move(own.matrix);
      parameter.vector = std::move(own.vector);
    }
  }
  changing.snapshot.reset();
  changing.version = 0;
}

// Sizes.

int64_t AdapterPool::resident_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, one] : entries_) {
    if (!one.resident()) continue;
    bytes += static_cast<int64_t>(one.adapter->values().nbytes());
    if (one.adapter->gradients().defined()) bytes += static_cast<int64_t>(one.adapter->gradients().nbytes());
    for (const auto& [module, parameter] : one.adapter->saved_modules()) {
      bytes += static_cast<int64_t>(parameter.flat().nbytes()) * (parameter.trainable ? 2 : 1);
    }
    if (!one.state.get) continue;
    for (const auto& tensor : one.state.get()) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

int64_t AdapterPool::written_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, one] : entries_) bytes += one.file_bytes;
  return bytes;
}

}  // namespace twinkle
