// The limits of a key that hold what it has, not what it sends.
#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/serve/tinker_api.h"

namespace twinkle::serve {

void TinkerApi::check_models(const Call& call) const {
  const int64_t most = admission_.limits_of(call.key).models;
  if (most <= 0) return;
  const auto models = store_.models_of(call.owner);
  const auto alive = std::ranges::count_if(models, [&](const ModelEntry& model) {
    const auto session = store_.session(model.session, call.owner);
    return session && !session->ended && session->finished.empty() && !core_.unloaded(model.id);
  });
  if (alive >= most) {
    throw exhausted(
        "[limit] this key may have " + std::to_string(most) +
        " models in training, and has them; they end with their sessions, or when they are unloaded");
  }
}

ModelEntry TinkerApi::put_new(const Call& call, const ModelEntry& model) {
  const std::lock_guard lock(making_);
  if (const auto known = store_.model(model.id, call.owner)) return *known;
  check_models(call);
  store_.put(model);
  return model;
}

// Looked at again where the operation is carried out: saves that were sent together are not on the disk yet.
void TinkerApi::check_checkpoint_bytes(const Call& call, Operation& op) const {
  const int64_t most = admission_.limits_of(call.key).checkpoint_bytes;
  if (most <= 0) return;
  op.args["most_checkpoint_bytes"] = most;
  store_.check_checkpoint_bytes(call.owner, most, core_.now());
}

}  // namespace twinkle::serve
