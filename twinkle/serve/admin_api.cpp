#include "twinkle/serve/admin_api.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "twinkle/serve/metrics_text.h"
#include "twinkle/serve/tinker_replies.h"

namespace twinkle::serve {
namespace {

// Bytes of this process that are in memory.
int64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long long size = 0, resident = 0;
  if (std::fscanf(file, "%lld %lld", &size, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * ::sysconf(_SC_PAGESIZE);
}

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double fill_of(const EngineCounts& engine) {
  return ratio(static_cast<double>(engine.train_tokens),
               static_cast<double>(engine.train_passes * engine.tokens_per_pass));
}

}  // namespace

AdminApi::AdminApi(Parts parts) : parts_(std::move(parts)), started_(parts_.core.now()) {}

std::string_view AdminApi::route_of(std::string_view path) {
  for (const std::string_view route : kRoutes) {
    if (path == route) return route;
  }
  return "";
}

Scope AdminApi::needed_scope(std::string_view route) {
  return route == "/api/v1/live" ? Scope::kAny : Scope::kAdmin;
}

HttpReply AdminApi::handle(std::string_view route, const KeyEntry& key) const {
  if (route == "/metrics")
    return {.body = metrics(), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  if (route == "/api/v1/status") return tinker::json_reply(status());
  return tinker::json_reply(live(key.scopes.has(Scope::kAdmin) ? "" : key.owner));
}

std::map<std::string, std::string> AdminApi::owner_names() const {
  auto keys = parts_.keys.list();
  std::ranges::stable_sort(keys, {}, &KeyEntry::created);
  std::map<std::string, std::string> out;
  for (const auto& key : keys) out.emplace(key.owner, key.name);
  return out;
}

std::string AdminApi::metrics() const {
  const Core::Counts counts = parts_.core.counts();
  const Monitor::View view = parts_.monitor.view();
  const EngineCounts& engine = view.engine;
  const auto owners = owner_names();
  const auto name_of = [&](const std::string& owner) {
    const auto found = owners.find(owner);
    return found == owners.end() ? owner : found->second;
  };
  MetricsText out;
  const auto one = [&](const char* name, const char* type, const char* help, double value) {
    out.family(name, type, help).sample(value);
  };
  one("twinkle_ready", "gauge", "1 when operations are carried out.", parts_.core.started() ? 1 : 0);
  one("process_start_time_seconds", "gauge", "When the server began, in seconds since 1970.", started_);
  one("process_resident_memory_bytes", "gauge", "Memory of the process.",
      static_cast<double>(resident_bytes()));

  const HttpCounts::View http = parts_.http.view();
  out.family("twinkle_http_requests_total", "counter", "Requests that were answered.");
  for (const auto& [key, count] : http.requests) {
    const auto& [method, route, status] = key;
    out.sample(static_cast<double>(count),
               {{"method", method}, {"route", route}, {"status", std::to_string(status)}});
  }
  out.family("twinkle_http_request_seconds", "histogram", "From the head of a request to its reply.");
  for (const auto& [route, times] : http.times) {
    for (size_t i = 0; i < times.within.size(); ++i) {
      char bound[16];
      std::snprintf(bound, sizeof(bound), "%g", HttpCounts::kBounds[i]);
      out.sample(static_cast<double>(times.within[i]), {{"route", route}, {"le", bound}}, "_bucket");
    }
    out.sample(static_cast<double>(times.count), {{"route", route}, {"le", "+Inf"}}, "_bucket");
    out.sample(times.sum, {{"route", route}}, "_sum");
    out.sample(static_cast<double>(times.count), {{"route", route}}, "_count");
  }
  one("twinkle_http_connections", "gauge", "Connections that are open.",
      static_cast<double>(parts_.connections()));
  one("twinkle_access_log_lost_lines_total", "counter", "Lines of the access log that were not written.",
      static_cast<double>(parts_.lost_log_lines()));

  out.family("twinkle_queue_operations", "gauge", "Operations that are accepted and not finished, by owner.");
  for (const auto& [owner, waiting] : counts.waiting_of)
    out.sample(static_cast<double>(waiting), {{"owner", name_of(owner)}});
  out.family("twinkle_operations_total", "counter", "Operations that were finished.");
  for (const auto& [key, count] : view.operations)
    out.sample(static_cast<double>(count), {{"kind", key.first}, {"outcome", key.second}});
  out.family("twinkle_turns_total", "counter", "Turns of training and of sampling.");
  out.sample(static_cast<double>(view.training.turns), {{"kind", "train"}});
  out.sample(static_cast<double>(view.sampling.turns), {{"kind", "sample"}});
  out.family("twinkle_turn_seconds_total", "counter", "Time of these turns.");
  out.sample(view.training.seconds, {{"kind", "train"}}).sample(view.sampling.seconds, {{"kind", "sample"}});
  out.family("twinkle_passes_total", "counter", "Passes through the base model.");
  out.sample(static_cast<double>(engine.train_passes), {{"kind", "train"}});
  out.sample(static_cast<double>(engine.sample_passes), {{"kind", "sample"}});
  out.family("twinkle_tokens_total", "counter", "Tokens that went through the base model.");
  out.sample(static_cast<double>(engine.train_tokens), {{"kind", "train"}});
  out.sample(static_cast<double>(engine.computed_tokens), {{"kind", "sample"}});
  one("twinkle_pass_fill_ratio", "gauge", "Tokens of training passes, of the most that fit.",
      fill_of(engine));
  one("twinkle_log_bytes", "gauge", "Size of the write-ahead log.", static_cast<double>(counts.log_bytes));
  one("twinkle_log_pending_records", "gauge", "Records that are not durable yet.",
      static_cast<double>(counts.log_pending));
  one("twinkle_snapshots_total", "counter", "Snapshots of models.", static_cast<double>(counts.snapshots));
  one("twinkle_results", "gauge", "Results that are kept.", static_cast<double>(counts.results));
  one("twinkle_models", "gauge", "Models in training.", static_cast<double>(counts.models));
  one("twinkle_models_in_memory", "gauge", "Of these, those with the engine.",
      static_cast<double>(engine.models_in_memory));
  one("twinkle_cache_blocks", "gauge", "Blocks of the cache of keys and values.",
      static_cast<double>(engine.cache_blocks));
  one("twinkle_cache_blocks_used", "gauge", "Of these, those that answers use now.",
      static_cast<double>(engine.cache_used));
  one("twinkle_cache_lookups_total", "counter", "Prompts that were looked for in the cache.",
      static_cast<double>(engine.cache_lookups));
  one("twinkle_cache_hit_tokens_total", "counter", "Tokens of prompts that were found there.",
      static_cast<double>(engine.cache_hit_tokens));

  out.family("twinkle_key_requests_total", "counter", "Requests of a key.");
  const auto usage = parts_.admission.usage();
  for (const auto& key : usage)
    out.sample(static_cast<double>(key.requests), {{"key", key.id}, {"name", key.name}});
  out.family("twinkle_key_refused_total", "counter", "Of these, those over a limit.");
  for (const auto& key : usage)
    out.sample(static_cast<double>(key.refused), {{"key", key.id}, {"name", key.name}});
  out.family("twinkle_key_bytes_total", "counter", "Bytes of a key's bodies.");
  for (const auto& key : usage)
    out.sample(static_cast<double>(key.bytes), {{"key", key.id}, {"name", key.name}});
  out.family("twinkle_owner_tokens_total", "counter", "Tokens of an owner.");
  for (const auto& [owner, used] : view.usage) {
    const std::string name = name_of(owner);
    out.sample(static_cast<double>(used.trained), {{"owner", name}, {"kind", "trained"}});
    out.sample(static_cast<double>(used.scored), {{"owner", name}, {"kind", "scored"}});
    out.sample(static_cast<double>(used.prompts), {{"owner", name}, {"kind", "prompt"}});
    out.sample(static_cast<double>(used.sampled), {{"owner", name}, {"kind", "sampled"}});
  }
  return out.text();
}

Json AdminApi::status() const {
  const Core::Counts counts = parts_.core.counts();
  const Monitor::View view = parts_.monitor.view();
  const EngineCounts& engine = view.engine;
  const auto names = owner_names();
  Json owners = Json::array();
  for (const auto& [owner, name] : names) {
    int64_t bytes = 0;
    const auto checkpoints = parts_.store.checkpoints_of(owner, "", now());
    for (const auto& checkpoint : checkpoints) bytes += checkpoint.bytes;
    const auto used = view.usage.find(owner);
    const Monitor::Usage usage = used == view.usage.end() ? Monitor::Usage{} : used->second;
    const auto waiting = counts.waiting_of.find(owner);
    owners.push_back({{"name", name},
                      {"models", parts_.store.models_of(owner).size()},
                      {"checkpoints", checkpoints.size()},
                      {"checkpoint_bytes", bytes},
                      {"waiting", waiting == counts.waiting_of.end() ? 0 : waiting->second},
                      {"tokens_trained", usage.trained},
                      {"tokens_sampled", usage.sampled}});
  }
  return {{"ready", parts_.core.started()},
          {"model", parts_.model_name},
          {"uptime_seconds", now() - started_},
          {"memory_bytes", resident_bytes()},
          {"connections", parts_.connections()},
          {"queue", {{"operations", counts.waiting}, {"samples", counts.samples}}},
          {"models", {{"training", counts.models}, {"in_memory", engine.models_in_memory}}},
          {"log", {{"bytes", counts.log_bytes}, {"pending", counts.log_pending}}},
          {"passes",
           {{"train", engine.train_passes}, {"sample", engine.sample_passes}, {"fill", fill_of(engine)}}},
          {"cache",
           {{"blocks", engine.cache_blocks},
            {"used", engine.cache_used},
            {"hit_tokens", engine.cache_hit_tokens}}},
          {"owners", owners}};
}

Json AdminApi::live(const std::string& owner) const {
  const Core::Counts counts = parts_.core.counts();
  const Monitor::View view = parts_.monitor.view();
  const EngineCounts& engine = view.engine;
  const auto names = owner_names();
  std::vector<Json> models;
  for (const auto& [of, name] : names) {
    if (!owner.empty() && of != owner) continue;
    for (const auto& model : parts_.store.models_of(of)) {
      Json points = Json::array();
      if (const auto curve = view.curves.find(model.id); curve != view.curves.end()) {
        for (const auto& point : curve->second.points)
          points.push_back({point.step, point.loss, point.grad_norm});
      }
      models.push_back({{"id", model.id},
                        {"owner", name},
                        {"rank", model.shape.rank},
                        {"last_request", std::max(model.created, parts_.core.last_request(model.id))},
                        {"points", std::move(points)}});
    }
  }
  std::ranges::stable_sort(models, std::greater(),
                           [](const Json& m) { return m.at("last_request").get<double>(); });
  if (models.size() > 24) models.resize(24);
  Json passes = Json::array();
  const bool all = view.passes.size() < Monitor::kMostPasses;
  const double from = std::max(now() - 60, all ? 0 : view.passes.front().begin);
  for (const auto& pass : view.passes) {
    if (pass.begin + pass.seconds < from) continue;
    passes.push_back({{"begin", pass.begin},
                      {"seconds", pass.seconds},
                      {"kind", pass.training ? "train" : "sample"},
                      {"models", pass.models},
                      {"operations", pass.operations},
                      {"tokens", pass.tokens}});
  }
  Json queue = Json::array();
  for (const auto& [of, waiting] : counts.waiting_of) {
    if (!owner.empty() && of != owner) continue;
    const auto name = names.find(of);
    queue.push_back({{"owner", name == names.end() ? of : name->second}, {"operations", waiting}});
  }
  return {{"now", now()},
          {"ready", parts_.core.started()},
          {"model", parts_.model_name},
          {"everybody", owner.empty()},
          {"models", models},
          {"queue", queue},
          {"passes", passes},
          {"passes_since", from},
          {"samplers",
           {{"running", engine.samples_running},
            {"waiting", engine.samples_waiting + counts.samples},
            {"cache_blocks", engine.cache_blocks},
            {"cache_used", engine.cache_used},
            {"cache_hit_tokens", engine.cache_hit_tokens}}},
          {"totals",
           {{"train_tokens", engine.train_tokens},
            {"sampled_tokens", engine.sampled_tokens},
            {"fill", fill_of(engine)},
            {"models", counts.models},
            {"models_in_memory", engine.models_in_memory}}},
          {"memory_bytes", resident_bytes()}};
}

}  // namespace twinkle::serve
