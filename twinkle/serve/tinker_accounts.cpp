// The routes of the Tinker API about who asks and what they have used: tokens, keys, projects, sessions
// found, the audit log, usage.
#include <algorithm>

#include "twinkle/core/files.h"
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_requests.h"
#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve {
namespace {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

constexpr double kHour = 3600, kDay = 24 * kHour;
constexpr const char* kNoProject = "default";

std::string project_of(const Session& session) {
  const Json* project = find(session.info, "project_id");
  return project != nullptr && project->is_string() ? project->get<std::string>() : kNoProject;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Every word of the wanted name in any order.
bool has_words(const std::string& name, const std::string& wanted) {
  const std::string text = lower(name), words = lower(wanted);
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    if (text.find(words.substr(at, end - at)) == std::string::npos) return false;
    at = end + 1;
  }
  return true;
}

bool has_status(const Session& session, const Json& wanted) {
  const std::string type = text_or(wanted, "type", "");
  if (type == "active") return session.finished.empty();
  if (type != "client_finished" || session.finished.empty()) return false;
  const Json* reasons = find(wanted, "reasons");
  return reasons == nullptr || std::ranges::find(*reasons, Json(session.finished)) != reasons->end();
}

bool is_wanted(const Session& session, const Json& query) {
  const std::string id = text_or(query, "session_id", ""), name = text_or(query, "display_name", "");
  const bool by_id = !id.empty() && session.id == id;
  const bool by_name = !name.empty() && has_words(text_or(session.info, "display_name", ""), name);
  if ((!id.empty() || !name.empty()) && !by_id && !by_name) return false;
  if (const Json* projects = find(query, "project_ids");
      projects != nullptr && std::ranges::find(*projects, Json(project_of(session))) == projects->end())
    return false;
  if (const Json* statuses = find(query, "statuses");
      statuses != nullptr &&
      std::ranges::none_of(*statuses, [&](const Json& one) { return has_status(session, one); }))
    return false;
  if (const Json* metadata = find(query, "user_metadata")) {
    const Json* own = find(session.info, "user_metadata");
    for (const auto& [key, value] : metadata->items()) {
      if (own == nullptr || !own->is_object() || !own->contains(key) || (*own)[key] != value) return false;
    }
  }
  return true;
}

}  // namespace

std::span<const TinkerApi::Entry> TinkerApi::account_routes() {
  static const Entry entries[] = {{"POST", "auth/token", &TinkerApi::auth_token},
                                  {"GET", "auth/apikey/me", &TinkerApi::own_key},
                                  {"DELETE", "auth/apikey/me", &TinkerApi::delete_own_key},
                                  {"PUT", "sessions/*/project", &TinkerApi::session_project, kStoreFile},
                                  {"POST", "sessions/search", &TinkerApi::search_sessions},
                                  {"GET", "sessions/*/trace_export", &TinkerApi::trace_export},
                                  {"GET", "audit", &TinkerApi::audit, kStoreFile},
                                  {"GET", "billing/usage/events", &TinkerApi::usage_events, kStoreFile},
                                  {"GET", "billing/usage/checkpoints/current", &TinkerApi::storage_usage}};
  return entries;
}

// Who.

// Also for who shows a token that still holds: another for as long.
void TinkerApi::auth_token(Call& call) {
  call.respond(json_reply({{"jwt", credentials_.token_for(call.key, core_.now(), options_.token_seconds)}}));
}

void TinkerApi::own_key(Call& call) {
  const std::string hash = sha256_hex(call.owner);
  call.respond(
      json_reply({{"key_id", std::stoll(hash.substr(0, 7), nullptr, 16)},
                  {"name", call.owner},
                  {"note", ""},
                  {"details", {{"org_details", {{"name", "twinkle"}}}, {"user_details", {{"email", ""}}}}}}));
}

void TinkerApi::delete_own_key(Call& call) {
  call.respond(error_reply(403, "keys of this server are taken back by who runs it: twinkle-server keys"));
}

// Sessions.

void TinkerApi::session_project(Call& call) {
  const std::string& session = call.arguments[0];
  if (!store_.session(session, call.owner)) throw not_found("there is no such session");
  const std::string project = need_text(call.body, "project_id");
  if (project.size() > 256) throw invalid_argument("'project_id' is longer than 256 bytes");
  store_.set_project(session, call.owner, project);
  note(call, "session_project_set", "", {{"session_id", session}, {"project_id", project}});
  call.respond(no_content());
}

void TinkerApi::search_sessions(Call& call) {
  const int64_t limit = int_or(call.body, "limit", 50, 1, 200);
  std::vector<Session> found = store_.sessions_of(call.owner);
  if (const Json* owner = find(call.body, "owner");
      owner != nullptr && text_or(*owner, "type", "") == "user") {
    const Json* who = find(*owner, "owner_urns");
    if (who == nullptr || std::ranges::find(*who, Json(call.owner)) == who->end()) found.clear();
  }
  std::ranges::sort(found, [](const Session& a, const Session& b) {
    return a.created != b.created ? a.created > b.created : a.id > b.id;
  });
  // The cursor tells a time in whole seconds and the name; the name alone places it.
  auto at = found.begin();
  if (const Json* cursor = find(call.body, "cursor")) {
    const std::string last = need_text(*cursor, "last_session_id");
    at = std::ranges::find(found, last, &Session::id);
    if (at == found.end()) throw invalid_argument("'cursor' is not one of an earlier reply");
    ++at;
  }
  Json list = Json::array(), next = nullptr;
  for (; at != found.end(); ++at) {
    if (!is_wanted(*at, call.body)) continue;
    if (static_cast<int64_t>(list.size()) == limit) {
      const Json& last = list.back();
      next = {{"last_created_at", last["created_at"]}, {"last_session_id", last["session_id"]}};
      break;
    }
    int64_t checkpoints = 0, bytes = 0;
    for (const auto& model : store_.models_of(call.owner, at->id)) {
      for (const auto& checkpoint : store_.checkpoints_of(call.owner, model.id, core_.now())) {
        ++checkpoints;
        bytes += checkpoint.bytes;
      }
    }
    Json status = {{"type", "active"}};
    if (!at->finished.empty()) status = {{"type", "client_finished"}, {"reason", {{"type", at->finished}}}};
    Json one = {{"session_id", at->id},
                {"created_at", iso_time(at->created)},
                {"owner", at->owner},
                {"project_id", project_of(*at)},
                {"status", status},
                {"checkpoints_count", checkpoints},
                {"checkpoint_storage_bytes", bytes}};
    for (const char* key : {"user_metadata", "display_name"}) {
      if (const Json* value = find(at->info, key)) one[key] = *value;
    }
    list.push_back(std::move(one));
  }
  Json reply = {{"sessions", std::move(list)}};
  if (!next.is_null()) reply["next_cursor"] = std::move(next);
  call.respond(json_reply(reply));
}

