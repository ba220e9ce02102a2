// CheckpointEngineManager: a sampler answers with what was just trained, by upstream's names. Where both are
// in one process and share the model, weights go by version number; to a sampler in another process of the
// machine they go through a socket: an adapter alone, or whole weights in checked buckets. Afterwards the
// sampler's log-probabilities are the trainer's, bit for bit (on the same instruction set).
//
//   sampler.receive_weights("/tmp/sampler.sock");                  // in the sampler's process
//   CheckpointEngineManager manager(model, "/tmp/sampler.sock");   // in the trainer's
//   manager.sync_weights(false);                                   // the adapter alone
//
// Called by the thread that trains, between steps.
#pragma once

#include <functional>
#include <string>

#include "twinkle/sample/samplers.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle {

struct SyncOptions {
  int64_t bucket_bytes = 64 << 20;  // multiple of 8; two such buckets are held while weights are sent
  /// Longest wait for the sampler: for room in the socket, and in the end for what it was asked before whole
  /// weights came.
  double timeout_s = 600;
  /// Bytes filled so far, of how many.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct SyncResult {
  std::string version;     // as the sampler's responses name an adapter's; whole weights: "model@N"
  bool sent_base = false;  // the sampler had not the model that the adapter sits on
  int64_t bytes_sent = 0;
  std::string note;  // what a person should know
};

class CheckpointEngineManager {
 public:
  /// Both must outlive the manager. A sampler that opened a model of its own gets its weights as one in
  /// another process would.
  CheckpointEngineManager(TransformersModel& model, Sampler& sampler, const SyncOptions& options = {});
  /// To the sampler that receives at this path.
  CheckpointEngineManager(TransformersModel& model, std::string path, const SyncOptions& options = {});
  ~CheckpointEngineManager();
  CheckpointEngineManager(const CheckpointEngineManager&) = delete;
  CheckpointEngineManager& operator=(const CheckpointEngineManager&) = delete;

  /// Hands the weights over as they are now. With an adapter: alone, under its name ("default" when it is not
  /// named), which needs the sampler to have the trainer's model (it is sent when it has not); with
  /// `merge_and_sync` as whole weights with the adapter merged. Without one: the whole weights. When
  /// `adapter_name` is left out, requests that name no adapter get the weights from then on.
  ///
  /// A sampler over this very model has nothing to merge: an adapter is used where it lies, exactly, whatever
  /// `merge_and_sync` says (no copy with MultiLoraTransformersModel, which keeps versions apart itself); and
  /// after a step on the model's own weights it forgets what it computed from the old ones.
  ///
  /// Errors leave the sampler with its old weights: unavailable when it is gone or silent, what the sampler
  /// found otherwise.
  SyncResult sync_weights(bool merge_and_sync = true, const std::string& adapter_name = "");

 private:
  SyncResult sync_here(const std::string& adapter_name);
  SyncResult sync_there(bool merge, const std::string& adapter_name);
  const std::string& own_id();

  TransformersModel& model_;
  Sampler* sampler_ = nullptr;  // in this process
  std::string path_;            // "": it is over this very model
  std::string folder_;          // of `path_`, when the manager made it
  SyncOptions options_;
  // weights_id of the model's own weights while they are these tensors; adapters do not change them.
  std::string id_;
  std::vector<const void*> id_places_;
};

}  // namespace twinkle
