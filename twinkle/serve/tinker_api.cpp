#include "twinkle/serve/tinker_api.h"

#include <openssl/rand.h>

#include "twinkle/core/number_lists.h"
#include "twinkle/serve/disk_full.h"
#include "twinkle/serve/limit_reply.h"
#include "twinkle/serve/random_hex.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_requests.h"
#include "twinkle/serve/tinker_wire.h"
#include "twinkle/serve/zstd_body.h"

namespace twinkle::serve {
namespace {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

constexpr std::string_view kApiPrefix = "/api/v1/";
constexpr int kJsonDepth = 64;
constexpr int64_t kMostBody = int64_t{256} << 20;  // unpacked
constexpr size_t kMostJson = 64 << 20;             // of it: values take many times their text

HttpReply reply_of(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
      return error_reply(400, error.what());
    case ErrorKind::kNotFound:
      return error_reply(404, error.what());
    case ErrorKind::kConflict:
      return error_reply(400, error.what());
    case ErrorKind::kExhausted: {
      HttpReply reply = error_reply(429, error.what());
      reply.headers.emplace_back("retry-after", "1");
      return reply;
    }
    default:
      if (is_disk_full(error)) return error_reply(507, error.what());
      std::fprintf(stderr, "request failed: %s\n", error.what());
      return error_reply(503, "the server can not do this now");
  }
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&seed), sizeof(seed)) != 1)
    throw internal_error("[serve] no random numbers");
  return seed >> 1;
}

// Part by part; '*' takes any one part that is not empty.
bool matches(std::string_view pattern, std::string_view path, std::vector<std::string>& arguments) {
  while (!pattern.empty() && !path.empty()) {
    const std::string_view wanted = pattern.substr(0, pattern.find('/')),
                           got = path.substr(0, path.find('/'));
    if (wanted == "*" && !got.empty()) {
      arguments.emplace_back(got);
    } else if (wanted != got) {
      return false;
    }
    const bool last = wanted.size() == pattern.size();
    if (last != (got.size() == path.size())) return false;
    if (last) return true;
    pattern.remove_prefix(wanted.size() + 1);
    path.remove_prefix(got.size() + 1);
  }
  return false;
}

}  // namespace

TinkerApi::TinkerApi(Core& core, Store& store, const Credentials& credentials, Admission& admission,
                     SessionKeeper& sessions, TinkerOptions options, After after)
    : core_(core),
      store_(store),
      credentials_(credentials),
      admission_(admission),
      sessions_(sessions),
      options_(std::move(options)),
      after_(std::move(after)),
      acks_(after_, core_.clocks(), options_.ack_deadline),
      downloads_(credentials_.signer(), options_.data_dir) {}

// Routes.

std::span<const TinkerApi::Entry> TinkerApi::main_routes() {
  static const Entry entries[] = {
      {"POST", "client/config", &TinkerApi::client_config},
      {"POST", "client/dynamic_config", &TinkerApi::dynamic_config},
      {"GET", "get_server_capabilities", &TinkerApi::capabilities},
      {"POST", "create_session", &TinkerApi::create_session},
      {"POST", "session_heartbeat", &TinkerApi::session_heartbeat},
      {"POST", "sessions/*/finish", &TinkerApi::finish_session},
      {"POST", "unload_model", &TinkerApi::unload_model},
      {"POST", "telemetry", &TinkerApi::telemetry},
      {"POST", "create_model", &TinkerApi::create_model},
      {"POST", "get_info", &TinkerApi::get_info},
      {"POST", "forward_backward", &TinkerApi::forward_backward},
      {"POST", "forward", &TinkerApi::forward},
      {"POST", "optim_step", &TinkerApi::optim_step},
      {"POST", "save_weights", &TinkerApi::save_weights},
      {"POST", "save_weights_for_sampler", &TinkerApi::save_weights_for_sampler},
      {"POST", "load_weights", &TinkerApi::load_weights},
      {"POST", "weights_info", &TinkerApi::weights_info},
      {"POST", "create_sampling_session", &TinkerApi::create_sampling_session},
      {"GET", "samplers/*", &TinkerApi::get_sampler},
      {"POST", "asample", &TinkerApi::asample},
      {"POST", "retrieve_future", &TinkerApi::retrieve_future},
      {"GET", "training_runs", &TinkerApi::training_runs},
      {"GET", "training_runs/*", &TinkerApi::training_run},
      {"GET", "training_runs/*/checkpoints", &TinkerApi::run_checkpoints},
      {"DELETE", "training_runs/*/checkpoints/*/*", &TinkerApi::delete_checkpoint},
      {"PUT", "training_runs/*/checkpoints/*/*/ttl", &TinkerApi::set_checkpoint_ttl},
      {"GET", "checkpoints", &TinkerApi::all_checkpoints},
      {"GET", "sessions", &TinkerApi::sessions},
      {"GET", "sessions/*", &TinkerApi::get_session}};
  return entries;
}

