// The routes of the Tinker API by which checkpoints reach others: published, copied, downloaded.
#include "twinkle/core/files.h"
#include "twinkle/serve/random_hex.h"
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_requests.h"
#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

std::span<const TinkerApi::Entry> TinkerApi::checkpoint_routes() {
  static const Entry entries[] = {
      {"POST", "training_runs/*/checkpoints/*/*/publish", &TinkerApi::publish, kStoreFile},
      {"DELETE", "training_runs/*/checkpoints/*/*/publish", &TinkerApi::unpublish, kStoreFile},
      {"GET", "training_runs/*/checkpoints/*/*/archive", &TinkerApi::archive, kStoreFile},
      {"GET", "training_runs/*/checkpoints/*/*/external_weights_urls", &TinkerApi::external_urls, kStoreFile},
      {"POST", "save_weights_external", &TinkerApi::save_weights_external},
      {"POST", "copy_weights", &TinkerApi::copy_weights, kStoreFile}};
  return entries;
}

// Sharing.

void TinkerApi::publish(Call& call) {
  const std::string path = checkpoint_path(call);
  if (!store_.set_public(path, call.owner, true, core_.now())) throw not_found("there is no such checkpoint");
  note(call, "checkpoint_publish", path);
  call.respond(no_content());
}

void TinkerApi::unpublish(Call& call) {
  const std::string path = checkpoint_path(call);
  if (!store_.set_public(path, call.owner, false, core_.now()))
    throw not_found("there is no such checkpoint");
  note(call, "checkpoint_unpublish", path);
  call.respond(no_content());
}

// Both have the same files, which never change. The copy belongs to a run that has no model.
void TinkerApi::copy_weights(Call& call) {
  const std::string from = need_text(call.body, "source_path");
  const int64_t ttl = int_or(call.body, "ttl_seconds", 0, 1, INT32_MAX);
  Checkpoint copy{.owner = call.owner, .created = core_.now()};
  if (ttl > 0) copy.expires = core_.now() + static_cast<double>(ttl);
  ModelEntry run{.owner = call.owner, .created = core_.now()};
  if (find(call.body, "session_id") != nullptr) {
    run.session = need_session(call).id;
    run.id = run.session + ":train:" + std::to_string(need_number(call.body, "model_seq_id"));
  } else {
    // A project has no numbers to tell a repeated request by; its idempotency key does.
    const std::string project = need_text(call.body, "destination_project_id");
    const std::string key(call.request.header("x-idempotency-key"));
    const std::string name =
        key.empty() ? random_hex("", 16) : sha256_hex(call.owner + "\n" + project + "\n" + from + "\n" + key);
    run.id = "copy-" + name.substr(0, 32);
    run.user_metadata = {{"project_id", project.substr(0, 256)}};
  }
  copy.run = run.id;
  std::string token(call.request.header("x-tinker-weights-access-token"));
  if (token.empty()) token = text_or(call.body, "weights_access_token", "");
  const auto reader = token.empty() ? std::nullopt : credentials_.reader(token, core_.now());
  if (!token.empty() && !reader) throw invalid_argument("'weights_access_token' is no key of this server");
  const auto copied = store_.copy(from, reader.value_or(call.owner), copy, run, core_.now());
  if (!copied) throw not_found("there is no such checkpoint");
  note(call, "checkpoint_copy", copied->path(), {{"source", from}});
  call.respond(json_reply({{"tinker_path", copied->path()}}));
}

// Downloads.

Checkpoint TinkerApi::readable_checkpoint(const Call& call) const {
  auto found = store_.readable_checkpoint(checkpoint_path(call), call.owner, core_.now());
  if (!found) throw not_found("there is no such checkpoint");
  return *found;
}

// Where a client reaches this server.
std::string TinkerApi::base_url(const HttpRequest& request) const {
  if (!options_.public_url.empty()) {
    const size_t end = options_.public_url.find_last_not_of('/');
    return options_.public_url.substr(0, end + 1);
  }
  const std::string host(request.header("host"));
  const bool plain = !host.empty() && std::ranges::all_of(host, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == ':' || c == '-' || c == '[' || c == ']';
  });
  if (!plain) throw invalid_argument("the Host header is missing or not plain");
  const bool proxy_is_safe = request.header("x-forwarded-proto") == "https";
  return (proxy_is_safe ? "https" : options_.scheme) + "://" + host + options_.path_prefix;
}

void TinkerApi::archive(Call& call) {
  const Checkpoint checkpoint = readable_checkpoint(call);
  const double now = core_.now();
  note(call, "checkpoint_read", checkpoint.path(), {{"purpose", "download"}});
  call.respond(json_reply(
      {{"url", base_url(call.request) + downloads_.path_of(checkpoint.folder, "", now, options_.url_seconds)},
       {"expires", iso_time(now + options_.url_seconds)}}));
}

void TinkerApi::save_weights_external(Call& call) {
  Operation op = model_operation(call, OpKind::kSaveWeights);
  check(op, [&] {
    op.args = save_arguments(call.body, "external_weights", need_text(call.body, "path"));
    check_checkpoint_bytes(call, op);
    const Json* recipients = find(call.body, "age_encryption_recipients");
    if (recipients != nullptr && !recipients->empty()) {
      throw invalid_argument(
          "[save_weights_external] this server does not encrypt (age_encryption_recipients); the files are "
          "fetched from it directly, by addresses that end: put TLS before it");
    }
  });
  submit(call, std::move(op));
}

void TinkerApi::external_urls(Call& call) {
  const Checkpoint checkpoint = readable_checkpoint(call);
  if (checkpoint.kind != "external_weights")
    throw invalid_argument("only weights of save_weights_external have addresses for their files");
  const double now = core_.now();
  Json urls = Json::object();
  for (const auto& name : downloads_.files_of(checkpoint.folder))
    urls[name] =
        base_url(call.request) + downloads_.path_of(checkpoint.folder, name, now, options_.url_seconds);
  note(call, "checkpoint_read", checkpoint.path(), {{"purpose", "download"}});
  call.respond(json_reply({{"urls", urls}, {"expires", iso_time(now + options_.url_seconds)}}));
}

HttpReply TinkerApi::download(const HttpRequest& request) const {
  try {
    return downloads_.reply(request.path(), core_.now());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "download failed: %s\n", e.what());
    return error_reply(503, "the server can not do this now");
  }
}

}  // namespace twinkle::serve
