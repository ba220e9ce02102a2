#include "twinkle/serve/http.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <mutex>
#include <set>
#include <thread>

#include "twinkle/core/error.h"

namespace twinkle::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

constexpr int64_t kSmallBody = 16 << 10;  // 10,000 connections may each have one
constexpr size_t kPiece = 256 << 10;      // of a body that is made while it is sent
constexpr size_t kReadPiece = 64 << 10;   // of a body that is read
constexpr int kAcceptsInARow = 64;
constexpr std::chrono::milliseconds kAcceptPause{50};

asio::ssl::context tls_context(const HttpOptions& options) {
  asio::ssl::context context(asio::ssl::context::tls_server);
  context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                      asio::ssl::context::no_tlsv1_1);
  const auto use = [](const char* option, const std::string& file, auto&& read) {
    try {
      read();
    } catch (const boost::system::system_error& e) {
      throw invalid_argument("[" + std::string(option) + "] cannot use '" + file +
                             "': " + e.code().message());
    }
  };
  use("tls_cert", options.tls_cert, [&] { context.use_certificate_chain_file(options.tls_cert); });
  use("tls_key", options.tls_key,
      [&] { context.use_private_key_file(options.tls_key, asio::ssl::context::pem); });
  return context;
}

HttpReply plain_error(int status, const char* detail) {
  return {.status = status, .body = std::string(R"({"detail":")") + detail + "\"}"};
}

}  // namespace

// Bytes that all connections share.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t most) : left_(most) {}
  bool take(int64_t bytes) {
    int64_t left = left_;
    while (left >= bytes) {
      if (left_.compare_exchange_weak(left, left - bytes)) return true;
    }
    return false;
  }
  void give(int64_t bytes) { left_ += bytes; }

 private:
  std::atomic<int64_t> left_;
};

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (same_name(key, name)) return value;
  }
  return {};
}

struct HttpServer::Impl {
  Impl(HttpOptions o, Gate g, Handler h)
      : options(std::move(o)),
        gate(std::move(g)),
        handler(std::move(h)),
        bodies(options.max_bodies),
        context(options.threads) {}
  void accept();
  void take(int fd);
  void wake_at(Clock::time_point until, std::function<void()> fn);

  HttpOptions options;
  Gate gate;
  Handler handler;
  BodyBudget bodies;
  std::atomic<int64_t> connections{0};
  std::atomic<bool> stopping{false};
  asio::io_context context;  // its connections use the above
  std::optional<asio::ssl::context> tls;
  asio::posix::stream_descriptor listener{context};
  std::vector<std::thread> threads;
};

namespace {

using Plain = beast::tcp_stream;
using Tls = asio::ssl::stream<beast::tcp_stream>;

// One connection; all of it runs on its strand.
template <class Stream>
class Connection : public std::enable_shared_from_this<Connection<Stream>> {
 public:
  /// `layer`: what the stream is made of.
  template <class... Layer>
  Connection(const HttpOptions& options, const HttpServer::Gate& gate, const HttpServer::Handler& handler,
             BodyBudget& bodies, std::atomic<int64_t>& count, Layer&&... layer)
      : stream_(std::forward<Layer>(layer)...),
        deadline_(stream_.get_executor()),
        options_(options),
        gate_(gate),
        handler_(handler),
        bodies_(bodies),
        count_(count) {
    ++count_;
  }
  ~Connection() {
    give_back();
    --count_;
  }

  void start() {
    begin([](auto& self) { self->read_head(); });
  }
  void refuse() {
    begin([](auto& self) {
      self->keep_alive_ = false;
      self->write(plain_error(503, "too many connections"));
    });
  }

 private:
  beast::tcp_stream& layer() { return beast::get_lowest_layer(stream_); }
  const Clocks& clocks() const { return options_.world.clocks; }

  // The handshake, where there is one.
  template <class Then>
  void begin(Then then) {
    ErrorCode ignored;
    layer().socket().set_option(tcp::no_delay(true), ignored);
    asio::dispatch(stream_.get_executor(), [self = this->shared_from_this(), then] {
      if constexpr (std::is_same_v<Stream, Tls>) {
        self->layer().expires_after(self->options_.head_timeout);
        self->stream_.async_handshake(asio::ssl::stream_base::server,
                                      [self, then](ErrorCode error) { error ? self->close() : then(self); });
      } else {
        then(self);
      }
    });
  }