std::array<std::span<const TinkerApi::Entry>, 4> TinkerApi::route_tables() {
  return {main_routes(), checkpoint_routes(), sampler_routes(), account_routes()};
}

std::vector<TinkerApi::RouteName> TinkerApi::routes() {
  std::vector<RouteName> out;
  for (const auto table : route_tables()) {
    for (const Entry& entry : table) out.push_back({entry.method, entry.path});
  }
  return out;
}

TinkerApi::Found TinkerApi::find_route(const HttpRequest& request) const {
  Found found;
  std::string_view path = request.path();
  if (!path.starts_with(kApiPrefix)) return found;
  path.remove_prefix(kApiPrefix.size());
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const auto table : route_tables()) {
    for (const Entry& entry : table) {
      std::vector<std::string> arguments;
      if (!matches(entry.path, path, arguments)) continue;
      if (method == entry.method) return {entry.route, std::move(arguments), false, entry.path};
      found.wrong_method = true;
    }
  }
  return found;
}

int TinkerApi::refusal(const HttpRequest& request) const {
  const Found found = find_route(request);
  if (found.route != nullptr) return 0;
  return found.wrong_method ? 405 : 404;
}

std::string_view TinkerApi::route_name(const HttpRequest& request) const { return find_route(request).name; }

Scope TinkerApi::needed_scope(const HttpRequest& request) const {
  std::string_view path = request.path();
  if (path.starts_with(kApiPrefix)) path.remove_prefix(kApiPrefix.size());
  return serve::needed_scope(request.method, path);
}

void TinkerApi::handle(const HttpRequest& request, const KeyEntry& key, HttpServer::Respond respond) {
  const Found found = find_route(request);
  Call call{
      .request = request, .key = key, .owner = key.owner, .arguments = found.arguments, .respond = respond};
  if (found.route == &TinkerApi::telemetry) return telemetry(call);  // nobody reads it
  try {
    std::string unpacked;
    std::string_view body = request.body;
    const std::string_view encoding = request.header("content-encoding");
    if (encoding == "zstd") {
      try {
        body = unpacked = unpack_zstd(body, kMostBody);
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::kExhausted) return respond(error_reply(413, e.what()));
        throw;
      }
    } else if (!encoding.empty() && encoding != "identity") {
      return respond(error_reply(415, "content-encoding must be zstd or identity"));
    }
    if (request.header("content-type").starts_with("application/x-protobuf")) {
      call.proto = body;
    } else if (body.size() > kMostJson) {
      return respond(error_reply(413, "a JSON body has at most 64 MiB; send large ones as protobuf"));
    } else if (!body.empty()) {
      // Their readers take long lists as blocks of bytes.
      const bool lists = found.route == &TinkerApi::forward_backward || found.route == &TinkerApi::forward;
      call.body = lists ? parse_json_packed(body, "body", kJsonDepth) : parse_json(body, "body", kJsonDepth);
      if (!call.body.is_object()) throw invalid_argument("the body must be an object");
    }
    (this->*found.route)(call);
  } catch (const Error& e) {
    respond(reply_of(e));
  } catch (const Json::exception&) {
    respond(error_reply(400, "the request is not as the API describes it"));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "request failed: %s\n", e.what());
    respond(error_reply(500, "the server failed; its own log says why"));
  }
}

// Start.

void TinkerApi::client_config(Call& call) { call.respond(json_reply(client_flags(options_.client_flags))); }

void TinkerApi::dynamic_config(Call& call) {
  call.respond(json_reply({{"refresh_interval_sec", 300},
                           {"sample_cancel_enabled", true},
                           {"sample_cancel_max_batch_size", 64}}));
}

void TinkerApi::capabilities(Call& call) {
  Json model = {{"model_name", options_.model_names.front()}, {"trainable", true}, {"sampleable", true}};
  if (core_.started()) model["max_context_length"] = core_.engine_info().context;
  call.respond(json_reply({{"supported_models", Json::array({model})}}));
}

void TinkerApi::create_session(Call& call) {
  Json info = Json::object();
  for (const char* key : {"tags", "user_metadata", "sdk_version", "project_id", "display_name"}) {
    if (const Json* value = find(call.body, key)) info[key] = *value;
  }
  for (const char* key : {"sdk_version", "project_id", "display_name"})
    text_or(call.body, key, "");  // or refused
  if (info.dump().size() > 64 << 10) throw invalid_argument("[session] what it says of itself is too long");
  const Session session{
      .id = random_hex("session-", 16), .owner = call.owner, .info = info, .created = core_.now()};
  store_.put(session);
  store_.touch_session(session.id);
  sessions_.touch(session.id);
  call.respond(json_reply({{"type", "create_session"}, {"session_id", session.id}}));
}

