#include "twinkle/serve/keys.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/random_hex.h"
#include "twinkle/serve/stored.h"

namespace twinkle::serve {
namespace {

// Whatever becomes of the clock, what was revoked stays so.
bool valid(const KeyEntry& entry, double now) {
  return !entry.revoked && (!entry.expires || *entry.expires > now);
}

std::string id_of(const std::string& hash) { return "key-" + hash.substr(0, 12); }

// `keys list` and Prometheus show it as it is.
void check_name(const std::string& name) {
  const bool plain = !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](unsigned char c) {
    return (std::isalnum(c) != 0 && c < 128) || c == '.' || c == '_' || c == '-' || c == '@';
  });
  if (!plain)
    throw invalid_argument("[keys] a name has 1 to 64 letters, digits, '.', '_', '-' and '@', got '" + name +
                           "'");
}

KeyEntry entry_from(const Json& j) {
  KeyEntry out{.id = j.at("id"), .name = j.at("name"), .owner = j.at("owner")};
  out.scopes = Scopes::parse(j.at("scopes").get<std::vector<std::string>>());
  const Json& limits = j.at("limits");
  out.limits = {.requests_per_second = limits.at("requests_per_second"),
                .bytes_in_flight = whole<int64_t>(limits.at("bytes_in_flight")),
                .models = whole<int64_t>(limits.at("models")),
                .checkpoint_bytes = whole<int64_t>(limits.at("checkpoint_bytes")),
                .tokens_per_minute = whole<int64_t>(limits.at("tokens_per_minute"))};
  out.priority = whole<int64_t>(j.at("priority"));
  out.created = j.at("created");
  if (!j.at("expires").is_null()) out.expires = j.at("expires").get<double>();
  out.revoked = j.value("revoked", false);
  return out;
}

}  // namespace

Json to_json(const KeyEntry& e) {
  return {{"id", e.id},
          {"name", e.name},
          {"owner", e.owner},
          {"scopes", e.scopes.names()},
          {"limits",
           {{"requests_per_second", e.limits.requests_per_second},
            {"bytes_in_flight", e.limits.bytes_in_flight},
            {"models", e.limits.models},
            {"checkpoint_bytes", e.limits.checkpoint_bytes},
            {"tokens_per_minute", e.limits.tokens_per_minute}}},
          {"priority", e.priority},
          {"created", e.created},
          {"expires", e.expires ? Json(*e.expires) : Json(nullptr)},
          {"revoked", e.revoked}};
}

Keys::Keys(const std::string& path, const Disk& disk) : db_(path, disk.sqlite_vfs) {
  db_.run("BEGIN IMMEDIATE");
  db_.run("CREATE TABLE IF NOT EXISTS api_keys(hash TEXT PRIMARY KEY, entry TEXT NOT NULL)");
  take_over_old_table();
  db_.run("COMMIT");
  load();
}

