// Samples as the log keeps them.
#include <algorithm>

#include "twinkle/serve/operation.h"
#include "twinkle/serve/stored.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve {
namespace {

template <class T>
std::vector<T> list(std::string_view bytes) {
  return unpack_array<T>(bytes, kLogRecord);
}

std::string layout_bytes(const TensorLayout& layout) {
  WireWriter out;
  out.bytes(1, pack_array(layout.shape));
  out.bytes(2, pack_array(layout.crow));
  out.bytes(3, pack_array(layout.col));
  return out.take();
}

TensorLayout layout_from(std::string_view bytes) {
  TensorLayout layout;
  for (WireReader in(bytes, kLogRecord); in.next();) {
    if (in.field() == 1) layout.shape = list<int64_t>(in.bytes());
    if (in.field() == 2) layout.crow = list<int64_t>(in.bytes());
    if (in.field() == 3) layout.col = list<int64_t>(in.bytes());
  }
  return layout;
}

void write_places(WireWriter& out, uint32_t field, const Alternatives& places) {
  for (const auto& row : places) {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    for (const auto& [id, logprob] : row) {
      ids.push_back(id);
      logprobs.push_back(logprob);
    }
    WireWriter r;
    r.bytes(1, pack_array(ids));
    r.bytes(2, pack_array(logprobs));
    out.bytes(field, r.str());
  }
}

void read_place(std::string_view bytes, Alternatives& places) {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  for (WireReader r(bytes, kLogRecord); r.next();) {
    if (r.field() == 1) ids = list<int32_t>(r.bytes());
    if (r.field() == 2) logprobs = list<float>(r.bytes());
  }
  auto& row = places.emplace_back();
  for (size_t i = 0; i < std::min(ids.size(), logprobs.size()); ++i) row.emplace_back(ids[i], logprobs[i]);
}

// Records of the first servers say nothing of what came later.
SampleCall sample_from(const Json& head, std::string_view body) {
  const size_t prompt =
      std::min(body.size(), whole_or<size_t>(head, "prompt_tokens", body.size()) * sizeof(int32_t));
  SampleCall call{.prompt = list<int32_t>(body.substr(0, prompt)),
                  .weights = head.at("weights"),
                  .tenant = head.at("tenant"),
                  .num_samples = whole<int64_t>(head.at("num_samples")),
                  .seed = whole<uint64_t>(head.at("seed")),
                  .temperature = head.at("temperature"),
                  .top_p = head.at("top_p"),
                  .top_k = whole<int64_t>(head.at("top_k")),
                  .stop_strings = head.at("stop_strings").get<std::vector<std::string>>(),
                  .stop_at_end = head.at("stop_at_end"),
                  .prompt_logprobs = head.at("prompt_logprobs"),
                  .topk_prompt_logprobs = whole<int64_t>(head.at("topk_prompt_logprobs")),
                  .prompt_logprobs_last_n = whole_or<int64_t>(head, "prompt_logprobs_last_n", 0),
                  .topk_sample_logprobs = whole_or<int64_t>(head, "topk_sample_logprobs", 0),
                  .prompt_alt_tokens = whole_or<int64_t>(head, "prompt_alt_tokens", 0)};
  for (const Json& id : head.at("stop_tokens").get_ref<const Json::array_t&>())
    call.stop_tokens.push_back(whole<int32_t>(id));
  if (!head.at("max_tokens").is_null()) call.max_tokens = whole<int64_t>(head.at("max_tokens"));
  for (WireReader in(body.substr(prompt), kLogRecord); in.next();) {
    if (in.field() == 1) call.prompt_targets.layout = layout_from(in.bytes());
    if (in.field() == 2) call.prompt_targets.ids = list<int32_t>(in.bytes());
  }
  return call;
}

}  // namespace

std::string encode(const SampleCall& call) {
  const Json head = {{"weights", call.weights},
                     {"tenant", call.tenant},
                     {"num_samples", call.num_samples},
                     {"max_tokens", call.max_tokens ? Json(*call.max_tokens) : Json(nullptr)},
                     {"seed", call.seed},
                     {"temperature", call.temperature},
                     {"top_p", call.top_p},
                     {"top_k", call.top_k},
                     {"stop_strings", call.stop_strings},
                     {"stop_tokens", call.stop_tokens},
                     {"stop_at_end", call.stop_at_end},
                     {"prompt_logprobs", call.prompt_logprobs},
                     {"topk_prompt_logprobs", call.topk_prompt_logprobs},
                     {"prompt_logprobs_last_n", call.prompt_logprobs_last_n},
                     {"topk_sample_logprobs", call.topk_sample_logprobs},
                     {"prompt_alt_tokens", call.prompt_alt_tokens},
                     {"prompt_tokens", call.prompt.size()}};
  std::string body(pack_array(call.prompt));
  if (!call.prompt_targets.ids.empty()) {
    WireWriter targets;
    targets.bytes(1, layout_bytes(call.prompt_targets.layout));
    targets.bytes(2, pack_array(call.prompt_targets.ids));
    body += targets.str();
  }
  return join_record(head, body);
}

SampleCall decode_sample(std::string_view bytes) {
  Json head;
  std::string_view body;
  split_record(bytes, head, body);
  return from_head([&] { return sample_from(head, body); });
}

std::string encode(const SampleDone& done) {
  WireWriter out;
  for (const auto& sequence : done.sequences) {
    WireWriter s;
    s.integer(1, sequence.stopped ? 1 : 0);
    s.bytes(2, pack_array(sequence.tokens));
    s.bytes(3, pack_array(sequence.logprobs));
    write_places(s, 4, sequence.top);
    out.bytes(1, s.str());
  }
  out.bytes(2, pack_array(done.prompt_logprobs));
  write_places(out, 3, done.topk_prompt_logprobs);
  if (!done.target_layout.shape.empty()) {
    out.bytes(4, layout_bytes(done.target_layout));
    out.bytes(5, pack_array(done.target_prompt_logprobs));
  }
  if (done.alt_tokens_a_place > 0) {
    out.integer(6, done.alt_tokens_a_place);
    out.bytes(7, pack_array(done.alt_tokens));
    out.bytes(8, pack_array(done.alt_logprobs));
  }
  return out.take();
}

SampleDone decode_sample_result(std::string_view bytes) {
  SampleDone done;
  for (WireReader in(bytes, kLogRecord); in.next();) {
    switch (in.field()) {
      case 1: {
        SampleDone::Sequence sequence;
        for (WireReader s(in.bytes(), kLogRecord); s.next();) {
          if (s.field() == 1) sequence.stopped = s.boolean();
          if (s.field() == 2) sequence.tokens = list<int32_t>(s.bytes());
          if (s.field() == 3) sequence.logprobs = list<float>(s.bytes());
          if (s.field() == 4) read_place(s.bytes(), sequence.top);
        }
        done.sequences.push_back(std::move(sequence));
        break;
      }
      case 2:
        done.prompt_logprobs = list<float>(in.bytes());
        break;
      case 3:
        read_place(in.bytes(), done.topk_prompt_logprobs);
        break;
      case 4:
        done.target_layout = layout_from(in.bytes());
        break;
      case 5:
        done.target_prompt_logprobs = list<float>(in.bytes());
        break;
      case 6:
        done.alt_tokens_a_place = in.integer();
        break;
      case 7:
        done.alt_tokens = list<int32_t>(in.bytes());
        break;
      case 8:
        done.alt_logprobs = list<float>(in.bytes());
        break;
      default:
        break;
    }
  }
  return done;
}

}  // namespace twinkle::serve
