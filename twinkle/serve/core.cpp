#include "twinkle/serve/core.h"

#include "twinkle/core/caught.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/basis.h"
#include "twinkle/serve/disk_full.h"

namespace twinkle::serve {
namespace {

// `exhausted` is for what a client has too much of; a full disk is none of its business but to wait.
Error error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    const Error found = caught_error("server");
    return found.kind() == ErrorKind::kExhausted ? disk_full() : found;
  }
}

}  // namespace

Core::Core(CoreOptions options, Store& store) : options_(std::move(options)), store_(store) {
  if (!options_.monitor) options_.monitor = std::make_shared<Monitor>();
  rewrite_at_ = options_.log_bytes;
  make_folders(options_.world.disk, options_.data_dir, {"log", "snapshots", "checkpoints", "samplers"});
  recover();
}

Core::~Core() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  files_.wait();
  rewriting_.wait();
  if (log_) log_->give_up();
  while (log_ && log_->pending() > 0) log_->flush();  // its callbacks use it
  log_.reset();
}

void Core::start(std::unique_ptr<Engine> engine) {
  check_basis(options_.world.disk, options_.data_dir, engine->info(), store_.has_models(),
              options_.accept_engine_change);
  engine_ = std::move(engine);
  started_ = true;
  thread_ = std::thread([this] { run(); });
}

Core::Model& Core::model_of(const std::string& id) {
  auto& model = models_[id];
  if (!model) model = std::make_unique<Model>(options_.gap_wait, -1);
  return *model;
}

// Accepting.

void Core::submit(Operation op, OnAccepted on_accepted) {
  if (op.kind == OpKind::kUnload) op.seq = kUnloadNumber;
  std::unique_lock lock(mutex_);
  const bool of_model = op.kind != OpKind::kSample;
  if (op.seq >= 0) {
    if (const auto found = by_number_.find(number_key(op.target, op.seq)); found != by_number_.end()) {
      const FuturePtr future = found->second;
      if (!future->durable) return future->acks.push_back(std::move(on_accepted));
      const std::string id = future->head.request_id;
      lock.unlock();
      return on_accepted(id);
    }
  }
  op.size_bytes = size_of(op);
  const OwnerLoad& load = loads_[op.owner];
  const bool much_of_owner =
      load.operations >= options_.owner_operations || load.bytes + op.size_bytes > options_.owner_bytes;
  if (much_of_owner || waiting_bytes_ + op.size_bytes > options_.total_bytes) {
    lock.unlock();
    return on_accepted(exhausted(much_of_owner
                                     ? "[queue] too much of yours is waiting already; try again in a moment"
                                     : "[queue] too much is waiting already; try again in a moment"));
  }
  op.id = next_id_++;
  op.request_id = op.target + ":r" + std::to_string(op.id);
  if (op.seq < 0) {
    op.seq = of_model ? model_of(op.target).queue.next_number() : -static_cast<int64_t>(op.id);
    // Numbers that were claimed and are not durable yet are not in the queue.
    while (by_number_.contains(number_key(op.target, op.seq))) ++op.seq;
  }
  op.arrived = clocks().steady();
  op.accepted = now();
  if (of_model) last_requests_[op.target] = op.accepted;
  charge(op);

  const auto future = std::make_shared<Future>();
  future->op = std::make_shared<Operation>(std::move(op));
  future->head = head_of(*future->op);
  future->acks.push_back(std::move(on_accepted));
  futures_[future->head.request_id] = future;
  by_number_[number_key(future->head.target, future->head.seq)] = future;
  log_->append(operation_record(*future->op, false),
               [this, future](std::exception_ptr error) { accepted(future, std::move(error)); });
}

void Core::charge(Operation& op) {
  OwnerLoad& load = loads_[op.owner];
  ++load.operations;
  load.bytes += op.size_bytes;
  waiting_bytes_ += op.size_bytes;
  ++unanswered_of_[op.target];
}

void Core::discharge(const Operation& op) {
  OwnerLoad& load = loads_[op.owner];
  --load.operations;
  load.bytes -= op.size_bytes;
  waiting_bytes_ -= op.size_bytes;
  if (const auto target = unanswered_of_.find(op.target); --target->second == 0) unanswered_of_.erase(target);
}

// On the log's thread. What is not durable never was; its number is free again.
void Core::accepted(const FuturePtr& future, std::exception_ptr error) {
  std::vector<OnAccepted> acks;
  std::variant<std::string, Error> answer = future->head.request_id;
  {
    const std::lock_guard lock(mutex_);
    acks = std::move(future->acks);
    future->acks.clear();
    if (error) {
      const Error refused = error_of(error);
      if (!log_->holds())
        std::fprintf(stderr, "log: %s\n", refused.what());  // or it was told of that already
      answer = refused;
      forget(future);
    } else {
      future->durable = true;
      enqueue(future);
    }
  }
  changed_.notify_all();
  for (const auto& ack : acks) ack(answer);
}

