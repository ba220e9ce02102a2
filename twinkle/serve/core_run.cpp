// Carrying out: one thread that turns between training and sampling.
#include <algorithm>
#include <filesystem>

#include "twinkle/core/caught.h"
#include "twinkle/serve/core.h"
#include "twinkle/serve/stored.h"

namespace twinkle::serve {
namespace {

namespace fs = std::filesystem;

// What a client is not told goes to the server's own log.
Result failure_of(const Error& error) {
  const Result result = failure(error);
  if (result.kind == Result::Kind::kServerError) std::fprintf(stderr, "operation failed: %s\n", error.what());
  return result;
}

// Folders of the data folder are no client's business, whatever is wrong with them.
template <class Work>
void within_data(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    throw unavailable(e.what());
  }
}

// Requests take little of a core and are waited for: carrying out comes behind them.
constexpr int kBehindRequests = 5;

constexpr const char* kCancelled = "[sample] its client has cancelled it";

int64_t num_tokens(const TrainCall& call) {
  int64_t tokens = 0;
  for (const Datum& datum : call.data) tokens += static_cast<int64_t>(datum.tokens.size());
  return tokens;
}

Result json_result(const Json& value) { return {Result::Kind::kJson, value.dump()}; }

}  // namespace

void Core::run() {
  step_back(kBehindRequests);
  for (;;) {
    bool busy = train_round();
    busy |= sample_round();
    try {
      housekeeping();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "housekeeping: %s\n", e.what());
    }
    std::unique_lock lock(mutex_);
    if (stopping_) break;
    if (busy || !samples_.empty()) continue;
    auto until = clocks().steady() + options_.upkeep_wait;
    for (const auto& [id, model] : models_) {
      if (const auto at = ready_at(id, *model)) until = std::min(until, *at);
    }
    changed_.wait_for(lock, clocks().nap(until));
  }
  snapshot_all();
  try {
    write_usage();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "usage: %s\n", e.what());
  }
}

// Training.

// What is ready of every model. Where several owners have something, each gets its share of bytes by
// priority, however many models it has, and one call of each model at least.
std::vector<Core::Turn> Core::take_turns(Clock::time_point now) {
  std::vector<Turn> turns;
  const std::lock_guard lock(mutex_);
  std::map<std::string, int64_t> ready;  // models by owner
  for (const auto& [id, model] : models_) {
    if (const auto at = ready_at(id, *model); at && *at <= now) ++ready[model->owner];
  }
  std::map<std::string, int64_t> priorities;
  int64_t highest = 1;
  for (const auto& [owner, models] : ready) {
    if (!options_.priority || ready.size() < 2) break;
    highest = std::max(highest, priorities[owner] = options_.priority(owner));
  }
  for (auto& [id, model] : models_) {
    if (!ready_at(id, *model)) continue;
    int64_t bytes = options_.turn_bytes;
    if (const auto found = priorities.find(model->owner); found != priorities.end())
      bytes = bytes * found->second / highest / ready.at(model->owner);
    ModelQueue::Turn turn = model->queue.take(now, static_cast<size_t>(bytes));
    if (!turn.empty()) turns.push_back({id, model.get(), std::move(turn)});
  }
  return turns;
}

bool Core::train_round() {
  const auto begin = clocks().steady();
  std::vector<Turn> turns = take_turns(begin);
  if (turns.empty()) return false;
  std::vector<Turn> merged;
  for (auto& turn : turns) {
    const OpPtr& barrier = turn.ready.barrier;
    if (lost_.contains(turn.id)) {
      const Result lost = failure(unavailable(
          "[model] the state of this model could not be restored; it is tried again when the server starts"));
      if (barrier) finish(barrier, lost);
      for (const auto& op : turn.ready.calls) finish(op, lost);
      continue;
    }
    if (barrier && barrier->kind != OpKind::kOptimStep) {
      carry_out_alone(turn);
    } else {
      merged.push_back(std::move(turn));
    }
  }
  if (!merged.empty()) run_merged(merged);
  train_time_ = clocks().steady() - begin;
  return true;
}

