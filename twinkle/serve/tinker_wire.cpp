#include "twinkle/serve/tinker_wire.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "twinkle/core/suggest.h"
#include "twinkle/sample/sampling_param_specs.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve::tinker {
namespace {

// What a loss reads, beside target_tokens.
struct LossRule {
  const char* name;
  std::vector<const char*> needs, may_have, config;

  bool reads(std::string_view input) const {
    const auto is = [&](const char* name) { return input == name; };
    return input == "target_tokens" || std::ranges::any_of(needs, is) || std::ranges::any_of(may_have, is);
  }
};
const std::vector<LossRule>& loss_rules() {
  static const std::vector<LossRule> rules = {
      {"cross_entropy", {}, {"weights"}, {}},
      {"importance_sampling", {"logprobs", "advantages"}, {}, {}},
      {"ppo", {"logprobs", "advantages"}, {}, {"clip_low_threshold", "clip_high_threshold"}},
      {"cispo", {"logprobs", "advantages"}, {}, {"clip_low_threshold", "clip_high_threshold"}},
      {"dro", {"logprobs", "advantages"}, {}, {"beta"}}};
  return rules;
}

// A tensor of either wire.
struct Tensor {
  std::vector<int64_t> shape, ints;
  std::vector<float> floats;
  bool integral = false;
};

[[noreturn]] void bad(const std::string& where, const std::string& why) {
  throw invalid_argument("[forward_backward] " + where + ": " + why);
}

Tensor tensor_from_proto(std::string_view bytes, const std::string& where) {
  Tensor out;
  std::string_view dense;
  int64_t dtype = 0;
  for (WireReader in(bytes, "Tensor"); in.next();) {
    switch (in.field()) {
      case 1:
        dense = in.bytes();
        break;
      case 2:
        bad(where, "sparse tensors are not supported by this server; send a dense one");
      case 3:
        dtype = in.integer();
        break;
      case 4:
        in.integers(out.shape);
        break;
      default:
        break;
    }
  }
  switch (dtype) {
    case 1:
      out.floats = unpack_array<float>(dense, "Tensor");
      break;
    case 2:
      out.ints = unpack_array<int64_t>(dense, "Tensor");
      break;
    case 3:
      for (const int32_t x : unpack_array<int32_t>(dense, "Tensor")) out.ints.push_back(x);
      break;
    case 4:
      if (dense.size() % 2 != 0) bad(where, "its bytes are no whole number of bfloat16 values");
      for (size_t i = 0; i < dense.size(); i += 2) {
        const uint32_t word = static_cast<uint32_t>(static_cast<uint8_t>(dense[i])) << 16 |
                              static_cast<uint32_t>(static_cast<uint8_t>(dense[i + 1])) << 24;
        out.floats.push_back(std::bit_cast<float>(word));
      }
      break;
    default:
      bad(where, "its dtype is not known");
  }
  out.integral = dtype == 2 || dtype == 3;
  return out;
}

Tensor tensor_from_json(const Json& value, const std::string& where) {
  if (!value.is_object()) bad(where, "must be an object with data and dtype");
  if (find(value, "sparse_crow_indices") != nullptr || find(value, "sparse_col_indices") != nullptr)
    bad(where, "sparse tensors are not supported by this server; send a dense one");
  Tensor out;
  const Json* data = find(value, "data");
  if (data == nullptr || !data->is_array()) bad(where, "needs a list 'data'");
  const std::string dtype = text_or(value, "dtype", "float32");
  out.integral = dtype == "int64" || dtype == "int32";
  if (!out.integral && dtype != "float32") bad(where, "dtype must be int64 or float32");
  for (const auto& x : *data) {
    if (!x.is_number()) bad(where, "holds something that is not a number");
    if (out.integral) {
      if (!x.is_number_integer()) bad(where, "holds something that is not a whole number");
      out.ints.push_back(x.get<int64_t>());
    } else {
      out.floats.push_back(x.get<float>());
    }
  }
  if (const Json* shape = find(value, "shape")) {
    if (!shape->is_array()) bad(where, "'shape' must be a list");
    for (const auto& x : *shape) {
      if (!x.is_number_integer()) bad(where, "'shape' must be a list of whole numbers");
      out.shape.push_back(x.get<int64_t>());
    }
  }
  return out;
}

// One value a position.
void check_shape(const Tensor& t, size_t count, const std::string& where) {
  if (t.shape.empty() || (t.shape.size() == 1 && t.shape[0] == static_cast<int64_t>(count))) return;
  if (t.shape.size() == 2 && t.shape[0] == static_cast<int64_t>(count) && t.shape[1] == 1) return;
  if (t.shape.size() == 2 && t.shape[1] > 1)
    bad(where, "several targets a position are not supported by this server; its shape must be (N,)");
  bad(where, "its shape does not fit its data");
}

struct RawDatum {
  std::vector<int32_t> tokens;
  std::map<std::string, Tensor> inputs;
};

int32_t token_id(int64_t id, const std::string& where) {
  if (id < 0 || id > std::numeric_limits<int32_t>::max())
    bad(where, "token " + std::to_string(id) + " is out of range");
  return static_cast<int32_t>(id);
}

// Raw data of either wire into the datum that the loss needs.
Datum checked(RawDatum raw, const LossRule& rule, const std::string& where) {
  Datum out{.tokens = std::move(raw.tokens)};
  const size_t n = out.tokens.size();
  if (n == 0) bad(where, "has no tokens");
  const auto targets = raw.inputs.find("target_tokens");
  if (targets == raw.inputs.end()) bad(where, std::string("loss '") + rule.name + "' needs 'target_tokens'");
  if (!targets->second.integral) bad(where + ", target_tokens", "must be whole numbers");
  const auto count = [&](size_t got, const std::string& name) {
    if (got != n)
      bad(where + ", " + name, "has " + std::to_string(got) + " values for " + std::to_string(n) + " tokens");
  };
  count(targets->second.ints.size(), "target_tokens");
  check_shape(targets->second, n, where + ", target_tokens");
  for (const int64_t id : targets->second.ints)
    out.targets.push_back(token_id(id, where + ", target_tokens"));
  const auto take = [&](const char* name, bool needed) {
    const auto found = raw.inputs.find(name);
    if (found == raw.inputs.end()) {
      if (needed) bad(where, std::string("loss '") + rule.name + "' needs '" + name + "'");
      return;
    }
    Tensor& t = found->second;
    if (t.integral) t.floats.assign(t.ints.begin(), t.ints.end());
    count(t.floats.size(), name);
    check_shape(t, n, where + ", " + name);
    for (const float x : t.floats) {
      if (!std::isfinite(x))
        bad(where + ", " + name, "NonFiniteInTensor: it holds a number that is not finite");
    }
    out.inputs[name] = std::move(t.floats);
  };
  for (const char* name : rule.needs) take(name, true);
  for (const char* name : rule.may_have) take(name, false);
  return out;
}

const LossRule& rule_of(const std::string& loss) {
  std::vector<std::string> names;
  for (const auto& rule : loss_rules()) {
    if (loss == rule.name) return rule;
    names.emplace_back(rule.name);
  }
  throw invalid_argument("[forward_backward] loss_fn '" + loss + "' is not one of this server's" +
                         did_you_mean(loss, names));
}

void check_config(const TrainCall& call, const LossRule& rule) {
  for (const auto& [name, value] : call.loss_config) {
    if (std::ranges::none_of(rule.config, [&](const char* known) { return name == known; })) {
      throw invalid_argument("[forward_backward] loss '" + call.loss + "' has no option '" + name + "'");
    }
    if (!std::isfinite(value))
      throw invalid_argument("[forward_backward] option '" + name + "' is not finite");
  }
}

std::string datum_name(size_t index) { return "datum " + std::to_string(index); }

std::vector<int32_t> tokens_from_json(const Json* input, const std::string& where) {
  std::vector<int32_t> tokens;
  const Json* chunks = input == nullptr ? nullptr : find(*input, "chunks");
  if (chunks == nullptr || !chunks->is_array()) bad(where, "needs a list 'chunks'");
  for (const auto& chunk : *chunks) {
    if (!chunk.is_object()) bad(where, "a chunk must be an object");
    const std::string type = text_or(chunk, "type", "encoded_text");
    if (type != "encoded_text") bad(where, "chunks of type '" + type + "' need a model that sees or hears");
    const Json* list = find(chunk, "tokens");
    if (list == nullptr || !list->is_array()) bad(where, "a text chunk needs a list 'tokens'");
    for (const auto& x : *list) {
      if (!x.is_number_integer()) bad(where, "tokens must be whole numbers");
      tokens.push_back(token_id(x.get<int64_t>(), where));
    }
  }
  return tokens;
}

std::string map_entry(const std::string& key, const std::string& message) {
  WireWriter entry;
  entry.bytes(1, key);
  entry.bytes(2, message);
  return entry.take();
}

Json number_or_text(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

}  // namespace

// Fields of JSON.

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string need_text(const Json& body, const char* key) {
  const Json* value = find(body, key);
  if (value == nullptr || !value->is_string() || value->get_ref<const std::string&>().empty())
    throw invalid_argument(std::string("'") + key + "' must be a text");
  return value->get<std::string>();
}

std::string text_or(const Json& body, const char* key, const std::string& otherwise) {
  const Json* value = find(body, key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) throw invalid_argument(std::string("'") + key + "' must be a text");
  return value->get<std::string>();
}

int64_t int_or(const Json& body, const char* key, int64_t otherwise, int64_t least, int64_t most) {
  const Json* value = find(body, key);
  if (value == nullptr) return otherwise;
  const bool whole =
      value->is_number_integer() &&
      !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!whole || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    throw invalid_argument(std::string("'") + key + "' must be a whole number from " + std::to_string(least) +
                           " to " + std::to_string(most));
  }
  return value->get<int64_t>();
}

