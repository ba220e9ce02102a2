// asample: requests and their replies.
#include <algorithm>
#include <cmath>

#include "twinkle/sample/sampling_param_specs.h"
#include "twinkle/serve/tinker_tensor.h"
#include "twinkle/serve/tinker_wire.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve::tinker {
namespace {

constexpr int32_t kNothing = -1;          // a cell of target_prompt_logprobs that asks for nothing
constexpr float kNoAlternative = -99999;  // with token 0: a cell of a top-k table that is not there

PromptTargets prompt_targets_from(const Json& value, int64_t rows) {
  const std::string where = "[sample] target_prompt_logprobs";
  Tensor given = tensor_from_json(value, where);
  if (!given.integral) bad(where, "must be whole numbers");
  if (given.layout.shape.size() != 2) bad(where, "must be a table of the tokens of each place but the first");
  columns_of(given, rows, where);
  PromptTargets out{.layout = std::move(given.layout)};
  bool any = false;
  for (const int64_t id : given.ints) {
    out.ids.push_back(id == kNothing ? kNothing : token_id(id, where));
    any |= id != kNothing;
  }
  if (!any) bad(where, "names no token");
  return out;
}

void read_stop(const Json& stop, SampleCall& call) {
  const Json list = stop.is_array() ? stop : Json::array({stop});
  call.stop_at_end = !list.empty();
  for (const auto& x : list) {
    if (x.is_string() && !x.get_ref<const std::string&>().empty()) {
      call.stop_strings.push_back(x.get<std::string>());
    } else if (x.is_number_integer()) {
      call.stop_tokens.push_back(token_id(whole_number(x, "[sample] stop"), "[sample] stop"));
    } else {
      throw invalid_argument("[sample] 'stop' must be texts or token ids");
    }
  }
}

// A TopkLogprobs message; nothing for a text without places.
std::string topk_to_proto(const Alternatives& places) {
  size_t k = 0;
  for (const auto& row : places) k = std::max(k, row.size());
  if (k == 0) return "";
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  for (const auto& row : places) {
    for (size_t i = 0; i < k; ++i) {
      ids.push_back(i < row.size() ? row[i].first : 0);
      logprobs.push_back(i < row.size() ? row[i].second : kNoAlternative);
    }
  }
  WireWriter out;
  out.bytes(1, pack_array(ids));
  out.bytes(2, pack_array(logprobs));
  out.integer(3, static_cast<int64_t>(k));
  out.integer(4, static_cast<int64_t>(places.size()));
  return out.take();
}

Json topk_to_json(const Alternatives& places) {
  Json rows = Json::array();
  for (const auto& row : places) {
    Json cells = Json::array();
    for (const auto& [id, logprob] : row) cells.push_back({id, number_or_text(logprob)});
    rows.push_back(row.empty() ? Json(nullptr) : std::move(cells));
  }
  return rows;
}

template <class T>
Json tensor_to_json(const TensorLayout& layout, const std::vector<T>& values, const char* dtype) {
  Json data = Json::array();
  for (const T x : values) {
    if constexpr (std::is_integral_v<T>) {
      data.push_back(x);
    } else {
      data.push_back(number_or_text(x));
    }
  }
  Json out = {{"data", std::move(data)}, {"dtype", dtype}, {"shape", layout.shape}};
  if (!layout.crow.empty()) {
    out["sparse_crow_indices"] = layout.crow;
    out["sparse_col_indices"] = layout.col;
  }
  return out;
}

TensorLayout alt_layout(const SampleDone& done) {
  const auto places = static_cast<int64_t>(done.alt_tokens.size()) / done.alt_tokens_a_place;
  return {.shape = {places, done.alt_tokens_a_place}};
}

}  // namespace

