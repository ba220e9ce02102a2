#include "twinkle/serve/tinker_api.h"

#include "twinkle/core/number_lists.h"
#include "twinkle/serve/disk_full.h"
#include "twinkle/serve/limit_reply.h"
#include "twinkle/serve/random_hex.h"
#include "twinkle/serve/tinker_json.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/zstd_body.h"

namespace twinkle::serve {
namespace {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

constexpr std::string_view kApiPrefix = "/api/v1/";
constexpr int kJsonDepth = 64;
constexpr int64_t kMostBody = int64_t{256} << 20;  // unpacked
constexpr size_t kMostJson = 64 << 20;             // of it: values take many times their text
constexpr size_t kMostSmall = 4 << 20;             // where a body has neither data nor a prompt

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
      {"POST", "create_session", &TinkerApi::create_session, kStoreFile},
      {"POST", "session_heartbeat", &TinkerApi::session_heartbeat},
      {"POST", "sessions/*/finish", &TinkerApi::finish_session, kStoreFile},
      {"POST", "telemetry", &TinkerApi::telemetry},
      {"POST", "retrieve_future", &TinkerApi::retrieve_future},
      {"GET", "training_runs", &TinkerApi::training_runs},
      {"GET", "training_runs/*", &TinkerApi::training_run},
      {"GET", "training_runs/*/checkpoints", &TinkerApi::run_checkpoints},
      {"DELETE", "training_runs/*/checkpoints/*/*", &TinkerApi::delete_checkpoint, kStoreFile},
      {"PUT", "training_runs/*/checkpoints/*/*/ttl", &TinkerApi::set_checkpoint_ttl, kStoreFile},
      {"GET", "checkpoints", &TinkerApi::all_checkpoints},
      {"GET", "sessions", &TinkerApi::sessions},
      {"GET", "sessions/*", &TinkerApi::get_session}};
  return entries;
}

std::array<std::span<const TinkerApi::Entry>, 5> TinkerApi::route_tables() {
  return {main_routes(), training_routes(), sampler_routes(), checkpoint_routes(), account_routes()};
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
      if (method == entry.method)
        return {entry.route, std::move(arguments), false, entry.path, entry.store_file};
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
  // Their readers take long lists as blocks of bytes.
  const bool lists = found.route == &TinkerApi::forward_backward || found.route == &TinkerApi::forward;
  const bool large = lists || found.route == &TinkerApi::asample;
  try {
    std::string unpacked;
    std::string_view body = request.body;
    const std::string_view encoding = request.header("content-encoding");
    if (encoding == "zstd") {
      try {
        body = unpacked = unpack_zstd(body, large ? kMostBody : int64_t{kMostSmall});
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::kExhausted) return respond(error_reply(413, e.what()));
        throw;
      }
    } else if (!encoding.empty() && encoding != "identity") {
      return respond(error_reply(415, "content-encoding must be zstd or identity"));
    }
    if (!large && body.size() > kMostSmall)
      return respond(error_reply(413, "a body of this route has at most 4 MiB"));
    if (request.header("content-type").starts_with("application/x-protobuf")) {
      call.proto = body;
    } else if (body.size() > kMostJson) {
      return respond(error_reply(413, "a JSON body has at most 64 MiB; send large ones as protobuf"));
    } else if (!body.empty()) {
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
    op.refused = over(session_of(op.target), call.owner);
    if (op.refused.empty()) op.refused = "[session] " + ended_text(sessions_.timeout());
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

}  // namespace twinkle::serve
