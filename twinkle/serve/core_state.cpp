// Opening: the log becomes queues again. Keeping: what is over goes.
#include <algorithm>
#include <filesystem>
#include <set>

#include "twinkle/core/files.h"
#include "twinkle/serve/core.h"
#include "twinkle/serve/stored.h"

namespace twinkle::serve {

namespace fs = std::filesystem;

namespace {
// The first is behind the microseconds since 1970, which places began with once.
constexpr uint64_t kPlacesOfAStart = uint64_t{1} << 40, kFirstPlace = 2048 * kPlacesOfAStart;
}  // namespace

// Opening.

struct Core::Recovered {
  std::map<uint64_t, FuturePtr> by_id;
  std::unordered_map<std::string, FuturePtr> by_request;
  std::map<std::string, Snapshot> snapshots;
};

void Core::read_record(Recovered& found, std::string_view record) {
  Json head;
  std::string_view body;
  split_record(record, head, body);
  const std::string kind = head.value("record", std::string());
  if (kind == "operation" || kind == "done") {
    auto op = std::make_shared<Operation>(operation_from(head, body));
    next_id_ = std::max(next_id_, op->id + 1);
    if (found.by_id.contains(op->id)) return;  // an append that ran beside a new log
    auto future = std::make_shared<Future>();
    future->head = head_of(*op);
    future->durable = true;
    if (kind == "operation") future->op = std::move(op);
    found.by_id[future->head.id] = future;
    found.by_request[future->head.request_id] = future;
  } else if (kind == "result") {
    const auto future = found.by_request.find(head.at("request").get<std::string>());
    if (future == found.by_request.end()) return;
    future->second->result = std::make_shared<const Result>(result_from(head, body));
    future->second->done = clocks().steady();
  } else if (kind == "snapshot") {
    Snapshot& snapshot = found.snapshots[head.at("model")];
    snapshot = Snapshot::from(head);
    // Its number is not given again: another snapshot would be written over it.
    next_id_ = std::max(next_id_, snapshot.number() + 1);
  } else if (kind == "next") {
    next_id_ = std::max(next_id_, whole<uint64_t>(head.at("id")));
    first_place_ = std::max(first_place_, static_cast<uint64_t>(whole_or<int64_t>(head, "place", 0)));
  } else {
    throw unavailable("[log] a record of kind '" + kind + "', which this version does not know");
  }
}

void Core::recover() {
  Recovered found;
  log_ = std::make_unique<Log>(
      options_.data_dir + "/log",
      [&](std::string_view record) { from_head([&] { read_record(found, record); }); }, options_.world.disk);
  // Behind all that were given before, whatever the clocks say.
  next_place_ = first_place_ = std::max(first_place_ + kPlacesOfAStart, kFirstPlace);
  {
    const std::lock_guard lock(mutex_);
    note_start();
  }
  requeue(found);
  remove_stray_snapshots();
}

std::string Core::numbers_record() const {
  return join_record({{"record", "next"}, {"id", next_id_}, {"place", first_place_}}, "");
}

// Should the disk refuse it, it is tried again.
void Core::note_start() {
  start_ = Noted::kUnderWay;
  log_->append(numbers_record(), [this](const std::exception_ptr& error) {
    Told told;
    {
      const std::lock_guard lock(mutex_);
      start_ = error ? Noted::kRefused : Noted::kDone;
      told = take_told("");
    }
    for (const auto& [on_any, completions] : told) on_any(completions);
  });
}

void Core::requeue(Recovered& found) {
  for (const auto& [id, snapshot] : found.snapshots) {
    if (store_.session_ended(session_of(id))) continue;
    auto model = std::make_unique<Model>(options_.gap_wait, snapshot.closed);
    model->snapshot = snapshot;
    models_[id] = std::move(model);
  }
  // Of each model, the last barrier that has a result: what has none and a lower number came too late for it.
  std::map<std::string, int64_t> carried_out;
  for (const auto& [id, future] : found.by_id) {
    if (!future->head.is_barrier() || !future->result || future->head.kind == OpKind::kSample) continue;
    auto& last = carried_out.try_emplace(future->head.target, -1).first->second;
    last = std::max(last, future->head.seq);
  }
  const auto started = clocks().steady();
  std::vector<OpPtr> late;
  for (const auto& [id, future] : found.by_id) {
    futures_[future->head.request_id] = future;
    by_number_[number_key(future->head.target, future->head.seq)] = future;
    if (future->result) remember_result(future, future->result);
    if (future->head.kind != OpKind::kSample) last_requests_[future->head.target] = future->head.accepted;
    if (!future->op) continue;
    Operation& op = *future->op;
    op.arrived = started;
    op.known = future->result;
    op.size_bytes = size_of(op);
    if (!future->result) charge(op);
    if (op.kind == OpKind::kSample) {
      if (future->result) {
        future->op.reset();
      } else {
        future->queued = true;
        samples_.push_back(future->op);
      }
      continue;
    }
    if (store_.session_ended(session_of(op.target))) {
      future->result ? future->op.reset() : late.push_back(future->op);
      continue;
    }
    Model& model = model_of(op.target);
    const bool no_effect =
        op.kind == OpKind::kSaveWeights || op.kind == OpKind::kSaveForSampler || op.forward_only;
    const bool covered = model.queue.too_late(op.seq);
    if (future->result && (covered || no_effect)) {
      future->op.reset();  // its effect is in the snapshot or on the disk
      continue;
    }
    if (covered || (!future->result && op.seq < carried_out.try_emplace(op.target, -1).first->second)) {
      late.push_back(future->op);
      continue;
    }
    future->queued = true;
    model.owner = op.owner;
    model.queue.push(future->op);
    model.kept.push_back(future);
  }
  // Who has much to carry out again is due at the first step, not when all of it is done: the next kill may
  // be near.
  for (auto& [id, model] : models_) model->operations = static_cast<int64_t>(model->kept.size());
  for (const auto& op : late) {
    const std::string why = "operation " + std::to_string(op->seq) +
                            " arrived after a later one had been carried out, so it has no effect";
    finish(op, {Result::Kind::kUserError, op->refused.empty() ? why : op->refused});
  }
}

void Core::remove_stray_snapshots() {
  std::set<std::string> used;
  for (const auto& [id, model] : models_) used.insert(model->snapshot.folder);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path("snapshots"), ignored)) {
    const std::string folder = "snapshots/" + entry.path().filename().string();
    if (!used.contains(folder)) remove_tree(options_.world.disk, entry.path().string());
  }
}