  void read_head() {
    done_ = {};
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(options_.max_head));
    parser_->body_limit(static_cast<uint64_t>(options_.max_body));
    give_time(first_ ? options_.head_timeout : options_.idle_timeout);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = this->shared_from_this()](ErrorCode error, size_t) { self->head_read(error); });
  }

  // For what is read next; after it the reading ends with an error and `late_`, and the client can be told.
  void give_time(std::chrono::seconds time) {
    layer().expires_never();
    late_ = false;
    wait_until(clocks().steady() + time, ++turn_);
  }
  void wait_until(Clock::time_point until, uint64_t turn) {
    deadline_.expires_after(clocks().nap(until));
    deadline_.async_wait([weak = this->weak_from_this(), until, turn](ErrorCode error) {
      const auto self = error ? nullptr : weak.lock();
      if (!self || self->turn_ != turn) return;  // it was read in the last moment
      if (self->clocks().steady() < until) return self->wait_until(until, turn);
      self->late_ = true;
      self->layer().cancel();
    });
  }
  void take_time_back() {
    ++turn_;
    deadline_.cancel();
  }

  void head_read(ErrorCode error) {
    take_time_back();
    if (error && late_ && (buffer_.size() > 0 || parser_->got_some()))
      return answer_and_close(plain_error(408, "the request took too long to arrive"));
    if (error == http::error::header_limit)
      return answer_and_close(plain_error(431, "the headers are too large"));
    if (error == http::error::body_limit) return answer_and_close(plain_error(413, "the body is too large"));
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      return answer_and_close(plain_error(400, "this is not an HTTP request"));
    if (error) return close();
    first_ = false;
    begin_ = clocks().steady();
    const auto& head = parser_->get();
    request_ = {.method = std::string(head.method_string()), .target = std::string(head.target())};
    done_ = {.method = request_.method, .target = request_.target};
    for (const auto& field : head) request_.headers.emplace_back(field.name_string(), field.value());
    keep_alive_ = head.keep_alive();
    head_only_ = request_.method == "HEAD";
    // Where its body ends is unknown; what follows must not be taken for a request.
    if (!request_.header("transfer-encoding").empty() && !parser_->chunked())
      return answer_and_close(plain_error(501, "transfer-encoding must be chunked"));
    auto reply = gate_(request_);
    done_.who = request_.who;
    if (reply) return answer_and_close(std::move(*reply));
    held_ = request_.held;
    if (same_name(request_.header("expect"), "100-continue")) {
      continue_.emplace(http::status::continue_, 11);
      return http::async_write(stream_, *continue_,
                               [self = this->shared_from_this()](ErrorCode failed, size_t) {
                                 if (!failed) self->begin_body();
                               });
    }
    begin_body();
  }

  void begin_body() {
    give_time(options_.body_timeout);
    parser_->eager(true);
    // Beast reads as much as there is place for, and makes no more while there are 512 bytes.
    const auto length = parser_->content_length();
    const size_t expected = std::min<size_t>(length ? static_cast<size_t>(*length) : kReadPiece, kReadPiece);
    if (expected > 0) buffer_.reserve(std::max(expected, buffer_.size()));
    read_body();
  }

  // A body whose length is known has its place from the start; one in chunks takes it as it comes.
  bool has_place() {
    const auto length = parser_->content_length();
    const auto bytes = static_cast<int64_t>(length ? *length : parser_->get().body().size());
    if (bytes <= std::max(kSmallBody, reserved_)) return true;
    if (!bodies_.take(bytes - reserved_)) return false;
    reserved_ = bytes;
    return true;
  }
  void give_back() { bodies_.give(std::exchange(reserved_, 0)); }

  void read_body() {
    if (!has_place()) {
      HttpReply reply = plain_error(429, "the server is taking in as much as it can; try again in a moment");
      reply.headers.emplace_back("retry-after", "1");
      return answer_and_close(std::move(reply));
    }
    if (parser_->is_done()) return handle();
    http::async_read_some(
        stream_, buffer_, *parser_, [self = this->shared_from_this()](ErrorCode error, size_t) {
          if (!error) return self->read_body();
          if (error == http::error::body_limit)
            return self->answer_and_close(plain_error(413, "the body is too large"));
          if (self->late_)
            return self->answer_and_close(plain_error(408, "the body took too long to arrive"));
          const bool http_error =
              error.category() == http::make_error_code(http::error::bad_chunk).category();
          if (http_error && error != http::error::partial_message && error != http::error::end_of_stream)
            return self->answer_and_close(plain_error(400, "the body is not as HTTP has it"));
          self->close();
        });
  }

  void handle() {
    take_time_back();
    request_.body = std::move(parser_->get().body());
    buffer_.shrink_to_fit();  // the connection may be idle for long
    done_.bytes_in = static_cast<int64_t>(request_.body.size());
    layer().expires_never();
    if (reserved_ > 0) {
      request_.body_share = std::shared_ptr<void>(
          nullptr, [&bodies = bodies_, bytes = std::exchange(reserved_, 0)](void*) { bodies.give(bytes); });
    }
    auto once = std::make_shared<std::atomic<bool>>(false);
    handler_(std::move(request_), [self = this->shared_from_this(), once](HttpReply reply) {
      if (once->exchange(true)) return;
      asio::dispatch(self->stream_.get_executor(),
                     [self, reply = std::move(reply)]() mutable { self->write(std::move(reply)); });
    });
  }

  void answer_and_close(HttpReply reply) {
    take_time_back();
    keep_alive_ = false;
    write(std::move(reply));
  }

  void write(HttpReply reply) {
    give_back();
    if (options_.on_reply) {
      done_.status = reply.status;
      if (!head_only_)
        done_.bytes_out = reply.source ? reply.source->size_bytes() : static_cast<int64_t>(reply.body.size());
      if (!done_.method.empty()) done_.seconds = seconds_since(clocks(), begin_);
      options_.on_reply(done_);
    }
    response_.emplace(static_cast<http::status>(reply.status), 11);
    const bool empty = reply.status == 204;
    if (!empty) response_->set(http::field::content_type, reply.content_type);
    for (const auto& [name, value] : reply.headers) response_->set(name, value);
    response_->keep_alive(keep_alive_);
    source_ = head_only_ ? nullptr : reply.source;
    if (!empty) {
      response_->content_length(reply.source ? static_cast<uint64_t>(reply.source->size_bytes())
                                             : reply.body.size());
      if (!head_only_ && !reply.source) response_->body() = std::move(reply.body);
    }
    layer().expires_after(options_.write_timeout);
    http::async_write(stream_, *response_, [self = this->shared_from_this()](ErrorCode error, size_t) {
      self->response_.reset();
      if (!error && self->source_) {
        self->left_ = self->source_->size_bytes();
        return self->write_piece();
      }
      self->written(error);
    });
  }

  void write_piece() {
    if (left_ == 0) {
      source_.reset();
      return written({});
    }
    piece_.resize(kPiece);
    piece_.resize(source_->read(piece_.data(), piece_.size()));
    if (piece_.empty()) return close();  // cut off, and the client sees it
    left_ -= static_cast<int64_t>(piece_.size());
    layer().expires_after(options_.write_timeout);
    asio::async_write(stream_, asio::buffer(piece_),
                      [self = this->shared_from_this()](ErrorCode error, size_t) {
                        error ? self->close() : self->write_piece();
                      });
  }

  void written(ErrorCode error) {
    piece_ = {};
    held_.reset();
    if (error || !keep_alive_) return finish();
    read_head();
  }

  // A client that still sends its body would lose the reply to a reset: a little of it is read and forgotten.
  void finish() {
    if constexpr (std::is_same_v<Stream, Tls>) {
      layer().expires_after(std::chrono::seconds(2));
      stream_.async_shutdown([self = this->shared_from_this()](ErrorCode) { self->finish_layer(); });
    } else {
      finish_layer();
    }
  }
  void finish_layer() {
    ErrorCode ignored;
    layer().socket().shutdown(tcp::socket::shutdown_send, ignored);
    layer().expires_after(std::chrono::seconds(2));
    drain(64);
  }
  void drain(int rounds) {
    if (rounds == 0) return close();
    buffer_.clear();
    layer().async_read_some(buffer_.prepare(64 << 10),
                            [self = this->shared_from_this(), rounds](ErrorCode error, size_t) {
                              if (error) return self->close();
                              self->drain(rounds - 1);
                            });
  }

  void close() {
    take_time_back();
    ErrorCode ignored;
    layer().socket().close(ignored);
  }

  Stream stream_;
  asio::steady_timer deadline_;
  const HttpOptions& options_;
  const HttpServer::Gate& gate_;
  const HttpServer::Handler& handler_;
  BodyBudget& bodies_;
  std::atomic<int64_t>& count_;
  // Bounds what is no payload: extensions of chunks and trailers.
  beast::flat_buffer buffer_{256 << 10};
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  std::optional<http::response<http::string_body>> continue_;
  HttpRequest request_;
  std::shared_ptr<void> held_;
  HttpDone done_;
  Clock::time_point begin_;
  std::shared_ptr<BodySource> source_;
  std::string piece_;
  int64_t left_ = 0;      // of the source
  int64_t reserved_ = 0;  // of the budget
  uint64_t turn_ = 0;     // of the deadline
  bool keep_alive_ = true, first_ = true, head_only_ = false, late_ = false;
};

}  // namespace