SampleCall parse_sample(const Json& body) {
  SampleCall call;
  call.prompt = tokens_of(find(body, "prompt"), "[sample] the prompt");
  const auto length = static_cast<int64_t>(call.prompt.size());
  const auto number = [](const Json& of, const char* key, int64_t otherwise, int64_t least, int64_t most) {
    try {
      return int_or(of, key, otherwise, least, most);
    } catch (const Error& e) {
      throw invalid_argument(std::string("[sample] ") + e.what());
    }
  };
  call.num_samples = number(body, "num_samples", 1, 1, kMostSamples);
  call.prompt_logprobs = bool_or(body, "prompt_logprobs", false);
  call.topk_prompt_logprobs = number(body, "topk_prompt_logprobs", 0, 0, kMostAlternatives);
  call.topk_sample_logprobs = number(body, "topk_sample_logprobs", 0, 0, kMostAlternatives);
  call.prompt_alt_tokens = number(body, "prompt_alt_tokens_k", 0, 0, kMostAlternatives);
  if (find(body, "prompt_logprobs_last_n") != nullptr) {
    if (!call.prompt_logprobs)
      throw invalid_argument("[sample] 'prompt_logprobs_last_n' needs 'prompt_logprobs'");
    call.prompt_logprobs_last_n =
        number(body, "prompt_logprobs_last_n", 0, 1, std::max<int64_t>(length - 1, 1));
  }
  if (const Json* targets = find(body, "target_prompt_logprobs"))
    call.prompt_targets = prompt_targets_from(*targets, length - 1);
  static const Json none = Json::object();
  const Json* given = find(body, "sampling_params");
  if (given != nullptr && !given->is_object())
    throw invalid_argument("[sample] 'sampling_params' must be an object");
  const Json& p = given == nullptr ? none : *given;
  if (find(p, "max_tokens") != nullptr) call.max_tokens = number(p, "max_tokens", 0, 0, INT32_MAX);
  if (const Json* seed = find(p, "seed")) {
    if (!seed->is_number_integer()) throw invalid_argument("[sample] 'seed' must be a whole number");
    call.seed = seed->get<uint64_t>();
  }
  call.temperature = number_or(p, "temperature", 1.0);
  call.top_p = number_or(p, "top_p", 1.0);
  call.top_k = number(p, "top_k", -1, -1, INT32_MAX);
  if (const Json* stop = find(p, "stop")) read_stop(*stop, call);
  return call;
}

std::string sample_to_proto(const SampleDone& done) {
  WireWriter out;
  for (const auto& sequence : done.sequences) {
    WireWriter s;
    s.integer(1, sequence.stopped ? 0 : 1);
    s.bytes(2, pack_array(sequence.tokens));
    s.bytes(3, pack_array(sequence.logprobs));
    if (const std::string top = topk_to_proto(sequence.top); !top.empty()) s.bytes(4, top);
    out.bytes(1, s.str());
  }
  if (!done.prompt_logprobs.empty()) out.bytes(2, pack_array(done.prompt_logprobs));
  if (const std::string top = topk_to_proto(done.topk_prompt_logprobs); !top.empty()) out.bytes(3, top);
  if (!done.target_layout.shape.empty())
    out.bytes(5, tensor_to_proto(done.target_layout, pack_array(done.target_prompt_logprobs), false));
  if (done.alt_tokens_a_place > 0) {
    const TensorLayout layout = alt_layout(done);
    WireWriter alt;
    alt.bytes(1, tensor_to_proto(layout, pack_array(done.alt_tokens), true));
    alt.bytes(2, tensor_to_proto(layout, pack_array(done.alt_logprobs), false));
    out.bytes(6, alt.str());
  }
  return out.take();
}

std::string sample_to_json(const SampleDone& done) {
  Json sequences = Json::array();
  for (const auto& s : done.sequences) {
    Json logprobs = Json::array();
    for (const float x : s.logprobs) logprobs.push_back(number_or_text(x));
    Json one = {{"stop_reason", s.stopped ? "stop" : "length"},
                {"tokens", s.tokens},
                {"logprobs", std::move(logprobs)}};
    if (!s.top.empty()) one["topk_logprobs"] = topk_to_json(s.top);
    sequences.push_back(std::move(one));
  }
  Json out = {{"type", "sample"}, {"sequences", std::move(sequences)}};
  if (!done.prompt_logprobs.empty()) {
    Json list = Json::array();
    for (const float x : done.prompt_logprobs) list.push_back(std::isfinite(x) ? Json(x) : Json(nullptr));
    out["prompt_logprobs"] = std::move(list);
  }
  if (!done.topk_prompt_logprobs.empty())
    out["topk_prompt_logprobs"] = topk_to_json(done.topk_prompt_logprobs);
  if (!done.target_layout.shape.empty())
    out["target_prompt_logprobs"] =
        tensor_to_json(done.target_layout, done.target_prompt_logprobs, "float32");
  if (done.alt_tokens_a_place > 0) {
    const TensorLayout layout = alt_layout(done);
    out["prompt_alt_tokens"] = {{"tokens", tensor_to_json(layout, done.alt_tokens, "int64")},
                                {"logprobs", tensor_to_json(layout, done.alt_logprobs, "float32")}};
  }
  return out.dump();
}

}  // namespace twinkle::serve::tinker