// Keeping.

void Core::forget(const FuturePtr& future) {
  if (future->op && !future->result) discharge(*future->op);
  if (const auto found = by_sampler_.find(future->head.target); found != by_sampler_.end()) {
    found->second.erase(future->place);
    if (found->second.empty()) by_sampler_.erase(found);
  }
  futures_.erase(future->head.request_id);
  // While no snapshot covers it, whoever sends it again must not be taken for a new one.
  if (!future->queued || !future->op) by_number_.erase(number_key(future->head.target, future->head.seq));
}

void Core::housekeeping() {
  const auto moment = clocks().steady();
  if (moment - last_housekeeping_ < options_.upkeep_wait) return;
  last_housekeeping_ = moment;
  finish_doubtful();
  if (drop_ended_.exchange(false)) drop_ended_now();
  {
    const std::lock_guard lock(mutex_);
    while (!by_age_.empty() && (seconds_since(clocks(), by_age_.begin()->first) > options_.result_seconds ||
                                result_bytes_ > options_.result_bytes)) {
      for (const auto& future : by_age_.begin()->second) {
        result_bytes_ -= static_cast<int64_t>(future->result->bytes.size());
        --counts_.results;
        forget(future);
      }
      by_age_.erase(by_age_.begin());
    }
  }
  options_.monitor->engine(engine_->counts());
  end_samplers();
  remove_dead_checkpoints();
  take_wanted_snapshots();
  if (log_->size_bytes() > rewrite_at_ && rewriting_.size() == 0) rewriting_.add([this] { rewrite_log(); });
  {
    const std::lock_guard lock(mutex_);
    if (start_ == Noted::kRefused) note_start();
  }
  write_usage();  // last: on a full disk the others make room
}

// Samplers whose session is over need their weights no more, once their last sample is answered.
void Core::end_samplers() {
  auto ending = store_.samplers_to_end(options_.session_seconds);
  if (ending.empty()) return;
  const std::set<std::string> busy = busy_targets();
  for (auto& sampler : ending) {
    if (busy.contains(sampler.id)) continue;
    sampler.ended = true;
    store_.put(sampler);
    sweep_ = true;
  }
}

// None of these has an operation that waits or runs.
void Core::drop_ended_now() {
  std::vector<std::pair<std::string, std::string>> gone;  // model and its snapshot
  {
    const std::lock_guard lock(mutex_);
    for (auto it = models_.begin(); it != models_.end();) {
      if (!store_.session_ended(session_of(it->first))) {
        ++it;
        continue;
      }
      for (const auto& future : it->second->kept) {
        future->op.reset();
        if (!futures_.contains(future->head.request_id))
          by_number_.erase(number_key(future->head.target, future->head.seq));
      }
      gone.emplace_back(it->first, it->second->snapshot.folder);
      it = models_.erase(it);
    }
  }
  for (const auto& [model, folder] : gone) {
    engine_->remove_model(model);
    options_.monitor->forget_model(model);
    remove_folder(folder);
  }
  sweep_ = true;
}

// Those whose time is over, and folders that belong to none: of one that was replaced, or whose writing was
// cut off. What a replay still needs stays.
void Core::remove_dead_checkpoints() {
  if (removing_.size() > 0) return;  // what waits there would be found again
  if (store_.in_doubt()) return;     // the next start may find that a folder is used
  const auto expired = store_.expired_checkpoints(now());
  if ((expired.empty() && !sweep_) || replays_a_load()) return;
  for (const auto& checkpoint : expired) store_.remove(checkpoint);
  std::error_code ignored;
  const auto used = store_.folders();
  for (const char* room : {"checkpoints", "samplers"}) {
    for (const auto& entry : fs::directory_iterator(path(room), ignored)) {
      const std::string folder = room + ("/" + entry.path().filename().string());
      if (used.contains(folder)) continue;
      if (weights_used_.erase(folder) > 0) engine_->remove_weights(folder);
      remove_folder(folder);
    }
  }
  sweep_ = false;
}

// Whether a load is not in a snapshot yet: after a restart it would be carried out again.
bool Core::replays_a_load() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(models_, [](const auto& entry) {
    return std::ranges::any_of(entry.second->kept, [&](const FuturePtr& future) {
      return future->op && future->head.kind == OpKind::kLoadWeights &&
             future->head.seq > entry.second->snapshot.closed &&
             !(future->result && future->result->failed());
    });
  });
}

}  // namespace twinkle::serve
