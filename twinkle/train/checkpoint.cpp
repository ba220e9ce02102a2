#include "twinkle/train/checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/core/safetensors.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kCheckpoint = "checkpoint-step-";
constexpr const char* kStateHash = "state_sha256";  // of the rest of trainer_state.json

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw file_error("[checkpoint] cannot " + what + " '" + path + "'", error);
}

// Nothing unless `text` is a number >= 0 and no more.
std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// Temporary directories of processes that no longer run: ".tmp-PID-NAME".
void remove_left_overs(const fs::path& parent) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kTemporary)) continue;
    const auto pid = whole_number(std::string_view(name).substr(
        kTemporary.size(), name.find('-', kTemporary.size()) - kTemporary.size()));
    if (!pid || *pid == ::getpid() || *pid > INT32_MAX) continue;
    if (::kill(static_cast<pid_t>(*pid), 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), ignored);
  }
}

fs::path temporary_beside(const fs::path& path) {
  return path.parent_path() /
         (std::string(kTemporary) + std::to_string(::getpid()) + "-" + path.filename().string());
}

// Puts `from` where `to` is, in one step if `to` is there; the old one is then at `from`.
void exchange_or_rename(const std::string& from, const std::string& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == ENOENT) {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("rename", to, errno);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) fail("replace", to, errno);
  // A file system that can not exchange: the old one steps aside first.
  const std::string aside = from + "-old";
  if (::rename(to.c_str(), aside.c_str()) != 0) fail("rename", to, errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), to.c_str());
    fail("rename", to, error);
  }
  if (::rename(aside.c_str(), from.c_str()) != 0) fail("rename", aside, errno);
}

Json spec_to_json(const ComponentSpec& spec) {
  if (spec.name.empty()) return nullptr;
  return {{"name", spec.name}, {"options", spec.options}};
}

ComponentSpec spec_from_json(const Json& value, const std::string& where) {
  if (value.is_null()) return {};
  if (!value.is_object() || !value.contains("name") || !value.at("name").is_string()) {
    throw invalid_argument("[checkpoint] '" + where + "': a component needs a name");
  }
  return {value.at("name").get<std::string>(), value.value("options", Json::object())};
}

}  // namespace

// The state of the trainer.

Json TrainerState::to_json() const {
  return {{"checkpoint_version", kVersion},
          {"kind", kind},
          {"cur_step", cur_step},
          {"gradient_accumulation_steps", gradient_accumulation_steps},
          {"consumed_train_samples", consumed_train_samples},
          {"data_state", data_state},
          {"sequences_seen", sequences_seen},
          {"tokens_seen", tokens_seen},
          {"skipped_steps", skipped_steps},
          {"schedule_position", schedule_position},
          {"adapter_seed", adapter_seed},
          {"has_optimizer", has_optimizer},
          {"loss", spec_to_json(loss)},
          {"optimizer", spec_to_json(optimizer)},
          {"scheduler", spec_to_json(scheduler)},
          {"base_model", base_model},
          {"isa", isa},
          {"manifest", manifest},
          {"files", written_files_to_json(files)}};
}