Session TinkerApi::need_session(const Call& call) {
  const auto session = store_.session(need_text(call.body, "session_id"), call.owner);
  if (!session) throw not_found("there is no such session");
  if (!sessions_.touch(session->id) && session->finished.empty())
    throw not_found("[session] " + ended_text(sessions_.timeout()));
  store_.touch_session(session->id);
  return *session;
}

// Why nothing new is done in a session, "" when it is: its client has said that it is through.
std::string TinkerApi::over(const std::string& session, const std::string& owner) const {
  const auto found = store_.session(session, owner);
  return found && !found->finished.empty() ? "the session of this was finished by its client" : "";
}

void TinkerApi::session_heartbeat(Call& call) {
  if (!need_session(call).finished.empty())
    return call.respond(error_reply(410, "the session was finished by its client"));  // ends the heartbeats
  call.respond(json_reply({{"type", "session_heartbeat"}}));
}

// Said of what is not there too: a client that is told otherwise fails after its work is done.
void TinkerApi::finish_session(Call& call) {
  std::string reason = "success";
  if (const Json* given = find(call.body, "reason"); given != nullptr && given->is_object())
    reason = text_or(*given, "type", reason);
  if (reason != "success" && reason != "errored" && reason != "interrupted")
    throw invalid_argument("'reason' must be success, errored or interrupted");
  store_.finish_session(call.arguments[0], call.owner, reason);
  call.respond(no_content());
}

void TinkerApi::telemetry(Call& call) { call.respond(json_reply({{"status", "accepted"}})); }

// Submitting.

void TinkerApi::submit(Call& call, Operation op, Json reply) {
  op.owner = call.owner;
  // Told through the future: a client whose chunk is not taken waits for ever.
  const bool known = core_.knows(op);
  if (!known && !sessions_.touch(session_of(op.target))) {
    op.ended = true;
    op.refused = "[session] " + ended_text(sessions_.timeout());
  }
  if (op.tokens > 0 && !known) {
    if (const auto refused = admission_.take_tokens(call.key, op.tokens))
      return call.respond(limit_reply(*refused));
  }
  const uint64_t ticket = acks_.add(call.respond);
  core_.submit(std::move(op), [this, ticket, note = call.note, reply = std::move(reply)](
                                  const std::variant<std::string, Error>& answer) mutable {
    const HttpServer::Respond respond = acks_.take(ticket);
    if (!respond) return;  // it took too long, and its client knows
    if (const auto* error = std::get_if<Error>(&answer)) return respond(reply_of(*error));
    reply["request_id"] = std::get<std::string>(answer);
    HttpReply out = json_reply(reply);
    if (!note.empty()) out.headers.emplace_back("x-deprecation-note", note);
    respond(out);
  });
}

bool TinkerApi::is_base_model(const std::string& name) const {
  return std::ranges::find(options_.model_names, name) != options_.model_names.end();
}

