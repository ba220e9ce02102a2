// Snapshots of models, and a log without what they cover: both are written beside the work.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "twinkle/serve/core.h"
#include "twinkle/serve/stored.h"

namespace twinkle::serve {

namespace fs = std::filesystem;

namespace {
// In memory, as copies that wait for the disk.
constexpr size_t kSnapshotsInFlight = 2;
constexpr std::string_view kSnapshots = "snapshots/";
}  // namespace

// Snapshots.

Core::Snapshot Core::Snapshot::from(const Json& head) {
  return {.folder = head.at("folder"),
          .closed = whole<int64_t>(head.at("closed")),
          .unloaded = head.value("unloaded", false)};
}

std::string Core::Snapshot::record(const std::string& model) const {
  Json head = {{"record", "snapshot"}, {"model", model}, {"folder", folder}, {"closed", closed}};
  if (unloaded) head["unloaded"] = true;
  return join_record(head, "");
}

// Folders of snapshots are removed when there are newer ones: what a record names must be one.
uint64_t Core::Snapshot::number() const {
  if (folder.empty()) return 0;
  uint64_t number = 0;
  if (folder.starts_with(kSnapshots)) {
    const char *begin = folder.data() + kSnapshots.size(), *last = folder.data() + folder.size();
    const auto [end, error] = std::from_chars(begin, last, number);
    if (error == std::errc() && end == last) return number;
  }
  throw unavailable(std::string(kLogRecord) + " speaks of a snapshot in '" + folder + "', which is none");
}

// Without gradients everything up to the last barrier is in the weights and the optimizer. One of a model is
// written at a time, so they become durable in the order of their numbers.
bool Core::can_snapshot(const Model& model) const {
  if (model.queue.has_pending() || !model.queue.spoiled().empty()) return false;
  const std::lock_guard lock(mutex_);
  return !model.being_written;
}

// After a step, which leaves no gradients, whatever there is before it.
bool Core::snapshot_is_due(const Model& model) const {
  return files_.size() < kSnapshotsInFlight && is_due(model);
}

bool Core::is_due(const Model& model) const {
  const std::lock_guard lock(mutex_);
  return !model.being_written && clocks().steady() >= model.not_before &&
         (model.wanted || model.operations >= options_.snapshot_operations ||
          model.bytes >= options_.snapshot_bytes);
}

// Few are written at a time, so models wait in line, or some would never have their turn beside others that
// are always due. Of those that come at the same time, as after a start, the first are those with the most to
// carry out again. Who is at the head and makes no step within a second, in which it could have been written,
// goes.
std::set<const Core::Turn*> Core::turns_to_snapshot(const std::vector<Turn>& turns) {
  constexpr std::chrono::seconds kPatience{1};
  std::map<std::string, const Turn*> due;
  std::multimap<size_t, std::string, std::greater<>> joining;  // by operations that are kept
  for (const auto& turn : turns) {
    if (!turn.ready.barrier || !is_due(*turn.model)) continue;
    due[turn.id] = &turn;
    if (std::ranges::any_of(line_, [&](const InLine& one) { return one.model == turn.id; })) continue;
    const std::lock_guard lock(mutex_);
    joining.emplace(turn.model->kept.size(), turn.id);
  }
  for (const auto& [kept, model] : joining) line_.push_back({.model = model});
  const auto now = clocks().steady();
  size_t free = kSnapshotsInFlight - std::min(kSnapshotsInFlight, files_.size());
  std::set<const Turn*> out;
  for (auto it = line_.begin(); it != line_.end() && free > 0;) {
    if (!it->until) it->until = now + kPatience;
    const auto found = due.find(it->model);
    const bool goes = found != due.end() || *it->until < now;
    if (found != due.end()) out.insert(found->second);
    if (found != due.end() || !goes) --free;
    it = goes ? line_.erase(it) : std::next(it);
  }
  return out;
}

// The copy is taken here; the disk is another thread's.
void Core::take_snapshot(const std::string& id, Model& model) {
  if (lost_.contains(id) || doubtful_.contains(id)) return;  // the log can still bring it back
  Snapshot snapshot{.closed = model.queue.closed()};
  {
    const std::lock_guard lock(mutex_);
    snapshot.folder = std::string(kSnapshots) + std::to_string(next_id_++);
    model.being_written = true;
    model.wanted = false;
  }
  model.operations = model.bytes = 0;
  try {
    files_.add([this, id, snapshot, write = engine_->capture_model(id, path(snapshot.folder))] {
      try {
        write();
        record_snapshot(id, snapshot);
      } catch (...) {
        snapshot_failed(id, snapshot);
        throw;
      }
    });
  } catch (const std::exception& e) {  // the log has it all
    std::fprintf(stderr, "snapshot: %s\n", e.what());
    snapshot_failed(id, snapshot);
  }
}

// The model is gone, and that is what a start finds. It comes behind a snapshot that is being written.
void Core::note_unloaded(const std::string& id, const Model& model) {
  files_.add([this, id, snapshot = Snapshot{.closed = model.queue.closed(), .unloaded = true}] {
    record_snapshot(id, snapshot);
  });
}

void Core::record_snapshot(const std::string& id, const Snapshot& snapshot) {
  // That a model is gone nobody could say later.
  log_->append(
      snapshot.record(id),
      [this, id, snapshot](const std::exception_ptr& error) { snapshot_written(id, snapshot, error); },
      snapshot.unloaded);
}

// On the log's thread. From now on a start begins with it: what came before is not needed any more.
void Core::snapshot_written(const std::string& id, const Snapshot& snapshot,
                            const std::exception_ptr& error) {
  // A log that broke may have the record all the same: which of the two folders counts, the next start finds
  // out.
  if (error && log_->broken()) return;
  if (error) return snapshot_failed(id, snapshot);
  std::string old = snapshot.folder;  // nobody's when the model is gone meanwhile
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = models_.find(id); found != models_.end()) {
      Model& model = *found->second;
      old = std::exchange(model.snapshot, snapshot).folder;
      model.being_written = false;
      model.failures = 0;
      std::erase_if(model.kept, [&](const FuturePtr& future) {
        if (future->head.seq > snapshot.closed || !future->result) return false;
        future->op.reset();
        if (!futures_.contains(future->head.request_id))
          by_number_.erase(number_key(future->head.target, future->head.seq));
        return true;
      });
      ++counts_.snapshots;
    }
  }
  remove_folder(old);
}

