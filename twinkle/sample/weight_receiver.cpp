#include "twinkle/sample/weight_receiver.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "twinkle/core/crc32c.h"
#include "twinkle/kernels/isa.h"
#include "twinkle/kernels/packed_rows.h"
#include "twinkle/model/save.h"
#include "twinkle/model/weights_id.h"
#include "twinkle/sample/weight_messages.h"

namespace twinkle {
namespace {

constexpr int64_t kMostHeaderBytes = 100'000'000;  // of a safetensors file
constexpr size_t kMostNameBytes = 256;

int64_t num_elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

// The largest file that a model of this size, or an adapter for it, can need.
int64_t most_file_bytes(const CausalLM& model, int64_t most_rank) {
  int64_t elements = most_rank * (model.config().vocab_size + model.config().hidden_size);
  for (const auto& parameter : model.parameters()) elements += num_elements(parameter.shape());
  for (const auto& linear : model.linears())
    elements += most_rank * (linear.in_features + linear.out_features);
  return elements * static_cast<int64_t>(sizeof(float)) + kMostHeaderBytes;
}

at::ScalarType type_of(const std::string& dtype) {
  return dtype == "BF16" ? at::kBFloat16 : dtype == "F16" ? at::kHalf : at::kFloat;
}

// Weights of a whole model as they come in, beside those in use. What is allocated follows from the model
// that is there, never from the stream.
class IncomingModel {
 public:
  explicit IncomingModel(const CausalLM& model) : model_(model) {}

  void layout(const std::vector<SafeTensor>& tensors) {
    size_t largest = 0;
    for (const auto& tensor : tensors) {
      const auto found = std::ranges::find(model_.parameters(), tensor.name, &Parameter::name);
      const auto refuse = [&](const std::string& why) {
        return invalid_argument("[weights] tensor '" + tensor.name + "' " + why);
      };
      if (found == model_.parameters().end()) throw refuse("is none of this model's");
      if (found->shape() != tensor.shape) {
        throw refuse("has the shape " + Json(tensor.shape).dump() + ", this model's has " +
                     Json(found->shape()).dump());
      }
      const bool known =
          tensor.dtype == "F32" || (found->is_matrix() && (tensor.dtype == "BF16" || tensor.dtype == "F16"));
      if (!known)
        throw refuse("is " + tensor.dtype + ", expected F32" + (found->is_matrix() ? ", BF16 or F16" : ""));
      largest = std::max(largest, static_cast<size_t>(tensor.num_bytes()));
    }
    // A name appears once in a file.
    if (tensors.size() != model_.parameters().size()) {
      throw invalid_argument("[weights] " + std::to_string(tensors.size()) +
                             " tensors came, this model has " + std::to_string(model_.parameters().size()));
    }
    tensors_ = tensors;
    plain_.resize(largest);
  }

  void data(size_t index, int64_t offset, std::span<const std::byte> bytes) {
    const SafeTensor& tensor = tensors_[index];
    std::memcpy(plain_.data() + offset, bytes.data(), bytes.size());
    crc_ = crc32c(bytes, offset == 0 ? 0 : crc_);
    if (offset + static_cast<int64_t>(bytes.size()) < tensor.num_bytes()) return;
    const auto whole = std::span(plain_).first(static_cast<size_t>(tensor.num_bytes()));
    if (!all_finite(whole, type_of(tensor.dtype))) {
      throw invalid_argument("[weights] tensor '" + tensor.name + "' holds numbers that are not finite");
    }
    id_.add(tensor.name, tensor.dtype, tensor.shape, crc_);
    Parameter weight;
    weight.name = tensor.name;
    if (tensor.shape.size() == 2) {
      const at::ScalarType type = type_of(tensor.dtype);
      weight.matrix = ops::PackedMatrix::build(tensor.shape[0], tensor.shape[1], type, model_.device(),
                                               ops::StoredRows{plain_.data(), tensor.shape[1], type});
    } else {
      const at::Tensor host = at::empty(tensor.shape, at::kFloat);
      std::memcpy(host.mutable_data_ptr(), plain_.data(), static_cast<size_t>(tensor.num_bytes()));
      weight.vector = host.to(model_.device());
    }
    weights_.push_back(std::move(weight));
  }

