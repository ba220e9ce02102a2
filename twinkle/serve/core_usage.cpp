// What is used of the server, counted where it is carried out: each operation once, whatever is repeated or
// replayed. It is written every second and at the end; a kill loses what came since.
#include <cmath>

#include "twinkle/serve/core.h"

namespace twinkle::serve {

void Core::count_usage(const Operation& op, const std::string& session, const std::string& base_model,
                       const char* kind, int64_t count) {
  if (count > 0) used_[{std::floor(now() / 3600) * 3600, op.owner, session, base_model, kind}] += count;
}

void Core::count_calls(const Operation& op, const TrainCall& call) {
  const auto model = store_.model(op.target, op.owner);
  if (!model || op.known) return;
  int64_t tokens = 0;
  for (const auto& datum : call.data) tokens += static_cast<int64_t>(datum.tokens.size());
  count_usage(op, model->session, model->base_model, "training", tokens);
}

void Core::count_sample(const Operation& op, int64_t prompt_tokens, const SampleDone& done) {
  const auto sampler = store_.sampler(op.target, op.owner);
  if (!sampler) return;
  int64_t tokens = 0;
  for (const auto& sequence : done.sequences) tokens += static_cast<int64_t>(sequence.tokens.size());
  count_usage(op, sampler->session, sampler->base_model, "sampling_prefill", prompt_tokens);
  count_usage(op, sampler->session, sampler->base_model, "sampling_sample", tokens);
}

void Core::write_usage() {
  std::vector<Usage> used;
  for (const auto& [key, count] : used_) {
    const auto& [hour, owner, session, base_model, kind] = key;
    used.push_back({.hour = hour,
                    .owner = owner,
                    .session = session,
                    .base_model = base_model,
                    .kind = kind,
                    .count = count});
  }
  store_.add(used);
  used_.clear();
}

}  // namespace twinkle::serve