// The model's weights are with the engine; if they were only in a snapshot they are loaded.
void Core::make_resident(const Turn& turn) {
  if (engine_->has_model(turn.id)) return;
  std::string folder;
  {
    const std::lock_guard lock(mutex_);
    folder = turn.model->snapshot.folder;
  }
  if (folder.empty()) throw not_found("[model] this model does not exist: its creation failed");
  within_data([&] { engine_->load_model(turn.id, path(folder), true); });
}

void Core::carry_out_alone(Turn& turn) {
  const OpPtr op = turn.ready.barrier;
  if (op->known && op->known->failed()) return;  // it had no effect
  if (!op->refused.empty()) return finish(op, {Result::Kind::kUserError, op->refused});
  try {
    Json answer;
    const bool creates =
        op->kind == OpKind::kCreateModel || (op->kind == OpKind::kLoadWeights && op->seq == 0);
    if (!creates) make_resident(turn);
    switch (op->kind) {
      case OpKind::kCreateModel:
        answer = create_model(*op);
        break;
      case OpKind::kLoadWeights:
        answer = load_weights(turn, *op);
        break;
      case OpKind::kSaveWeights:
        answer = save_weights(turn, *op);
        break;
      case OpKind::kUnload:
        turn.model->queue.clear_gradients();
        engine_->remove_model(turn.id);
        answer = {{"model_id", turn.id}, {"type", "unload_model"}};
        break;
      default:
        answer = save_for_sampler(*op);
        break;
    }
    if (creates) {
      const std::lock_guard lock(mutex_);
      turn.model->made = true;
    }
    finish(op, json_result(answer));
    ++turn.model->operations;
  } catch (...) {
    const Result result = failure_of(caught_error("server"));
    if (!std::exchange(put_failed_, false)) return finish(op, result);
    doubtful_[turn.id] = {op, result};
    return finish_doubtful();
  }
  if (op->kind == OpKind::kUnload) note_unloaded(turn.id, *turn.model);
  if (op->kind != OpKind::kLoadWeights) return;
  {  // its checkpoint may go; what was loaded from it must not need it again
    const std::lock_guard lock(mutex_);
    turn.model->wanted = true;
  }
  if (snapshot_is_due(*turn.model)) take_snapshot(turn.id, *turn.model);
}

// What the store failed to write may be there at the next start all the same. Until it is not, the operation
// has no result and nothing of its model is carried out: a start does it again and says how it went.
void Core::finish_doubtful() {
  if (doubtful_.empty()) return;
  try {
    store_.settle();
  } catch (const Error&) {  // as the write before it, of which the server's log has been told
    return;
  }
  for (const auto& [model, failed] : std::exchange(doubtful_, {})) finish(failed.op, failed.result);
  sweep_ = true;  // of what a save has written
}

template <class Entry>
void Core::put_down(const Entry& entry) {
  try {
    store_.put(entry);
  } catch (...) {
    put_failed_ = true;
    throw;
  }
}

std::optional<Clock::time_point> Core::ready_at(const std::string& id, const Model& model) const {
  return doubtful_.contains(id) ? std::nullopt : model.queue.ready_at();
}

Json Core::create_model(const Operation& op) {
  LoraShape shape;
  shape.rank = whole<int64_t>(op.args.at("rank"));
  shape.seed = whole<uint64_t>(op.args.at("seed"));
  shape.attention = op.args.at("attention");
  shape.mlp = op.args.at("mlp");
  shape.unembedding = op.args.at("unembedding");
  engine_->create_model(op.target, shape);
  return {{"model_id", op.target}};
}

