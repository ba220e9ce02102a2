#include "twinkle/serve/store.h"

#include <algorithm>

#include "twinkle/core/files.h"
#include "twinkle/serve/random_hex.h"
#include "twinkle/serve/stored.h"

namespace twinkle::serve {
namespace {

constexpr int kVersion = 1;

constexpr const char* kTables = R"sql(
CREATE TABLE IF NOT EXISTS notes(id INTEGER PRIMARY KEY, owner TEXT NOT NULL, time REAL NOT NULL, event TEXT NOT NULL, details TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS notes_of_owner ON notes(owner, time);
CREATE TABLE IF NOT EXISTS usage(owner TEXT NOT NULL, hour REAL NOT NULL, session TEXT NOT NULL, base_model TEXT NOT NULL, kind TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY(owner, hour, session, base_model, kind));
CREATE TABLE IF NOT EXISTS things(kind TEXT NOT NULL, id TEXT NOT NULL, entry TEXT NOT NULL, PRIMARY KEY(kind, id));
)sql";

Json shape_to_json(const LoraShape& s) {
  return {{"rank", s.rank},
          {"seed", s.seed},
          {"attention", s.attention},
          {"mlp", s.mlp},
          {"unembedding", s.unembedding}};
}

LoraShape shape_from_json(const Json& j) {
  return {.rank = whole<int64_t>(j.at("rank")),
          .seed = whole<uint64_t>(j.at("seed")),
          .attention = j.at("attention"),
          .mlp = j.at("mlp"),
          .unembedding = j.at("unembedding")};
}

// One row of `things` each.
Json to_json(const Session& s) {
  Json out = {
      {"id", s.id}, {"owner", s.owner}, {"info", s.info}, {"created", s.created}, {"finished", s.finished}};
  if (s.ended) out["ended"] = *s.ended;
  return out;
}
Json to_json(const ModelEntry& m) {
  return {{"id", m.id},
          {"session", m.session},
          {"owner", m.owner},
          {"base_model", m.base_model},
          {"shape", shape_to_json(m.shape)},
          {"user_metadata", m.user_metadata},
          {"created", m.created}};
}
Json to_json(const SamplerEntry& s) {
  return {{"id", s.id},
          {"session", s.session},
          {"owner", s.owner},
          {"base_model", s.base_model},
          {"model_path", s.model_path},
          {"folder", s.folder},
          {"created", s.created},
          {"clients", s.clients},
          {"ended", s.ended}};
}
Json to_json(const Checkpoint& c) {
  return {{"run", c.run},
          {"kind", c.kind},
          {"name", c.name},
          {"owner", c.owner},
          {"folder", c.folder},
          {"base_model", c.base_model},
          {"shape", shape_to_json(c.shape)},
          {"optimizer", c.optimizer},
          {"operation", c.operation},
          {"bytes", c.bytes},
          {"created", c.created},
          {"expires", c.expires ? Json(*c.expires) : Json(nullptr)},
          {"public", c.is_public},
          {"user_metadata", c.user_metadata}};
}

}  // namespace

Store::Store(const std::string& path, const World& world)
    : db_(path, world.disk.sqlite_vfs), clocks_(world.clocks), opened_(clocks_.steady()) {
  load();
}

void Store::load() {
  // What a failed sync left in memory only looks durable to the next start, and all that comes behind it in
  // the write-ahead log would go with it: it is written once more, into the database itself.
  db_.run("PRAGMA wal_checkpoint(TRUNCATE)");
  Statement version(db_, "PRAGMA user_version", {});
  const int found = version.row() ? std::stoi(version.text(0)) : 0;
  if (found > kVersion) {
    throw unavailable("[store] the data folder is of version " + std::to_string(found) +
                      ", this program reads up to " + std::to_string(kVersion));
  }
  db_.run(kTables);
  write_version();
  for (Statement things(db_, "SELECT kind, entry FROM things", {}); things.row();) {
    const std::string kind = things.text(0);
    const Json e = parse_json(things.text(1), "store");
    try {
      if (kind == "session") {
        sessions_[e.at("id")] = {.id = e.at("id"),
                                 .owner = e.at("owner"),
                                 .info = e.at("info"),
                                 .created = e.at("created"),
                                 .finished = e.value("finished", std::string())};
        if (e.contains("ended")) sessions_[e.at("id")].ended = e.at("ended").get<double>();
      } else if (kind == "model") {
        models_[e.at("id")] = {.id = e.at("id"),
                               .session = e.at("session"),
                               .owner = e.at("owner"),
                               .base_model = e.at("base_model"),
                               .shape = shape_from_json(e.at("shape")),
                               .user_metadata = e.at("user_metadata"),
                               .created = e.at("created")};
      } else if (kind == "sampler") {
        samplers_[e.at("id")] = {.id = e.at("id"),
                                 .session = e.at("session"),
                                 .owner = e.at("owner"),
                                 .base_model = e.at("base_model"),
                                 .model_path = e.at("model_path"),
                                 .folder = e.at("folder"),
                                 .created = e.at("created"),
                                 .clients = whole_or<int64_t>(e, "clients", 0),
                                 .ended = e.value("ended", false)};
      } else if (kind == "checkpoint") {
        Checkpoint c{.run = e.at("run"),
                     .kind = e.at("kind"),
                     .name = e.at("name"),
                     .owner = e.at("owner"),
                     .folder = e.at("folder"),
                     .base_model = e.at("base_model"),
                     .shape = shape_from_json(e.at("shape")),
                     .optimizer = e.at("optimizer"),
                     .operation = whole<uint64_t>(e.at("operation")),
                     .bytes = whole_or<int64_t>(e, "bytes", 0),
                     .created = e.at("created"),
                     .is_public = e.value("public", false),
                     .user_metadata = e.value("user_metadata", Json(nullptr))};
        if (!e.at("expires").is_null()) c.expires = e.at("expires").get<double>();
        checkpoints_[c.path()] = c;
      } else if (kind == "secret") {
        secret_ = e.at("bytes").get<std::string>();
      }
    } catch (const Json::exception&) {
      throw unavailable("[store] an entry of kind '" + kind + "' is not as this program writes it");
    }
  }
}

void Store::write_version() { db_.run(("PRAGMA user_version=" + std::to_string(kVersion)).c_str()); }

// Things.

template <class T>
void Store::insert(const char* kind, const std::string& id, const T& entry) {
  Statement(db_, "INSERT OR REPLACE INTO things VALUES(?, ?, ?)", {kind, id, to_json(entry).dump()}).row();
}

template <class Work>
void Store::change(Work&& work) {
  try {
    work();
    in_doubt_ = false;
  } catch (...) {
    in_doubt_ = true;
    throw;
  }
}

// SQLite has taken back what failed, so what comes next is written over it in the write-ahead log.
void Store::settle() {
  if (!in_doubt_) return;  // without waiting for another's write
  const std::lock_guard writing(writing_);
  if (in_doubt_) change([&] { write_version(); });
}

template <class T>
void Store::write(std::map<std::string, T>& all, const char* kind, const std::string& id, const T& entry) {
  change([&] { insert(kind, id, entry); });
  const std::lock_guard lock(mutex_);
  all[id] = entry;
}

void Store::put(const Session& session) {
  const std::lock_guard writing(writing_);
  write(sessions_, "session", session.id, session);
}

void Store::end_session(const std::string& id, double now) {
  const std::lock_guard writing(writing_);
  Session session;
  std::vector<std::string> gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    session = found->second;
    for (const auto& [name, sampler] : samplers_) {
      if (sampler.session == id && sampler.folder.starts_with("samplers/")) gone.push_back(name);
    }
  }
  session.ended = now;
  change([&] {
    Transaction transaction(db_);
    insert("session", id, session);
    for (const auto& name : gone)
      Statement(db_, "DELETE FROM things WHERE kind = 'sampler' AND id = ?", {name}).row();
    transaction.commit();
  });
  const std::lock_guard lock(mutex_);
  sessions_[id] = session;
  for (const auto& name : gone) samplers_.erase(name);
}

