// What became of an operation, as the Tinker API tells it.
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_replies.h"
#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve {

using namespace tinker;  // NOLINT(google-build-using-namespace): this file is that layer

namespace {

HttpReply render(const Core::Outcome& outcome, bool wants_proto) {
  using State = Core::Outcome::State;
  if (outcome.state == State::kMissing) return error_reply(404, "there is no such request");
  if (outcome.state == State::kExpired) {
    // A sample may be asked for again; what trained a model must not be.
    if (outcome.kind == OpKind::kSample) return error_reply(410, "the answer is no longer kept");
    return json_reply({{"error", "the result is no longer kept"}, {"category", "server"}});
  }
  const Result& result = *outcome.result;
  switch (result.kind) {
    case Result::Kind::kUserError:
      return json_reply({{"error", result.bytes}, {"category", "user"}});
    case Result::Kind::kServerError:
      return json_reply({{"error", result.bytes}, {"category", "server"}});
    case Result::Kind::kCall: {
      const CallResult call = decode_call_result(result.bytes);
      if (!wants_proto) return {.body = call_to_json(call)};
      return {.body = call_to_proto(call), .content_type = "application/x-protobuf"};
    }
    case Result::Kind::kSample: {
      const SampleDone done = decode_sample_result(result.bytes);
      if (!wants_proto) return {.body = sample_to_json(done)};
      return {.body = sample_to_proto(done), .content_type = "application/x-protobuf"};
    }
    case Result::Kind::kJson:
      break;
  }
  Json value = parse_json(result.bytes, "result");
  if (outcome.kind == OpKind::kCreateModel) value["type"] = "create_model";
  value.erase("folder");  // of a load: where it came from
  return json_reply(value);
}

HttpReply pending(const std::string& id, bool started) {
  Json reply = {{"type", "try_again"}, {"request_id", id}, {"queue_state", "active"}};
  if (!started) {
    reply["queue_state"] = "paused_capacity";
    reply["queue_state_reason"] = "the model is being loaded";
  }
  return json_reply(reply, 408);
}

}  // namespace

void TinkerApi::retrieve_future(Call& call) {
  const std::string id = need_text(call.body, "request_id");
  const bool proto = call.request.header("accept").find("application/x-protobuf") != std::string_view::npos;
  const uint64_t waiter =
      core_.wait(id, call.owner, [this, id, proto, respond = call.respond](const Core::Outcome& outcome) {
        respond(outcome.state == Core::Outcome::State::kPending ? pending(id, core_.started())
                                                                : render(outcome, proto));
      });
  // It holds no connection, which may be gone by then.
  if (waiter != 0) after_(options_.poll, [this, id, waiter] { core_.stop_waiting(id, waiter); });
}

}  // namespace twinkle::serve
