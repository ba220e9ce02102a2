#include "twinkle/serve/admission.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace twinkle::serve {
namespace {

std::optional<int64_t> length_of(const HttpRequest& request) {
  if (!request.header("transfer-encoding").empty()) return std::nullopt;
  const std::string_view text = request.header("content-length");
  int64_t length = 0;
  std::from_chars(text.data(), text.data() + text.size(), length);
  return std::max<int64_t>(length, 0);
}

std::string plain_number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

}  // namespace

void Admission::Bucket::fill(double rate, double most, double now) {
  level = filled < 0 ? most : std::min(most, level + std::max(0.0, now - filled) * rate);
  filled = now;
}

Admission::Admission(KeyLimits defaults, int64_t most_body, std::function<double()> now)
    : defaults_(defaults), most_body_(most_body), now_(std::move(now)) {}

KeyLimits Admission::limits_of(const KeyEntry& key) const {
  KeyLimits out = key.limits;
  const auto fill = [](auto& own, auto otherwise) {
    if (own <= 0) own = otherwise;
  };
  fill(out.requests_per_second, defaults_.requests_per_second);
  fill(out.bytes_in_flight, defaults_.bytes_in_flight);
  fill(out.models, defaults_.models);
  fill(out.checkpoint_bytes, defaults_.checkpoint_bytes);
  fill(out.tokens_per_minute, defaults_.tokens_per_minute);
  return out;
}

std::optional<Admission::Refused> Admission::enter(const KeyEntry& key, HttpRequest& request) {
  const KeyLimits limits = limits_of(key);
  const auto length = length_of(request);
  int64_t bytes = length.value_or(most_body_);
  const std::lock_guard lock(shared_->mutex);
  State& state = shared_->keys[key.id];
  state.usage.id = key.id;
  state.usage.name = key.name;
  ++state.usage.requests;
  const auto refuse = [&](Refused refused) {
    ++state.usage.refused;
    return refused;
  };
  // Heartbeats pass always: who is over a limit is not gone.
  if (const double rate = limits.requests_per_second;
      rate > 0 && !request.path().ends_with("/session_heartbeat")) {
    state.requests.fill(rate, std::max(rate, 1.0), now_());
    if (state.requests.level < 1)
      return refuse({.reason = "this key may send " + plain_number(rate) + " requests a second"});
    state.requests.level -= 1;
  }
  if (const int64_t most = limits.bytes_in_flight; most > 0) {
    if (!length) bytes = std::min(bytes, most);
    if (bytes > most) {
      return refuse({.status = 413,
                     .reason = "this key may have bodies of " + std::to_string(most) + " bytes under way"});
    }
    if (state.bytes + bytes > most) {
      return refuse({.reason = "this key may have bodies of " + std::to_string(most) +
                               " bytes under way, and has " + std::to_string(state.bytes)});
    }
  }
  state.usage.bytes += length.value_or(0);
  state.bytes += bytes;
  request.held = std::shared_ptr<void>(nullptr, [shared = shared_, id = key.id, bytes](void*) {
    const std::lock_guard lock(shared->mutex);
    shared->keys[id].bytes -= bytes;
  });
  return std::nullopt;
}

std::optional<Admission::Refused> Admission::take_tokens(const KeyEntry& key, int64_t tokens) {
  const auto most = static_cast<double>(limits_of(key).tokens_per_minute);
  if (most <= 0) return std::nullopt;
  const std::lock_guard lock(shared_->mutex);
  Bucket& minute = shared_->minutes[key.owner];
  minute.fill(most / 60, most, now_());
  if (minute.level <= 0) {
    ++shared_->keys[key.id].usage.refused;
    return Refused{.reason = "this key may use " + plain_number(most) + " tokens a minute",
                   .retry_after = static_cast<int64_t>(std::ceil(1 - minute.level / (most / 60)))};
  }
  minute.level -= static_cast<double>(tokens);
  return std::nullopt;
}

void Admission::spend_tokens(const std::string& owner, int64_t tokens) {
  const std::lock_guard lock(shared_->mutex);
  const auto minute = shared_->minutes.find(owner);
  if (minute != shared_->minutes.end()) minute->second.level -= static_cast<double>(tokens);
}

std::vector<KeyUsage> Admission::usage() const {
  const std::lock_guard lock(shared_->mutex);
  std::vector<KeyUsage> out;
  for (const auto& [id, state] : shared_->keys) out.push_back(state.usage);
  return out;
}

}  // namespace twinkle::serve
