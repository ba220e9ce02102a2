// Checkpoints on disk: a directory that is whole or not there. It is filled under a temporary name, every
// file is fsynced, then it is renamed and its parent fsynced; so a crash leaves the old checkpoint or the new
// one. The last file written, trainer_state.json, lists the others with sizes and (up to 64 MiB) SHA-256, so
// that a directory that was cut or patched by other hands is refused.
//
//   {output_dir}/checkpoint-step-N/   PEFT adapter files, or config.json + *.safetensors + tokenizer files
//     optimizer.safetensors           the optimizer's state, in the layout of the weights in memory
//     trainer_state.json              step, position in the data and schedule, components, file list
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/core/written_files.h"
#include "twinkle/train/optimizer.h"
#include "twinkle/train/train_group.h"

namespace twinkle {

/// What trainer_state.json holds.
struct TrainerState {
  std::string kind;  // "lora" | "full"
  int64_t cur_step = 0, gradient_accumulation_steps = 1;
  int64_t consumed_train_samples = 0;           // position in the data
  Json data_state = nullptr;                    // of data that is read as a stream
  int64_t sequences_seen = 0, tokens_seen = 0;  // the random streams continue from sequences_seen
  int64_t skipped_steps = 0;                    // not in cur_step, but their data are consumed
  int64_t schedule_position = 0;
  uint64_t adapter_seed = 0;  // key of the adapter's dropout
  bool has_optimizer = false;
  ComponentSpec loss, optimizer, scheduler;
  std::string base_model, isa;
  Json manifest = nullptr;  // of the run, when it has one
  WrittenFiles files;

  Json to_json() const;
  /// invalid_argument naming the key that is missing or wrong.
  static TrainerState from_json(const Json& value, const std::string& where);
};

/// Writes a directory that appears whole: fill(directory) writes its files. An existing `path` is replaced at
/// once. Left-overs of writers that died are removed. Errors of the disk leave what was there.
void write_directory_atomic(const std::string& path,
                            const std::function<void(const std::string& directory)>& fill);

/// fill() writes the weights' files; optimizer state and trainer_state.json are added.
void write_checkpoint(const std::string& path, TrainerState state,
                      const std::vector<Optimizer::StateTensor>& optimizer,
                      const std::function<void(const std::string& directory)>& fill);

/// Reads and checks: not_found when there is no checkpoint, invalid_argument naming the file that is torn,
/// missing or not of this kind.
TrainerState read_checkpoint(const std::string& path);
std::vector<Optimizer::StateTensor> read_optimizer_state(const std::string& path);

/// Paths of the checkpoint-step-N directories of a run, by ascending N.
std::vector<std::string> list_checkpoints(const std::string& output_dir);
/// Removes until at most `limit` are left (0: keeps all), oldest first. `keep` is the one just written and
/// never removed; those of later steps than its own are left from before the run went back, so they go first.
void prune_checkpoints(const std::string& output_dir, int64_t limit, const std::string& keep);

/// Removes one checkpoint; it is out of sight at once.
void remove_checkpoint(const std::string& path);

/// One write at a time beside the training loop. The job calls `done_reading()` when it no longer reads what
/// the loop may change. An error of a job comes out of the next start() or wait().
class BackgroundWriter {
 public:
  BackgroundWriter() = default;
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;
  /// Waits for the job before, then starts this one.
  void start(std::function<void(const std::function<void()>& done_reading)> job);
  /// Until the running job has read what it needs.
  void wait_read();
  /// Until the running job is done.
  void wait();
  /// Whether no job is running and none has failed since the last wait().
  bool finished() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace twinkle