double number_or(const Json& body, const char* key, double otherwise) {
  const Json* value = find(body, key);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    throw invalid_argument(std::string("'") + key + "' must be a finite number");
  return value->get<double>();
}

bool bool_or(const Json& body, const char* key, bool otherwise) {
  const Json* value = find(body, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) throw invalid_argument(std::string("'") + key + "' must be true or false");
  return value->get<bool>();
}

// Calls.

int64_t seq_of(const Json& body) {
  const int64_t seq = int_or(body, "seq_id", 0, 0, kMostSeq);
  return seq == 0 ? -1 : seq;
}

CallHead call_head(std::string_view proto) {
  CallHead head;
  for (WireReader in(proto, "ForwardBackwardRequest"); in.next();) {
    if (in.field() == 1) head.model_id = in.text();
    if (in.field() == 2) {
      const int64_t seq = in.integer();
      if (seq < 0 || seq > kMostSeq) throw invalid_argument("'seq_id' must be from 0 to 2^62");
      if (seq > 0) head.seq_id = seq;
    }
    if (in.field() == 6) head.forward_only = in.boolean();
  }
  if (head.model_id.empty()) throw invalid_argument("'model_id' must be a text");
  return head;
}

CallHead call_head(const Json& body) {
  return {.model_id = need_text(body, "model_id"), .seq_id = seq_of(body)};
}