Json Core::load_weights(Turn& turn, const Operation& op) {
  const std::string from = op.args.at("path");
  const bool optimizer = op.args.at("optimizer");
  std::string folder;
  if (op.known) {  // again after a restart: from where it was, whatever has that name now
    folder = parse_json(op.known->bytes, "log").at("folder");
  } else {
    // Of whom it is read: another account that gave its key may own it.
    const auto checkpoint = store_.readable_checkpoint(from, op.args.value("reader", op.owner), now());
    if (!checkpoint) throw not_found("[load] there is no checkpoint '" + from + "'");
    const auto model = store_.model(op.target, op.owner);
    if (!model) throw not_found("[load] this model does not exist");
    const LoraShape &a = checkpoint->shape, &b = model->shape;
    if (a.rank != b.rank || a.attention != b.attention || a.mlp != b.mlp || a.unembedding != b.unembedding) {
      throw invalid_argument("[load] '" + from + "' has rank " + std::to_string(a.rank) +
                             ", this model has " + std::to_string(b.rank) +
                             ", or they train different parts of the base model");
    }
    if (optimizer && !checkpoint->optimizer)
      throw invalid_argument("[load] '" + from + "' was saved for sampling, without an optimizer");
    folder = checkpoint->folder;
  }
  within_data([&] { engine_->load_model(op.target, path(folder), optimizer); });
  turn.model->queue.clear_gradients();
  return {{"path", from}, {"model_id", op.target}, {"folder", folder}};
}

// What the store says of an operation must not be seen by one that came before it, which a start would carry
// out again: the results of all of those are durable first.
void Core::before_store_changes() {
  log_->flush();
  if (log_->broken() || log_->holds()) throw unavailable("[save] the disk does not take the log");
}

Json Core::save_weights(Turn& turn, const Operation& op) {
  const auto model = store_.model(op.target, op.owner);
  if (!model) throw not_found("[save] this model does not exist");
  Checkpoint checkpoint{.run = op.target,
                        .kind = op.args.at("kind"),
                        .name = op.args.at("name"),
                        .owner = op.owner,
                        .folder = "checkpoints/" + std::to_string(op.id),
                        .base_model = model->base_model,
                        .shape = model->shape,
                        .optimizer = op.args.at("kind") == "weights",
                        .operation = op.id,
                        .created = now()};
  if (!op.args.at("ttl_seconds").is_null())
    checkpoint.expires = now() + op.args.at("ttl_seconds").get<double>();
  checkpoint.user_metadata = op.args.value("user_metadata", Json(nullptr));
  const auto old = store_.checkpoint(checkpoint.path(), op.owner, now());
  if (old && old->operation != op.id && !op.args.at("overwrite").get<bool>())
    throw conflict("ResourceAlreadyExists: there is a checkpoint '" + checkpoint.path() + "' already");
  const auto answer = [&](const Checkpoint& saved) {
    Json out = {{"path", saved.path()}};
    if (saved.kind == "external_weights") out["size_bytes"] = saved.bytes;
    return out;
  };
  if (old && old->operation == op.id && is_directory(path(old->folder)))
    return answer(*old);  // its result was lost, in a crash
  const int64_t most_bytes = whole_or<int64_t>(op.args, "most_checkpoint_bytes", 0);
  if (most_bytes > 0 && !(old && old->operation == op.id))
    store_.check_checkpoint_bytes(op.owner, most_bytes, now());
  ModelQueue& queue = turn.model->queue;
  const bool gradients = checkpoint.optimizer && queue.has_pending();
  if (gradients) discard(turn.id);
  std::exception_ptr failed;
  try {
    removing_.wait();  // of what an earlier try left under this name
    engine_->save_model(op.target, path(checkpoint.folder), checkpoint.optimizer);
    for (const auto& file : fs::directory_iterator(path(checkpoint.folder)))
      checkpoint.bytes += static_cast<int64_t>(file.file_size());
    before_store_changes();
    put_down(checkpoint);
    count_usage(op, model->session, model->base_model, "checkpoint", 1);
    sweep_ = true;  // another may have had this name
  } catch (...) {
    failed = std::current_exception();
  }
  if (gradients && queue.spoiled().empty()) {
    try {
      redo(turn);
    } catch (...) {  // the checkpoint is there; the next step must not use a part of the gradients
      queue.called(queue.pending_calls().front(), true, failure_of(caught_error("server")).bytes);
    }
  }
  if (failed) std::rethrow_exception(failed);
  return answer(checkpoint);
}

