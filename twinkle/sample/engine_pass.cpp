// One pass: which rows go through the model with which adapters, and what is drawn from what comes out.
// Legend: T new tokens, S rows that are drawn from, V vocabulary.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/nn/pass.h"
#include "twinkle/sample/engine_state.h"
#include "twinkle/sample/pick.h"

namespace twinkle {
namespace {

constexpr int64_t kLogitRows = 64;  // rows whose logits are held together

at::Tensor rows_of(const at::Tensor& x_TK, const std::vector<int64_t>& rows) {
  const at::Tensor index =
      at::from_blob(const_cast<int64_t*>(rows.data()), {static_cast<int64_t>(rows.size())}, at::kLong);
  return x_TK.index_select(0, index.to(x_TK.device()));
}

// Outputs for `count` rows with the `alternatives` likeliest tokens of each.
ops::HeadOutputs outputs(int64_t count, int64_t alternatives, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  ops::HeadOutputs out;
  out.logprob_S = at::empty({count}, options);
  out.lse_S = at::empty({count}, options);
  if (alternatives > 0) {
    out.topk_logprob_SJ = at::empty({count, alternatives}, options);
    out.topk_id_SJ = at::empty({count, alternatives}, options.dtype(at::kInt));
  }
  return out;
}

struct HostOutputs {
  explicit HostOutputs(const ops::HeadOutputs& out) : logprob(out.logprob_S.cpu()) {
    if (!out.topk_id_SJ.defined()) return;
    top_logprob = out.topk_logprob_SJ.cpu();
    top_id = out.topk_id_SJ.cpu();
  }
  float own(int64_t row) const { return logprob.const_data_ptr<float>()[row]; }
  std::vector<TokenLogprob> top(int64_t row, int64_t count) const {
    std::vector<TokenLogprob> out;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = row * top_id.size(1) + j;
      out.push_back({top_id.const_data_ptr<int32_t>()[at], top_logprob.const_data_ptr<float>()[at]});
    }
    return out;
  }
  at::Tensor logprob, top_logprob, top_id;
};

// Rows of one adapter that follow each other are one span.
void add_span(std::vector<ops::LoraSpan>& spans, int64_t begin, int64_t end, int32_t slot) {
  if (slot < 0 || begin == end) return;
  if (!spans.empty() && spans.back().slot == slot && spans.back().end == begin) {
    spans.back().end = end;
  } else {
    spans.push_back({begin, end, slot});
  }
}

}  // namespace

void EngineState::run(std::vector<Item> items) {
  // Answers of one adapter stand together; those whose weights replace the model's own run apart.
  std::ranges::stable_sort(items, {}, [](const Item& item) { return item.answer->version->id; });
  std::map<uint64_t, std::vector<Item>> groups;
  for (auto& item : items) {
    const auto& version = *item.answer->version;
    groups[version.alone ? version.id : 0].push_back(std::move(item));
  }
  for (auto& [id, group] : groups) {
    try {
      run_group(group);
    } catch (...) {
      const auto error = std::current_exception();
      for (const auto& item : group) fail(item.answer->job, error);
    }
    for (const auto& item : group) item.answer->in_pass = false;
  }
}

void EngineState::bind(const std::vector<Item>& items) {
  std::vector<std::shared_ptr<EngineVersion>> used;
  slot_of_item.clear();
  for (const auto& item : items) {
    const auto& version = item.answer->version;
    if (version->base) {
      slot_of_item.push_back(-1);
      continue;
    }
    if (used.empty() || used.back() != version) used.push_back(version);
    slot_of_item.push_back(static_cast<int32_t>(used.size()) - 1);
  }
  const bool any_base = std::ranges::find(slot_of_item, -1) != slot_of_item.end();
  counts.most_versions =
      std::max(counts.most_versions, static_cast<int64_t>(used.size()) + (any_base ? 1 : 0));
  if (used == bound) return;
  std::vector<AdapterUse> uses;
  for (const auto& version : used) {
    if (version->packed.empty()) {
      version->packed = *version->use.modules;
      for (auto& module : version->packed) {
        if (module.linear >= 0) ops::pack_lora(module.slot);
      }
    }
    uses.push_back(version->use);
    uses.back().modules = &version->packed;
  }
  binding = bind_adapters(model, uses, {});
  for (const auto& version : bound) {
    if (std::ranges::find(used, version) == used.end()) version->packed.clear();
  }
  bound = used;
}

void EngineState::unbind() {
  for (const auto& version : bound) version->packed.clear();
  bound.clear();
  binding = {};
}