void Core::enqueue(const FuturePtr& future) {
  const OpPtr op = future->op;
  if (op->ended) return finish(op, {Result::Kind::kUserError, op->refused});
  if (op->kind == OpKind::kSample) {
    future->queued = true;
    samples_.push_back(op);
    return;
  }
  Model& model = model_of(op->target);
  if (model.queue.closed() == kUnloadNumber) {
    finish(op, {Result::Kind::kUserError, "[model] this model was unloaded"});
    return;
  }
  if (model.queue.too_late(op->seq)) {
    finish(op, {Result::Kind::kUserError,
                "operation " + std::to_string(op->seq) + " arrived after operation " +
                    std::to_string(model.queue.closed()) + " had been carried out, so it has no effect"});
    return;
  }
  future->queued = true;
  model.owner = op->owner;
  model.queue.push(op);
  model.kept.push_back(future);
}

// Results.

// Results come to the log in the order in which operations were carried out; recovery counts on it.
void Core::finish(const OpPtr& op, Result result) {
  if (op->known) {  // once it succeeded: the model is not what its client was told
    if (result.failed() && !op->known->failed()) lost_.insert(op->target);
    return;
  }
  options_.monitor->finished(*op, result);
  auto shared = std::make_shared<const Result>(std::move(result));
  // None behind it may become durable before: at a start an operation without a result came too late for
  // those. Nor is it told before: a start that finds no result carries the operation out again, and what it
  // reads, such as a checkpoint, may be gone by then.
  log_->append(
      result_record(op->request_id, *shared),
      [this, id = op->request_id, shared](const std::exception_ptr& error) {
        if (!error) deliver(id, shared);
      },
      true);
}

void Core::deliver(const std::string& request_id, std::shared_ptr<const Result> result) {
  std::map<uint64_t, OnOutcome> waiters;
  Told told;
  Outcome outcome;
  {
    const std::lock_guard lock(mutex_);
    const auto found = futures_.find(request_id);
    if (found == futures_.end()) return;
    Future& future = *found->second;
    if (future.result) return;
    if (future.op) discharge(*future.op);
    // What only reads has no effect that a restart would have to bring back.
    const bool replayed = future.head.kind != OpKind::kSample && future.queued && !future.head.forward_only;
    if (!replayed) future.op.reset();
    future.done = clocks().steady();
    remember_result(found->second, std::move(result));
    waiters.swap(future.waiters);
    outcome = outcome_of(future);
    if (future.place > 0) told = take_told(future.head.target);
  }
  for (const auto& [id, waiter] : waiters) waiter(outcome);
  for (const auto& [on_any, completions] : told) on_any(completions);
}

// Who waits for samples of that sampler, "": of any, and has some now.
Core::Told Core::take_told(const std::string& sampler) {
  Told told;
  for (auto it = any_waiters_.begin(); it != any_waiters_.end();) {
    const AnyWaiter& waiter = it->second;
    Completions got;
    if (sampler.empty() || waiter.sampler == sampler)
      got = completions_of(waiter.sampler, waiter.client, waiter.cursor);
    if (got.list.empty()) {
      ++it;
      continue;
    }
    told.emplace_back(std::move(it->second.on_any), std::move(got));
    it = any_waiters_.erase(it);
  }
  return told;
}

void Core::remember_result(const FuturePtr& future, std::shared_ptr<const Result> result) {
  result_bytes_ += static_cast<int64_t>(result->bytes.size());
  ++counts_.results;
  future->result = std::move(result);
  by_age_[future->done].push_back(future);
  if (future->head.kind != OpKind::kSample) return;
  future->place = next_place_++;
  by_sampler_[future->head.target][future->place] = future;
}

Core::Outcome Core::outcome_of(const Future& future) {
  return {.state = future.result ? Outcome::State::kDone : Outcome::State::kPending,
          .kind = future.head.kind,
          .forward_only = future.head.forward_only,
          .target = future.head.target,
          .result = future.result};
}

uint64_t Core::wait(const std::string& request_id, const std::string& owner, OnOutcome on_outcome) {
  Outcome outcome;
  {
    const std::lock_guard lock(mutex_);
    const auto found = futures_.find(request_id);
    if (found != futures_.end() && found->second->head.owner == owner) {
      Future& future = *found->second;
      if (!future.result) {
        future.waiters[next_waiter_] = std::move(on_outcome);
        return next_waiter_++;
      }
      outcome = outcome_of(future);
    } else if (found == futures_.end()) {
      // "TARGET:rNUMBER" of a target of theirs was given out once.
      const size_t colon = request_id.rfind(":r");
      const std::string target = colon == std::string::npos ? "" : request_id.substr(0, colon);
      const std::string digits = colon == std::string::npos ? "" : request_id.substr(colon + 2);
      const bool number = !digits.empty() && digits.size() < 19 &&
                          digits.find_first_not_of("0123456789") == std::string::npos;
      if (number && std::stoull(digits) < next_id_) {
        const bool sampler = store_.sampler(target, owner).has_value();
        if (sampler || store_.model(target, owner)) {
          outcome.state = Outcome::State::kExpired;
          outcome.kind = sampler ? OpKind::kSample : OpKind::kCall;
        }
      }
    }
  }
  on_outcome(outcome);
  return 0;
}

