// The routes of the Tinker API that make, train, save and load models.
#include "twinkle/serve/random_hex.h"
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_requests.h"
#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

std::span<const TinkerApi::Entry> TinkerApi::training_routes() {
  static const Entry entries[] = {{"POST", "create_model", &TinkerApi::create_model, kStoreFile},
                                  {"POST", "unload_model", &TinkerApi::unload_model},
                                  {"POST", "get_info", &TinkerApi::get_info},
                                  {"POST", "forward_backward", &TinkerApi::forward_backward},
                                  {"POST", "forward", &TinkerApi::forward},
                                  {"POST", "optim_step", &TinkerApi::optim_step},
                                  {"POST", "save_weights", &TinkerApi::save_weights},
                                  {"POST", "save_weights_for_sampler", &TinkerApi::save_weights_for_sampler},
                                  {"POST", "load_weights", &TinkerApi::load_weights, kStoreFile},
                                  {"POST", "weights_info", &TinkerApi::weights_info}};
  return entries;
}

void TinkerApi::unload_model(Call& call) {
  Operation op = model_operation(call, OpKind::kUnload);
  const std::string model = op.target;
  op.refused.clear();  // of a session that is over too
  submit(call, std::move(op), {{"model_id", model}});
}

void TinkerApi::create_model(Call& call) {
  const Session session = need_session(call);
  const int64_t number = need_number(call.body, "model_seq_id");
  ModelEntry model{.id = session.id + ":train:" + std::to_string(number),
                   .session = session.id,
                   .owner = call.owner,
                   .base_model = text_or(call.body, "base_model", ""),
                   .created = core_.now()};
  Operation op{
      .kind = OpKind::kCreateModel, .target = model.id, .seq = 0, .refused = over(session.id, call.owner)};
  check(op, [&] {
    if (!is_base_model(model.base_model)) {
      throw invalid_argument("[create_model] base_model '" + model.base_model +
                             "' is not here; this server has '" + options_.model_names.front() + "'");
    }
    check_optimizer(call.body);
    const Json* lora = find(call.body, "lora_config");
    if (lora == nullptr)
      throw invalid_argument("[create_model] this server trains LoRA adapters: lora_config is missing");
    if (!lora->is_object()) throw invalid_argument("[create_model] 'lora_config' must be an object");
    model.shape.rank = int_or(*lora, "rank", 32, 1, 4096);
    model.shape.seed = random_seed();
    if (find(*lora, "seed") != nullptr)
      model.shape.seed = static_cast<uint64_t>(int_or(*lora, "seed", 0, INT64_MIN, INT64_MAX));
    model.shape.attention = bool_or(*lora, "train_attn", true);
    model.shape.mlp = bool_or(*lora, "train_mlp", true);
    model.shape.unembedding = bool_or(*lora, "train_unembed", true);
    if (!model.shape.attention && !model.shape.mlp && !model.shape.unembedding)
      throw invalid_argument("[create_model] one of train_attn, train_mlp, train_unembed must be true");
    if (const Json* metadata = find(call.body, "user_metadata")) {
      check_metadata(*metadata);
      model.user_metadata = *metadata;
    }
  });
  // Sent again, the model is what it was at first.
  if (const auto known = store_.model(model.id, call.owner)) {
    model = *known;
  } else if (op.refused.empty()) {
    check(op, [&] { model = put_new(call, model); });
  }
  op.args = {{"rank", model.shape.rank},
             {"seed", model.shape.seed},
             {"attention", model.shape.attention},
             {"mlp", model.shape.mlp},
             {"unembedding", model.shape.unembedding}};
  submit(call, std::move(op), {{"model_id", model.id}});
}

void TinkerApi::get_info(Call& call) {
  const auto model = store_.model(need_text(call.body, "model_id"), call.owner);
  if (!model) throw not_found("there is no such model");
  Json data = {{"model_name", model->base_model}};
  if (!options_.tokenizer_id.empty()) data["tokenizer_id"] = options_.tokenizer_id;
  call.respond(json_reply({{"type", "get_info"},
                           {"model_data", data},
                           {"model_id", model->id},
                           {"is_lora", true},
                           {"lora_rank", model->shape.rank},
                           {"model_name", model->base_model}}));
}

void TinkerApi::training_call(Call& call, const char* json_key) {
  const bool proto = !call.proto.empty();
  const CallHead head = proto ? call_head(call.proto) : call_head(call.body);
  const auto model = store_.model(head.model_id, call.owner);
  if (!model) throw not_found("there is no such model");
  store_.touch_session(model->session);
  Operation op{.kind = OpKind::kCall,
               .target = head.model_id,
               .seq = head.seq_id,
               .forward_only = head.forward_only || std::string_view(json_key) == "forward_input",
               .refused = over(model->session, call.owner)};
  check(op, [&] {
    const TrainCall parsed = proto ? parse_call(call.proto) : parse_call(call.body, json_key);
    call.note = note_on(parsed);
    for (const Datum& datum : parsed.data) op.tokens += static_cast<int64_t>(datum.tokens.size());
    op.body = encode(parsed);
  });
  submit(call, std::move(op), {{"model_id", head.model_id}});
}