TrainCall parse_call(std::string_view proto) {
  TrainCall call;
  std::vector<std::string_view> data;
  bool has_v2 = false;
  for (WireReader in(proto, "ForwardBackwardRequest"); in.next();) {
    const uint32_t field = in.field();
    if (field == 3) data.push_back(in.bytes());
    if (field == 4) call.loss = in.text();
    if (field == 6) call.forward_only = in.boolean();
    if (field != 5 && field != 7) continue;
    // Field 7 has what field 5 has, and texts beside.
    std::string name;
    double value = 0;
    for (WireReader entry(in.bytes(), "loss_fn_config"); entry.next();) {
      if (entry.field() == 1) name = entry.text();
      if (entry.field() == 2 && field == 5) value = entry.real64();
      if (entry.field() != 2 || field != 7) continue;
      for (WireReader v(entry.bytes(), "LossConfigValue"); v.next();) {
        if (v.field() == 1) value = v.real64();
        if (v.field() == 2)
          throw invalid_argument("[forward_backward] option '" + name + "' must be a number, not a text");
      }
    }
    if (field == 7 && !has_v2) call.loss_config.clear();
    has_v2 |= field == 7;
    if (field == 7 || !has_v2) call.loss_config[name] = value;
  }
  const LossRule& rule = rule_of(call.loss);
  check_config(call, rule);
  for (size_t i = 0; i < data.size(); ++i) {
    RawDatum raw;
    for (WireReader d(data[i], "Datum"); d.next();) {
      if (d.field() == 1) {
        for (WireReader chunk(d.bytes(), "Chunk"); chunk.next();) {
          if (chunk.field() == 2 || chunk.field() == 3)
            bad(datum_name(i), "images and sounds need a model that sees or hears");
          if (chunk.field() != 1) continue;
          for (WireReader text(chunk.bytes(), "EncodedText"); text.next();) {
            if (text.field() != 1) continue;
            const auto tokens = unpack_array<int32_t>(text.bytes(), "EncodedText");
            raw.tokens.insert(raw.tokens.end(), tokens.begin(), tokens.end());
          }
        }
      }
      if (d.field() != 2) continue;
      std::string name;
      std::string_view tensor;
      for (WireReader entry(d.bytes(), "loss_fn_inputs"); entry.next();) {
        if (entry.field() == 1) name = entry.text();
        if (entry.field() == 2) tensor = entry.bytes();
      }
      // What the loss does not read is not looked at.
      if (rule.reads(name)) raw.inputs[name] = tensor_from_proto(tensor, datum_name(i) + ", " + name);
    }
    call.data.push_back(checked(std::move(raw), rule, datum_name(i)));
  }
  if (call.data.empty()) throw invalid_argument("[forward_backward] there are no data");
  return call;
}

