// The client side of the server's benches: many connections that each send a request, wait for the whole
// reply and send the next, all on the calling thread, so that the client costs the machine as little as it
// can and asks every server in the same way.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/timing.h"
#include "twinkle/core/error.h"

namespace twinkle::bench {

/// `rest` follows `begin`; many requests may share it.
struct Outgoing {
  std::string begin;
  std::shared_ptr<const std::string> rest;
};

struct Incoming {
  int status = 0;
  std::string_view body;
  double seconds = 0;  // from the first byte that was sent to the last that came
};

/// A POST of JSON or protobuf whose body is `body_begin` and `rest`; a GET when both are empty.
inline Outgoing http_request(const std::string& path, const std::string& key,
                             const std::string& body_begin = "",
                             std::shared_ptr<const std::string> rest = nullptr, bool proto = false) {
  const size_t size = body_begin.size() + (rest ? rest->size() : 0);
  std::string head = (size > 0 ? "POST " : "GET ") + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n";
  if (!key.empty()) head += "X-API-Key: " + key + "\r\n";
  if (size > 0) {
    head += std::string("Content-Type: application/") + (proto ? "x-protobuf" : "json") +
            "\r\nContent-Length: " + std::to_string(size) + "\r\n";
  }
  return {head + "\r\n" + body_begin, std::move(rest)};
}

/// The text of a member of a JSON reply, as servers write it; "" when there is none.
inline std::string text_of(std::string_view json, const std::string& name) {
  size_t at = json.find("\"" + name + "\"");
  if (at == std::string_view::npos) return "";
  at = json.find('"', json.find(':', at));
  if (at == std::string_view::npos) return "";
  return std::string(json.substr(at + 1, json.find('"', at + 1) - at - 1));
}

/// CPU seconds of this process.
inline double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/// "--name value" from argument `first` on; invalid_argument for anything else.
class Options {
 public:
  Options(int argc, char** argv, int first) {
    for (int i = first; i < argc; i += 2) {
      if (i + 1 == argc || !std::string_view(argv[i]).starts_with("--"))
        throw invalid_argument(std::string("[bench] expected --name value, got '") + argv[i] + "'");
      values_[argv[i]] = argv[i + 1];
    }
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }
  int64_t number(const std::string& name, int64_t otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : std::stoll(found->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

class HttpLoad {
 public:
  /// What a connection sends next; nothing: it is through.
  using Next = std::function<std::optional<Outgoing>(size_t connection)>;
  using Done = std::function<void(size_t connection, const Incoming& reply)>;

  /// To 127.0.0.1.
  HttpLoad(int port, size_t connections) : port_(port), all_(connections) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) fail("cannot wait for sockets");
  }
  ~HttpLoad() {
    for (const Connection& c : all_) {
      if (c.fd >= 0) ::close(c.fd);
    }
    ::close(epoll_);
  }
  HttpLoad(const HttpLoad&) = delete;
  HttpLoad& operator=(const HttpLoad&) = delete;

  /// Until every connection is through. unavailable when a server does not answer as HTTP has it.
  void run(const Next& next, const Done& done) {
    size_t busy = 0;
    for (size_t i = 0; i < all_.size(); ++i) busy += begin(i, next) ? 1 : 0;
    std::vector<epoll_event> events(256);
    while (busy > 0) {
      const int n = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
      if (n < 0 && errno != EINTR) fail("cannot wait for sockets");
      for (int e = 0; e < n; ++e) {
        const auto i = static_cast<size_t>(events[static_cast<size_t>(e)].data.u64);
        if (all_[i].left > 0) send(i);
        if (!receive(i)) continue;
        finish(i, done);
        if (!begin(i, next)) --busy;
      }
    }
  }

 private:
  struct Connection {
    int fd = -1;
    Outgoing out;
    size_t left = 0;  // of it
    std::string in;
    size_t head = 0, size = 0;  // of the reply: up to its body, and all of it; 0: not known yet
    bool waits_to_send = false, closes = false;
    Clock::time_point begin;
  };

  [[noreturn]] static void fail(const std::string& what) {
    throw unavailable("[load] " + what + ": " + std::strerror(errno));
  }

  void connect(size_t i) {
    Connection& c = all_[i];
    c.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port_))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (c.fd < 0 || ::connect(c.fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
      fail("cannot connect to port " + std::to_string(port_));
    const int on = 1;
    ::setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &event) != 0) fail("cannot wait for a socket");
    c.waits_to_send = c.closes = false;
  }

