// The routes of the Tinker API around samples that are under way: which are done, which nobody wants, whose
// numbers are whose. Also what this server does not have and says so through a future.
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_requests.h"
#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve {
namespace {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

// Written as text: there may be thousands, and others wait for this thread.
HttpReply completions_reply(const Core::Completions& completions) {
  std::string out = R"({"completions":[)";
  for (const auto& one : completions.list) {
    if (out.back() == '}') out += ',';
    out += one.failed ? R"({"state":"failed","request_id":)" : R"({"state":"finished","request_id":)";
    out += Json(one.request_id).dump();
    if (!one.failed) out += ",\"response_payload_uncompressed_size\":" + std::to_string(one.bytes);
    out += '}';
  }
  return {.body = out + "],\"cursor\":" + std::to_string(completions.cursor) + "}"};
}

}  // namespace

std::span<const TinkerApi::Entry> TinkerApi::sampler_routes() {
  static const Entry entries[] = {{"POST", "cancel_future", &TinkerApi::cancel_future},
                                  {"POST", "retrieve_futures", &TinkerApi::retrieve_futures},
                                  {"POST", "join_sampling_session", &TinkerApi::join_sampling_session},
                                  {"POST", "create_custom_loss", &TinkerApi::create_custom_loss}};
  return entries;
}

// The same answer for what is done, what never was, and what is another's.
void TinkerApi::cancel_future(Call& call) {
  core_.cancel(need_text(call.body, "request_id"), call.owner);
  call.respond(json_reply(Json::object()));
}

void TinkerApi::retrieve_futures(Call& call) {
  const Json* target = find(call.body, "target");
  if (target == nullptr || !target->is_object()) throw invalid_argument("'target' is missing");
  if (text_or(*target, "type", "sampling_session") != "sampling_session")
    throw invalid_argument("'target' must be a sampling_session");
  const auto sampler = store_.sampler(need_text(*target, "sampling_session_id"), call.owner);
  if (!sampler) throw not_found("there is no such sampling session");
  store_.touch_session(sampler->session);
  const int64_t client = int_or(*target, "cloned_sampler_id", 0, 0, INT64_MAX);
  const auto cursor = static_cast<uint64_t>(int_or(call.body, "prev_cursor", 0, 0, INT64_MAX));
  auto wait = options_.poll;
  if (find(call.body, "timeout") != nullptr) {
    const double seconds = number_or(call.body, "timeout", 0);
    wait = std::min(wait,
                    std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e3)));
  }
  if (wait.count() == 0)
    return call.respond(completions_reply(core_.completions(sampler->id, client, cursor)));
  const uint64_t waiter = core_.wait_for_any(
      sampler->id, client, cursor,
      [respond = call.respond](const Core::Completions& got) { respond(completions_reply(got)); });
  if (waiter != 0) after_(wait, [this, waiter] { core_.stop_waiting_for_any(waiter); });
}

void TinkerApi::join_sampling_session(Call& call) {
  const auto number = store_.join_sampler(need_text(call.body, "sampling_session_id"), call.owner);
  if (!number) throw not_found("there is no such sampling session");
  call.respond(json_reply({{"type", "join_sampling_session"}, {"client_counter", *number}}));
}

void TinkerApi::create_custom_loss(Call& call) {
  const Session session = need_session(call);
  const int64_t number = need_number(call.body, "custom_loss_seq_id");
  submit(call, {.kind = OpKind::kSample,
                .target = session.id + ":loss:" + std::to_string(number),
                .seq = 0,
                .refused = "[create_custom_loss] this server computes no losses of its clients' own; use "
                           "forward_backward_custom, which runs the loss where the script runs"});
}

}  // namespace twinkle::serve
