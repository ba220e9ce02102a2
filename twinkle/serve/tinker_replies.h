// Replies that every route of the Tinker API makes.
#pragma once

#include <string>

#include "twinkle/core/json.h"
#include "twinkle/serve/http.h"

namespace twinkle::serve::tinker {

inline HttpReply json_reply(const Json& value, int status = 200) {
  return {.status = status, .body = value.dump(-1, ' ', false, Json::error_handler_t::replace)};
}
inline HttpReply no_content() { return {.status = 204}; }
inline HttpReply error_reply(int status, const std::string& detail) {
  return json_reply({{"detail", detail}}, status);
}

}  // namespace twinkle::serve::tinker