bool Store::session_ended(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  return found != sessions_.end() && found->second.ended;
}

bool Store::has_models() const {
  const std::lock_guard lock(mutex_);
  return !models_.empty();
}

template <class Wanted>
std::vector<std::string> Store::sessions_where(Wanted wanted) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [id, session] : sessions_) {
    if (wanted(session)) out.push_back(id);
  }
  return out;
}

std::vector<std::string> Store::live_sessions() const {
  return sessions_where([](const Session& s) { return !s.ended; });
}

std::vector<std::string> Store::finished_sessions() const {
  return sessions_where([](const Session& s) { return !s.ended && !s.finished.empty(); });
}

void Store::put(const ModelEntry& model) {
  const std::lock_guard writing(writing_);
  write(models_, "model", model.id, model);
}

void Store::put(const SamplerEntry& sampler) {
  const std::lock_guard writing(writing_);
  write(samplers_, "sampler", sampler.id, sampler);
}

void Store::put(const Checkpoint& checkpoint) {
  const std::lock_guard writing(writing_);
  write(checkpoints_, "checkpoint", checkpoint.path(), checkpoint);
}

void Store::remove(const Checkpoint& checkpoint) {
  const std::lock_guard writing(writing_);
  change([&] {
    Statement(db_, "DELETE FROM things WHERE kind = 'checkpoint' AND id = ?", {checkpoint.path()}).row();
  });
  const std::lock_guard lock(mutex_);
  checkpoints_.erase(checkpoint.path());
}

