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
#include "twinkle/serve/sqlite.h"

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

ServerOptions options_in(const test::TempDir& dir) {
  ServerOptions options{.data_dir = dir / "data"};
  options.http.threads = 1;
  options.tinker.model_names = {"base"};
  options.api_keys = {kKey};
  options.access_log = dir / "access.jsonl";
  return options;
}

std::string post(const std::string& route, const std::string& body, const std::string& key = kKey) {
  return "POST /api/v1/" + route + " HTTP/1.1\r\nHost: localhost\r\nX-API-Key: " + key +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

// A body for a model that is not there, with so many values of their own: a million take some tenths of a
// second.
std::string large_body(int values) {
  std::string body = R"({"model_id":"none","x":[)";
  for (int i = 0; i < values; ++i) body += "{},";
  return body + "{}]}";
}

// Once it has so many lines.
std::string access_log(const ServerOptions& options, int lines) {
  std::string log;
  for (int i = 0; i < 100 && std::ranges::count(log, '\n') < lines; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    log = read_file(options.access_log);
  }
  return log;
}

TEST(Server, AnswersOthersWhileALargeBodyIsRead) {
  const test::TempDir dir;
  const ServerOptions options = options_in(dir);
  Server server(options, [] { return std::make_unique<FakeEngine>(); });
  const std::string text = post("forward_backward", large_body(1'000'000));
  const int large = connected(server.port()), small = connected(server.port());
  send_all(large, text.substr(0, text.size() - 1));
  send_all(small, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n");
  send_all(large, text.substr(text.size() - 1));
  send_all(small, "\r\n");
  EXPECT_EQ(status_line(small), "HTTP/1.1 200");
  EXPECT_EQ(status_line(large), "HTTP/1.1 404");
  ::close(large);
  ::close(small);
  // In the order in which they were answered.
  const std::string log = access_log(options, 2);
  EXPECT_LT(log.find("healthz"), log.find("forward_backward")) << log;
}

// Whoever sends many large bodies does not keep another key's waiting until all of them are read.
TEST(Server, ReadsLargeBodiesInTurnsByKey) {
  const test::TempDir dir;
  ServerOptions options = options_in(dir);
  const std::string other = "tml-bob-0123456789abcdef";
  options.api_keys.push_back(other);
  Server server(options, [] { return std::make_unique<FakeEngine>(); });
  const std::string body = large_body(300'000);
  std::vector<int> fds;
  std::vector<std::string> texts(6, post("forward_backward", body));
  texts.push_back(post("forward", body, other));
  for (const auto& text : texts) {
    fds.push_back(connected(server.port()));
    send_all(fds.back(), std::string_view(text).substr(0, text.size() - 1));
  }
  for (size_t i = 0; i < fds.size(); ++i) send_all(fds[i], texts[i].substr(texts[i].size() - 1));
  for (const int fd : fds) {
    EXPECT_EQ(status_line(fd), "HTTP/1.1 404");
    ::close(fd);
  }
  const std::string log = access_log(options, 7);
  EXPECT_LT(log.find("\"forward\""), log.rfind("\"forward_backward\"")) << log;
}

// Another process has the store's file for itself: only who needs that file waits.
TEST(Server, AnswersOthersWhileTheStoresFileIsTaken) {
  const test::TempDir dir;
  const ServerOptions options = options_in(dir);
  Server server(options, [] { return std::make_unique<FakeEngine>(); });
  const Database file(options.data_dir + "/store.db");
  const int waits = connected(server.port()), small = connected(server.port());
  {
    const Transaction taken(file);
    send_all(waits, post("create_session", "{}"));
    send_all(small, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(status_line(small), "HTTP/1.1 200");
    char byte = 0;
    EXPECT_EQ(::recv(waits, &byte, 1, MSG_DONTWAIT), -1) << "it did not need the file";
  }
  EXPECT_EQ(status_line(waits), "HTTP/1.1 200");
  ::close(waits);
  ::close(small);
}

}  // namespace
}  // namespace twinkle::serve