const nn::LoraBinding* EngineState::lora_for(const std::vector<int64_t>& rows_of_item) {
  if (bound.empty()) return nullptr;
  binding.spans.clear();
  int64_t begin = 0;
  for (size_t i = 0; i < rows_of_item.size(); ++i) {
    add_span(binding.spans, begin, begin + rows_of_item[i], slot_of_item[i]);
    begin += rows_of_item[i];
  }
  return &binding;
}

void EngineState::run_group(std::vector<Item>& items) {
  bind(items);
  std::vector<CausalLM::PagedRows> rows;
  std::vector<int64_t> counts_of_item;
  int64_t total = 0;
  for (const auto& [answer, count] : items) {
    rows.push_back(
        {std::span(answer->tokens).subspan(static_cast<size_t>(answer->computed), static_cast<size_t>(count)),
         answer->computed, answer->blocks});
    counts_of_item.push_back(count);
    total += count;
  }
  const at::Tensor hidden_TK = model.forward_paged(arena, kv, rows, lora_for(counts_of_item));
  ++counts.passes;
  counts.computed_tokens += total;
  counts.most_rows = std::max(counts.most_rows, total);
  score_prompts(items, hidden_TK);
  draw(items, hidden_TK);
}

// Rows of prompts of which something is asked go through the head, each once, however many targets it has.
void EngineState::score_prompts(const std::vector<Item>& items, const at::Tensor& hidden_TK) {
  draw_for_prompts(items, hidden_TK);
  std::vector<int64_t> rows, rows_of_item;
  std::vector<int32_t> ids;
  ops::RowTargets targets;
  std::vector<std::function<void(float)>> take;                     // what becomes of each log-probability
  std::vector<std::shared_ptr<SampleJob>> whose;                    // each one's job
  std::vector<std::pair<std::vector<TokenLogprob>*, int64_t>> top;  // of each row: where its likeliest go
  int64_t begin = 0, alternatives = 0;
  for (const auto& [answer, count] : items) {
    const size_t before = rows.size();
    const SamplingParams& params = answer->params();
    const auto& wanted = answer->job->request_.prompt_targets;
    SampleResult& result = answer->job->result_;
    const int64_t last = answer->prompt_tokens - 1;
    const int64_t first_own =
        params.prompt_logprobs_last_n > 0 ? std::max<int64_t>(last - params.prompt_logprobs_last_n, 0) : 0;
    const int64_t end = answer->scores_prompt() ? std::min(answer->computed + count, last) : 0;
    for (int64_t p = std::max(answer->computed, answer->prompt_scored); p < end; ++p) {
      const auto at = static_cast<size_t>(p) + 1;
      const auto first = static_cast<int64_t>(ids.size());
      std::vector<TokenLogprob>* likeliest = nullptr;
      if (params.prompt_logprobs && p >= first_own) {
        ids.push_back(answer->tokens[at]);
        take.push_back([&place = result.prompt_logprobs[at]](float x) { place = x; });
        alternatives = std::max(alternatives, params.topk_prompt_logprobs);
        if (params.topk_prompt_logprobs > 0) likeliest = &result.topk_prompt_logprobs[at];
      }
      for (auto target = std::ranges::lower_bound(wanted, p + 1, {}, &PromptTarget::place);
           target != wanted.end() && target->place == p + 1; ++target) {
        ids.push_back(target->id);
        take.push_back([&place = result.prompt_target_logprobs[static_cast<size_t>(target - wanted.begin())]](
                           float x) { place = x; });
      }
      for (size_t j = 0; j < static_cast<size_t>(params.prompt_draws); ++j) {
        TokenLogprob& drawn = result.prompt_draws[at - 1][j];
        ids.push_back(drawn.id);
        take.push_back([&drawn](float x) { drawn.logprob = x; });
      }
      answer->prompt_scored = p + 1;
      whose.resize(take.size(), answer->job);
      if (static_cast<int64_t>(ids.size()) == first) continue;
      targets.first.push_back(first);
      rows.push_back(begin + p - answer->computed);
      top.emplace_back(likeliest, params.topk_prompt_logprobs);
    }
    rows_of_item.push_back(static_cast<int64_t>(rows.size() - before));
    begin += count;
  }
  if (rows.empty()) return;
  targets.first.push_back(static_cast<int64_t>(ids.size()));
  targets.ids_S = at::tensor(ids, at::kInt);
  ops::HeadOutputs out = outputs(static_cast<int64_t>(rows.size()), alternatives, model.device());
  out.logprob_S = at::empty({static_cast<int64_t>(ids.size())}, out.lse_S.options());
  model.score_hidden(arena, rows_of(hidden_TK, rows), lora_for(rows_of_item), targets, 1.0, out);
  const HostOutputs host(out);
  for (size_t i = 0; i < take.size(); ++i) {
    const float logprob = host.own(static_cast<int64_t>(i));
    take[i](logprob);
    if (std::isnan(logprob)) fail(whose[i], std::make_exception_ptr(not_numbers()));
  }
  for (size_t row = 0; row < top.size(); ++row) {
    if (top[row].first != nullptr) *top[row].first = host.top(static_cast<int64_t>(row), top[row].second);
  }
}

