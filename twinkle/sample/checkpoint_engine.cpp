#include "twinkle/sample/checkpoint_engine.h"

#include <cstdlib>
#include <filesystem>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/local_socket.h"
#include "twinkle/core/tensor_stream.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/model/save.h"
#include "twinkle/model/weights_id.h"
#include "twinkle/sample/weight_messages.h"
#include "twinkle/train/multi_lora_transformers_model.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr double kLastWords_s = 5;  // to hear from a sampler that hung up

int64_t bytes_of(const TensorToWrite& tensor) {
  int64_t bytes = safetensors_dtype_bytes(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

// A weight with the adapter merged into it, made when its turn comes and let go of afterwards.
TensorToWrite merged_to_write(const Adapter& adapter, const Parameter& parameter) {
  struct Merged {
    Parameter weight;
    TensorToWrite tensor;
  };
  TensorToWrite out = weight_to_write(parameter);
  out.fill = [&adapter, &parameter, merged = std::make_shared<Merged>(), bytes = bytes_of(out)](
                 int64_t offset, std::span<std::byte> piece) {
    if (offset == 0) {
      merged->weight = merged_weight(adapter, parameter);
      merged->tensor = weight_to_write(merged->weight);
    }
    merged->tensor.fill(offset, piece);
    if (offset + static_cast<int64_t>(piece.size()) == bytes) *merged = {};
  };
  return out;
}

// The trainer's end of one connection.
class Connection {
 public:
  Connection(const std::string& path, const SyncOptions& options)
      : options_(options),
        socket_(LocalSocket::connect(path)),
        reader_([this](std::span<std::byte> out) { return socket_.read(out); }),
        writer_([this](std::span<const std::byte> bytes) {
          socket_.write(bytes);
          sent_ += static_cast<int64_t>(bytes.size());
        }) {
    socket_.set_timeout(options.timeout_s);
  }

  int64_t bytes_sent() const { return sent_; }
  const std::string& note() const { return note_; }

  std::string send_model(const CausalLM& model, const Adapter* merged) {
    WeightsId id;
    std::vector<TensorToWrite> tensors;
    for (const auto& parameter : model.parameters()) {
      TensorToWrite tensor =
          merged != nullptr ? merged_to_write(*merged, parameter) : weight_to_write(parameter);
      const auto named = [&id, tensor, bytes = bytes_of(tensor), crc = std::make_shared<uint32_t>(0)](
                             int64_t offset, std::span<std::byte> piece) {
        tensor.fill(offset, piece);
        *crc = crc32c(piece, *crc);
        if (offset + static_cast<int64_t>(piece.size()) == bytes)
          id.add(tensor.name, tensor.dtype, tensor.shape, *crc);
      };
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, named});
    }
    Json about = {{"what", "model"}};
    if (!announce(model, about, tensors))
      throw invalid_argument("[weights] the sampler asks for the base of a whole model");
    return finish([&] { return Json{{"weights_id", id.value()}}; });
  }

  /// The version, or "" when the sampler needs the adapter's base first.
  std::string send_adapter(const CausalLM& model, const std::string& base, const std::string& name,
                           const Adapter& adapter, bool as_default) {
    Json about = {{"what", "adapter"},
                  {"name", name},
                  {"as_default", as_default},
                  {"base", base},
                  {"adapter_config", lora_config_to_json(adapter.config())}};
    const auto tensors = adapter.to_write();
    if (!announce(model, about, tensors)) return "";
    return finish([] { return Json::object(); });
  }

 private:
  // Whoever refuses says why before hanging up.
  template <class Send>
  void hearing(const Send& send) {
    try {
      send();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kUnavailable) throw;
      Json reply;
      try {
        socket_.set_timeout(kLastWords_s);
        reply = reader_.read_message(FrameKind::kReply);
      } catch (const Error&) {
        throw e;
      }
      throw error_of(reply);
    }
  }

  Json reply() {
    Json out = reader_.read_message(FrameKind::kReply);
    if (out.value("status", Json()) == "error") throw error_of(out);
    return out;
  }

  bool announce(const CausalLM& model, Json& about, const std::vector<TensorToWrite>& tensors) {
    const SafetensorsPlan plan = plan_safetensors(tensors, {{"format", "pt"}});
    const int64_t bucket = options_.bucket_bytes;
    about["protocol"] = 1;
    about["facts"] = model_facts(model.config());
    about["file_bytes"] = plan.total_bytes;
    about["bucket_bytes"] = bucket;
    hearing([&] { writer_.write_message(FrameKind::kAbout, about); });
    const Json status = reply().value("status", Json());
    if (status == "base") return false;
    if (status != "go")
      throw invalid_argument("[weights] the sampler says " + status.dump() + " to an announcement");
    hearing([&] { send_tensors(writer_, plan, bucket, options_.progress); });
    return true;
  }

  template <class End>
  std::string finish(const End& end) {
    hearing([&] { writer_.write_message(FrameKind::kEnd, end()); });
    const Json done = reply();
    const Json version = done.value("version", Json()), isa = done.value("isa", Json());
    if (done.value("status", Json()) != "done" || !version.is_string())
      throw invalid_argument("[weights] the sampler does not say which version it has now");
    const std::string own(isa_name(active_isa()));
    if (isa != own) {
      note_ = "the sampler computes with " +
              (isa.is_string() ? isa.get<std::string>() : "other instructions") + ", the trainer with " +
              own + ": log-probabilities are close, not equal";
    }
    return version.get<std::string>();
  }

  const SyncOptions& options_;
  LocalSocket socket_;
  FrameReader reader_;
  FrameWriter writer_;
  int64_t sent_ = 0;
  std::string note_;
};

