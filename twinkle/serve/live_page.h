// The page at /: one file, which asks nothing of anybody but this server. Made of live_page.html at the
// build.
#pragma once

#include <string_view>

#include "twinkle/serve/http.h"

namespace twinkle::serve {

std::string_view live_page();

/// With headers that let nothing else in.
inline HttpReply live_page_reply() {
  HttpReply reply{.body = std::string(live_page()), .content_type = "text/html; charset=utf-8"};
  reply.headers = {{"content-security-policy",
                    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
                    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                   {"x-content-type-options", "nosniff"},
                   {"referrer-policy", "no-referrer"},
                   {"cache-control", "no-cache"}};
  return reply;
}

}  // namespace twinkle::serve
