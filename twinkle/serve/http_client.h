// A request to a server, and its reply: for commands that ask a running server. Waits for it; no state.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "twinkle/serve/http.h"

namespace twinkle::serve {

/// GET of an http:// address. unavailable when nobody answers within ten seconds.
HttpReply http_get(const std::string& url, const std::vector<std::pair<std::string, std::string>>& headers);

}  // namespace twinkle::serve
