// The keys of a server: who comes with each, what it may do, and within which limits. In the store's file,
// yet apart from the rest of it: `twinkle-server keys` changes them while the server runs, which sees it
// within a second. Only hashes of keys are kept, on the disk and in memory. Thread-safe.
//
// What a key makes belongs to its owner, an opaque name. A new key is an owner of its own, unless it is added
// for an owner there is: then both see the same things, with what scopes each has.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/serve/disk.h"
#include "twinkle/serve/scopes.h"
#include "twinkle/serve/sqlite.h"

namespace twinkle::serve {

/// 0: no limit.
struct KeyLimits {
  double requests_per_second = 0;
  int64_t bytes_in_flight = 0;    // bodies of requests that have no reply yet
  int64_t models = 0;             // that can be trained, of the owner
  int64_t checkpoint_bytes = 0;   // of the owner, on the disk
  int64_t tokens_per_minute = 0;  // trained, read as prompts and sampled
};

struct KeyEntry {
  std::string id;    // "key-..." of logs and metrics; it says nothing of the key
  std::string name;  // for people; no two valid keys have the same, but during a rotation
  std::string owner;
  Scopes scopes = Scopes::all();
  KeyLimits limits;      // what is 0 here is the server's default
  int64_t priority = 1;  // share of the passes when several want them: 1 to 100
  double created = 0;    // seconds since 1970
  std::optional<double> expires;
  bool revoked = false;  // `expires` says when
};

class Keys {
 public:
  /// Opens or makes the table in the store's file.
  explicit Keys(const std::string& path, const Disk& disk = {});

  /// The entry of a key that is valid now; null otherwise.
  std::shared_ptr<const KeyEntry> find(std::string_view key, double now) const;
  /// The valid key with that id; null when there is none.
  std::shared_ptr<const KeyEntry> by_id(const std::string& id, double now) const;
  /// By hash order; also those that have expired or were revoked.
  std::vector<KeyEntry> list() const;
  bool empty() const;
  /// The highest of an owner's valid keys.
  int64_t priority_of(const std::string& owner, double now) const;

  /// Makes a key known and fills `id`, and `owner` and `name` where they are "". The key: `key`, or one that
  /// is made. invalid_argument: a key of fewer than 16 characters, a wrong name; conflict: the name is taken,
  /// or the key was revoked or has expired. A key that is known already keeps its entry.
  std::string add(KeyEntry entry, double now, std::string key = "");
  /// Nothing of that name (or id) is valid any more; not_found when nothing was.
  void revoke(const std::string& name, double now);
  /// A new key with the entry of that name (or id); the old one is valid for `grace` seconds more.
  std::string rotate(const std::string& name, double grace, double now);
  /// Changes scopes, limits, priority or end of that name (or id); the key stays. One that was rotated away
  /// ends as it would.
  void change(const std::string& name, const std::function<void(KeyEntry&)>& edit, double now);
  /// Reads again what another process may have changed.
  void refresh();

 private:
  using Entries = std::map<std::string, std::shared_ptr<const KeyEntry>, std::less<>>;  // by hash

  std::shared_ptr<const Entries> entries() const;
  // Those that change them, and what they use: under changing_.
  void take_over_old_table();
  void load();
  void write(const std::string& hash, const KeyEntry& entry);
  template <class Work>
  void alter(Work&& work);  // takes it itself
  std::vector<std::string> valid_hashes(const std::string& name, double now) const;
  std::vector<std::string> need_valid(const std::string& name, double now) const;  // or not_found
  const std::string& newest_of(const std::vector<std::string>& hashes) const;

  std::mutex changing_;  // guards the two below; whoever changes entries_ holds it
  Database db_;
  std::string version_;       // of the file, when it was read
  mutable std::mutex mutex_;  // guards the pointer: requests do not wait for the disk
  std::shared_ptr<const Entries> entries_ = std::make_shared<const Entries>();
};

/// What is shown of a key: everything but the key, which nobody has.
Json to_json(const KeyEntry& entry);

}  // namespace twinkle::serve
