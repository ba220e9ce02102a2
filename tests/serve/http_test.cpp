// The HTTP server by plain sockets: what is answered to requests that are late, broken or too much, and
// bodies that are made while they are sent.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/http.h"
#include "twinkle/serve/tar_source.h"

namespace twinkle::serve {
namespace {

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const timeval ten_seconds{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &ten_seconds, sizeof(ten_seconds));
  }
  ~Client() { ::close(fd_); }
  void send(const std::string& text) {
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  /// What comes until the end of the connection, or until `size` bytes of body came.
  std::string read(size_t size = std::string::npos) {
    std::string out;
    char piece[65536];
    for (;;) {
      const size_t head = out.find("\r\n\r\n");
      if (head != std::string::npos && size != std::string::npos && out.size() >= head + 4 + size) return out;
      const ssize_t n = ::recv(fd_, piece, sizeof(piece), 0);
      if (n <= 0) return out;
      out.append(piece, static_cast<size_t>(n));
    }
  }

 private:
  int fd_;
};

struct Echo {
  explicit Echo(HttpOptions options = {}, HttpServer::Handler handler = nullptr)
      : server(
            std::move(options), [](const HttpRequest&) { return std::nullopt; },
            handler ? std::move(handler)
                    : [](HttpRequest request,
                         HttpServer::Respond
                             respond) { respond({.body = request.method + " " + request.body}); }) {
    server.start();
  }
  HttpServer server;
};

TEST(Http, AnswersHeadWithoutABody) {
  Echo echo;
  Client client(echo.server.port());
  client.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string head = client.read(0);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 ")) << head;
  EXPECT_HAS(head, "Content-Length: 5\r\n");
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");  // the connection goes on
  EXPECT_TRUE(client.read().ends_with("\r\n\r\nGET "));
}

TEST(Http, TellsOfABodyThatIsNotHttp) {
  Echo echo;
  for (const char* body : {"zz\r\nabc\r\n0\r\n\r\n", "-1\r\nabc", "fffffffffffffffffff\r\nabc"}) {
    Client client(echo.server.port());
    client.send(std::string("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n") + body);
    const std::string reply = client.read();
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 400 ")) << body << reply;
    EXPECT_HAS(reply, "\"detail\"");
  }
  Client client(echo.server.port());
  client.send(
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_TRUE(client.read(10).ends_with("\r\n\r\nPOST abcde"));
}

TEST(Http, TellsWhoIsLate) {
  Echo echo({.head_timeout = std::chrono::seconds(1), .body_timeout = std::chrono::seconds(1)});
  Client silent(echo.server.port()), half_a_head(echo.server.port()), half_a_body(echo.server.port());
  half_a_head.send("POST /x HTTP/1.1\r\nHo");
  half_a_body.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(half_a_head.read().starts_with("HTTP/1.1 408 "));
  EXPECT_TRUE(half_a_body.read().starts_with("HTTP/1.1 408 "));
  EXPECT_EQ(silent.read(), "");
}

// Whether it holds within a second: a reply is read a moment before the server lets go of its request.
bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 100; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(Http, BoundsTheBytesOfAllBodies) {
  Echo echo({.max_bodies = 100'000});
  const auto head = [](int64_t bytes) {
    return "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  };
  Client first(echo.server.port()), second(echo.server.port()), small(echo.server.port()),
      chunked(echo.server.port());
  first.send(head(60'000) + "a");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  second.send(head(50'000));
  const std::string refused = second.read();
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 429 ")) << refused;
  EXPECT_HAS(refused, "retry-after: 1");
  chunked.send("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nc350\r\n" +
               std::string(50'000, 'c'));
  EXPECT_TRUE(chunked.read().starts_with("HTTP/1.1 429 "));
  small.send(head(1000) + std::string(1000, 's'));  // heartbeats are not refused
  EXPECT_TRUE(small.read(1005).starts_with("HTTP/1.1 200 "));
  first.send(std::string(59'999, 'a'));
  EXPECT_TRUE(first.read(60'005).starts_with("HTTP/1.1 200 "));
  const auto fits = [&] {
    Client third(echo.server.port());
    third.send(head(99'000) + std::string(99'000, 'a'));
    return third.read(99'005).starts_with("HTTP/1.1 200 ");
  };
  EXPECT_TRUE(soon(fits)) << "what was taken is given back";
}

// Whoever answers later may still hold the body.
TEST(Http, ABodyCountsUntilItIsLetGo) {
  std::promise<HttpRequest> kept;
  Echo echo({.max_bodies = 100'000}, [&](HttpRequest request, HttpServer::Respond respond) {
    if (request.target == "/keep") kept.set_value(std::move(request));
    respond({});
  });
  const auto post = [&](const std::string& target) {
    Client client(echo.server.port());
    client.send("POST " + target + " HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" +
                std::string(60'000, 'a'));
    return client.read(0).substr(0, 12);
  };
  EXPECT_EQ(post("/keep"), "HTTP/1.1 200");
  std::optional<HttpRequest> request = kept.get_future().get();
  EXPECT_EQ(post("/x"), "HTTP/1.1 429");
  request.reset();
  EXPECT_TRUE(soon([&] { return post("/x") == "HTTP/1.1 200"; }));
}

TEST(Http, SendsATarPieceByPiece) {
  const test::TempDir dir;
  const std::string large(3'000'001, 'l');
  test::write_text(dir / "large", large);
  test::write_text(dir / "small", "few words");
  Echo echo({}, [&](const HttpRequest& request, HttpServer::Respond respond) {
    HttpReply reply{.content_type = "application/x-tar"};
    if (request.target == "/tar") {
      reply.source = tar_source(dir.path(), {{"a/large", "large"}, {"small", "small"}, {"empty", ""}});
    } else {
      reply.source = file_source(dir.path(), "large");
    }
    respond(std::move(reply));
  });
  Client client(echo.server.port());
  client.send("GET /file HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string file = client.read(large.size());
  EXPECT_EQ(file.substr(file.find("\r\n\r\n") + 4), large);
  client.send("GET /tar HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  const std::string tar = client.read();
  test::write_text(dir / "out.tar", tar.substr(tar.find("\r\n\r\n") + 4));
  // As the system's own tar reads it.
  const std::string out = dir / "out";
  make_directories(out);
  ASSERT_EQ(std::system(("tar -xf " + (dir / "out.tar") + " -C " + out).c_str()), 0);
  EXPECT_EQ(read_file(out + "/a/large"), large);
  EXPECT_EQ(read_file(out + "/small"), "few words");
  EXPECT_EQ(read_file(out + "/empty"), "");
}

}  // namespace
}  // namespace twinkle::serve
