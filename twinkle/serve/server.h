// The server: store, core, API and HTTP put together. It answers /api/v1/healthz at once and accepts
// operations while the engine is still being loaded; /readyz says when they are carried out.
//
// Every request but those two, the page at / and downloads whose address is signed, needs a key, which is
// looked at before the body is read and before the path is; then what the key may do, and its limits.
// On a loopback address only loopback names, and those it is told, are accepted as Host, and pages of other
// origins are refused, so that no web page can use a server on the reader's machine.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/core/files.h"
#include "twinkle/serve/access_log.h"
#include "twinkle/serve/admin_api.h"
#include "twinkle/serve/admission.h"
#include "twinkle/serve/background.h"
#include "twinkle/serve/core.h"
#include "twinkle/serve/credentials.h"
#include "twinkle/serve/http.h"
#include "twinkle/serve/keys.h"
#include "twinkle/serve/tinker_api.h"

namespace twinkle::serve {

struct ServerOptions {
  std::string data_dir;
  HttpOptions http;
  CoreOptions core;  // data_dir is set from above
  TinkerOptions tinker;
  std::vector<std::string> api_keys;       // made known at the start
  KeyLimits limits;                        // of keys without their own
  std::string access_log;                  // a file, "-" for stderr, "" for none
  double session_timeout = 86400;          // seconds without a sign of life; 0: for ever
  std::string path_prefix;                 // "/twinkle": a proxy hands on paths with it, or without
  std::vector<std::string> allowed_hosts;  // names a Host header may have beside loopback's
  World world;                             // all its parts live in it
};

/// A route as people are told of it.
struct ServerRoute {
  std::string method, path;  // '*' stands for one part that varies
  std::string scope;         // what a key needs for it, "any": of any kind, "": none is needed
};
/// All that a server answers, whatever its options.
std::vector<ServerRoute> server_routes();

class Server {
 public:
  using MakeEngine = std::function<std::unique_ptr<Engine>()>;
  /// Opens the data folder (conflict when another server has it) and listens; the engine is made on a thread
  /// of its own.
  Server(ServerOptions options, MakeEngine make_engine);
  /// Stops listening, ends the pass under way, snapshots what it can.
  ~Server();
  int port() const { return http_->port(); }
  bool ready() const { return core_->started(); }
  /// Why the engine could not be made, "" while nothing is wrong.
  std::string engine_error() const;
  /// A key that was made because there was none, "" otherwise. It is kept nowhere.
  const std::string& new_key() const { return new_key_; }
  Store& store() { return store_; }
  Keys& keys() { return keys_; }
  Core& core() { return *core_; }

 private:
  std::optional<HttpReply> gate(HttpRequest& request);
  void handle(HttpRequest request, HttpServer::Respond respond);
  void answer(const HttpRequest& request, HttpServer::Respond respond);
  double now() const { return options_.world.clocks.wall(); }
  Credentials::Found credential_of(const HttpRequest& request) const;
  std::string without_prefix(const std::string& target) const;
  bool allows_host(std::string_view host) const;
  void follow_keys();
  void follow_sessions();
  void read_next();
  std::string_view route_of(const HttpRequest& request) const;
  void replied(const HttpDone& done);
  HttpReply health(std::string_view path) const;

  ServerOptions options_;
  FolderLock lock_;
  Store store_;
  Keys keys_;
  Credentials credentials_;
  Admission admission_;
  std::shared_ptr<Monitor> monitor_ = std::make_shared<Monitor>();
  HttpCounts http_counts_;
  std::unique_ptr<AccessLog> access_log_;
  std::string new_key_;
  std::unique_ptr<HttpServer> http_;  // outlives the core, whose waiters hold replies
  std::unique_ptr<Core> core_;
  std::unique_ptr<SessionKeeper> sessions_;
  std::unique_ptr<TinkerApi> tinker_;
  std::unique_ptr<AdminApi> admin_;
  std::atomic<bool> stopping_{false};
  std::vector<std::unique_ptr<Background>> readers_;                // of large bodies
  std::unique_ptr<Background> clerk_;                               // of what waits for the store's file
  std::mutex large_mutex_;                                          // guards the two below
  std::map<std::string, std::deque<std::function<void()>>> large_;  // bodies that wait, by key
  std::string last_reader_;                                         // whose was the last
  mutable std::mutex error_mutex_;
  std::string engine_error_;
  std::thread loader_;
};

}  // namespace twinkle::serve
