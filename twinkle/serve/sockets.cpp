#include "twinkle/serve/sockets.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "twinkle/core/error.h"

namespace twinkle::serve {
namespace {

constexpr int kMostWaiting = 4096;

int bound(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      ::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kMostWaiting) == 0)
    return fd;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

int Sockets::system_listen(const std::string& host, int port) {
  const auto failed = [&](const std::string& why) {
    return unavailable("[serve] cannot listen on " + host + ":" + std::to_string(port) + ": " + why);
  };
  const addrinfo wanted{.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found); code != 0)
    throw failed(::gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const int fd = bound(*found);
  if (fd < 0) throw failed(std::strerror(errno));
  return fd;
}

int Sockets::system_accept(int listener) {
  return ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

}  // namespace twinkle::serve