TrainCall parse_call(const Json& body, const char* key) {
  const Json* input = find(body, key);
  if (input == nullptr) throw invalid_argument(std::string("[forward_backward] '") + key + "' is missing");
  TrainCall call{.loss = text_or(*input, "loss_fn", ""),
                 .forward_only = std::string_view(key) == "forward_input"};
  if (const Json* config = find(*input, "loss_fn_config")) {
    if (!config->is_object()) throw invalid_argument("[forward_backward] 'loss_fn_config' must be an object");
    for (const auto& [name, value] : config->items())
      call.loss_config[name] = number_or(*config, name.c_str(), 0);
  }
  const LossRule& rule = rule_of(call.loss);
  check_config(call, rule);
  const Json* data = find(*input, "data");
  if (data == nullptr || !data->is_array() || data->empty())
    throw invalid_argument("[forward_backward] there are no data");
  for (size_t i = 0; i < data->size(); ++i) {
    const Json& d = (*data)[i];
    RawDatum raw{.tokens = tokens_from_json(find(d, "model_input"), datum_name(i))};
    if (const Json* inputs = find(d, "loss_fn_inputs"); inputs != nullptr && inputs->is_object()) {
      for (const auto& [name, value] : inputs->items()) {
        if (rule.reads(name)) raw.inputs[name] = tensor_from_json(value, datum_name(i) + ", " + name);
      }
    }
    call.data.push_back(checked(std::move(raw), rule, datum_name(i)));
  }
  return call;
}

// Other requests.