std::string name_of(const std::string& adapter_name) {
  return adapter_name.empty() ? "default" : adapter_name;
}

void check(const SyncOptions& options) {
  if (options.bucket_bytes < 8 || options.bucket_bytes % 8 != 0)
    throw invalid_argument("[sync_weights] 'bucket_bytes' must be a multiple of 8 above 0, got " +
                           std::to_string(options.bucket_bytes));
  if (!(options.timeout_s > 0)) throw invalid_argument("[sync_weights] 'timeout_s' must be above 0");
}

}  // namespace

CheckpointEngineManager::CheckpointEngineManager(TransformersModel& model, Sampler& sampler,
                                                 const SyncOptions& options)
    : model_(model), sampler_(&sampler), options_(options) {
  check(options);
  if (&sampler.engine().model() == &model.model()) return;
  path_ = sampler.receives_at();
  if (!path_.empty()) return;
  std::string folder = (fs::temp_directory_path() / "twinkle-weights-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    throw unavailable("[sync_weights] cannot make a folder in '" + fs::temp_directory_path().string() + "'");
  folder_ = folder;
  path_ = folder + "/sampler.sock";
  sampler.receive_weights(path_);
}

CheckpointEngineManager::CheckpointEngineManager(TransformersModel& model, std::string path,
                                                 const SyncOptions& options)
    : model_(model), path_(std::move(path)), options_(options) {
  check(options);
  if (path_.empty()) throw invalid_argument("[sync_weights] the path of the sampler's socket is empty");
}

CheckpointEngineManager::~CheckpointEngineManager() {
  if (folder_.empty()) return;
  sampler_->stop_receiving();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

SyncResult CheckpointEngineManager::sync_weights(bool merge_and_sync, const std::string& adapter_name) {
  return path_.empty() ? sync_here(adapter_name) : sync_there(merge_and_sync, adapter_name);
}

SyncResult CheckpointEngineManager::sync_here(const std::string& adapter_name) {
  const Adapter* adapter = model_.group(adapter_name).adapter();
  SyncResult out;
  if (adapter == nullptr) {
    sampler_->update_base([](CausalLM&) {});
    out.version = "model@" + std::to_string(sampler_->engine().model_version());
    return out;
  }
  const std::string name = name_of(adapter_name);
  auto* pooled = dynamic_cast<MultiLoraTransformersModel*>(&model_);
  out.version = pooled != nullptr ? sampler_->apply_weights(name, pooled->snapshot(adapter_name))
                                  : sampler_->apply_weights(name, *adapter);
  if (adapter_name.empty()) sampler_->set_default_adapter(name);
  return out;
}

SyncResult CheckpointEngineManager::sync_there(bool merge, const std::string& adapter_name) {
  const Adapter* adapter = model_.group(adapter_name).adapter();
  const CausalLM& model = model_.model();
  if (adapter != nullptr && merge) check_mergeable(model, *adapter);
  Connection connection(path_, options_);
  SyncResult out;
  if (adapter == nullptr || merge) {
    out.version = connection.send_model(model, adapter);
  } else {
    const auto send = [&] {
      return connection.send_adapter(model, own_id(), name_of(adapter_name), *adapter, adapter_name.empty());
    };
    out.version = send();
    if (out.version.empty()) {
      connection.send_model(model, nullptr);
      out.sent_base = true;
      out.version = send();
    }
    if (out.version.empty())
      throw unavailable("[weights] the sampler got the trainer's model and still has another");
  }
  out.bytes_sent = connection.bytes_sent();
  out.note = connection.note();
  return out;
}

const std::string& CheckpointEngineManager::own_id() {
  std::vector<const void*> places;
  for (const auto& parameter : std::as_const(model_.model()).parameters())
    places.push_back(parameter.flat().const_data_ptr());
  if (places != id_places_) {
    id_ = weights_id(model_.model());
    id_places_ = std::move(places);
  }
  return id_;
}

}  // namespace twinkle