// Weights that only one sampler has.
Json Core::save_for_sampler(const Operation& op) {
  const auto model = store_.model(op.target, op.owner);
  if (!model) throw not_found("[save] this model does not exist");
  SamplerEntry sampler{.id = op.args.at("sampler"),
                       .session = model->session,
                       .owner = op.owner,
                       .base_model = model->base_model,
                       .folder = "samplers/" + std::to_string(op.id),
                       .created = now()};
  if (const auto known = store_.sampler(sampler.id, op.owner)) {
    if (known->folder != sampler.folder)
      throw conflict("[save_weights_for_sampler] the sampler '" + sampler.id + "' has other weights already");
    if (is_directory(path(known->folder)))  // its result was lost, in a crash
      return {{"sampling_session_id", sampler.id}};
    sampler.clients = known->clients;
  }
  removing_.wait();  // of what an earlier try left under this name
  engine_->save_model(op.target, path(sampler.folder), false);
  before_store_changes();
  put_down(sampler);
  store_.touch_session(sampler.session);
  return {{"sampling_session_id", sampler.id}};
}

// Merged passes.

void Core::discard(const std::string& id) {
  const TrainWork work{.model = id, .kind = TrainWork::Kind::kDiscard};
  for (const auto& done : engine_->train({&work, 1})) {
    if (done.error) throw *done.error;
  }
}

// The gradients anew, by number; who asked for those calls has its answers.
void Core::redo(Turn& turn) {
  std::vector<TrainWork> works;
  for (const auto& op : turn.model->queue.pending_calls())
    works.push_back({.model = turn.id,
                     .kind = TrainWork::Kind::kCall,
                     .call = std::make_shared<const TrainCall>(decode_call(op->body))});
  for (const auto& done : engine_->train(works)) {
    if (done.error) throw *done.error;
  }
  turn.model->queue.put_in_order();
}

// Whether a step can go on; otherwise it has failed here and the gradients are gone.
void Core::before_step(Turn& turn) {
  const OpPtr op = turn.ready.barrier;
  ModelQueue& queue = turn.model->queue;
  try {
    if (!op->refused.empty()) throw invalid_argument(op->refused);
    if (!queue.spoiled().empty()) {
      throw invalid_argument("[optim_step] the gradients of this step are not complete: " + queue.spoiled() +
                             ". They were cleared; send the whole batch again");
    }
    if (op->known && op->known->failed()) throw conflict("[optim_step] it failed before");
    if (queue.out_of_order()) {
      discard(turn.id);
      redo(turn);
    }
  } catch (...) {
    const Error error = caught_error("server");
    queue.clear_gradients();
    try {
      discard(turn.id);
    } catch (...) {
      std::fprintf(stderr, "gradients of %s: %s\n", turn.id.c_str(), caught_error("server").what());
    }
    finish(op, failure_of(error));
    turn.ready.barrier.reset();
  }
}

void Core::run_merged(std::vector<Turn>& turns) {
  std::vector<std::pair<Turn*, OpPtr>> now, after_snapshot;
  for (auto& turn : turns) {
    try {
      make_resident(turn);
    } catch (...) {
      const Result result = failure_of(caught_error("server"));
      if (turn.ready.barrier) finish(turn.ready.barrier, result);
      for (const auto& op : turn.ready.calls) finish(op, result);
      turn.ready = {};
      continue;
    }
    if (turn.ready.barrier) before_step(turn);
  }
  const std::set<const Turn*> due = turns_to_snapshot(turns);
  for (auto& turn : turns) {
    // A snapshot has no gradients, so it is taken between the step and the calls behind it.
    if (turn.ready.barrier) now.emplace_back(&turn, turn.ready.barrier);
    for (const auto& op : turn.ready.calls)
      (due.contains(&turn) ? after_snapshot : now).emplace_back(&turn, op);
  }
  run_works(now);
  for (auto& turn : turns) {
    if (due.contains(&turn) && !turn.model->queue.has_pending() && is_due(*turn.model))
      take_snapshot(turn.id, *turn.model);
  }
  run_works(after_snapshot);
}