Json parse_adam(const Json& body) {
  if (find(body, "optimizer_params") != nullptr)
    throw invalid_argument("[optim_step] this server has AdamW only; send adam_params");
  static const Json none = Json::object();
  const Json* given = find(body, "adam_params");
  const Json& p = given == nullptr ? none : *given;
  if (!p.is_object()) throw invalid_argument("[optim_step] 'adam_params' must be an object");
  const AdamParams d;
  const Json out = {{"learning_rate", number_or(p, "learning_rate", d.learning_rate)},
                    {"beta1", number_or(p, "beta1", d.beta1)},
                    {"beta2", number_or(p, "beta2", d.beta2)},
                    {"eps", number_or(p, "eps", d.eps)},
                    {"weight_decay", number_or(p, "weight_decay", d.weight_decay)},
                    {"grad_clip_norm", number_or(p, "grad_clip_norm", d.grad_clip_norm)}};
  for (const char* name : {"learning_rate", "weight_decay", "grad_clip_norm"}) {
    if (out[name] < 0)
      throw invalid_argument(std::string("[optim_step] '") + name + "' must not be negative");
  }
  for (const char* name : {"beta1", "beta2"}) {
    if (out[name] < 0 || out[name] >= 1)
      throw invalid_argument(std::string("[optim_step] '") + name + "' must be at least 0 and below 1");
  }
  if (out["eps"] <= 0) throw invalid_argument("[optim_step] 'eps' must be above 0");
  return out;
}

SampleCall parse_sample(const Json& body) {
  for (const char* key : {"prompt_logprobs_last_n", "target_prompt_logprobs"}) {
    if (find(body, key) != nullptr)
      throw invalid_argument(std::string("[sample] '") + key + "' is not supported by this server");
  }
  for (const char* key : {"topk_sample_logprobs", "prompt_alt_tokens_k"}) {
    if (int_or(body, key, 0, 0, INT32_MAX) > 0)
      throw invalid_argument(std::string("[sample] '") + key + "' is not supported by this server");
  }
  SampleCall call;
  call.prompt = tokens_from_json(find(body, "prompt"), "the prompt");
  call.num_samples = int_or(body, "num_samples", 1, 1, kMostSamples);
  call.prompt_logprobs = bool_or(body, "prompt_logprobs", false);
  call.topk_prompt_logprobs = int_or(body, "topk_prompt_logprobs", 0, 0, kMostAlternatives);
  static const Json none = Json::object();
  const Json* given = find(body, "sampling_params");
  const Json& p = given == nullptr ? none : *given;
  if (find(p, "max_tokens") != nullptr) call.max_tokens = int_or(p, "max_tokens", 0, 0, INT32_MAX);
  if (const Json* seed = find(p, "seed")) {
    if (!seed->is_number_integer()) throw invalid_argument("[sample] 'seed' must be a whole number");
    call.seed = seed->get<uint64_t>();
  }
  call.temperature = number_or(p, "temperature", 1.0);
  call.top_p = number_or(p, "top_p", 1.0);
  call.top_k = int_or(p, "top_k", -1, -1, INT32_MAX);
  if (const Json* stop = find(p, "stop")) {
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    call.stop_at_end = !list.empty();
    for (const auto& x : list) {
      if (x.is_string() && !x.get_ref<const std::string&>().empty()) {
        call.stop_strings.push_back(x.get<std::string>());
      } else if (x.is_number_integer()) {
        call.stop_tokens.push_back(token_id(x.get<int64_t>(), "stop"));
      } else {
        throw invalid_argument("[sample] 'stop' must be texts or token ids");
      }
    }
  }
  return call;
}

// Replies.

