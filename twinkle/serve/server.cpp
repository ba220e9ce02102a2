#include "twinkle/serve/server.h"

#include <arpa/inet.h>

#include "twinkle/core/files.h"
#include "twinkle/serve/random_hex.h"
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

bool is_health(std::string_view path) {
  return path == "/healthz" || path == "/api/v1/healthz" || path == "/readyz" || path == "/api/v1/readyz";
}

// "host:port" and "http://host:port" without scheme and port.
std::string_view host_part(std::string_view text) {
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos)
    text.remove_prefix(scheme + 3);
  if (text.starts_with('[')) return text.substr(0, text.find(']') + 1);
  return text.substr(0, text.find(':'));
}

bool is_loopback(std::string_view host) {
  std::string name(host);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name == "localhost" || name == "localhost." || name == "[::1]" || name == "::1") return true;
  in_addr address{};  // not any name that begins like one
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A client whose token is stale gets another for its key by itself when it is told so.
HttpReply unknown_credential(bool stale) {
  HttpReply reply = tinker::error_reply(401, "Unable to validate credential");
  if (stale) reply.headers.emplace_back("www-authenticate", "Bearer error=\"invalid_token\"");
  return reply;
}

bool has_body(const HttpRequest& request) {
  const std::string_view length = request.header("content-length");
  return !request.header("transfer-encoding").empty() || !(length.empty() || length == "0");
}

}  // namespace

Server::Server(ServerOptions options, MakeEngine make_engine)
    : options_(std::move(options)),
      lock_(lock_folder(options_.data_dir)),
      store_(options_.data_dir + "/store.db", seconds_now()),
      credentials_(store_) {
  for (const auto& key : options_.api_keys) store_.add_key(key);
  if (!store_.has_keys()) {
    new_key_ = random_hex("tml-", 24);
    store_.add_key(new_key_);
  }
  options_.core.data_dir = options_.tinker.data_dir = options_.data_dir;
  core_ = std::make_unique<Core>(options_.core, store_);
  tinker_ = std::make_unique<TinkerApi>(*core_, store_, credentials_, options_.tinker,
                                        [this](std::chrono::milliseconds delay, std::function<void()> fn) {
                                          http_->after(delay, std::move(fn));
                                        });
  http_ = std::make_unique<HttpServer>(
      options_.http, [this](const HttpRequest& request) { return gate(request); },
      [this](const HttpRequest& request, HttpServer::Respond respond) {
        handle(request, std::move(respond));
      });
  http_->start();
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
  http_->stop();
  loader_.join();
  core_.reset();
}

std::string Server::engine_error() const {
  const std::lock_guard lock(error_mutex_);
  return engine_error_;
}

Credentials::Found Server::credential_of(const HttpRequest& request) const {
  std::string_view key = request.header("x-api-key");
  if (key.empty()) {
    key = request.header("authorization");
    if (!key.starts_with("Bearer ")) return {};
    key.remove_prefix(7);
  }
  return credentials_.find(key, core_->now());
}

std::optional<HttpReply> Server::gate(const HttpRequest& request) const {
  const std::string_view host = host_part(request.header("host"));
  if (is_loopback(options_.http.host) && !is_loopback(host))
    return tinker::error_reply(403, "this server is for its own machine: the Host header must name it");
  if (const auto origin = request.header("origin"); !origin.empty() && host_part(origin) != host)
    return tinker::error_reply(403, "pages of another origin can not use this server");
  if (is_health(request.path())) {  // without a key, so without a body
    if (request.method != "GET" && request.method != "HEAD")
      return tinker::error_reply(405, "this route takes GET");
    if (has_body(request)) return tinker::error_reply(413, "this route takes no body");
    return std::nullopt;
  }
  if (TinkerApi::is_download(request.path())) {  // its own signature opens it
    if (request.method != "GET" && request.method != "HEAD")
      return tinker::error_reply(405, "this route takes GET");
    if (has_body(request)) return tinker::error_reply(413, "this route takes no body");
    return std::nullopt;
  }
  const auto credential = credential_of(request);
  if (!credential.owner) return unknown_credential(credential.stale);
  switch (tinker_->refusal(request)) {
    case 404:
      return tinker::error_reply(404, "there is no such route");
    case 405:
      return tinker::error_reply(405, "this route does not take that method");
    default:
      return std::nullopt;
  }
}

HttpReply Server::health(std::string_view path) const {
  if (path.ends_with("healthz")) return {.body = R"({"status":"ok"})"};
  if (ready()) return {.body = R"({"status":"ready"})"};
  return {.status = 503, .body = R"({"status":"loading"})"};
}

void Server::handle(const HttpRequest& request, HttpServer::Respond respond) {
  if (is_health(request.path())) return respond(health(request.path()));
  if (TinkerApi::is_download(request.path())) return respond(tinker_->download(request));
  // The gate was passed with this very key; it may have been taken back since.
  const auto credential = credential_of(request);
  if (!credential.owner) return respond(unknown_credential(credential.stale));
  tinker_->handle(request, *credential.owner, std::move(respond));
}

}  // namespace twinkle::serve