void Core::run_works(const std::vector<std::pair<Turn*, OpPtr>>& items) {
  std::vector<TrainWork> works;
  std::vector<std::pair<Turn*, OpPtr>> run;
  for (const auto& [turn, op] : items) {
    if (op->kind == OpKind::kOptimStep) {
      AdamParams adam;
      adam.learning_rate = op->args.at("learning_rate");
      adam.beta1 = op->args.at("beta1");
      adam.beta2 = op->args.at("beta2");
      adam.eps = op->args.at("eps");
      adam.weight_decay = op->args.at("weight_decay");
      adam.grad_clip_norm = op->args.at("grad_clip_norm");
      works.push_back({.model = turn->id, .kind = TrainWork::Kind::kStep, .adam = adam});
      // The calls behind it are the next one's, also those that fail below without the engine.
      turn->model->queue.clear_gradients();
      run.emplace_back(turn, op);
      continue;
    }
    const bool failed_before = op->known && op->known->failed();
    if (!op->refused.empty() || failed_before) {
      const std::string why = failed_before ? op->known->bytes : op->refused;
      turn->model->queue.called(op, true, why);
      finish(op, {Result::Kind::kUserError, why});
      continue;
    }
    if (op->known && op->forward_only) continue;
    works.push_back({.model = turn->id,
                     .kind = TrainWork::Kind::kCall,
                     .call = std::make_shared<const TrainCall>(decode_call(op->body))});
    run.emplace_back(turn, op);
  }
  if (works.empty()) return;
  Monitor::Pass pass{.begin = now(), .operations = static_cast<int64_t>(works.size())};
  const auto begin = clocks().steady();
  std::vector<TrainDone> done;
  try {
    done = engine_->train(works);
  } catch (...) {  // a bug, or no memory
    done.assign(works.size(), {.error = caught_error("server")});
  }
  pass.seconds = seconds_since(clocks(), begin);
  std::set<std::string> models;
  for (const auto& work : works) {
    models.insert(work.model);
    if (work.call) pass.tokens += num_tokens(*work.call);
  }
  pass.models = static_cast<int64_t>(models.size());
  options_.monitor->pass(pass);
  options_.monitor->engine(engine_->counts());
  for (size_t i = 0; i < run.size(); ++i) {
    const auto& [turn, op] = run[i];
    Model& model = *turn->model;
    ++model.operations;
    model.bytes += static_cast<int64_t>(op->body.size());
    const auto& error = done[i].error;
    if (op->kind == OpKind::kOptimStep) {
      if (!error && !op->known)
        options_.monitor->stepped(*op, done[i].step, done[i].grad_norm.value_or(0), now());
      // Not "step": clients put these beside their own numbers of a step, under that name.
      Json metrics = {{"optimizer_step", static_cast<double>(done[i].step)}};
      if (done[i].grad_norm) metrics["grad_norm"] = *done[i].grad_norm;
      finish(op, error ? failure_of(*error) : json_result({{"metrics", metrics}}));
      continue;
    }
    model.queue.called(op, error.has_value(), error ? failure(*error).bytes : "");
    if (error) {
      finish(op, failure_of(*error));
      continue;
    }
    count_calls(*op, *works[i].call);
    CallResult result{.loss = done[i].loss, .logprobs = std::move(done[i].logprobs)};
    const TrainCall& call = *works[i].call;
    if (std::ranges::any_of(call.data, [](const Datum& datum) { return datum.columns > 0; })) {
      for (const auto& datum : call.data) result.columns.push_back(datum.columns);
    }
    if (!op->known) {
      int64_t targets = 0;
      for (const auto& logprobs : result.logprobs) targets += static_cast<int64_t>(logprobs.size());
      options_.monitor->called(*op, result.loss, targets, num_tokens(call), now());
    }
    for (size_t d = 0; call.loss == "cross_entropy" && d < call.data.size(); ++d) {
      const auto weights = call.data[d].inputs.find("weights");
      auto& out = result.elementwise_loss.emplace_back();
      for (size_t t = 0; t < result.logprobs[d].size(); ++t) {
        const float w = weights == call.data[d].inputs.end() ? 1.0f : weights->second[t];
        out.push_back(w == 0 ? 0.0f : -w * result.logprobs[d][t]);
      }
    }
    finish(op, {Result::Kind::kCall, encode(result)});
  }
}

// Sampling.

