// deps: serve
// Any bytes as what a client sends to a server, the first byte says in how many pieces. Every reply is HTTP
// and, but for the page, JSON; none is an error of the server; without a key nothing is told; and the server
// is there afterwards.
#include <poll.h>
#include <sys/socket.h>

#include "fuzz/serve_fuzzing.h"
#include "tests/serve/sim_world.h"
#include "twinkle/serve/server.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::require;

constexpr std::string_view kKey = "tml-0123456789abcdef";

// Pairs of sockets: there are more inputs in a minute than a machine has ports.
SimNetwork& network() {
  static SimNetwork only;
  return only;
}

std::unique_ptr<Server> make_server() {
  ServerOptions options{.data_dir = fuzz::empty_folder("server"), .api_keys = {std::string(kKey)}};
  options.http = {.threads = 1, .max_body = 1 << 16, .max_head = 4 << 10};
  options.core.gap_wait = std::chrono::milliseconds(0);
  options.tinker.model_names = {"base"};
  options.tinker.poll = std::chrono::milliseconds(5);
  options.path_prefix = "/twinkle";
  options.world.sockets = network().sockets();
  auto server = std::make_unique<Server>(options, [] { return std::make_unique<FakeEngine>(); });
  while (!server->ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return server;
}

void wait_for(int fd, short what) {
  pollfd ask{.fd = fd, .events = what};
  int ready = 0;  // the fuzzer's own alarm may come between
  while ((ready = ::poll(&ask, 1, 60000)) < 0 && errno == EINTR) continue;
  if (ready != 1) std::fprintf(stderr, "no answer in a minute\n");
  require(ready == 1);
}

// All that the server says until it closes; nothing where the connection was cut.
std::optional<std::string> answer_to(std::string_view bytes, size_t pieces) {
  const int fd = network().connect();
  require(fd >= 0);
  const size_t piece = std::max<size_t>(1, (bytes.size() + pieces - 1) / pieces);
  while (!bytes.empty()) {  // what does not take it has answered already
    const ssize_t sent = ::send(fd, bytes.data(), std::min(piece, bytes.size()), MSG_NOSIGNAL);
    if (sent <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  ::shutdown(fd, SHUT_WR);
  std::string out;
  for (char buffer[16 << 10];;) {
    wait_for(fd, POLLIN);
    const ssize_t got = ::recv(fd, buffer, sizeof(buffer), 0);
    if (got < 0) {
      ::close(fd);
      return std::nullopt;
    }
    if (got == 0) break;
    out.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return out;
}

struct Reply {
  int status = 0;
  std::string type;
  std::string_view body;
};

// Takes the first reply off; `head_only`: of a HEAD, whose body is not sent.
Reply take_reply(std::string_view& text, bool head_only) {
  Reply out;
  const size_t end = text.find("\r\n\r\n");
  require(text.starts_with("HTTP/1.1 ") && end != std::string_view::npos);
  out.status = std::stoi(std::string(text.substr(9, 3)));
  size_t length = 0;
  std::string_view head = text.substr(0, end);
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(head.size(), line.size() + 2));
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name == "content-length") length = std::stoull(std::string(line.substr(colon + 2)));
    if (name == "content-type") out.type = line.substr(colon + 2);
  }
  text.remove_prefix(end + 4);
  if (head_only) return out;
  require(length <= text.size());
  out.body = text.substr(0, length);
  text.remove_prefix(length);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::unique_ptr<Server> server = make_server();
  static int uses = 0;
  if (++uses > 5000) {
    network().down();
    server.reset();
    server = make_server();
    uses = 0;
  }
  fuzz::Pieces input(data, size);
  const size_t pieces = 1 + input.byte() % 4;
  const std::string_view sent = input.rest();
  const bool has_key = sent.find(kKey) != std::string_view::npos;
  const bool has_head = sent.find("HEAD") != std::string_view::npos;
  const auto got = answer_to(sent, pieces);
  for (std::string_view left = got ? std::string_view(*got) : ""; !left.empty();) {
    const Reply reply = take_reply(left, has_head);
    if (reply.status >= 500) std::fprintf(stderr, "%s\n", got->c_str());
    require(reply.status < 500 || reply.status == 501);
    if (has_head) break;  // which of them has no body is not known here
    if (reply.type == "application/json") {
      const Json body = parse_json(reply.body, "reply");
      require(reply.status < 400 || reply.status == 408 || body.contains("detail"));
      if (reply.status == 200 && !has_key)
        require(body == Json{{"status", "ok"}} || body == Json{{"status", "ready"}});
    } else if (!has_key) {
      require(reply.status == 100 || reply.status == 204 || reply.type.starts_with("text/html"));
    }
  }
  if (uses % 64 == 0) {
    const auto alive = answer_to("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 1);
    require(alive && alive->starts_with("HTTP/1.1 200 ") && alive->ends_with(R"({"status":"ok"})"));
  }
  return 0;
}
