#include "twinkle/serve/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include "twinkle/core/error.h"

namespace twinkle::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

struct Address {
  std::string host, port, target;
};

Address address_of(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) throw invalid_argument("[url] expected http://HOST:PORT, got '" + url + "'");
  std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string place = rest.substr(0, slash);
  const size_t bracket = place.find(']'), colon = place.find(':', bracket == std::string::npos ? 0 : bracket);
  Address out{.host = place.substr(0, colon),
              .port = colon == std::string::npos ? "80" : place.substr(colon + 1),
              .target = slash < rest.size() ? rest.substr(slash) : "/"};
  if (out.host.starts_with('[')) out.host = out.host.substr(1, out.host.size() - 2);
  return out;
}

}  // namespace

HttpReply http_get(const std::string& url, const std::vector<std::pair<std::string, std::string>>& headers) {
  const Address address = address_of(url);
  asio::io_context context;
  beast::tcp_stream stream(context);
  beast::flat_buffer buffer;
  http::request<http::empty_body> request(http::verb::get, address.target, 11);
  request.set(http::field::host, address.host + ":" + address.port);
  for (const auto& [name, value] : headers) request.set(name, value);
  http::response_parser<http::string_body> parser;
  parser.body_limit(64 << 20);
  ErrorCode failed;
  // Asynchronous, as only then the time is bounded.
  const auto then = [&](auto&& next) {
    return [&, next](ErrorCode error, auto&&...) {
      if (error) {
        failed = error;
      } else {
        next();
      }
    };
  };
  stream.expires_after(std::chrono::seconds(10));
  const auto read = [&] { http::async_read(stream, buffer, parser, then([] {})); };
  const auto write = [&] { http::async_write(stream, request, then(read)); };
  try {
    stream.async_connect(tcp::resolver(context).resolve(address.host, address.port), then(write));
    context.run();
  } catch (const boost::system::system_error& e) {
    failed = e.code();
  }
  if (failed) throw unavailable("[url] nobody answers at " + url + ": " + failed.message());
  HttpReply reply{.status = static_cast<int>(parser.get().result_int()), .body = parser.get().body()};
  reply.content_type = std::string(parser.get()[http::field::content_type]);
  return reply;
}

}  // namespace twinkle::serve