// Tokens that could stand at places of prompts, each draw from a random stream of its own by place: the
// streams of answers count up from the request's, these count down from the last.
void EngineState::draw_for_prompts(const std::vector<Item>& items, const at::Tensor& hidden_TK) {
  std::vector<std::pair<Answer*, int64_t>> places;
  std::vector<int64_t> rows;
  std::vector<int32_t> slots;
  int64_t begin = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto& [answer, count] = items[i];
    const bool wants = answer->params().prompt_draws > 0 && answer->scores_prompt();
    const int64_t end = wants ? std::min(answer->computed + count, answer->prompt_tokens - 1) : 0;
    for (int64_t p = std::max(answer->computed, answer->prompt_scored); p < end; ++p) {
      places.emplace_back(answer.get(), p + 1);
      rows.push_back(begin + p - answer->computed);
      slots.push_back(slot_of_item[i]);
    }
    begin += count;
  }
  for (size_t first = 0; first < places.size(); first += kLogitRows) {
    const size_t count = std::min(static_cast<size_t>(kLogitRows), places.size() - first);
    const nn::Scratch scratch(arena);
    if (!bound.empty()) {
      binding.spans.clear();
      for (size_t i = 0; i < count; ++i)
        add_span(binding.spans, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1, slots[first + i]);
    }
    const std::vector<int64_t> chosen(rows.begin() + static_cast<ptrdiff_t>(first),
                                      rows.begin() + static_cast<ptrdiff_t>(first + count));
    const at::Tensor logits_SV =
        model.logits(arena, rows_of(hidden_TK, chosen), bound.empty() ? nullptr : &binding).cpu();
    const auto V = static_cast<size_t>(logits_SV.size(1));
    parallel_for(static_cast<int64_t>(count), 1, [&](int64_t from, int64_t to) {
      for (auto row = static_cast<size_t>(from); row < static_cast<size_t>(to); ++row) {
        const auto& [answer, at] = places[first + row];
        const SamplingParams params{.temperature = answer->params().temperature};
        const std::span<const float> logits(logits_SV.const_data_ptr<float>() + row * V, V);
        auto& drawn = answer->job->result_.prompt_draws[static_cast<size_t>(at) - 1];
        drawn.assign(static_cast<size_t>(answer->params().prompt_draws), {});
        std::vector<uint64_t> streams;
        for (size_t j = 0; j < drawn.size(); ++j) streams.push_back(~static_cast<uint64_t>(j));
        // The place is the position of the draw: the history is as long, and none of it counts as prompt.
        const PickPlace place{.history = std::span(answer->tokens).first(static_cast<size_t>(at)),
                              .drawable = drawable,
                              .seed = answer->seed};
        try {
          const std::vector<Picked> picked = pick_tokens(logits, params, place, streams);
          for (size_t j = 0; j < drawn.size(); ++j) drawn[j].id = picked[j].id;
        } catch (const Error&) {  // logits that are not numbers: score_prompts finds it out
        }
      }
    });
  }
}