  std::string id() const { return id_.value(); }
  std::vector<Parameter> take() { return std::move(weights_); }

 private:
  const CausalLM& model_;
  std::vector<SafeTensor> tensors_;
  std::vector<std::byte> plain_;  // the tensor that is coming, row by row
  uint32_t crc_ = 0;              // of it
  WeightsId id_;
  std::vector<Parameter> weights_;
};

}  // namespace

WeightReceiver::WeightReceiver(Sampler& sampler, const std::string& path, const ReceiveOptions& options)
    : sampler_(sampler), path_(path), options_(options), listener_(path) {
  if (options.most_bucket_mb < 1 || options.most_rank < 1 || !(options.silence_s > 0))
    throw invalid_argument("[receive_weights] most_bucket_mb, most_rank and silence_s must be above 0");
  thread_ = std::thread([this] { work(); });
}

WeightReceiver::~WeightReceiver() {
  listener_.stop();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (current_ != nullptr) current_->shut_down();
  }
  thread_.join();
}

ReceiveStatus WeightReceiver::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void WeightReceiver::work() {
  for (;;) {
    try {
      auto socket = listener_.accept();
      if (!socket) return;
      {
        std::lock_guard lock(mutex_);
        if (stopping_) return;
        current_ = &*socket;
      }
      struct Forget {
        WeightReceiver& receiver;
        ~Forget() {
          std::lock_guard lock(receiver.mutex_);
          receiver.current_ = nullptr;
        }
      } forget{*this};
      serve(*socket);
    } catch (const std::exception& e) {
      std::lock_guard lock(mutex_);
      ++status_.failed;
      status_.last_error = e.what();
    }
  }
}

void WeightReceiver::serve(LocalSocket& socket) {
  socket.set_timeout(options_.silence_s);
  FrameReader reader([&](std::span<std::byte> out) { return socket.read(out); });
  FrameWriter writer([&](std::span<const std::byte> bytes) { socket.write(bytes); });
  try {
    while (const auto message = reader.read_message_or_end(FrameKind::kAbout)) {
      const Options about = check_options(about_specs(), *message, "weights");
      check(about);
      if (about.get_string("what") == "adapter" && about.get_string("base") != own_id()) {
        writer.write_message(FrameKind::kReply, Json{{"status", "base"}});
        continue;
      }
      writer.write_message(FrameKind::kReply, Json{{"status", "go"}});
      const std::string version = take(about, reader);
      {
        std::lock_guard lock(mutex_);
        ++status_.received;
        status_.last_version = version;
      }
      writer.write_message(FrameKind::kReply,
                           Json{{"status", "done"}, {"version", version}, {"isa", isa_name(active_isa())}});
      if (options_.on_weights) tell(version);
    }
  } catch (const Error& e) {
    try {
      writer.write_message(FrameKind::kReply, error_reply(e));
    } catch (const Error&) {  // it is gone; the first error says more
    }
    throw;
  }
}

// The weights are there whatever becomes of it, so the trainer does not hear of its errors.
void WeightReceiver::tell(const std::string& version) {
  try {
    options_.on_weights(version);
  } catch (const std::exception& e) {
    std::lock_guard lock(mutex_);
    status_.last_error = "[receive_weights] on_weights of '" + version + "': " + e.what();
  }
}

