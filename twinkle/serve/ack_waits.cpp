#include "twinkle/serve/ack_waits.h"

#include <algorithm>
#include <vector>

#include "twinkle/serve/tinker_replies.h"

namespace twinkle::serve {

uint64_t AckWaits::add(HttpServer::Respond respond) {
  bool watch = false;
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    ticket = next_++;
    waiting_[ticket] = {clocks_.steady() + deadline_, std::move(respond)};
    watch = !std::exchange(watched_, true);
  }
  if (watch) after_(deadline_, [this] { answer_late(); });
  return ticket;
}

HttpServer::Respond AckWaits::take(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  auto node = waiting_.extract(ticket);
  return node.empty() ? nullptr : std::move(node.mapped().respond);
}

void AckWaits::answer_late() {
  std::vector<HttpServer::Respond> late;
  auto pause = deadline_;
  {
    const std::lock_guard lock(mutex_);
    const auto now = clocks_.steady();
    while (!waiting_.empty() && waiting_.begin()->second.until <= now) {
      late.push_back(std::move(waiting_.begin()->second.respond));
      waiting_.erase(waiting_.begin());
    }
    if (waiting_.empty()) {
      watched_ = false;
    } else {
      pause = std::chrono::ceil<std::chrono::milliseconds>(waiting_.begin()->second.until - now);
    }
    if (!watched_) pause = {};
  }
  for (const auto& respond : late) {
    HttpReply reply =
        tinker::error_reply(503, "the server's disk takes too long to answer; send the same request again");
    reply.headers.emplace_back("retry-after", "1");
    respond(std::move(reply));
  }
  if (pause > std::chrono::milliseconds(0)) after_(pause, [this] { answer_late(); });
}

}  // namespace twinkle::serve
