// The whole server in this process: what one client sends must not keep the others waiting.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/serve/fake_engine.h"
#include "tests/temp_dir.h"
#include "twinkle/serve/server.h"

namespace twinkle::serve {
namespace {

constexpr const char* kKey = "tml-ann-0123456789abcdef";

int connected(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const timeval minute{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  return fd;
}

void send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    ASSERT_GT(n, 0);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string status_line(int fd) {
  std::string out(12, ' ');
  const ssize_t n = ::recv(fd, out.data(), out.size(), MSG_WAITALL);
  return n == static_cast<ssize_t>(out.size()) ? out : "";
}

TEST(Server, AnswersOthersWhileALargeBodyIsRead) {
  const test::TempDir dir;
  ServerOptions options{.data_dir = dir / "data"};
  options.http.threads = 1;
  options.tinker.model_names = {"base"};
  options.api_keys = {kKey};
  options.access_log = dir / "access.jsonl";
  Server server(options, [] { return std::make_unique<FakeEngine>(); });
  // Values of their own, which take some tenths of a second.
  std::string body = R"({"model_id":"none","x":[)";
  for (int i = 0; i < 1'000'000; ++i) body += "{},";
  body += "{}]}";
  const int large = connected(server.port()), small = connected(server.port());
  send_all(large, std::string("POST /api/v1/forward_backward HTTP/1.1\r\nHost: localhost\r\nX-API-Key: ") +
                      kKey + "\r\nContent-Type: application/json\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, body.size() - 1));
  send_all(small, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n");
  send_all(large, body.substr(body.size() - 1));
  send_all(small, "\r\n");
  EXPECT_EQ(status_line(small), "HTTP/1.1 200");
  EXPECT_EQ(status_line(large), "HTTP/1.1 404");
  ::close(large);
  ::close(small);
  // In the order in which they were answered.
  std::string log;
  for (int i = 0; i < 100 && std::ranges::count(log, '\n') < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    log = read_file(options.access_log);
  }
  EXPECT_LT(log.find("healthz"), log.find("forward_backward")) << log;
}

}  // namespace
}  // namespace twinkle::serve
