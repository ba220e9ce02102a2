// An HTTP/1.1 server, over TLS or plain, in the shape the APIs need: a gate that looks at the head of a
// request before its body is read, a handler that may answer later from any thread, and timers. The library
// behind it (Boost.Beast) shows in http.cpp only.
//
// Bounded before work is done: heads, bodies, the bytes of all bodies together, open connections, and the
// time a head, a body or a slow reader may take. A reply is one write, without Nagle's delay; one with a
// source is sent piece by piece, however long it is.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/serve/world.h"

namespace twinkle::serve {

struct HttpRequest {
  std::string method, target;  // target: path and query, as sent
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // The gate's: who sends it, for the log, and what is let go when the reply has been written.
  std::string who;
  std::shared_ptr<void> held;
  std::shared_ptr<void> body_share;  // what the body takes of max_bodies; given back when the request goes
  /// The first header of that name, whatever its case; "" when there is none.
  std::string_view header(std::string_view name) const;
  /// The target up to '?'.
  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
};

/// A body that is made while it is sent. Called from one thread at a time, not always the same.
class BodySource {
 public:
  virtual ~BodySource() = default;
  virtual int64_t size_bytes() const = 0;
  /// At most `most` bytes to `to`; 0 before the end ends the connection: the client sees that it is cut off.
  virtual size_t read(char* to, size_t most) = 0;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::shared_ptr<BodySource> source;  // instead of `body`
};

/// A request that was answered, as an access log tells it: nothing of its content.
struct HttpDone {
  std::string method, target, who;
  int status = 0;
  int64_t bytes_in = 0, bytes_out = 0;  // of the bodies
  double seconds = 0;                   // from the head to the reply
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any
  int threads = 2;
  int64_t max_body = 256 << 20;
  // Bytes of all bodies until their requests are let go; bodies of at most 16 KiB are not counted.
  int64_t max_bodies = int64_t{1} << 30;
  int64_t max_head = 32 << 10;
  int64_t max_connections = 10000;
  std::chrono::seconds head_timeout{30}, body_timeout{120}, idle_timeout{120}, write_timeout{60};
  std::string tls_cert, tls_key;                  // PEM files: the chain and its key; "": plain HTTP
  std::function<void(const HttpDone&)> on_reply;  // from the server's threads; null: nobody asks
  World world;
};

class HttpServer {
 public:
  using Respond = std::function<void(HttpReply)>;  // once, from any thread
  /// Called with the head alone; a reply ends the request there.
  using Gate = std::function<std::optional<HttpReply>(HttpRequest&)>;
  using Handler = std::function<void(HttpRequest, Respond)>;

  /// Binds the address: unavailable when it can not. Nothing is read before start().
  HttpServer(HttpOptions options, Gate gate, Handler handler);
  /// Stops. Whoever holds a Respond must have let go of it.
  ~HttpServer();
  void start();
  int port() const;  // 0 where there are none
  int64_t connections() const;
  /// Runs `fn` on a thread of the server.
  void after(std::chrono::milliseconds delay, std::function<void()> fn);
  /// Ends the threads; nothing is called any more.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinkle::serve