// The one before stays; the model has another try, later each time.
void Core::snapshot_failed(const std::string& id, const Snapshot& snapshot) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = models_.find(id); found != models_.end()) {
      constexpr int kMostDoublings = 6;
      Model& model = *found->second;
      model.being_written = false;
      model.wanted = true;
      model.failures = std::min(model.failures + 1, kMostDoublings);
      model.not_before = clocks().steady() + options_.upkeep_wait * (1 << model.failures);
    }
  }
  remove_folder(snapshot.folder);
}

void Core::take_wanted_snapshots() {
  std::vector<std::pair<std::string, Model*>> models;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, model] : models_) {
      if (model->wanted) models.emplace_back(id, model.get());
    }
  }
  for (const auto& [id, model] : models) {
    if (engine_->has_model(id) && can_snapshot(*model) && snapshot_is_due(*model)) take_snapshot(id, *model);
  }
}

// One after the other, so that there is one copy.
void Core::snapshot_all() {
  std::vector<std::pair<std::string, Model*>> models;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, model] : models_) models.emplace_back(id, model.get());
  }
  for (const auto& [id, model] : models) {
    files_.wait();
    log_->flush();
    const auto changed = [&] {
      const std::lock_guard lock(mutex_);
      return model->operations > 0 || model->wanted;
    };
    if (!changed() || !engine_->has_model(id) || !can_snapshot(*model)) continue;
    take_snapshot(id, *model);
  }
}

void Core::remove_folder(const std::string& folder) {
  if (folder.empty()) return;
  removing_.add([this, at = path(folder)] { remove_tree(options_.world.disk, at); });
}

// Writing the log anew.

// What a start still needs: results that are kept, operations that no snapshot covers, the newest snapshots.
// Whatever is not needed once is not needed later either, so each record is judged by what is known then.
class Core::Needed {
 public:
  explicit Needed(Core& core) : core_(core) {}
  std::optional<std::string> operator()(std::string_view record) {
    Json head;
    std::string_view body;
    split_record(record, head, body);
    const std::string kind = head.at("record");
    if (kind == "operation" || kind == "done") return operation(record, head, kind == "operation");
    bool needed = false;
    if (kind == "result") needed = operations_.contains(head.at("request"));
    if (kind == "snapshot") needed = snapshot(head);
    return needed ? std::optional<std::string>(record) : std::nullopt;
  }

 private:
  std::optional<std::string> operation(std::string_view record, const Json& head, bool whole) {
    const Operation op = operation_from(head, "");
    const std::lock_guard lock(core_.mutex_);
    const auto found = core_.by_number_.find(number_key(op.target, op.seq));
    if (found == core_.by_number_.end() || found->second->head.request_id != op.request_id)
      return std::nullopt;
    operations_.insert(op.request_id);
    if (whole && !found->second->op) return operation_record(found->second->head, true);
    return std::string(record);
  }
  // One that is not the model's yet was written behind it and will be.
  bool snapshot(const Json& head) const {
    const Snapshot one = Snapshot::from(head);
    const std::lock_guard lock(core_.mutex_);
    const auto model = core_.models_.find(head.at("model").get<std::string>());
    if (model == core_.models_.end()) return false;
    const Snapshot& newest = model->second->snapshot;
    return one.unloaded || (!newest.unloaded && one.number() >= newest.number());
  }

  Core& core_;
  std::unordered_set<std::string> operations_;  // by request id
};

// On a thread of its own.
void Core::rewrite_log() {
  const int64_t before = log_->size_bytes();
  rewrite_at_ = before + options_.log_bytes / 2;  // when it fails now, as on a full disk
  Needed needed(*this);
  log_->rewrite([&](std::string_view record) { return needed(record); },
                [this] {
                  const std::lock_guard lock(mutex_);
                  return numbers_record();
                });
  // What is needed may be more than the log should have: then it is not written anew all the time.
  rewrite_at_ = std::max(options_.log_bytes, 2 * log_->size_bytes());
}

}  // namespace twinkle::serve