void Core::stop_waiting(const std::string& request_id, uint64_t waiter) {
  OnOutcome on_outcome;
  Outcome outcome;
  {
    const std::lock_guard lock(mutex_);
    const auto found = futures_.find(request_id);
    if (found == futures_.end()) return;
    const auto node = found->second->waiters.extract(waiter);
    if (node.empty()) return;
    on_outcome = std::move(node.mapped());
    outcome = outcome_of(*found->second);
  }
  on_outcome(outcome);
}

// Samples that nobody wants, and those that somebody waits for.

void Core::cancel(const std::string& request_id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  const auto found = futures_.find(request_id);
  if (found == futures_.end()) return;
  const Future& future = *found->second;
  if (future.head.owner != owner || future.head.kind != OpKind::kSample || !future.op) return;
  future.op->cancelled = cancelled_ = true;
  changed_.notify_all();
}

Core::Completions Core::completions_of(const std::string& sampler, int64_t client, uint64_t cursor) const {
  constexpr size_t kMost = 1024;  // copied while others wait
  if (start_ != Noted::kDone) return {.cursor = cursor};
  if (cursor >= next_place_) cursor = 0;  // nobody was given it, unless by a data folder that was put back
  Completions out{.cursor = cursor};
  const auto of_sampler = by_sampler_.find(sampler);
  if (of_sampler == by_sampler_.end()) return out;
  for (auto it = of_sampler->second.upper_bound(cursor);
       it != of_sampler->second.end() && out.list.size() < kMost; ++it) {
    const Future& future = *it->second;
    if (future.head.seq < 0 || future.head.seq / kClientNumbers != client) continue;
    out.cursor = it->first;
    out.list.push_back({.request_id = future.head.request_id,
                        .failed = future.result->failed(),
                        .bytes = static_cast<int64_t>(future.result->bytes.size())});
  }
  return out;
}

Core::Completions Core::completions(const std::string& sampler, int64_t client, uint64_t cursor) const {
  const std::lock_guard lock(mutex_);
  return completions_of(sampler, client, cursor);
}

uint64_t Core::wait_for_any(const std::string& sampler, int64_t client, uint64_t cursor,
                            OnCompletions on_any) {
  Completions got;
  {
    const std::lock_guard lock(mutex_);
    got = completions_of(sampler, client, cursor);
    if (got.list.empty()) {
      any_waiters_[next_waiter_] = {
          .sampler = sampler, .client = client, .cursor = got.cursor, .on_any = std::move(on_any)};
      return next_waiter_++;
    }
  }
  on_any(got);
  return 0;
}

void Core::stop_waiting_for_any(uint64_t waiter) {
  AnyWaiter found;
  {
    const std::lock_guard lock(mutex_);
    const auto node = any_waiters_.extract(waiter);
    if (node.empty()) return;
    found = std::move(node.mapped());
  }
  found.on_any({.cursor = found.cursor});
}

std::set<std::string> Core::busy_targets() const {
  const std::lock_guard lock(mutex_);
  std::set<std::string> out;
  for (const auto& [target, operations] : unanswered_of_) out.insert(out.end(), target);
  return out;
}

void Core::drop_ended() {
  drop_ended_ = true;
  changed_.notify_all();
}

bool Core::knows(const Operation& op) const {
  if (op.seq < 0) return false;
  const std::lock_guard lock(mutex_);
  return by_number_.contains(number_key(op.target, op.seq));
}

double Core::last_request(const std::string& target) const {
  const std::lock_guard lock(mutex_);
  const auto found = last_requests_.find(target);
  return found == last_requests_.end() ? 0 : found->second;
}

bool Core::unloaded(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(model);
  return found != models_.end() && found->second->queue.closed() == kUnloadNumber;
}

Core::Counts Core::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  for (const auto& [owner, load] : loads_) {
    counts.waiting += load.operations;
    if (load.operations > 0) counts.waiting_of[owner] = load.operations;
  }
  counts.models = std::ranges::count_if(models_, [](const auto& entry) {
    const Model& model = *entry.second;
    const bool created = model.made || !model.snapshot.folder.empty();
    return created && model.queue.closed() != kUnloadNumber;
  });
  counts.samples = static_cast<int64_t>(samples_.size());
  counts.log_pending = log_->pending();
  counts.log_bytes = log_->size_bytes();
  return counts;
}

}  // namespace twinkle::serve