TrainerState TrainerState::from_json(const Json& value, const std::string& where) {
  if (!value.is_object()) throw invalid_argument("[checkpoint] '" + where + "' is not an object");
  const auto need = [&](const char* key) -> const Json& {
    const auto found = value.find(key);
    if (found == value.end())
      throw invalid_argument("[checkpoint] '" + where + "' lacks '" + key +
                             "'; it is not a Twinkle checkpoint");
    return *found;
  };
  const auto number = [&](const char* key) {
    const Json& x = need(key);
    if (!x.is_number_integer() || x.get<int64_t>() < 0) {
      throw invalid_argument("[checkpoint] '" + where + "': '" + key + "' must be a whole number >= 0, got " +
                             x.dump());
    }
    return x.get<int64_t>();
  };
  const auto text = [&](const char* key) {
    const Json& x = need(key);
    if (!x.is_string())
      throw invalid_argument("[checkpoint] '" + where + "': '" + key + "' must be a string");
    return x.get<std::string>();
  };
  if (const int64_t version = number("checkpoint_version"); version != kVersion) {
    throw invalid_argument("[checkpoint] '" + where + "' has version " + std::to_string(version) +
                           "; this program reads version " + std::to_string(kVersion));
  }
  TrainerState s;
  s.kind = text("kind");
  if (s.kind != "lora" && s.kind != "full")
    throw invalid_argument("[checkpoint] '" + where + "': unknown kind '" + s.kind + "'");
  s.cur_step = number("cur_step");
  s.gradient_accumulation_steps = number("gradient_accumulation_steps");
  s.consumed_train_samples = number("consumed_train_samples");
  s.data_state = value.value("data_state", Json());
  s.sequences_seen = number("sequences_seen");
  s.tokens_seen = number("tokens_seen");
  if (value.contains("skipped_steps")) s.skipped_steps = number("skipped_steps");
  s.schedule_position = number("schedule_position");
  if (!need("adapter_seed").is_number_integer())
    throw invalid_argument("[checkpoint] '" + where + "': 'adapter_seed' must be a whole number");
  s.adapter_seed = need("adapter_seed").get<uint64_t>();
  s.has_optimizer = need("has_optimizer") == Json(true);
  s.loss = spec_from_json(need("loss"), where);
  s.optimizer = spec_from_json(need("optimizer"), where);
  s.scheduler = spec_from_json(need("scheduler"), where);
  s.base_model = text("base_model");
  s.isa = text("isa");
  s.manifest = need("manifest");
  s.files = written_files_from_json(need("files"), where);
  return s;
}

// Writing.

void write_directory_atomic(const std::string& path, const std::function<void(const std::string&)>& fill) {
  fs::path target = fs::path(path).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
  make_directories(parent.string());
  remove_left_overs(parent);
  const fs::path temporary = temporary_beside(parent / target.filename());
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  make_directories(temporary.string());
  try {
    fill(temporary.string());
    for (const auto& entry : fs::directory_iterator(temporary)) sync_path(entry.path().string());
    sync_path(temporary.string());
    exchange_or_rename(temporary.string(), target.string());
    sync_path(parent.string());
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  fs::remove_all(temporary, ignored);  // what was there before
}

void write_checkpoint(const std::string& path, TrainerState state,
                      const std::vector<Optimizer::StateTensor>& optimizer,
                      const std::function<void(const std::string&)>& fill) {
  write_directory_atomic(path, [&](const std::string& directory) {
    fill(directory);
    if (state.has_optimizer) {
      std::vector<TensorToWrite> tensors;
      for (const auto& entry : optimizer) {
        const at::Tensor host = entry.value.cpu();
        tensors.push_back({entry.name, host.scalar_type() == at::kBFloat16 ? "BF16" : "F32",
                           entry.value.sizes().vec(), [host](int64_t offset, std::span<std::byte> out) {
                             std::memcpy(out.data(),
                                         static_cast<const std::byte*>(host.const_data_ptr()) + offset,
                                         out.size());
                           }});
      }
      write_safetensors(directory + "/" + kOptimizerFile, tensors, {{"format", "pt"}});
    }
    for (const auto& entry : fs::directory_iterator(directory)) {
      state.files[entry.path().filename().string()] = describe_file(entry.path().string());
    }
    Json written = state.to_json();
    const std::string hash = sha256_hex(written.dump());
    written[kStateHash] = hash;
    write_file_atomic(directory + "/" + kStateFile, written.dump(2) + "\n");
  });
}

// Reading.

TrainerState read_checkpoint(const std::string& path) {
  if (!is_directory(path)) throw not_found("[checkpoint] there is no checkpoint '" + path + "'");
  const std::string state_file = path + "/" + kStateFile;
  if (!file_exists(state_file)) {
    throw invalid_argument(
        "[checkpoint] '" + path +
        "' has no trainer_state.json: it is not a Twinkle checkpoint, or its writing never ended");
  }
  Json value = read_json_file(state_file);
  TrainerState state = TrainerState::from_json(value, state_file);
  check_written_files(path, state.files);
  if (const auto found = value.find(kStateHash); found != value.end()) {
    const Json recorded = *found;
    value.erase(found);
    if (recorded != sha256_hex(value.dump())) {
      throw invalid_argument("[checkpoint] '" + state_file +
                             "' was changed after it was written; take another copy of the checkpoint");
    }
  }
  return state;
}

std::vector<Optimizer::StateTensor> read_optimizer_state(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path + "/" + kOptimizerFile);
  std::vector<Optimizer::StateTensor> state;
  for (const auto& tensor : file.tensors()) {
    if (tensor.dtype != "F32" && tensor.dtype != "BF16")
      throw invalid_argument("[checkpoint] '" + tensor.name + "' is " + tensor.dtype +
                             ", needed F32 or BF16");
    at::Tensor value = at::empty(tensor.shape, tensor.dtype == "F32" ? at::kFloat : at::kBFloat16);
    std::memcpy(value.mutable_data_ptr(), tensor.data.data(), tensor.data.size());
    state.push_back({tensor.name, value});
  }
  return state;
}

