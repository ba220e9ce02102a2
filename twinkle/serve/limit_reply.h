// The reply to a request that is over a limit.
#pragma once

#include "twinkle/serve/admission.h"
#include "twinkle/serve/tinker_replies.h"

namespace twinkle::serve {

inline HttpReply limit_reply(const Admission::Refused& refused) {
  HttpReply reply = tinker::error_reply(refused.status, "[limit] " + refused.reason);
  if (refused.status == 429) reply.headers.emplace_back("retry-after", std::to_string(refused.retry_after));
  return reply;
}

}  // namespace twinkle::serve