void EngineState::draw(const std::vector<Item>& items, const at::Tensor& hidden_TK) {
  std::vector<std::shared_ptr<Answer>> who;
  std::vector<int64_t> rows;
  std::vector<int32_t> slots;
  int64_t begin = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto& [answer, count] = items[i];
    if (answer->state != Answer::State::kRunning) {  // its prompt could not be scored
      begin += count;
      continue;
    }
    answer->computed += count;
    tenant_of(*answer).served += static_cast<double>(count);
    commit_blocks(*answer);
    begin += count;
    if (answer->pending() > 0) continue;
    if (answer->index == 0 && answer->drawn() == 0) {  // the prompt is cached: the other answers may start
      const auto& all = answer->job->answers_;
      for (size_t k = all.size(); k-- > 1;) {
        if (all[k]->state == Answer::State::kHeld) enqueue(all[k], true);
      }
    }
    if (answer->most_tokens == 0) {
      finish(answer, "length");
      continue;
    }
    who.push_back(answer);
    rows.push_back(begin - 1);
    slots.push_back(slot_of_item[i]);
  }
  for (int64_t first = 0; first < static_cast<int64_t>(rows.size()); first += kLogitRows) {
    const int64_t count = std::min(kLogitRows, static_cast<int64_t>(rows.size()) - first);
    const auto at = [&](int64_t i) { return static_cast<size_t>(first + i); };
    const nn::Scratch scratch(arena);
    if (!bound.empty()) {
      binding.spans.clear();
      for (int64_t i = 0; i < count; ++i) add_span(binding.spans, i, i + 1, slots[at(i)]);
    }
    const std::vector<int64_t> chosen(rows.begin() + first, rows.begin() + first + count);
    const at::Tensor logits_SV =
        model.logits(arena, rows_of(hidden_TK, chosen), bound.empty() ? nullptr : &binding);
    const at::Tensor host = logits_SV.cpu();
    const int64_t V = host.size(1);
    std::vector<Picked> picked(static_cast<size_t>(count));
    std::vector<std::vector<TokenLogprob>> top_sampled(static_cast<size_t>(count));
    std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
    parallel_for(count, 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const Answer& a = *who[at(i)];
        PickPlace place{.history = a.tokens,
                        .prompt_tokens = a.prompt_tokens,
                        .drawable = drawable,
                        .seed = a.seed,
                        .stream = a.job->request_.stream + a.index};
        if (a.drawn() < a.params().min_tokens) place.not_yet = a.end_ids;
        const std::span<const float> logits(host.const_data_ptr<float>() + i * V, static_cast<size_t>(V));
        try {
          std::vector<Picked> likeliest;
          picked[static_cast<size_t>(i)] =
              pick_token(logits, a.params(), place, a.params().sampled_alternatives, &likeliest);
          for (const Picked& p : likeliest)
            top_sampled[static_cast<size_t>(i)].push_back({p.id, static_cast<float>(p.logprob)});
        } catch (...) {
          errors[static_cast<size_t>(i)] = std::current_exception();
        }
      }
    });
    int64_t alternatives = 0;
    at::Tensor targets = at::empty({count}, at::kInt);
    for (int64_t i = 0; i < count; ++i) {
      targets.mutable_data_ptr<int32_t>()[i] = picked[static_cast<size_t>(i)].id;
      alternatives = std::max(alternatives, who[at(i)]->params().logprobs);
    }
    ops::HeadOutputs out = outputs(count, alternatives, model.device());
    ops::logits_logprobs(logits_SV, targets.to(model.device()), 1.0, out);
    const HostOutputs scores(out);
    for (int64_t i = 0; i < count; ++i) {
      const auto& answer = who[at(i)];
      const auto& p = picked[static_cast<size_t>(i)];
      if (errors[static_cast<size_t>(i)] != nullptr) {
        fail(answer->job, errors[static_cast<size_t>(i)]);
      } else if (answer->state == Answer::State::kRunning) {  // not if its job failed a moment ago
        if (answer->params().sampled_alternatives > 0)
          answer->job->result_.sequences[answer->index].top_sampled.push_back(
              std::move(top_sampled[static_cast<size_t>(i)]));
        accept(answer, p.id, p.logprob, scores.own(i), scores.top(i, answer->params().logprobs));
      }
    }
  }
}

void EngineState::commit_blocks(Answer& answer) {
  if (!options.prefix_cache || answer.version->gone || answer.forgotten) return;
  while ((answer.committed + 1) * KvBlocks::kTokens <= answer.computed) {
    const auto tokens = std::span(answer.tokens)
                            .subspan(static_cast<size_t>(answer.committed * KvBlocks::kTokens),
                                     static_cast<size_t>(KvBlocks::kTokens));
    answer.node = blocks.commit(answer.blocks[static_cast<size_t>(answer.committed)], answer.version->id,
                                answer.node, tokens);
    ++answer.committed;
  }
}

void EngineState::accept(const std::shared_ptr<Answer>& answer, int32_t id, double sampled_logprob,
                         float logprob, std::vector<TokenLogprob> top) {
  Answer& a = *answer;
  SampleJob& job = *a.job;
  const SamplingParams& params = a.params();
  SampledSequence& out = job.result_.sequences[a.index];
  a.tokens.push_back(id);
  out.tokens.push_back(id);
  out.logprobs.push_back(logprob);
  out.sampled_logprobs.push_back(static_cast<float>(sampled_logprob));
  if (params.logprobs > 0) out.top_logprobs.push_back(std::move(top));
  ++counts.sampled_tokens;
  const bool may_stop = a.drawn() >= params.min_tokens;
  const bool ended = may_stop && std::ranges::find(a.end_ids, id) != a.end_ids.end();
  const bool stopped = !ended && a.text.push(id, may_stop);
  const bool full = a.drawn() >= a.most_tokens;
  if (job.request_.pieces) {
    std::lock_guard lock(job.mutex_);
    job.pieces_.push_back({a.index, a.text.take(), {id}, ""});
    job.changed_.notify_all();
  }
  if (ended || stopped) {
    finish(answer, "stop");
  } else if (full) {
    finish(answer, "length");
  }
}

}  // namespace twinkle