std::vector<std::string> list_checkpoints(const std::string& output_dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(output_dir, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kCheckpoint)) continue;
    const auto step = whole_number(std::string_view(name).substr(kCheckpoint.size()));
    if (step && file_exists(entry.path().string() + "/" + kStateFile))
      found.emplace_back(*step, entry.path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

void prune_checkpoints(const std::string& output_dir, int64_t limit, const std::string& keep) {
  if (limit <= 0) return;
  auto paths = list_checkpoints(output_dir);
  auto excess = static_cast<int64_t>(paths.size()) - limit;
  std::error_code ignored;
  const auto last = std::find_if(paths.begin(), paths.end(),
                                 [&](const auto& path) { return fs::equivalent(path, keep, ignored); });
  if (last != paths.end()) std::rotate(paths.begin(), last + 1, paths.end());
  for (const auto& path : paths) {
    if (excess-- <= 0) break;
    if (!fs::equivalent(path, keep, ignored)) remove_checkpoint(path);
  }
}

void remove_checkpoint(const std::string& path) {
  // Out of sight first, so that no half-removed checkpoint is ever found.
  std::error_code ignored;
  const fs::path aside = temporary_beside(path);
  fs::remove_all(aside, ignored);
  if (::rename(path.c_str(), aside.c_str()) != 0) fail("remove", path, errno);
  fs::remove_all(aside, ignored);
}

// Background.

struct BackgroundWriter::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool read = false, done = false;
  std::exception_ptr error;
};

void BackgroundWriter::start(std::function<void(const std::function<void()>&)> job) {
  wait();
  shared_ = std::make_shared<Shared>();
  thread_ = std::thread([shared = shared_, job = std::move(job)] {
    const auto set = [&](bool done, std::exception_ptr error) {
      std::lock_guard lock(shared->mutex);
      shared->read = true;
      shared->done = done;
      shared->error = std::move(error);
      shared->changed.notify_all();
    };
    try {
      job([&] { set(false, nullptr); });
      set(true, nullptr);
    } catch (...) {
      set(true, std::current_exception());
    }
  });
}

void BackgroundWriter::wait_read() {
  if (!shared_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return shared_->read; });
}

bool BackgroundWriter::finished() const {
  if (!shared_) return true;
  const std::lock_guard lock(shared_->mutex);
  return shared_->done && !shared_->error;
}

void BackgroundWriter::wait() {
  if (!thread_.joinable()) return;
  thread_.join();
  const auto error = std::exchange(shared_->error, nullptr);
  shared_.reset();
  if (error) std::rethrow_exception(error);
}

BackgroundWriter::~BackgroundWriter() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace twinkle
