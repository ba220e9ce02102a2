// Who runs in the next pass. Answers that grow come first, then prompts under way, then new ones, the tenant
// that was served least first. A tenant's answers start in the order they came. When blocks run out the
// youngest answer gives its own back and is computed again later; a tenant that waits while another runs many
// takes a place from it.
#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/sample/engine_state.h"

namespace twinkle {

using State = Answer::State;

void EngineState::take_orders() {
  std::vector<std::shared_ptr<SampleJob>> fresh, ended;
  std::deque<std::packaged_task<void()>> tasks;
  {
    std::lock_guard lock(mutex);
    ended.swap(cancelled);
    fresh.swap(accepted);
    if (!draining) {
      fresh.insert(fresh.end(), arrived.begin(), arrived.end());
      arrived.clear();
    }
    for (const auto& job : ended) {  // also one that is held back
      if (std::erase(arrived, job) > 0) fresh.push_back(job);
    }
    tasks.swap(commands);
  }
  for (const auto& job : fresh) {
    waiting += static_cast<int64_t>(job->answers_.size());
    enqueue(job->answers_.front(), false);
  }
  for (const auto& job : ended) {
    const auto answers = job->answers_;  // the job lets go of them at its end
    for (const auto& answer : answers) finish(answer, "abort");
  }
  for (auto& task : tasks) task();
  std::erase_if(running, [](const auto& answer) { return answer->state != State::kRunning; });
}

void EngineState::enqueue(const std::shared_ptr<Answer>& answer, bool front) {
  const auto [place, fresh] = tenants.try_emplace(answer->job->request_.tenant);
  if (fresh) {
    // It starts level with the others: time it was away gives it no claim.
    for (const auto& [name, other] : tenants) {
      if (&other == &place->second) continue;
      place->second.served =
          place->second.served == 0 ? other.served : std::min(place->second.served, other.served);
    }
  }
  answer->state = State::kWaiting;
  auto& queue = place->second.waiting;
  front ? queue.push_front(answer) : queue.push_back(answer);
}

std::shared_ptr<Answer> EngineState::next_waiting() {
  Tenant* least = nullptr;
  for (auto it = tenants.begin(); it != tenants.end();) {
    auto& queue = it->second.waiting;
    while (!queue.empty() && queue.front()->state == State::kDone) queue.pop_front();
    if (queue.empty() && it->second.running == 0) {
      it = tenants.erase(it);
      continue;
    }
    const auto rank = [](const Tenant& t) { return std::pair(t.served, t.running); };
    if (!queue.empty() && (least == nullptr || rank(it->second) < rank(*least))) least = &it->second;
    ++it;
  }
  return least == nullptr ? nullptr : least->waiting.front();
}

std::vector<EngineState::Item> EngineState::plan() {
  std::vector<Item> items;
  int64_t budget = options.max_tokens_per_pass;
  for (const bool growing : {true, false}) {
    for (size_t i = 0; i < running.size() && budget > 0; ++i) {
      const auto answer = running[i];
      if (answer->state != State::kRunning || answer->in_pass || (answer->pending() == 1) != growing)
        continue;
      const int64_t count = std::min(budget, answer->pending());
      if (place(items, answer, count)) budget -= count;
    }
  }
  std::erase_if(running, [](const auto& answer) { return answer->state != State::kRunning; });
  while (budget > 0 && admit(&budget, items)) {
  }
  if (items.empty() && running.empty()) {
    // submit() let nothing through that an empty cache could not hold.
    TW_CHECK(next_waiting() == nullptr, "an answer waits although the cache is empty");
  }
  return items;
}

bool EngineState::place(std::vector<Item>& items, const std::shared_ptr<Answer>& answer, int64_t count) {
  while (static_cast<int64_t>(answer->blocks.size()) * KvBlocks::kTokens < answer->computed + count) {
    if (const auto block = blocks.allocate()) {
      answer->blocks.push_back(*block);
      continue;
    }
    const auto victim = std::find_if(running.rbegin(), running.rend(), [&](const auto& other) {
      return other->state == State::kRunning && !other->in_pass;
    });
    const auto chosen = victim == running.rend() ? answer : *victim;
    preempt(chosen);
    if (chosen == answer) return false;
  }
  answer->in_pass = true;
  items.push_back({answer, count});
  return true;
}

// What is found again of a prompt shows in the time its answer takes, so it is the tenant's own.
KvBlocks::Node EngineState::root_of(const std::string& tenant) {
  if (tenant.empty()) return 0;
  const auto [place, fresh] = roots.try_emplace(tenant, 0);
  if (fresh) place->second = blocks.new_root();
  return place->second;
}

bool EngineState::fits(Answer& answer) {
  int64_t most_cached = static_cast<int64_t>(answer.tokens.size()) - 1;
  if (answer.scores_prompt()) most_cached = std::min(most_cached, answer.prompt_scored);
  if (!options.prefix_cache || answer.version->gone) most_cached = 0;
  auto match =
      blocks.match(answer.version->id, answer.tokens, most_cached, root_of(answer.job->request_.tenant));
  const auto length = static_cast<int64_t>(answer.tokens.size());
  const int64_t needed =
      (length + KvBlocks::kTokens - 1) / KvBlocks::kTokens - static_cast<int64_t>(match.blocks.size());
  // Those that run will each want a block before long.
  if (needed + static_cast<int64_t>(running.size()) > blocks.available() &&
      !(running.empty() && needed <= blocks.available())) {
    blocks.release_all(match.blocks);
    return false;
  }
  answer.computed = static_cast<int64_t>(match.blocks.size()) * KvBlocks::kTokens;
  answer.committed = static_cast<int64_t>(match.blocks.size());
  answer.node = match.node;
  answer.forgotten = false;
  answer.blocks = std::move(match.blocks);
  for (int64_t i = 0; i < needed; ++i) answer.blocks.push_back(*blocks.allocate());
  return true;
}

bool EngineState::make_room_for(const std::string& tenant, int64_t* budget, std::vector<Item>& items) {
  const auto most =
      std::ranges::max_element(tenants, {}, [](const auto& entry) { return entry.second.running; });
  if (most->second.running <= tenants[tenant].running + 1) return false;
  const auto victim = std::find_if(running.rbegin(), running.rend(), [&](const auto& answer) {
    return answer->job->request_.tenant == most->first;
  });
  const auto chosen = *victim;
  std::erase_if(items, [&](const Item& item) {
    if (item.answer != chosen) return false;
    *budget += item.count;
    return true;
  });
  std::erase(running, chosen);
  preempt(chosen);
  return true;
}

bool EngineState::admit(int64_t* budget, std::vector<Item>& items) {
  const auto answer = next_waiting();
  if (answer == nullptr) return false;
  const std::string& tenant = answer->job->request_.tenant;
  while (static_cast<int64_t>(running.size()) >= options.max_running || !fits(*answer)) {
    if (!make_room_for(tenant, budget, items)) return false;
  }
  Tenant& own = tenant_of(*answer);
  own.waiting.pop_front();
  ++own.running;
  --waiting;
  answer->state = State::kRunning;
  running.push_back(answer);
  if (!answer->admitted_before) {
    answer->admitted_before = true;
    if (answer->index == 0) answer->job->result_.cached_tokens = answer->computed;
    std::lock_guard lock(mutex);
    --queued;
  }
  const int64_t count = std::min(*budget, answer->pending());
  *budget -= count;
  return place(items, answer, count);
}

void EngineState::leave(Answer& answer) {
  blocks.release_all(answer.blocks);
  answer.computed = answer.committed = 0;
  answer.in_pass = false;
  --tenant_of(answer).running;
}

void EngineState::preempt(const std::shared_ptr<Answer>& answer) {
  leave(*answer);
  enqueue(answer, true);
  ++waiting;
  ++counts.preemptions;
}

void EngineState::forget_computed() {
  const auto all = running;
  for (size_t i = all.size(); i-- > 0;) {  // from the youngest, so that the queue keeps their order
    if (all[i]->state == State::kRunning) preempt(all[i]);
  }
  running.clear();
  blocks.forget_all();
}

void EngineState::finish(const std::shared_ptr<Answer>& answer, const std::string& reason) {
  if (answer->state == State::kDone) return;
  if (answer->state == State::kRunning) {
    leave(*answer);
  } else {
    --waiting;
  }
  answer->state = State::kDone;
  if (!answer->admitted_before) {
    std::lock_guard lock(mutex);
    --queued;
  }
  SampleJob& job = *answer->job;
  answer->text.finish();
  SampledSequence& out = job.result_.sequences[answer->index];
  out.text = answer->text.text();
  out.stop_reason = reason;
  if (job.request_.pieces) {
    std::lock_guard lock(job.mutex_);
    job.pieces_.push_back({answer->index, answer->text.take(), {}, reason});
    job.changed_.notify_all();
  }
  if (--job.unfinished_ == 0) end_job(answer->job);
}

void EngineState::fail(const std::shared_ptr<SampleJob>& job, std::exception_ptr error) {
  {
    std::lock_guard lock(job->mutex_);
    if (job->done_) return;
    job->error_ = std::move(error);
  }
  const auto answers = job->answers_;
  for (const auto& answer : answers) finish(answer, "error");
}

void EngineState::end_job(const std::shared_ptr<SampleJob>& job) {
  job->answers_.clear();
  job->result_.model_version = model_version;
  std::lock_guard lock(job->mutex_);
  job->done_ = true;
  job->changed_.notify_all();
}

}  // namespace twinkle