namespace {
template <class T>
std::optional<T> owned(const std::map<std::string, T>& all, const std::string& id, const std::string& owner) {
  const auto found = all.find(id);
  if (found == all.end() || found->second.owner != owner) return std::nullopt;
  return found->second;
}
}  // namespace

std::optional<Session> Store::session(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  return owned(sessions_, id, owner);
}

std::optional<ModelEntry> Store::model(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  return owned(models_, id, owner);
}

std::optional<SamplerEntry> Store::sampler(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  return owned(samplers_, id, owner);
}

std::optional<Checkpoint> Store::checkpoint(const std::string& path, const std::string& owner,
                                            double now) const {
  const std::lock_guard lock(mutex_);
  auto found = owned(checkpoints_, path, owner);
  if (found && found->expires && *found->expires <= now) return std::nullopt;
  return found;
}

std::optional<Checkpoint> Store::readable_checkpoint(const std::string& path, const std::string& reader,
                                                     double now) const {
  const std::lock_guard lock(mutex_);
  const auto found = checkpoints_.find(path);
  if (found == checkpoints_.end()) return std::nullopt;
  const Checkpoint& c = found->second;
  if ((c.owner != reader && !c.is_public) || (c.expires && *c.expires <= now)) return std::nullopt;
  return c;
}

std::vector<Checkpoint> Store::expired_checkpoints(double now) const {
  const std::lock_guard lock(mutex_);
  std::vector<Checkpoint> out;
  for (const auto& [path, checkpoint] : checkpoints_) {
    if (checkpoint.expires && *checkpoint.expires <= now) out.push_back(checkpoint);
  }
  return out;
}

bool Store::set_expiry(const std::string& path, const std::string& owner, std::optional<double> expires,
                       double now) {
  const std::lock_guard writing(writing_);
  auto found = checkpoint(path, owner, now);
  if (!found) return false;
  found->expires = expires;
  write(checkpoints_, "checkpoint", path, *found);
  return true;
}

bool Store::set_public(const std::string& path, const std::string& owner, bool is_public, double now) {
  const std::lock_guard writing(writing_);
  auto found = checkpoint(path, owner, now);
  if (!found) return false;
  found->is_public = is_public;
  write(checkpoints_, "checkpoint", path, *found);
  return true;
}

std::optional<Checkpoint> Store::copy(const std::string& from, const std::string& reader, Checkpoint to,
                                      ModelEntry run, double now) {
  const std::lock_guard writing(writing_);
  auto found = readable_checkpoint(from, reader, now);
  if (!found) found = readable_checkpoint(from, to.owner, now);
  if (!found) return std::nullopt;
  to.run = run.id;
  to.kind = found->kind;
  to.name = found->name;
  const auto known = checkpoint(to.path(), to.owner, now);
  if (known && known->folder != found->folder)
    throw conflict("[copy_weights] '" + to.path() + "' is there already, with other weights");
  to.folder = found->folder;
  to.base_model = run.base_model = found->base_model;
  to.shape = run.shape = found->shape;
  to.optimizer = found->optimizer;
  to.operation = found->operation;
  to.bytes = found->bytes;
  to.user_metadata = found->user_metadata;
  const bool new_run = !model(run.id, to.owner);
  change([&] {
    Transaction transaction(db_);
    if (!known) insert("checkpoint", to.path(), to);
    if (new_run) insert("model", run.id, run);
    transaction.commit();
  });
  const std::lock_guard lock(mutex_);
  if (!known) checkpoints_[to.path()] = to;
  if (new_run) models_[run.id] = run;
  return known ? known : to;
}