std::string call_to_proto(const CallResult& result) {
  WireWriter record, out;
  record.bytes(1, "loss_fn_output");
  const auto field = [&](const char* name, const std::vector<std::vector<float>>& rows) {
    if (rows.empty()) return;
    std::string data;
    std::vector<int64_t> offsets = {0};
    for (const auto& row : rows) {
      data.append(pack_array(row));
      offsets.push_back(static_cast<int64_t>(data.size()));
    }
    WireWriter tensor;
    tensor.bytes(1, data);
    tensor.bytes(2, pack_array(offsets));
    tensor.integer(3, 1);
    record.bytes(2, map_entry(name, tensor.str()));
  };
  field("logprobs", result.logprobs);
  field("elementwise_loss", result.elementwise_loss);
  record.integer(3, static_cast<int64_t>(result.logprobs.size()));
  out.bytes(1, "scalar");
  if (!result.logprobs.empty()) out.bytes(2, record.str());
  WireWriter metric;
  metric.bytes(1, "loss:sum");
  metric.real64(2, result.loss);
  out.bytes(3, metric.str());
  return out.take();
}

std::string call_to_json(const CallResult& result) {
  Json outputs = Json::array();
  const auto tensor = [](const std::vector<float>& values) {
    Json data = Json::array();
    // As doubles: the text reads back as the very fp32 number.
    for (const float x : values) data.push_back(number_or_text(x));
    return Json{{"data", std::move(data)}, {"dtype", "float32"}, {"shape", {values.size()}}};
  };
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    Json one = {{"logprobs", tensor(result.logprobs[i])}};
    if (i < result.elementwise_loss.size()) one["elementwise_loss"] = tensor(result.elementwise_loss[i]);
    outputs.push_back(std::move(one));
  }
  return Json{{"loss_fn_output_type", "scalar"},
              {"loss_fn_outputs", std::move(outputs)},
              {"metrics", {{"loss:sum", number_or_text(result.loss)}}}}
      .dump();
}

std::string sample_to_proto(const SampleDone& done) {
  WireWriter out;
  for (const auto& sequence : done.sequences) {
    WireWriter s;
    s.integer(1, sequence.stopped ? 0 : 1);
    s.bytes(2, pack_array(sequence.tokens));
    s.bytes(3, pack_array(sequence.logprobs));
    out.bytes(1, s.str());
  }
  if (!done.prompt_logprobs.empty()) out.bytes(2, pack_array(done.prompt_logprobs));
  size_t k = 0;
  for (const auto& row : done.topk_prompt_logprobs) k = std::max(k, row.size());
  if (k > 0) {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    for (const auto& row : done.topk_prompt_logprobs) {
      for (size_t i = 0; i < k; ++i) {  // cells that are not there are (0, -99999)
        ids.push_back(i < row.size() ? row[i].first : 0);
        logprobs.push_back(i < row.size() ? row[i].second : -99999.0f);
      }
    }
    WireWriter topk;
    topk.bytes(1, pack_array(ids));
    topk.bytes(2, pack_array(logprobs));
    topk.integer(3, static_cast<int64_t>(k));
    topk.integer(4, static_cast<int64_t>(done.topk_prompt_logprobs.size()));
    out.bytes(3, topk.str());
  }
  return out.take();
}

std::string sample_to_json(const SampleDone& done) {
  Json sequences = Json::array();
  for (const auto& s : done.sequences) {
    sequences.push_back(
        {{"stop_reason", s.stopped ? "stop" : "length"}, {"tokens", s.tokens}, {"logprobs", s.logprobs}});
  }
  Json out = {{"type", "sample"}, {"sequences", std::move(sequences)}};
  if (!done.prompt_logprobs.empty()) {
    Json list = Json::array();
    for (const float x : done.prompt_logprobs) list.push_back(std::isfinite(x) ? Json(x) : Json(nullptr));
    out["prompt_logprobs"] = std::move(list);
  }
  if (!done.topk_prompt_logprobs.empty()) {
    Json rows = Json::array();
    for (const auto& row : done.topk_prompt_logprobs) {
      Json cells = Json::array();
      for (const auto& [id, logprob] : row) cells.push_back({id, logprob});
      rows.push_back(row.empty() ? Json(nullptr) : std::move(cells));
    }
    out["topk_prompt_logprobs"] = std::move(rows);
  }
  return out.dump();
}

}  // namespace twinkle::serve::tinker