HttpServer::HttpServer(HttpOptions options, Gate gate, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(gate), std::move(handler))) {
  Impl& s = *impl_;
  if (!s.options.tls_cert.empty()) s.tls.emplace(tls_context(s.options));
  s.listener.assign(s.options.world.sockets.listen(s.options.host, s.options.port));
}

void HttpServer::start() {
  Impl& s = *impl_;
  s.accept();
  for (int i = 0; i < s.options.threads; ++i) s.threads.emplace_back([&s] { s.context.run(); });
}

void HttpServer::Impl::accept() {
  listener.async_wait(asio::posix::stream_descriptor::wait_read, [this](ErrorCode error) {
    for (int taken = 0; !error && !stopping && taken < kAcceptsInARow; ++taken) {
      const int fd = options.world.sockets.accept(listener.native_handle());
      if (fd >= 0) {
        take(fd);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR && errno != ECONNABORTED) {
        // Out of descriptors: a moment later some may be free.
        return wake_at(options.world.clocks.steady() + kAcceptPause, [this] { accept(); });
      }
    }
    if (!stopping) accept();
  });
}

void HttpServer::Impl::take(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  tcp::socket socket(asio::make_strand(context));
  ErrorCode failed;
  socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd, failed);
  if (failed) {
    ::close(fd);
    return;
  }
  const bool full = connections >= options.max_connections;
  const auto go = [&](const auto& connection) { full ? connection->refuse() : connection->start(); };
  if (tls) {
    go(std::make_shared<Connection<Tls>>(options, gate, handler, bodies, connections, std::move(socket),
                                         *tls));
  } else {
    go(std::make_shared<Connection<Plain>>(options, gate, handler, bodies, connections, std::move(socket)));
  }
}

HttpServer::~HttpServer() { stop(); }

void HttpServer::stop() {
  if (impl_->stopping.exchange(true)) return;
  impl_->context.stop();
  for (auto& thread : impl_->threads) thread.join();
}

int64_t HttpServer::connections() const { return impl_->connections; }

int HttpServer::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  const int listener = impl_->listener.native_handle();
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void HttpServer::after(std::chrono::milliseconds delay, std::function<void()> fn) {
  impl_->wake_at(impl_->options.world.clocks.steady() + delay, std::move(fn));
}

void HttpServer::Impl::wake_at(Clock::time_point until, std::function<void()> fn) {
  const Clocks& clocks = options.world.clocks;
  auto timer = std::make_shared<asio::steady_timer>(context, clocks.nap(until));
  timer->async_wait([this, &clocks, timer, until, fn = std::move(fn)](ErrorCode error) mutable {
    if (error) return;
    clocks.steady() < until ? wake_at(until, std::move(fn)) : fn();
  });
}

}  // namespace twinkle::serve