void Store::check_checkpoint_bytes(const std::string& owner, int64_t most, double now) const {
  int64_t bytes = 0;
  for (const auto& checkpoint : checkpoints_of(owner, "", now)) bytes += checkpoint.bytes;
  if (bytes < most) return;
  throw conflict("[limit] this key may have " + std::to_string(most) + " bytes of checkpoints, and has " +
                 std::to_string(bytes) + "; delete some");
}

// Sessions and samplers.

std::optional<int64_t> Store::join_sampler(const std::string& id, const std::string& owner) {
  const std::lock_guard writing(writing_);
  auto found = sampler(id, owner);
  if (!found) return std::nullopt;
  ++found->clients;
  write(samplers_, "sampler", id, *found);
  return found->clients;
}

bool Store::finish_session(const std::string& id, const std::string& owner, const std::string& reason) {
  const std::lock_guard writing(writing_);
  auto found = session(id, owner);
  if (!found) return false;
  if (!found->finished.empty()) return true;
  found->finished = reason;
  write(sessions_, "session", id, *found);
  return true;
}

void Store::set_project(const std::string& id, const std::string& owner, const std::string& project) {
  const std::lock_guard writing(writing_);
  auto found = session(id, owner);
  if (!found) return;
  found->info["project_id"] = project;
  write(sessions_, "session", id, *found);
}

void Store::touch_session(const std::string& id) {
  const std::lock_guard lock(mutex_);
  heard_[id] = clocks_.steady();
}

std::vector<SamplerEntry> Store::samplers_to_end(double silence) const {
  const std::lock_guard lock(mutex_);
  std::vector<SamplerEntry> out;
  for (const auto& [id, sampler] : samplers_) {
    if (sampler.ended) continue;
    const auto session = sessions_.find(sampler.session);
    const auto heard = heard_.find(sampler.session);
    const auto last = heard == heard_.end() ? opened_ : heard->second;
    const bool finished = session != sessions_.end() && !session->second.finished.empty();
    if (finished || seconds_since(clocks_, last) > silence) out.push_back(sampler);
  }
  return out;
}

std::string Store::secret() {
  const std::lock_guard writing(writing_);
  if (secret_.empty()) {
    const std::string bytes = random_hex("", 32);
    Statement(db_, "INSERT OR REPLACE INTO things VALUES('secret', 'signing', ?)",
              {Json{{"bytes", bytes}}.dump()})
        .row();
    secret_ = bytes;
  }
  return secret_;
}

namespace {
template <class T, class Wanted>
std::vector<T> listed(const std::map<std::string, T>& all, const std::string& owner, Wanted&& wanted) {
  std::vector<T> out;
  for (const auto& [id, entry] : all) {
    if (entry.owner == owner && wanted(entry)) out.push_back(entry);
  }
  std::ranges::stable_sort(out, std::greater(), &T::created);
  return out;
}
}  // namespace

std::vector<Session> Store::sessions_of(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  return listed(sessions_, owner, [](const Session&) { return true; });
}

std::vector<ModelEntry> Store::models_of(const std::string& owner, const std::string& session) const {
  const std::lock_guard lock(mutex_);
  return listed(models_, owner, [&](const ModelEntry& m) { return session.empty() || m.session == session; });
}

std::vector<SamplerEntry> Store::samplers_of(const std::string& owner, const std::string& session) const {
  const std::lock_guard lock(mutex_);
  return listed(samplers_, owner, [&](const SamplerEntry& s) { return s.session == session; });
}

std::vector<Checkpoint> Store::checkpoints_of(const std::string& owner, const std::string& run,
                                              double now) const {
  const std::lock_guard lock(mutex_);
  return listed(checkpoints_, owner, [&](const Checkpoint& c) {
    return (run.empty() || c.run == run) && !(c.expires && *c.expires <= now);
  });
}

std::set<std::string> Store::folders() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> out;
  for (const auto& [path, checkpoint] : checkpoints_) out.insert(checkpoint.folder);
  for (const auto& [id, sampler] : samplers_) {
    if (!sampler.ended) out.insert(sampler.folder);
  }
  return out;
}

}  // namespace twinkle::serve
