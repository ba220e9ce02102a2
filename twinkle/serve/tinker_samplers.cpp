// The routes of the Tinker API for samplers and samples: asking for them, which are done, which nobody wants,
// whose numbers are whose. Also what this server does not have and says so through a future.
#include "twinkle/serve/random_hex.h"
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
  static const Entry entries[] = {
      {"POST", "create_sampling_session", &TinkerApi::create_sampling_session, kStoreFile},
      {"GET", "samplers/*", &TinkerApi::get_sampler},
      {"POST", "asample", &TinkerApi::asample},
      {"POST", "cancel_future", &TinkerApi::cancel_future},
      {"POST", "retrieve_futures", &TinkerApi::retrieve_futures},
      {"POST", "join_sampling_session", &TinkerApi::join_sampling_session, kStoreFile},
      {"POST", "create_custom_loss", &TinkerApi::create_custom_loss}};
  return entries;
}

void TinkerApi::create_sampling_session(Call& call) {
  const Session session = need_session(call);
  const int64_t number = need_number(call.body, "sampling_session_seq_id");
  SamplerEntry sampler{.id = session.id + ":sample:" + std::to_string(number),
                       .session = session.id,
                       .owner = call.owner,
                       .base_model = text_or(call.body, "base_model", ""),
                       .model_path = text_or(call.body, "model_path", ""),
                       .created = core_.now()};
  if (!store_.sampler(sampler.id, call.owner)) {
    if (!session.finished.empty()) throw invalid_argument(over(session.id, call.owner));
    if (!sampler.base_model.empty() && !is_base_model(sampler.base_model))
      throw not_found("base_model '" + sampler.base_model + "' is not here; this server has '" +
                      options_.model_names.front() + "'");
    if (!sampler.model_path.empty()) {
      const auto checkpoint = store_.readable_checkpoint(sampler.model_path, call.owner, core_.now());
      if (!checkpoint) throw not_found("there is no such checkpoint");
      sampler.folder = checkpoint->folder;
      sampler.base_model = checkpoint->base_model;
    } else if (sampler.base_model.empty()) {
      throw invalid_argument("needs 'base_model' or 'model_path'");
    }
    store_.put(sampler);
  }
  call.respond(json_reply({{"type", "create_sampling_session"}, {"sampling_session_id", sampler.id}}));
}

void TinkerApi::get_sampler(Call& call) {
  const auto sampler = store_.sampler(call.arguments[0], call.owner);
  if (!sampler) throw not_found("there is no such sampler");
  Json reply = {{"sampler_id", sampler->id}, {"base_model", sampler->base_model}};
  if (!sampler->model_path.empty()) reply["model_path"] = sampler->model_path;
  call.respond(json_reply(reply));
}

void TinkerApi::asample(Call& call) {
  const auto sampler = store_.sampler(need_text(call.body, "sampling_session_id"), call.owner);
  if (!sampler) throw not_found("there is no such sampling session");
  store_.touch_session(sampler->session);
  Operation op{.kind = OpKind::kSample,
               .target = sampler->id,
               .seq = int_or(call.body, "seq_id", -1, 0, kMostSeq),
               .refused = over(sampler->session, call.owner)};
  if (op.refused.empty() && sampler->ended)
    op.refused = "[sample] this sampler has ended: its session was silent for too long; make a new one";
  int64_t count = 1;
  check(op, [&] {
    count = int_or(call.body, "num_samples", 1, 1, 1024);  // first: a client counts the names before all else
    SampleCall sample = parse_sample(call.body);
    sample.weights = sampler->folder;
    sample.tenant = call.owner;
    const Json* params = find(call.body, "sampling_params");
    if (params == nullptr || find(*params, "seed") == nullptr) sample.seed = random_seed();
    op.tokens = static_cast<int64_t>(sample.prompt.size());
    op.body = encode(sample);
  });
  // The same names however often it is sent.
  Json names = Json::array();
  for (int64_t i = 0; i < count; ++i)
    names.push_back(sampler->id + ":" + (op.seq < 0 ? random_hex("", 16) : std::to_string(op.seq)) + ":" +
                    std::to_string(i));
  submit(call, std::move(op), {{"sample_sequence_ids", names}});
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