void TinkerApi::forward_backward(Call& call) { training_call(call, "forward_backward_input"); }
void TinkerApi::forward(Call& call) { training_call(call, "forward_input"); }

void TinkerApi::optim_step(Call& call) {
  Operation op = model_operation(call, OpKind::kOptimStep);
  check(op, [&] { op.args = parse_adam(call.body); });
  const std::string model = op.target;
  submit(call, std::move(op), {{"model_id", model}});
}

// Saving and loading.

void TinkerApi::save_weights(Call& call) {
  Operation op = model_operation(call, OpKind::kSaveWeights);
  check(op, [&] {
    const std::string name = text_or(call.body, "path", random_hex("weights-", 16));
    op.args = save_arguments(call.body, "weights", name);
    op.args["overwrite"] = bool_or(call.body, "overwrite", false);
    check_checkpoint_bytes(call, op);
  });
  submit(call, std::move(op));
}

void TinkerApi::save_weights_for_sampler(Call& call) {
  const bool named = find(call.body, "path") != nullptr;
  Operation op = model_operation(call, named ? OpKind::kSaveWeights : OpKind::kSaveForSampler);
  check(op, [&] {
    if (!named) {
      const int64_t number = int_or(call.body, "sampling_session_seq_id", -1, 0, INT32_MAX);
      if (number < 0) throw invalid_argument("[save] needs 'path' or 'sampling_session_seq_id'");
      const auto model = store_.model(op.target, call.owner);
      op.args = {{"sampler", model->session + ":sample:" + std::to_string(number)}};
      return;
    }
    const std::string name = need_text(call.body, "path");
    op.args = save_arguments(call.body, "sampler_weights", name);
    check_checkpoint_bytes(call, op);
  });
  submit(call, std::move(op));
}

void TinkerApi::load_weights(Call& call) {
  Operation op;
  Json reply;
  if (find(call.body, "model_id") != nullptr) {
    op = model_operation(call, OpKind::kLoadWeights);
  } else {
    // A new model from a checkpoint, whose shape it takes.
    const Session session = need_session(call);
    const int64_t number = need_number(call.body, "model_seq_id");
    ModelEntry model{.id = session.id + ":train:" + std::to_string(number),
                     .session = session.id,
                     .owner = call.owner,
                     .created = core_.now()};
    op = {
        .kind = OpKind::kLoadWeights, .target = model.id, .seq = 0, .refused = over(session.id, call.owner)};
    check(op, [&] { check_optimizer(call.body); });
    const auto reader = credentials_.reader(text_or(call.body, "weights_access_token", ""), core_.now());
    const auto checkpoint =
        store_.readable_checkpoint(text_or(call.body, "path", ""), reader.value_or(call.owner), core_.now());
    if (checkpoint) {
      model.shape = checkpoint->shape;
      model.base_model = checkpoint->base_model;
    }
    if (const Json* metadata = find(call.body, "user_metadata")) {
      check_metadata(*metadata);
      model.user_metadata = *metadata;
    }
    if (checkpoint && op.refused.empty()) check(op, [&] { put_new(call, model); });
  }
  reply["model_id"] = op.target;
  check(op, [&] {
    op.args = {{"path", need_text(call.body, "path")}, {"optimizer", bool_or(call.body, "optimizer", false)}};
    if (const std::string token = text_or(call.body, "weights_access_token", ""); !token.empty()) {
      const auto reader = credentials_.reader(token, core_.now());
      if (!reader) throw invalid_argument("[load] 'weights_access_token' is no key of this server");
      op.args["reader"] = *reader;  // the key itself is kept nowhere
    }
    if (op.args["path"].get_ref<const std::string&>().size() > 1024) {
      op.args["path"] = "";
      throw invalid_argument("[load] 'path' is longer than 1024 bytes");
    }
  });
  submit(call, std::move(op), reply);
}

void TinkerApi::weights_info(Call& call) {
  const auto checkpoint =
      store_.readable_checkpoint(need_text(call.body, "tinker_path"), call.owner, core_.now());
  if (!checkpoint) throw not_found("there is no such checkpoint");
  const LoraShape& shape = checkpoint->shape;
  call.respond(json_reply({{"base_model", checkpoint->base_model},
                           {"is_lora", true},
                           {"lora_rank", shape.rank},
                           {"train_unembed", shape.unembedding},
                           {"train_mlp", shape.mlp},
                           {"train_attn", shape.attention}}));
}

}  // namespace twinkle::serve
