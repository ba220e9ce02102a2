#include "twinkle/serve/server.h"

#include <arpa/inet.h>

#include <algorithm>

#include "twinkle/core/files.h"
#include "twinkle/serve/limit_reply.h"
#include "twinkle/serve/live_page.h"
#include "twinkle/serve/tinker_replies.h"

namespace twinkle::serve {
namespace {

// A server that was killed a moment ago may not be quite gone.
FolderLock lock_folder(const std::string& folder) {
  make_directories(folder);
  for (int tries = 0;; ++tries) {
    try {
      return FolderLock(folder);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kConflict || tries == 50) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

constexpr std::string_view kHealthRoutes[] = {"/healthz", "/api/v1/healthz", "/readyz", "/api/v1/readyz"};

bool is_health(std::string_view path) {
  return std::ranges::find(kHealthRoutes, path) != std::end(kHealthRoutes);
}

struct Authority {
  std::string_view host, port;  // port "": none is said
};

// Of "host:port" and "scheme://host:port". What has another form is all host, which nobody is called.
Authority authority_of(std::string_view text) {
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos)
    text.remove_prefix(scheme + 3);
  const size_t end = text.starts_with('[') ? text.find(']') : 0;
  const size_t colon = end == std::string_view::npos ? end : text.find(':', end);
  if (colon == std::string_view::npos) return {.host = text, .port = ""};
  const std::string_view host = text.substr(0, colon), port = text.substr(colon + 1);
  const bool digits = std::ranges::all_of(port, [](unsigned char c) { return std::isdigit(c) != 0; });
  const bool plain = digits && (end == 0 || colon == end + 1);
  return plain ? Authority{.host = host, .port = port} : Authority{.host = text, .port = ""};
}

// Whether a page of this origin came from the server that was called by this Host. A proxy may leave the port
// out of it.
bool same_origin(std::string_view origin, std::string_view host) {
  const Authority from = authority_of(origin), called = authority_of(host);
  if (from.host != called.host) return false;
  const std::string_view usual = origin.starts_with("https:") ? "443" : "80";
  return called.port.empty() || (from.port.empty() ? usual : from.port) == called.port;
}

bool is_loopback(std::string_view host) {
  std::string name(host);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name == "localhost" || name == "localhost." || name == "[::1]" || name == "::1") return true;
  in_addr address{};  // not any name that begins like one
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

// What takes milliseconds to read must not keep the threads that answer all others. A compressed body may be
// ten thousand times its size.
bool takes_long(const HttpRequest& request) {
  constexpr size_t kLargeBody = 128 << 10;
  return request.body.size() > kLargeBody || !request.header("content-encoding").empty();
}

bool has_body(const HttpRequest& request) {
  const std::string_view length = request.header("content-length");
  return !request.header("transfer-encoding").empty() || !(length.empty() || length == "0");
}

// A client whose token is stale gets another for its key by itself when it is told so.
HttpReply unknown_credential(bool stale) {
  HttpReply reply = tinker::error_reply(401, "Unable to validate credential");
  if (stale) reply.headers.emplace_back("www-authenticate", "Bearer error=\"invalid_token\"");
  return reply;
}

}  // namespace

std::vector<ServerRoute> server_routes() {
  std::vector<ServerRoute> out;
  const auto add = [&](std::string_view method, std::string path, Scope scope) {
    std::string name(scope_name(scope));
    std::erase(name, '\'');
    out.push_back({std::string(method), std::move(path), std::move(name)});
  };
  out.push_back({"GET", "/", ""});
  out.push_back({"GET", std::string(Downloads::kPrefix) + "*/*", ""});
  for (const auto path : kHealthRoutes) out.push_back({"GET", std::string(path), ""});
  for (const auto path : AdminApi::kRoutes) add("GET", std::string(path), AdminApi::needed_scope(path));
  for (const auto& [method, path] : TinkerApi::routes())
    add(method, "/api/v1/" + std::string(path), needed_scope(method, path));
  return out;
}

Server::Server(ServerOptions options, MakeEngine make_engine)
    : options_(std::move(options)),
      lock_(lock_folder(options_.data_dir)),
      store_(options_.data_dir + "/store.db", options_.world),
      keys_(options_.data_dir + "/store.db", options_.world.disk),
      credentials_(store_, keys_),
      admission_(options_.limits, options_.http.max_body,
                 [this] { return seconds_since(options_.world.clocks, {}); }) {
  for (const auto& key : options_.api_keys) {
    try {
      keys_.add({}, now(), key);
    } catch (const Error& e) {  // it was revoked: the others are served
      if (e.kind() != ErrorKind::kConflict) throw;
      std::fprintf(stderr, "%s\n", e.what());
    }
  }
  if (keys_.empty()) new_key_ = keys_.add({.name = "first"}, now());
  if (!options_.access_log.empty()) access_log_ = std::make_unique<AccessLog>(options_.access_log);
  monitor_->on_sampled = [this](const std::string& owner, int64_t tokens) {
    admission_.spend_tokens(owner, tokens);
  };
  options_.core.world = options_.http.world = options_.world;
  options_.core.monitor = monitor_;
  options_.core.priority = [this](const std::string& owner) { return keys_.priority_of(owner, now()); };
  options_.core.session_seconds = options_.session_timeout > 0 ? options_.session_timeout : 1e18;
  options_.core.data_dir = options_.tinker.data_dir = options_.data_dir;
  options_.tinker.path_prefix = options_.path_prefix;
  if (!options_.http.tls_cert.empty()) options_.tinker.scheme = "https";
  core_ = std::make_unique<Core>(options_.core, store_);
  sessions_ = std::make_unique<SessionKeeper>(*core_, store_, options_.session_timeout);
  tinker_ = std::make_unique<TinkerApi>(*core_, store_, credentials_, admission_, *sessions_, options_.tinker,
                                        [this](std::chrono::milliseconds delay, std::function<void()> fn) {
                                          http_->after(delay, std::move(fn));
                                        });
  admin_ = std::make_unique<AdminApi>(
      AdminApi::Parts{.core = *core_,
                      .store = store_,
                      .keys = keys_,
                      .admission = admission_,
                      .monitor = *monitor_,
                      .http = http_counts_,
                      .model_name = options_.tinker.model_names.front(),
                      .connections = [this] { return http_->connections(); },
                      .lost_log_lines = [this] { return access_log_ ? access_log_->lost() : 0; }});
  options_.http.on_reply = [this](const HttpDone& done) { replied(done); };
  http_ = std::make_unique<HttpServer>(
      options_.http, [this](HttpRequest& request) { return gate(request); },
      [this](HttpRequest request, HttpServer::Respond respond) {
        handle(std::move(request), std::move(respond));
      });
  constexpr int kReaders = 2, kBehindOthers = 5;
  for (int i = 0; i < kReaders; ++i)
    readers_.push_back(std::make_unique<Background>("request", kBehindOthers));
  clerk_ = std::make_unique<Background>("store");
  http_->start();
  follow_keys();
  follow_sessions();
  loader_ = std::thread([this, make_engine = std::move(make_engine)] {
    try {
      core_->start(make_engine());
    } catch (const std::exception& e) {
      const std::lock_guard lock(error_mutex_);
      engine_error_ = e.what();
    }
  });
}

Server::~Server() {
  stopping_ = true;  // a body that waits to be read gets no answer any more, so it must have no effect
  http_->stop();
  loader_.join();
  readers_.clear();
  clerk_.reset();
  core_.reset();
}

std::string Server::engine_error() const {
  const std::lock_guard lock(error_mutex_);
  return engine_error_;
}

// What `twinkle-server keys` changes meanwhile.
void Server::follow_keys() {
  try {
    keys_.refresh();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "keys: %s\n", e.what());
  }
  http_->after(std::chrono::seconds(1), [this] { follow_keys(); });
}

void Server::follow_sessions() {
  if (clerk_->size() == 0) clerk_->add([this] { sessions_->sweep(); });  // or it has its turn later
  http_->after(std::chrono::seconds(1), [this] { follow_sessions(); });
}

Credentials::Found Server::credential_of(const HttpRequest& request) const {
  std::string_view key = request.header("x-api-key");
  if (key.empty()) {
    key = request.header("authorization");
    if (!key.starts_with("Bearer ")) return {};
    key.remove_prefix(7);
  }
  return credentials_.find(key, now());
}

std::optional<HttpReply> Server::gate(HttpRequest& request) {
  request.target = without_prefix(request.target);
  const std::string_view host = request.header("host");
  if (!allows_host(authority_of(host).host)) {
    return tinker::error_reply(
        403, "the Host header must name this machine, or what the server was told with --allowed-host");
  }
  if (const auto origin = request.header("origin"); !origin.empty() && !same_origin(origin, host))
    return tinker::error_reply(403, "pages of another origin can not use this server");
  // Without a key, so without a body; a download's own signature opens it.
  if (is_health(request.path()) || request.path() == "/" || TinkerApi::is_download(request.path())) {
    if (request.method != "GET" && request.method != "HEAD")
      return tinker::error_reply(405, "this route takes GET");
    if (has_body(request)) return tinker::error_reply(413, "this route takes no body");
    return std::nullopt;
  }
  const auto [key, stale] = credential_of(request);
  if (!key) return unknown_credential(stale);
  request.who = key->id;
  const std::string_view admin = AdminApi::route_of(request.path());
  if (!admin.empty() && request.method != "GET") return tinker::error_reply(405, "this route takes GET");
  switch (admin.empty() ? tinker_->refusal(request) : 0) {
    case 404:
      return tinker::error_reply(404, "there is no such route");
    case 405:
      return tinker::error_reply(405, "this route does not take that method");
    default:
      break;
  }
  const Scope scope = admin.empty() ? tinker_->needed_scope(request) : AdminApi::needed_scope(admin);
  if (!key->scopes.has(scope)) {
    return tinker::error_reply(
        403, "this key does not have the scope '" + std::string(scope_name(scope)) + "', which this needs");
  }
  if (const auto refused = admission_.enter(*key, request)) return limit_reply(*refused);
  return std::nullopt;
}

std::string Server::without_prefix(const std::string& target) const {
  const std::string& prefix = options_.path_prefix;
  if (prefix.empty() || !target.starts_with(prefix)) return target;
  if (target.size() == prefix.size()) return "/";
  return target[prefix.size()] == '/' ? target.substr(prefix.size()) : target;
}

bool Server::allows_host(std::string_view host) const {
  const auto& allowed = options_.allowed_hosts;
  if (allowed.empty() && !is_loopback(options_.http.host)) return true;
  const auto same = [&](const std::string& name) {
    return std::ranges::equal(
        name, host, [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  };
  return is_loopback(host) || std::ranges::any_of(allowed, same);
}

// What may stand in logs and metrics: no ids.
std::string_view Server::route_of(const HttpRequest& request) const {
  if (is_health(request.path()) || request.path() == "/") return request.path();
  if (TinkerApi::is_download(request.path())) return "download/*";
  const std::string_view admin = AdminApi::route_of(request.path());
  return admin.empty() ? tinker_->route_name(request) : admin;
}

void Server::replied(const HttpDone& done) {
  const HttpRequest request{.method = done.method, .target = without_prefix(done.target)};
  const std::string_view route = route_of(request);
  http_counts_.note(done.method, route, done.status, done.seconds);
  if (access_log_) access_log_->write(done, route, now());
}

HttpReply Server::health(std::string_view path) const {
  if (path.ends_with("healthz")) return {.body = R"({"status":"ok"})"};
  if (ready() && core_->disk_refuses())
    return {.status = 503, .body = R"({"status":"the disk takes nothing, so nothing is accepted"})"};
  if (ready()) return {.body = R"({"status":"ready"})"};
  return {.status = 503, .body = R"({"status":"loading"})"};
}

void Server::handle(HttpRequest request, HttpServer::Respond respond) {
  const bool large = takes_long(request);
  if (!large && !tinker_->waits_for_store(request)) return answer(request, std::move(respond));
  const std::string who = request.who;
  std::function<void()> later = [this, request = std::make_shared<HttpRequest>(std::move(request)),
                                 respond = std::move(respond)] {
    if (!stopping_) answer(*request, respond);
  };
  if (!large) return clerk_->add(std::move(later));
  {
    const std::lock_guard lock(large_mutex_);
    large_[who].push_back(std::move(later));
  }
  const auto idlest =
      std::ranges::min_element(readers_, {}, [](const auto& reader) { return reader->size(); });
  (*idlest)->add([this] { read_next(); });
}

// Keys have turns, so that who sends many does not keep the others waiting.
void Server::read_next() {
  std::function<void()> next;
  {
    const std::lock_guard lock(large_mutex_);
    auto turn = large_.upper_bound(last_reader_);
    if (turn == large_.end()) turn = large_.begin();
    next = std::move(turn->second.front());
    turn->second.pop_front();
    last_reader_ = turn->first;
    if (turn->second.empty()) large_.erase(turn);
  }
  next();
}

void Server::answer(const HttpRequest& request, HttpServer::Respond respond) {
  if (is_health(request.path())) return respond(health(request.path()));
  if (request.path() == "/") return respond(live_page_reply());
  if (TinkerApi::is_download(request.path())) return respond(tinker_->download(request));
  // The gate was passed with this very key; it may have been taken back since.
  const auto [key, stale] = credential_of(request);
  if (!key) return respond(unknown_credential(stale));
  if (const auto admin = AdminApi::route_of(request.path()); !admin.empty())
    return respond(admin_->handle(admin, *key));
  tinker_->handle(request, *key, std::move(respond));
}

}  // namespace twinkle::serve