// The first servers kept a hash and an owner, and every key might do everything.
void Keys::take_over_old_table() {
  if (!Statement(db_, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'keys'").row()) return;
  for (Statement rows(db_, "SELECT hash, owner FROM keys"); rows.row();) {
    const std::string id = id_of(rows.text(0));
    write(rows.text(0), {.id = id, .name = id, .owner = rows.text(1)});
  }
  db_.run("DROP TABLE keys");
}

void Keys::load() {
  Statement version(db_, "PRAGMA data_version");
  version.row();
  std::string read = version.text(0);
  Entries entries;
  for (Statement rows(db_, "SELECT hash, entry FROM api_keys"); rows.row();) {
    try {
      entries[rows.text(0)] = std::make_shared<const KeyEntry>(entry_from(parse_json(rows.text(1), "store")));
    } catch (const Json::exception&) {
      throw unavailable("[keys] an entry is not as this program writes it");
    }
  }
  version_ = std::move(read);  // only now: what could not be read is read again
  auto loaded = std::make_shared<const Entries>(std::move(entries));
  const std::lock_guard lock(mutex_);
  entries_ = std::move(loaded);
}

std::shared_ptr<const Keys::Entries> Keys::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void Keys::refresh() {
  const std::lock_guard lock(changing_);
  Statement version(db_, "PRAGMA data_version");
  if (version.row() && version.text(0) != version_) load();
}

std::shared_ptr<const KeyEntry> Keys::find(std::string_view key, double now) const {
  const auto all = entries();
  // Looking a hash up tells nothing of the key by its time.
  const auto found = all->find(sha256_hex(key));
  return found == all->end() || !valid(*found->second, now) ? nullptr : found->second;
}

std::shared_ptr<const KeyEntry> Keys::by_id(const std::string& id, double now) const {
  const auto all = entries();
  for (const auto& [hash, entry] : *all) {
    if (entry->id == id && valid(*entry, now)) return entry;
  }
  return nullptr;
}

std::vector<KeyEntry> Keys::list() const {
  const auto all = entries();
  std::vector<KeyEntry> out;
  for (const auto& [hash, entry] : *all) out.push_back(*entry);
  return out;
}

bool Keys::empty() const { return entries()->empty(); }

int64_t Keys::priority_of(const std::string& owner, double now) const {
  const auto all = entries();
  int64_t out = 1;
  for (const auto& [hash, entry] : *all) {
    if (entry->owner == owner && valid(*entry, now)) out = std::max(out, entry->priority);
  }
  return out;
}

void Keys::write(const std::string& hash, const KeyEntry& entry) {
  Statement(db_, "INSERT OR REPLACE INTO api_keys VALUES(?, ?)", {hash, to_json(entry).dump()}).row();
}

// On what there is now: another process may have changed it, and must not be overwritten.
template <class Work>
void Keys::alter(Work&& work) {
  const std::lock_guard lock(changing_);
  Transaction transaction(db_);
  load();
  work();
  transaction.commit();
  load();
}

std::vector<std::string> Keys::valid_hashes(const std::string& name, double now) const {
  const auto all = entries();
  std::vector<std::string> out;
  for (const auto& [hash, entry] : *all) {
    if ((entry->name == name || entry->id == name) && valid(*entry, now)) out.push_back(hash);
  }
  return out;
}

std::vector<std::string> Keys::need_valid(const std::string& name, double now) const {
  std::vector<std::string> out = valid_hashes(name, now);
  if (out.empty()) throw not_found("[keys] there is no valid key with the name '" + name + "'");
  return out;
}

const std::string& Keys::newest_of(const std::vector<std::string>& hashes) const {
  const auto all = entries();
  return *std::ranges::max_element(hashes, {},
                                   [&](const std::string& hash) { return all->at(hash)->created; });
}

std::string Keys::add(KeyEntry entry, double now, std::string key) {
  if (key.empty()) key = random_hex("tml-", 24);
  if (key.size() < 16) throw invalid_argument("[keys] a key needs at least 16 characters");
  const std::string hash = sha256_hex(key);
  alter([&] {
    const auto all = entries();
    if (const auto known = all->find(hash); known != all->end()) {
      if (valid(*known->second, now)) return;
      throw conflict("[keys] the key '" + known->second->name +
                     "' was revoked or has expired, and stays so; give another");
    }
    entry.id = id_of(hash);
    if (entry.owner.empty()) entry.owner = "user-" + hash.substr(0, 16);
    if (entry.name.empty()) entry.name = entry.id;
    check_name(entry.name);
    if (!valid_hashes(entry.name, now).empty())
      throw conflict("[keys] there is a key with the name '" + entry.name + "' already");
    entry.created = now;
    write(hash, entry);
  });
  return key;
}

void Keys::revoke(const std::string& name, double now) {
  alter([&] {
    for (const auto& hash : need_valid(name, now)) {
      KeyEntry entry = *entries()->at(hash);
      entry.expires = now;
      entry.revoked = true;
      write(hash, entry);
    }
  });
}

std::string Keys::rotate(const std::string& name, double grace, double now) {
  std::string key = random_hex("tml-", 24);
  alter([&] {
    const auto hashes = need_valid(name, now);
    KeyEntry entry = *entries()->at(newest_of(hashes));
    const std::string fresh = sha256_hex(key);
    entry.id = id_of(fresh);  // tokens of the old key end with it
    entry.created = now;
    write(fresh, entry);
    for (const auto& hash : hashes) {
      KeyEntry old = *entries()->at(hash);
      old.expires = std::min(old.expires.value_or(now + grace), now + grace);
      write(hash, old);
    }
  });
  return key;
}

void Keys::change(const std::string& name, const std::function<void(KeyEntry&)>& edit, double now) {
  alter([&] {
    const auto hashes = need_valid(name, now);
    for (const auto& hash : hashes) {
      const KeyEntry old = *entries()->at(hash);
      KeyEntry entry = old;
      edit(entry);
      entry.id = old.id;
      entry.name = old.name;
      entry.owner = old.owner;
      if (hash != newest_of(hashes)) entry.expires = old.expires;  // one that was rotated away
      write(hash, entry);
    }
  });
}

}  // namespace twinkle::serve