void WeightReceiver::check(const Options& about) const {
  const CausalLM& model = sampler_.engine().model();
  const Json own = model_facts(model.config());
  const Json& theirs = about.get("facts");
  for (const auto& [key, value] : own.items()) {
    if (theirs.is_object() && theirs.contains(key) && theirs[key] == value) continue;
    throw invalid_argument("[weights] the trainer's model is another one: '" + key + "' is " + value.dump() +
                           " here");
  }
  const int64_t bucket = about.get_int("bucket_bytes"), file = about.get_int("file_bytes");
  if (bucket > options_.most_bucket_mb << 20) {
    throw invalid_argument("[weights] buckets of " + std::to_string(bucket) + " bytes, at most " +
                           std::to_string(options_.most_bucket_mb) + " MB are taken here");
  }
  if (const int64_t most = most_file_bytes(model, options_.most_rank); file > most) {
    throw invalid_argument("[weights] " + std::to_string(file) + " bytes are announced, at most " +
                           std::to_string(most) + " can belong to this model");
  }
  if (about.get_string("what") == "model") return;
  const std::string name = about.get_string("name");
  const bool control = std::ranges::any_of(name, [](unsigned char c) { return c < 0x20; });
  if (name.empty() || name.size() > kMostNameBytes || control) {
    throw invalid_argument("[weights] an adapter's name has 1 to " + std::to_string(kMostNameBytes) +
                           " bytes and no control characters");
  }
  const LoraConfig config = lora_config_from_json(about.get("adapter_config"), "adapter_config");
  int64_t rank = config.r;
  for (const auto& [module, r] : config.rank_pattern) rank = std::max(rank, r);
  if (rank > options_.most_rank) {
    throw invalid_argument("[weights] adapter '" + name + "' has the rank " + std::to_string(rank) +
                           ", at most " + std::to_string(options_.most_rank) + " is taken here");
  }
}

const std::string& WeightReceiver::own_id() {
  SampleEngine& engine = sampler_.engine();
  if (id_version_ != engine.model_version()) {
    engine.between_passes([&] {
      id_version_ = engine.model_version();
      id_ = weights_id(engine.model());
    });
  }
  return id_;
}

std::string WeightReceiver::take(const Options& about, FrameReader& reader) {
  return about.get_string("what") == "model" ? take_model(about, reader) : take_adapter(about, reader);
}

std::string WeightReceiver::take_model(const Options& about, FrameReader& reader) {
  IncomingModel incoming(sampler_.engine().model());
  SafetensorsFeed feed(
      static_cast<uint64_t>(about.get_int("file_bytes")), "model",
      [&](const std::vector<SafeTensor>& tensors) { incoming.layout(tensors); },
      [&](size_t tensor, int64_t offset, std::span<const std::byte> bytes) {
        incoming.data(tensor, offset, bytes);
      });
  receive_buckets(reader, about.get_int("file_bytes"), about.get_int("bucket_bytes"),
                  [&](std::span<const std::byte> bytes) { feed.feed(bytes); });
  feed.finish();
  const Json end = reader.read_message(FrameKind::kEnd);
  const std::string id = incoming.id();
  if (!end.contains("weights_id") || end["weights_id"] != id)
    throw invalid_argument("[weights] the weights that came are not those that were sent");
  const int64_t version = sampler_.replace_model_weights(incoming.take());
  id_ = id;
  id_version_ = version;
  return "model@" + std::to_string(version);
}

std::string WeightReceiver::take_adapter(const Options& about, FrameReader& reader) {
  const CausalLM& model = sampler_.engine().model();
  const std::string name = about.get_string("name");
  std::vector<std::byte> file;  // grows with what comes
  receive_buckets(
      reader, about.get_int("file_bytes"), about.get_int("bucket_bytes"),
      [&](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
  reader.read_message(FrameKind::kEnd);
  const std::string where = name + "/adapter_model.safetensors";
  const auto adapter =
      Adapter::read(model, about.get("adapter_config"), SafetensorsFile::parse(file, where), where);
  auto snapshot = std::make_shared<AdapterSnapshot>();
  snapshot->name = name;
  snapshot->config = adapter->config();
  snapshot->modules = adapter->modules();
  snapshot->saved_modules = adapter->saved_modules();
  std::string version = sampler_.apply_weights(name, std::shared_ptr<const AdapterSnapshot>(snapshot));
  if (about.get_bool("as_default")) sampler_.set_default_adapter(name);
  return version;
}

}  // namespace twinkle