  bool begin(size_t i, const Next& next) {
    auto out = next(i);
    if (!out) return false;
    Connection& c = all_[i];
    if (c.fd < 0) connect(i);
    c.out = std::move(*out);
    c.left = c.out.begin.size() + (c.out.rest ? c.out.rest->size() : 0);
    c.begin = Clock::now();
    send(i);
    return true;
  }

  void send(size_t i) {
    Connection& c = all_[i];
    while (c.left > 0) {
      const size_t rest = c.out.rest ? c.out.rest->size() : 0;
      const size_t from_begin = c.left > rest ? c.left - rest : 0, from_rest = std::min(c.left, rest);
      std::array<iovec, 2> parts{};
      size_t count = 0;
      if (from_begin > 0) parts[count++] = {c.out.begin.data() + c.out.begin.size() - from_begin, from_begin};
      if (from_rest > 0)
        parts[count++] = {const_cast<char*>(c.out.rest->data()) + rest - from_rest, from_rest};
      msghdr message{.msg_iov = parts.data(), .msg_iovlen = count};
      const ssize_t n = ::sendmsg(c.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (n < 0) {  // refused: the reply says why
        c.left = 0;
        break;
      }
      c.left -= static_cast<size_t>(n);
    }
    if (c.waits_to_send == (c.left > 0)) return;
    c.waits_to_send = c.left > 0;
    epoll_event event{.events = EPOLLIN | (c.waits_to_send ? uint32_t{EPOLLOUT} : 0), .data = {.u64 = i}};
    if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, c.fd, &event) != 0) fail("cannot wait for a socket");
  }

  // Whether the whole reply is there.
  bool receive(size_t i) {
    Connection& c = all_[i];
    std::array<char, 16384> piece;
    for (;;) {
      const ssize_t n = ::recv(c.fd, piece.data(), piece.size(), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (n <= 0) {
        if (n == 0) errno = ECONNRESET;
        fail("the server ended a connection");
      }
      c.in.append(piece.data(), static_cast<size_t>(n));
      if (c.size == 0) read_head(c);
      if (c.size > 0 && c.in.size() >= c.size) return true;
    }
  }

  static void read_head(Connection& c) {
    const size_t end = c.in.find("\r\n\r\n");
    if (end == std::string::npos) return;
    std::string head = c.in.substr(0, end);
    for (char& x : head) x = static_cast<char>(std::tolower(static_cast<unsigned char>(x)));
    constexpr std::string_view kLength = "\r\ncontent-length:";
    size_t length = 0;
    if (size_t at = head.find(kLength); at != std::string::npos) {
      at = head.find_first_not_of(' ', at + kLength.size());
      std::from_chars(head.data() + at, head.data() + head.size(), length);
    }
    c.closes = head.find("\r\nconnection: close") != std::string::npos;
    c.head = end + 4;
    c.size = c.head + length;
  }

  void finish(size_t i, const Done& done) {
    Connection& c = all_[i];
    Incoming reply{.seconds = seconds_since(c.begin)};
    const std::string_view all = c.in;
    std::from_chars(all.data() + std::min<size_t>(9, all.size()), all.data() + all.size(), reply.status);
    reply.body = all.substr(c.head, c.size - c.head);
    done(i, reply);
    c.in.clear();
    c.head = c.size = c.left = 0;
    if (!c.closes) return;
    ::close(c.fd);
    c.fd = -1;
  }

  int port_, epoll_ = -1;
  std::vector<Connection> all_;
};

}  // namespace twinkle::bench
