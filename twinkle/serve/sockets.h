// Where a server's connections come from. A test gives it ends of socket pairs of its own, so that it is the
// network between a client and the server.
#pragma once

#include <functional>
#include <string>

namespace twinkle::serve {

struct Sockets {
  /// A descriptor of the caller's that can be read while somebody waits to be accepted; `unavailable` when
  /// the address can not be had.
  std::function<int(const std::string& host, int port)> listen = system_listen;
  /// The next connection, a stream socket that does not block. As accept(2) of a listener that does not
  /// block.
  std::function<int(int listener)> accept = system_accept;

  static int system_listen(const std::string& host, int port);
  static int system_accept(int listener);
};

}  // namespace twinkle::serve
