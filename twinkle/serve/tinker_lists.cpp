// The routes of the Tinker API that list, show and delete what an owner has.
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_requests.h"
#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve {
namespace {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

Json checkpoint_to_json(const Checkpoint& checkpoint) {
  Json out = {{"checkpoint_id", checkpoint.kind + "/" + checkpoint.name},
              {"checkpoint_type", checkpoint.kind == "weights"           ? "training"
                                  : checkpoint.kind == "sampler_weights" ? "sampler"
                                                                         : "external"},
              {"time", iso_time(checkpoint.created)},
              {"tinker_path", checkpoint.path()},
              {"size_bytes", checkpoint.bytes},
              {"public", checkpoint.is_public}};
  if (!checkpoint.user_metadata.is_null()) out["user_metadata"] = checkpoint.user_metadata;
  if (checkpoint.expires) out["expires_at"] = iso_time(*checkpoint.expires);
  return out;
}

// Clients before 0.28 refuse a whole list for one entry of type "external".
bool knows_external(const HttpRequest& request) {
  int major = 0, minor = 0;
  const std::string version(request.header("x-stainless-package-version"));
  if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) != 2) return true;
  return major > 0 || minor >= 28;
}

std::vector<Checkpoint> shown_to(const HttpRequest& request, std::vector<Checkpoint> all) {
  if (!knows_external(request))
    std::erase_if(all, [](const Checkpoint& c) { return c.kind == "external_weights"; });
  return all;
}

// The part of a list that the query asks for, and where it lies in the whole.
template <class T, class Render>
Json page_of(const HttpRequest& request, const char* name, const std::vector<T>& all, int64_t limit,
             Render&& render) {
  limit = query_number(request.target, "limit", limit, 1000);
  const int64_t offset = query_number(request.target, "offset", 0, INT32_MAX);
  Json list = Json::array();
  for (int64_t i = offset; i < std::min<int64_t>(offset + limit, static_cast<int64_t>(all.size())); ++i)
    list.push_back(render(all[static_cast<size_t>(i)]));
  return {{name, std::move(list)},
          {"cursor", {{"offset", offset}, {"limit", limit}, {"total_count", all.size()}}}};
}

}  // namespace

Json TinkerApi::run_to_json(const ModelEntry& model) const {
  Json out = {{"training_run_id", model.id},
              {"base_model", model.base_model},
              {"model_owner", model.owner},
              {"is_lora", true},
              {"corrupted", false},
              {"lora_rank", model.shape.rank},
              {"last_request_time", iso_time(std::max(model.created, core_.last_request(model.id)))}};
  if (!model.user_metadata.is_null()) out["user_metadata"] = model.user_metadata;
  for (const auto& checkpoint : store_.checkpoints_of(model.owner, model.id, core_.now())) {
    if (checkpoint.kind == "external_weights") continue;
    const char* key = checkpoint.kind == "weights" ? "last_checkpoint" : "last_sampler_checkpoint";
    if (!out.contains(key)) out[key] = checkpoint_to_json(checkpoint);
  }
  return out;
}

void TinkerApi::training_runs(Call& call) {
  call.respond(json_reply(page_of(call.request, "training_runs", store_.models_of(call.owner), 20,
                                  [&](const ModelEntry& model) { return run_to_json(model); })));
}

void TinkerApi::training_run(Call& call) {
  const auto model = store_.model(call.arguments[0], call.owner);
  if (!model) throw not_found("there is no such training run");
  call.respond(json_reply(run_to_json(*model)));
}

void TinkerApi::run_checkpoints(Call& call) {
  if (!store_.model(call.arguments[0], call.owner)) throw not_found("there is no such training run");
  call.respond(json_reply(
      page_of(call.request, "checkpoints",
              shown_to(call.request, store_.checkpoints_of(call.owner, call.arguments[0], core_.now())), 1000,
              checkpoint_to_json)));
}

void TinkerApi::all_checkpoints(Call& call) {
  call.respond(json_reply(page_of(call.request, "checkpoints",
                                  shown_to(call.request, store_.checkpoints_of(call.owner, "", core_.now())),
                                  100, checkpoint_to_json)));
}

std::string TinkerApi::checkpoint_path(const Call& call) const {
  return "tinker://" + call.arguments[0] + "/" + call.arguments[1] + "/" + call.arguments[2];
}

// It is gone at once; its bytes a moment later.
void TinkerApi::delete_checkpoint(Call& call) {
  if (!store_.set_expiry(checkpoint_path(call), call.owner, core_.now(), core_.now()))
    throw not_found("there is no such checkpoint");
  note(call, "checkpoint_delete", checkpoint_path(call));
  call.respond(no_content());
}

void TinkerApi::set_checkpoint_ttl(Call& call) {
  const int64_t ttl = int_or(call.body, "ttl_seconds", 0, 1, INT32_MAX);
  const auto expires = ttl > 0 ? std::optional(core_.now() + static_cast<double>(ttl)) : std::nullopt;
  if (!store_.set_expiry(checkpoint_path(call), call.owner, expires, core_.now()))
    throw not_found("there is no such checkpoint");
  note(call, "checkpoint_ttl_set", checkpoint_path(call), {{"ttl_seconds", ttl}});
  call.respond(no_content());
}

void TinkerApi::sessions(Call& call) {
  call.respond(json_reply(page_of(call.request, "sessions", store_.sessions_of(call.owner), 20,
                                  [](const Session& session) { return session.id; })));
}

void TinkerApi::get_session(Call& call) {
  const auto session = store_.session(call.arguments[0], call.owner);
  if (!session) throw not_found("there is no such session");
  Json runs = Json::array(), samplers = Json::array();
  for (const auto& model : store_.models_of(call.owner, session->id)) runs.push_back(model.id);
  for (const auto& sampler : store_.samplers_of(call.owner, session->id)) samplers.push_back(sampler.id);
  Json reply = {{"training_run_ids", runs}, {"sampler_ids", samplers}};
  for (const char* key : {"user_metadata", "display_name"}) {
    if (const Json* value = find(session->info, key)) reply[key] = *value;
  }
  call.respond(json_reply(reply));
}

}  // namespace twinkle::serve
