// Who and what there is: keys, sessions, models, samplers, checkpoints. A SQLite file; all of it is also in
// memory, so reading asks no disk. Changes are durable when the call returns. Thread-safe.
//
// Everything belongs to an owner, the name of a key. Whoever asks for what is not theirs gets what they would
// get if it did not exist.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/serve/engine.h"

struct sqlite3;

namespace twinkle::serve {

struct Session {
  std::string id, owner;
  Json info = Json::object();  // what the client said of itself
  double created = 0;          // seconds since 1970, as all times here
};

struct ModelEntry {
  std::string id, session, owner;
  std::string base_model;  // as the client named it
  LoraShape shape;
  Json user_metadata = nullptr;
  double created = 0;
};

struct SamplerEntry {
  std::string id, session, owner;
  std::string base_model, model_path;
  std::string folder;  // of the weights, within the data folder; "": the base model
  double created = 0;
};

struct Checkpoint {
  std::string run, kind, name;  // kind: "weights" | "sampler_weights"
  std::string owner, folder, base_model;
  LoraShape shape;
  bool optimizer = false;
  uint64_t operation = 0;  // that wrote it
  int64_t bytes = 0;
  double created = 0;
  std::optional<double> expires;
  std::string path() const { return "tinker://" + run + "/" + kind + "/" + name; }
};

class Store {
 public:
  /// Opens or makes the file; `unavailable` when it is damaged or of a newer version.
  explicit Store(const std::string& path);
  ~Store();

  /// A key's owner, by the key itself; only its hash is kept.
  std::optional<std::string> owner_of_key(std::string_view key) const;
  /// Makes a key known (again); its owner. Keys of fewer than 16 characters are invalid_argument.
  std::string add_key(std::string_view key);
  bool has_keys() const;

  void put(const Session& session);
  void put(const ModelEntry& model);
  void put(const SamplerEntry& sampler);
  void put(const Checkpoint& checkpoint);
  void remove(const Checkpoint& checkpoint);

  std::optional<Session> session(const std::string& id, const std::string& owner) const;
  std::optional<ModelEntry> model(const std::string& id, const std::string& owner) const;
  std::optional<SamplerEntry> sampler(const std::string& id, const std::string& owner) const;
  /// By "tinker://RUN/KIND/NAME"; one that has expired is none.
  std::optional<Checkpoint> checkpoint(const std::string& path, const std::string& owner, double now) const;
  std::vector<Checkpoint> expired_checkpoints(double now) const;
  /// From `expires` on there is no such checkpoint; nothing: for ever. False when there is none now.
  bool set_expiry(const std::string& path, const std::string& owner, std::optional<double> expires,
                  double now);
  // What an owner has, newest first. `run` and `session` "": of all.
  std::vector<Session> sessions_of(const std::string& owner) const;
  std::vector<ModelEntry> models_of(const std::string& owner, const std::string& session = "") const;
  std::vector<SamplerEntry> samplers_of(const std::string& owner, const std::string& session) const;
  std::vector<Checkpoint> checkpoints_of(const std::string& owner, const std::string& run, double now) const;
  /// Where checkpoints and samplers have their weights.
  std::set<std::string> folders() const;

 private:
  struct Statement;
  void run(const char* sql) const;
  void load();
  template <class T>
  void write(std::map<std::string, T>& all, const char* kind, const std::string& id, const T& entry);

  sqlite3* db_ = nullptr;
  std::mutex writing_;        // of the file, which waits for the disk; taken before mutex_
  mutable std::mutex mutex_;  // guards the rest, which every request reads
  std::map<std::string, std::string, std::less<>> owners_;  // by hash of the key
  std::map<std::string, Session> sessions_;
  std::map<std::string, ModelEntry> models_;
  std::map<std::string, SamplerEntry> samplers_;
  std::map<std::string, Checkpoint> checkpoints_;  // by path
};

}  // namespace twinkle::serve
