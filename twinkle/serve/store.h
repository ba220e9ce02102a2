// What there is: sessions, models, samplers, checkpoints. A SQLite file; all of it is also in memory, so
// reading asks no disk. Changes are durable when the call returns. Thread-safe.
//
// Everything belongs to an owner, whom a key names (keys.h). Whoever asks for what is not theirs gets what
// they would get if it did not exist.
#pragma once

#include <atomic>
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
#include "twinkle/serve/sqlite.h"
#include "twinkle/serve/world.h"

namespace twinkle::serve {

struct Session {
  std::string id, owner;
  Json info = Json::object();   // what the client said of itself
  double created = 0;           // seconds since 1970, as all times here
  std::string finished;         // how, when its client has said so: "success", "errored", "interrupted"
  std::optional<double> ended;  // when: its client was silent for too long
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
  int64_t clients = 0;  // that have joined; each has its own range of numbers
  bool ended = false;   // its weights may be gone
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
  bool is_public = false;  // others may read it
  Json user_metadata = nullptr;
  std::string path() const { return "tinker://" + run + "/" + kind + "/" + name; }
};

/// An entry of the audit log.
struct Note {
  double time = 0;
  std::string event;
  Json details = Json::object();
};

/// What was used of one kind within one hour.
struct Usage {
  double hour = 0;  // its begin
  std::string owner, session, base_model;
  std::string kind;  // "training", "sampling_prefill", "sampling_sample": tokens; "checkpoint"
  int64_t count = 0;
};

class Store {
 public:
  /// Opens or makes the file; `unavailable` when it is damaged or of a newer version.
  explicit Store(const std::string& path, const World& world = {});

  void put(const Session& session);
  /// The session is over, and samplers whose weights nothing else names are gone.
  void end_session(const std::string& id, double now);
  bool session_ended(const std::string& id) const;
  /// Of those that have not ended, the ones that their clients have finished.
  std::vector<std::string> finished_sessions() const;
  std::vector<std::string> live_sessions() const;
  void put(const ModelEntry& model);
  bool has_models() const;
  void put(const SamplerEntry& sampler);
  void put(const Checkpoint& checkpoint);
  void remove(const Checkpoint& checkpoint);

  std::optional<Session> session(const std::string& id, const std::string& owner) const;
  std::optional<ModelEntry> model(const std::string& id, const std::string& owner) const;
  std::optional<SamplerEntry> sampler(const std::string& id, const std::string& owner) const;
  /// By "tinker://RUN/KIND/NAME"; one that has expired is none.
  std::optional<Checkpoint> checkpoint(const std::string& path, const std::string& owner, double now) const;
  /// The same for whoever may read it: its owner, and everybody when it is public.
  std::optional<Checkpoint> readable_checkpoint(const std::string& path, const std::string& reader,
                                                double now) const;
  std::vector<Checkpoint> expired_checkpoints(double now) const;
  /// From `expires` on there is no such checkpoint; nothing: for ever. False when there is none now.
  bool set_expiry(const std::string& path, const std::string& owner, std::optional<double> expires,
                  double now);
  /// False when it is not the owner's.
  bool set_public(const std::string& path, const std::string& owner, bool is_public, double now);
  /// The checkpoint `from`, which `to.owner` or `reader` may read, under another run; both have the same
  /// files. `to` has owner and times. The run is made of `run` unless it is there, with what it takes from
  /// the checkpoint; both are there, or none. The same copy again is the first one.
  std::optional<Checkpoint> copy(const std::string& from, const std::string& reader, Checkpoint to,
                                 ModelEntry run, double now);
  /// conflict when the owner has `most` bytes of checkpoints already.
  void check_checkpoint_bytes(const std::string& owner, int64_t most, double now) const;

  /// A number from 1 that no other client of the sampler has or will have; nothing when it is not the
  /// owner's.
  std::optional<int64_t> join_sampler(const std::string& id, const std::string& owner);
  /// The first reason stays. False when the session is not the owner's.
  bool finish_session(const std::string& id, const std::string& owner, const std::string& reason);
  /// Nothing when the session is not the owner's.
  void set_project(const std::string& id, const std::string& owner, const std::string& project);
  /// Its client was heard of. Until then a session counts as heard of when the store was opened.
  void touch_session(const std::string& id);
  /// Samplers of sessions that were finished, or not heard of for `silence` seconds, and are not marked yet.
  std::vector<SamplerEntry> samplers_to_end(double silence) const;
  /// 32 random bytes of this data folder, the same at every start, to sign with.
  std::string secret();

  // The audit log: the last million entries of all owners (store_records.cpp).
  void note(const std::string& owner, const std::string& event, const Json& details, double now);
  /// Those of [from, to) whose event begins with `prefix`, oldest first, at most 10,000.
  std::vector<Note> notes_of(const std::string& owner, const std::string& prefix, double from, double to);
  /// Adds up.
  void add(const std::vector<Usage>& used);
  /// By hours of [from, to).
  std::vector<Usage> usage_of(const std::string& owner, double from, double to);

  // What an owner has, newest first. `run` and `session` "": of all.
  std::vector<Session> sessions_of(const std::string& owner) const;
  std::vector<ModelEntry> models_of(const std::string& owner, const std::string& session = "") const;
  std::vector<SamplerEntry> samplers_of(const std::string& owner, const std::string& session) const;
  std::vector<Checkpoint> checkpoints_of(const std::string& owner, const std::string& run, double now) const;
  /// A write has failed and none has succeeded since: a start may find it done or not.
  bool in_doubt() const { return in_doubt_; }
  /// Ends the doubt by a write of its own, after which the one that failed is gone for good. Nothing when
  /// there is none; unavailable or disk_full() where this fails too.
  void settle();
  /// Where checkpoints and samplers have their weights.
  std::set<std::string> folders() const;

 private:
  void load();
  void write_version();
  template <class Wanted>
  std::vector<std::string> sessions_where(Wanted wanted) const;
  template <class Work>
  void change(Work&& work);  // of the file
  template <class T>
  void insert(const char* kind, const std::string& id, const T& entry);
  template <class T>
  void write(std::map<std::string, T>& all, const char* kind, const std::string& id, const T& entry);

  Database db_;
  std::atomic<bool> in_doubt_{false};
  std::mutex writing_;        // of the file, which waits for the disk; taken before mutex_
  mutable std::mutex mutex_;  // guards the rest, which every request reads
  std::map<std::string, Session> sessions_;
  std::map<std::string, ModelEntry> models_;
  std::map<std::string, SamplerEntry> samplers_;
  std::map<std::string, Checkpoint> checkpoints_;   // by path
  std::map<std::string, Clock::time_point> heard_;  // of sessions
  Clocks clocks_;
  Clock::time_point opened_;
  std::string secret_;
};

/// Of a model's or sampler's id.
inline std::string session_of(std::string_view target) {
  return std::string(target.substr(0, target.find(':')));
}

}  // namespace twinkle::serve