void Core::load_sampler_weights(const std::string& folder) {
  if (folder.empty()) return;
  if (!weights_used_.contains(folder)) {
    within_data([&] { engine_->add_weights(folder, path(folder)); });
    if (weights_used_.size() >= options_.sampler_weights) {
      const auto oldest = std::ranges::min_element(weights_used_, {}, [](const auto& x) { return x.second; });
      engine_->remove_weights(oldest->first);
      weights_used_.erase(oldest);
    }
  }
  weights_used_[folder] = ++uses_;
}

void Core::begin_samples() {
  std::vector<OpPtr> taken, cancelled;
  {
    const std::lock_guard lock(mutex_);
    while (!samples_.empty() && sampling_.size() + taken.size() < options_.samples_in_flight) {
      (samples_.front()->cancelled ? cancelled : taken).push_back(samples_.front());
      samples_.pop_front();
    }
  }
  for (const auto& op : cancelled) finish(op, {Result::Kind::kUserError, kCancelled});
  for (const auto& op : taken) {
    try {
      if (!op->refused.empty()) throw invalid_argument(op->refused);
      const SampleCall call = decode_sample(op->body);
      load_sampler_weights(call.weights);
      sampling_[engine_->sample(call)] = {.op = op,
                                          .prompt_tokens = static_cast<int64_t>(call.prompt.size())};
    } catch (...) {
      finish(op, failure_of(caught_error("server")));
    }
  }
}

// Of those that the engine has begun.
void Core::drop_cancelled() {
  std::vector<uint64_t> tickets;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(cancelled_, false)) return;
    for (const auto& [ticket, sample] : sampling_) {
      if (sample.op->cancelled) tickets.push_back(ticket);
    }
  }
  for (const uint64_t ticket : tickets) {
    engine_->cancel_sample(ticket);
    finish(sampling_.at(ticket).op, {Result::Kind::kUserError, kCancelled});
    sampling_.erase(ticket);
  }
}

// Passes until nothing is left to sample, or for as long as the last training took when training waits.
bool Core::sample_round() {
  const auto begin = clocks().steady();
  Monitor::Pass pass{.begin = now(), .training = false};
  const bool any = sample_for_a_while(begin, pass);
  if (!any) return false;
  pass.seconds = seconds_since(clocks(), begin);
  options_.monitor->pass(pass);
  options_.monitor->engine(engine_->counts());
  return true;
}

bool Core::sample_for_a_while(Clock::time_point begin, Monitor::Pass& pass) {
  const auto share = std::max<Clock::duration>(train_time_, std::chrono::milliseconds(10));
  bool any = false;
  for (;;) {
    begin_samples();
    drop_cancelled();
    if (sampling_.empty()) return any;
    any = true;
    std::vector<SampleDone> answers;
    try {
      engine_->sample_pass();
      answers = engine_->take_samples();
    } catch (...) {
      const Result result = failure_of(caught_error("server"));
      for (const auto& [ticket, sample] : sampling_) finish(sample.op, result);
      sampling_.clear();
      return true;
    }
    for (auto& done : answers) {
      const auto found = sampling_.find(done.ticket);
      if (found == sampling_.end()) continue;
      const auto [op, prompt_tokens] = found->second;
      sampling_.erase(found);
      if (!done.error) count_sample(*op, prompt_tokens, done);
      ++pass.operations;
      if (!done.error) {
        for (const auto& sequence : done.sequences)
          pass.tokens += static_cast<int64_t>(sequence.tokens.size());
        options_.monitor->sampled(*op, done);
      }
      finish(op, done.error ? failure_of(*done.error) : Result{Result::Kind::kSample, encode(done)});
    }
    const auto now = clocks().steady();
    const std::lock_guard lock(mutex_);
    if (stopping_) return true;
    const bool training = std::ranges::any_of(models_, [&](const auto& entry) {
      const auto at = ready_at(entry.first, *entry.second);
      return at && *at <= now;
    });
    if (training && now - begin >= share) return true;
    if (now - begin >= options_.upkeep_wait) return true;  // somebody may sample at all times
  }
}

}  // namespace twinkle::serve