// Of a model that the caller owns.
Operation TinkerApi::model_operation(Call& call, OpKind kind) {
  const std::string model = need_text(call.body, "model_id");
  const auto found = store_.model(model, call.owner);
  if (!found) throw not_found("there is no such model");
  store_.touch_session(found->session);
  return {
      .kind = kind, .target = model, .seq = seq_of(call.body), .refused = over(found->session, call.owner)};
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

// Sampling.

void TinkerApi::create_sampling_session(Call& call) {
  const Session session = need_session(call);
  const int64_t number = need_number(call.body, "sampling_session_seq_id");
  SamplerEntry sampler{.id = session.id + ":sample:" + std::to_string(number),
                       .session = session.id,
                       .owner = call.owner,
                       .base_model = text_or(call.body, "base_model", ""),
                       .model_path = text_or(call.body, "model_path", ""),
                       .created = core_.now()};
  if (!store_.sampler(sampler.id, call.owner)) {
    if (!session.finished.empty()) throw invalid_argument(over(session.id, call.owner));
    if (!sampler.base_model.empty() && !is_base_model(sampler.base_model))
      throw not_found("base_model '" + sampler.base_model + "' is not here; this server has '" +
                      options_.model_names.front() + "'");
    if (!sampler.model_path.empty()) {
      const auto checkpoint = store_.readable_checkpoint(sampler.model_path, call.owner, core_.now());
      if (!checkpoint) throw not_found("there is no such checkpoint");
      sampler.folder = checkpoint->folder;
      sampler.base_model = checkpoint->base_model;
    } else if (sampler.base_model.empty()) {
      throw invalid_argument("needs 'base_model' or 'model_path'");
    }
    store_.put(sampler);
  }
  call.respond(json_reply({{"type", "create_sampling_session"}, {"sampling_session_id", sampler.id}}));
}

void TinkerApi::get_sampler(Call& call) {
  const auto sampler = store_.sampler(call.arguments[0], call.owner);
  if (!sampler) throw not_found("there is no such sampler");
  Json reply = {{"sampler_id", sampler->id}, {"base_model", sampler->base_model}};
  if (!sampler->model_path.empty()) reply["model_path"] = sampler->model_path;
  call.respond(json_reply(reply));
}

void TinkerApi::asample(Call& call) {
  const auto sampler = store_.sampler(need_text(call.body, "sampling_session_id"), call.owner);
  if (!sampler) throw not_found("there is no such sampling session");
  store_.touch_session(sampler->session);
  Operation op{.kind = OpKind::kSample,
               .target = sampler->id,
               .seq = int_or(call.body, "seq_id", -1, 0, kMostSeq),
               .refused = over(sampler->session, call.owner)};
  if (op.refused.empty() && sampler->ended)
    op.refused = "[sample] this sampler has ended: its session was silent for too long; make a new one";
  int64_t count = 1;
  check(op, [&] {
    count = int_or(call.body, "num_samples", 1, 1, 1024);  // first: a client counts the names before all else
    SampleCall sample = parse_sample(call.body);
    sample.weights = sampler->folder;
    sample.tenant = call.owner;
    const Json* params = find(call.body, "sampling_params");
    if (params == nullptr || find(*params, "seed") == nullptr) sample.seed = random_seed();
    op.tokens = static_cast<int64_t>(sample.prompt.size());
    op.body = encode(sample);
  });
  // The same names however often it is sent.
  Json names = Json::array();
  for (int64_t i = 0; i < count; ++i)
    names.push_back(sampler->id + ":" + (op.seq < 0 ? random_hex("", 16) : std::to_string(op.seq)) + ":" +
                    std::to_string(i));
  submit(call, std::move(op), {{"sample_sequence_ids", names}});
}

// Results.

namespace {

HttpReply render(const Core::Outcome& outcome, bool wants_proto) {
  using State = Core::Outcome::State;
  if (outcome.state == State::kMissing) return error_reply(404, "there is no such request");
  if (outcome.state == State::kExpired) {
    // A sample may be asked for again; what trained a model must not be.
    if (outcome.kind == OpKind::kSample) return error_reply(410, "the answer is no longer kept");
    return json_reply({{"error", "the result is no longer kept"}, {"category", "server"}});
  }
  const Result& result = *outcome.result;
  switch (result.kind) {
    case Result::Kind::kUserError:
      return json_reply({{"error", result.bytes}, {"category", "user"}});
    case Result::Kind::kServerError:
      return json_reply({{"error", result.bytes}, {"category", "server"}});
    case Result::Kind::kCall: {
      const CallResult call = decode_call_result(result.bytes);
      if (!wants_proto) return {.body = call_to_json(call)};
      return {.body = call_to_proto(call), .content_type = "application/x-protobuf"};
    }
    case Result::Kind::kSample: {
      const SampleDone done = decode_sample_result(result.bytes);
      if (!wants_proto) return {.body = sample_to_json(done)};
      return {.body = sample_to_proto(done), .content_type = "application/x-protobuf"};
    }
    case Result::Kind::kJson:
      break;
  }
  Json value = parse_json(result.bytes, "result");
  if (outcome.kind == OpKind::kCreateModel) value["type"] = "create_model";
  value.erase("folder");  // of a load: where it came from
  return json_reply(value);
}

HttpReply pending(const std::string& id, bool started) {
  Json reply = {{"type", "try_again"}, {"request_id", id}, {"queue_state", "active"}};
  if (!started) {
    reply["queue_state"] = "paused_capacity";
    reply["queue_state_reason"] = "the model is being loaded";
  }
  return json_reply(reply, 408);
}

}  // namespace

void TinkerApi::retrieve_future(Call& call) {
  const std::string id = need_text(call.body, "request_id");
  const bool proto = call.request.header("accept").find("application/x-protobuf") != std::string_view::npos;
  const uint64_t waiter =
      core_.wait(id, call.owner, [this, id, proto, respond = call.respond](const Core::Outcome& outcome) {
        respond(outcome.state == Core::Outcome::State::kPending ? pending(id, core_.started())
                                                                : render(outcome, proto));
      });
  // It holds no connection, which may be gone by then.
  if (waiter != 0) after_(options_.poll, [this, id, waiter] { core_.stop_waiting(id, waiter); });
}

}  // namespace twinkle::serve