void TinkerApi::trace_export(Call& call) {
  if (!store_.session(call.arguments[0], call.owner)) throw not_found("there is no such session");
  call.respond(json_reply({{"status", "failed"}, {"error", "this server keeps no traces of sessions"}}));
}

// What was done and used.

// What was done is done, whether it can be noted or not.
void TinkerApi::note(const Call& call, const char* event, const std::string& path, Json details) {
  if (!path.empty()) {
    details["tinker_path"] = path;
    details["model_id"] = path.substr(9, path.find('/', 9) - 9);
  }
  details["actor"] = call.owner;
  try {
    store_.note(call.owner, event, details, core_.now());
  } catch (const Error& e) {
    std::fprintf(stderr, "audit: %s\n", e.what());
  }
}

void TinkerApi::audit(Call& call) {
  const std::string type = query_text(call.request.target, "event_type").value_or("all");
  const std::string prefix = type == "all" ? "" : type == "checkpoints" ? "checkpoint_" : type;
  double from = 0, to = core_.now() + kDay;
  if (const auto day = query_text(call.request.target, "day")) {
    from = seconds_of(*day);
    to = from + kDay;
  }
  Json entries = Json::array();
  for (const auto& noted : store_.notes_of(call.owner, prefix, from, to)) {
    Json entry = {
        {"timestamp", iso_time(noted.time)}, {"event", noted.event}, {"event_details", noted.details}};
    for (const char* key : {"model_id", "tinker_path", "purpose"}) {
      if (const Json* value = find(noted.details, key)) entry[key] = *value;
    }
    entries.push_back(std::move(entry));
  }
  call.respond(json_reply({{"entries", std::move(entries)}}));
}

void TinkerApi::storage_usage(Call& call) {
  const auto wanted = query_text(call.request.target, "project_id");
  struct Sum {
    int64_t count = 0, bytes = 0;
  };
  std::map<std::string, Sum> by_project;
  for (const auto& checkpoint : store_.checkpoints_of(call.owner, "", core_.now())) {
    const auto model = store_.model(checkpoint.run, call.owner);
    std::string project = kNoProject;
    if (model && find(model->user_metadata, "project_id") != nullptr && model->session.empty())
      project = text_or(model->user_metadata, "project_id", kNoProject);
    if (const auto session = model ? store_.session(model->session, call.owner) : std::nullopt)
      project = project_of(*session);
    if (wanted && *wanted != project) continue;
    Sum& sum = by_project[project];
    ++sum.count;
    sum.bytes += checkpoint.bytes;
  }
  Json data = Json::array();
  for (const auto& [project, sum] : by_project) {
    data.push_back({{"project_id", project},
                    {"org_user_urn", call.owner},
                    {"checkpoint_count", sum.count},
                    {"size_bytes", sum.bytes},
                    {"size_gigabytes", static_cast<double>(sum.bytes) / 1e9}});
  }
  call.respond(json_reply({{"data", std::move(data)}}));
}

void TinkerApi::usage_events(Call& call) {
  const double from = seconds_of(query_text(call.request.target, "starting_on").value_or(""));
  const double to = seconds_of(query_text(call.request.target, "ending_before").value_or(""));
  if (std::fmod(from, kHour) != 0 || std::fmod(to, kHour) != 0 || to < from || to - from > 14 * kDay)
    throw invalid_argument("'starting_on' and 'ending_before' must be whole hours, at most 14 days apart");
  Json data = Json::array(), sessions = Json::object();
  for (const auto& used : store_.usage_of(call.owner, from, to)) {
    Json info = {{"type", used.kind}};
    info[used.kind == "checkpoint" ? "count" : "token_count"] = used.count;
    if (used.kind == "sampling_prefill") info["cached"] = false;
    Json event = {{"bucket_start", iso_time(used.hour)}, {"bucket_end", iso_time(used.hour + kHour)},
                  {"base_model", used.base_model},       {"user_id", call.owner},
                  {"session_id", used.session},          {"event_info", std::move(info)}};
    if (const auto session = store_.session(used.session, call.owner)) {
      event["project_id"] = project_of(*session);
      Json entry = Json::object();
      if (const Json* metadata = find(session->info, "user_metadata")) entry["user_metadata"] = *metadata;
      sessions[used.session] = std::move(entry);
    }
    data.push_back(std::move(event));
  }
  call.respond(json_reply({{"data", std::move(data)}, {"sessions", std::move(sessions)}}));
}

}  // namespace twinkle::serve
