// Many adapters of one model. At most `max_loras` are in memory at a time; when one more is needed, the least
// recently used one is written to a folder and comes back, bit for bit, at its next use. An adapter takes the
// memory of its own rank and modules; making, removing and moving one touches no other. Memory of gradients
// is kept from one pass for the next, until an adapter leaves.
//
// Weights are handed to a sampler by version number: a snapshot shares the adapter's memory until the next
// step changes the weights, which then go on in a copy.
//
// Training calls (everything but snapshot_of) come from one thread at a time. snapshot_of and the use of
// snapshots are safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "twinkle/core/files.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/gradient_memory.h"

namespace twinkle {

/// Weights of an adapter at one moment; never changes.
struct AdapterSnapshot {
  std::string name;     // of the adapter
  int64_t version = 0;  // > 0; never given twice by one pool
  LoraConfig config;
  std::vector<LoraModule> modules;                 // slots without gradients
  std::map<std::string, Parameter> saved_modules;  // whole copies (modules_to_save)

  AdapterUse use() const { return {.modules = &modules, .saved_modules = &saved_modules}; }
};

struct AdapterPoolOptions {
  int64_t max_loras = 5;  // adapters in memory at a time
  int64_t max_r = 32;     // largest rank
  /// Last components of the modules that adapters may touch; "all-linear": every linear layer and the
  /// head.
  std::vector<std::string> target_modules = {"all-linear"};
  bool attention = true, mlp = true, unembedding = true;  // false: no adapter on this part of the model
  std::string spill_dir;  // where adapters that do not fit are written; "": the system's temporary folder
};

/// The modules of the parts of a model, as LoraConfig::target_modules.
std::vector<std::string> modules_of_parts(bool attention, bool mlp, bool unembedding);

class AdapterPool {
 public:
  /// Tensors that live beside an adapter (an optimizer's moments) and leave and enter memory with it. `set`
  /// gets as many as `get` gave; undefined ones let go of the memory.
  struct State {
    std::function<std::vector<at::Tensor>()> get;
    std::function<void(std::vector<at::Tensor>)> set;
  };

  AdapterPool(const CausalLM& model, AdapterPoolOptions options);
  ~AdapterPool();  // removes what was written
  AdapterPool(const AdapterPool&) = delete;
  AdapterPool& operator=(const AdapterPool&) = delete;

  /// A fresh adapter, or one from PEFT files. `conflict` when the name is taken; invalid_argument for what
  /// the options do not allow; `exhausted` when no adapter can leave. After an error everything is as before.
  std::shared_ptr<Adapter> create(const std::string& name, const LoraConfig& config);
  std::shared_ptr<Adapter> load(const std::string& name, const std::string& directory);
  /// Frees memory, file and name. Snapshots that are held keep their weights. not_found.
  void remove(const std::string& name);
  void set_state(const std::string& name, State state);

  bool contains(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::string> names() const;
  const AdapterPoolOptions& options() const { return options_; }

  /// Brings adapters into memory, all at once, and marks them as used. not_found; `exhausted` when they are
  /// more than fit; `unavailable` when a written one can not be read.
  void use(std::span<const std::string> names);
  void use(const std::string& name) { use(std::span(&name, 1)); }

  /// The weights as they are now; the same handle while they do not change.
  std::shared_ptr<const AdapterSnapshot> snapshot(const std::string& name);
  /// The snapshot of a version: one that somebody holds. not_found when it is gone.
  std::shared_ptr<const AdapterSnapshot> snapshot_of(int64_t version) const;
  /// To be called before the weights change: snapshots that are held keep the old ones.
  void before_update(const std::string& name);

  int64_t num_resident() const { return num_resident_; }
  /// Bytes of the adapters in memory, with gradients and state; and in files.
  int64_t resident_bytes() const;
  int64_t written_bytes() const;
  /// Kept for the gradients of the next pass, beside those.
  int64_t spare_bytes() const { return gradient_memory_->spare_bytes(); }
  int64_t times_written() const { return times_written_; }

 private:
  struct Entry {
    std::shared_ptr<Adapter> adapter;
    State state;
    int64_t id = 0;         // names the file
    int64_t last_used = 0;  // 0: written out
    int64_t version = 0;    // of the weights as they are; 0: none was given
    std::weak_ptr<const AdapterSnapshot> snapshot;
    std::string file;  // "" while in memory
    int64_t file_bytes = 0;
    bool resident() const { return file.empty(); }
  };

  Entry& entry(const std::string& name);
  void check_config(const std::string& name, const LoraConfig& config) const;
  void check_modules(const Adapter& adapter) const;
  std::shared_ptr<Adapter> insert(const std::string& name, std::shared_ptr<Adapter> adapter);
  void make_room(std::span<const std::string> kept);
  void write_out(const std::string& name, Entry& entry);
  void bring_in(const std::string& name, Entry& entry);
  const std::string& folder();

  const CausalLM& model_;
  AdapterPoolOptions options_;
  std::shared_ptr<GradientMemory> gradient_memory_ = std::make_shared<GradientMemory>();
  std::map<std::string, Entry> entries_;
  std::string folder_;
  std::unique_ptr<FolderLock> folder_lock_;  // says that the folder's owner lives
  int64_t next_id_ = 1, clock_ = 0, num_resident_ = 0, times_written_ = 0;

  mutable std::mutex versions_mutex_;  // guards versions_, next_version_ and the snapshots of entries
  std::map<int64_t, std::weak_ptr<const AdapterSnapshot>> versions_;
  int64_t next_version_ = 1;
};

}  // namespace twinkle
