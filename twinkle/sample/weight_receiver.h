// The sampler's end of a hand-over between processes: Sampler::receive_weights. One connection at a time is
// served in a thread of its own; whatever goes wrong in one leaves the sampler's weights as they were.
#pragma once

#include <mutex>
#include <string>
#include <thread>

#include "twinkle/core/local_socket.h"
#include "twinkle/core/tensor_stream.h"
#include "twinkle/sample/samplers.h"

namespace twinkle {

class WeightReceiver {
 public:
  WeightReceiver(Sampler& sampler, const std::string& path, const ReceiveOptions& options);
  ~WeightReceiver();
  WeightReceiver(const WeightReceiver&) = delete;
  WeightReceiver& operator=(const WeightReceiver&) = delete;

  const std::string& path() const { return path_; }
  ReceiveStatus status() const;
  /// Whether the caller is inside on_weights.
  bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  void work();
  void serve(LocalSocket& socket);
  void tell(const std::string& version);
  std::string take(const Options& about, FrameReader& reader);
  std::string take_model(const Options& about, FrameReader& reader);
  std::string take_adapter(const Options& about, FrameReader& reader);
  void check(const Options& about) const;
  const std::string& own_id();

  Sampler& sampler_;
  const std::string path_;
  const ReceiveOptions options_;
  LocalListener listener_;

  std::string id_;  // of the model's weights at `id_version_`
  int64_t id_version_ = -1;

  mutable std::mutex mutex_;  // guards the rest
  ReceiveStatus status_;
  LocalSocket* current_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace twinkle
