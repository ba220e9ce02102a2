// forward and forward_backward: requests of both wires and their replies.
#include <algorithm>
#include <cmath>

#include "twinkle/core/number_lists.h"
#include "twinkle/serve/tinker_datum.h"
#include "twinkle/serve/tinker_wire.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve::tinker {
namespace {

std::string in_call(const std::string& what) { return "[forward_backward] " + what; }

std::string datum_name(size_t index) { return in_call("datum " + std::to_string(index)); }

// Takes data one by one.
class DataOf {
 public:
  DataOf(TrainCall& call, const LossRule& rule) : call_(call), rule_(rule) {}
  void add(RawDatum raw) {
    const std::string where = datum_name(call_.data.size());
    call_.data.push_back(checked_datum(std::move(raw), rule_, where));
    check_alike(where);
    targets_ += static_cast<int64_t>(call_.data.back().targets.size());
    if (targets_ > kMostTargets)
      bad(in_call("data"), "more than " + std::to_string(kMostTargets) + " targets in one call");
  }

 private:
  // What is left out means something else than any number, except weights.
  void check_alike(const std::string& where) const {
    const Datum &first = call_.data.front(), &last = call_.data.back();
    for (const auto& [one, other] : {std::pair(&first, &last), std::pair(&last, &first)}) {
      for (const auto& [name, values] : one->inputs) {
        if (name == "weights" || other->inputs.contains(name)) continue;
        const std::string what = name == "sampled" ? "provenance spans" : "'" + name + "'";
        bad(where, "some data of the call have " + what + ", others do not");
      }
    }
  }

  TrainCall& call_;
  const LossRule& rule_;
  int64_t targets_ = 0;
};

// One entry of loss_fn_config (field 5) or loss_fn_config_v2 (field 7), which has texts beside.
void read_option(std::string_view bytes, bool v2, LossOptions& options) {
  const std::string place = in_call("loss_fn_config");
  std::string name;
  std::variant<double, std::string> value = 0.0;
  for (WireReader entry(bytes, place); entry.next();) {
    if (entry.field() == 1) name = entry.text();
    if (entry.field() != 2) continue;
    if (!v2) {
      value = entry.real64();
      continue;
    }
    for (WireReader v(entry.bytes(), place); v.next();) {
      if (v.field() == 1) value = v.real64();
      if (v.field() == 2) value = v.text();
    }
  }
  options[name] = value;
}

void read_chunk(std::string_view bytes, const std::string& where, std::vector<int32_t>& tokens) {
  for (WireReader chunk(bytes, where); chunk.next();) {
    if (chunk.field() == 2 || chunk.field() == 3)
      bad(where, "images and sounds need a model that sees or hears");
    if (chunk.field() != 1) continue;
    for (WireReader text(chunk.bytes(), where); text.next();) {
      if (text.field() != 1) continue;
      const auto ids = unpack_array<int32_t>(text.bytes(), where);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
  }
}

ProvenanceSpan read_span(std::string_view bytes, const std::string& where) {
  ProvenanceSpan out;
  for (WireReader one(bytes, where); one.next();) {
    if (one.field() > 2) continue;
    out = {.sampled = one.field() == 2};
    for (WireReader in(one.bytes(), where); in.next();) {
      if (in.field() == 1) out.named = !in.bytes().empty();
      if (in.field() == 2) out.offset = in.integer();
      if (in.field() == 3) out.length = in.integer();
    }
  }
  return out;
}

RawDatum read_datum(std::string_view bytes, const LossRule& rule, const std::string& where) {
  RawDatum raw;
  for (WireReader in(bytes, where); in.next();) {
    if (in.field() == 1) read_chunk(in.bytes(), where, raw.tokens);
    if (in.field() == 2) {
      std::string name;
      std::string_view tensor;
      for (WireReader entry(in.bytes(), where + ", loss_fn_inputs"); entry.next();) {
        if (entry.field() == 1) name = entry.text();
        if (entry.field() == 2) tensor = entry.bytes();
      }
      // What the loss does not read is not looked at.
      if (rule.reads(name)) raw.inputs[name] = tensor_from_proto(tensor, where + ", " + name);
    }
    if (!rule.reads_spans) continue;
    if (in.field() == 3) raw.input_spans.push_back(read_span(in.bytes(), where + ", model_input_spans"));
    if (in.field() == 4) raw.target_spans.push_back(read_span(in.bytes(), where + ", loss_fn_input_spans"));
  }
  return raw;
}

std::string map_entry(const std::string& key, const std::string& message) {
  WireWriter entry;
  entry.bytes(1, key);
  entry.bytes(2, message);
  return entry.take();
}

}  // namespace

// Requests.

CallHead call_head(std::string_view proto) {
  CallHead head;
  for (WireReader in(proto, "the request"); in.next();) {
    if (in.field() == 1) head.model_id = in.text();
    if (in.field() == 2) {
      const int64_t seq = in.integer();
      if (seq < 0 || seq > kMostSeq) throw invalid_argument("'seq_id' must be from 0 to 2^61");
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
  LossOptions options, options_v2;
  bool has_v2 = false;
  for (WireReader in(proto, in_call("the request")); in.next();) {
    const uint32_t field = in.field();
    if (field == 3) data.push_back(in.bytes());
    if (field == 4) call.loss = in.text();
    if (field == 5) read_option(in.bytes(), false, options);
    if (field == 6) call.forward_only = in.boolean();
    if (field == 7) read_option(in.bytes(), true, options_v2);
    has_v2 |= field == 7;
  }
  const LossRule& rule = loss_rule(call.loss);
  call.loss_config = checked_options(rule, has_v2 ? options_v2 : options);
  if (data.empty()) bad(in_call("data"), "there are no data");
  DataOf all(call, rule);
  for (size_t i = 0; i < data.size(); ++i) all.add(read_datum(data[i], rule, datum_name(i)));
  return call;
}

TrainCall parse_call(const Json& body, const char* key) {
  const Json* input = find(body, key);
  if (input == nullptr) bad(in_call(key), "is missing");
  TrainCall call{.loss = text_or(*input, "loss_fn", ""),
                 .forward_only = std::string_view(key) == "forward_input"};
  LossOptions options;
  if (const Json* config = find(*input, "loss_fn_config")) {
    if (!config->is_object()) bad(in_call("loss_fn_config"), "must be an object");
    for (const auto& [name, value] : config->items()) {
      if (value.is_number()) {
        options[name] = value.get<double>();
      } else if (!value.is_null()) {
        options[name] = value.dump();
      }
    }
  }
  const LossRule& rule = loss_rule(call.loss);
  call.loss_config = checked_options(rule, options);
  const Json* data = find(*input, "data");
  if (data != nullptr && is_packed(*data)) bad(in_call("data"), "must be a list of objects, not of numbers");
  if (data == nullptr || !data->is_array() || data->empty()) bad(in_call("data"), "there are no data");
  DataOf all(call, rule);
  for (size_t i = 0; i < data->size(); ++i) {
    const Json& d = (*data)[i];
    const std::string where = datum_name(i);
    RawDatum raw{.tokens = tokens_of(find(d, "model_input"), where)};
    if (const Json* inputs = find(d, "loss_fn_inputs"); inputs != nullptr && inputs->is_object()) {
      for (const auto& [name, value] : inputs->items()) {
        if (rule.reads(name)) raw.inputs[name] = tensor_from_json(value, where + ", " + name);
      }
    }
    all.add(std::move(raw));
  }
  return call;
}

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

std::string note_on(const TrainCall& call) { return loss_rule(call.loss).note; }

// Replies.

// Data whose tables have other columns are in another record.
std::string call_to_proto(const CallResult& result) {
  WireWriter out;
  out.bytes(1, "scalar");
  for (size_t begin = 0; begin < result.logprobs.size();) {
    const int64_t columns = result.columns_of(begin);
    size_t end = begin + 1;
    while (end < result.logprobs.size() && result.columns_of(end) == columns) ++end;
    WireWriter record;
    record.bytes(1, "loss_fn_output");
    const auto field = [&](const char* name, const std::vector<std::vector<float>>& rows) {
      if (rows.empty()) return;
      std::string data;
      std::vector<int64_t> offsets = {0};
      for (size_t i = begin; i < end; ++i) {
        data.append(pack_array(rows[i]));
        offsets.push_back(static_cast<int64_t>(data.size()));
      }
      WireWriter tensor;
      tensor.bytes(1, data);
      tensor.bytes(2, pack_array(offsets));
      tensor.integer(3, 1);
      if (columns > 0) tensor.integer(4, columns);
      record.bytes(2, map_entry(name, tensor.str()));
    };
    field("logprobs", result.logprobs);
    field("elementwise_loss", result.elementwise_loss);
    record.integer(3, static_cast<int64_t>(end - begin));
    out.bytes(2, record.str());
    begin = end;
  }
  WireWriter metric;
  metric.bytes(1, "loss:sum");
  metric.real64(2, result.loss);
  out.bytes(3, metric.str());
  return out.take();
}

std::string call_to_json(const CallResult& result) {
  Json outputs = Json::array();
  for (size_t i = 0; i < result.logprobs.size(); ++i) {
    const int64_t columns = result.columns_of(i);
    const auto tensor = [&](const std::vector<float>& values) {
      Json data = Json::array();
      // As doubles: the text reads back as the very fp32 number.
      for (const float x : values) data.push_back(number_or_text(x));
      Json shape = {static_cast<int64_t>(values.size()) / std::max<int64_t>(columns, 1)};
      if (columns > 0) shape.push_back(columns);
      return Json{{"data", std::move(data)}, {"dtype", "float32"}, {"shape", std::move(shape)}};
    };
    Json one = {{"logprobs", tensor(result.logprobs[i])}};
    if (i < result.elementwise_loss.size()) one["elementwise_loss"] = tensor(result.elementwise_loss[i]);
    outputs.push_back(std::move(one));
  }
  return Json{{"loss_fn_output_type", "scalar"},
              {"loss_fn_outputs", std::move(outputs)},
              {"metrics", {{"loss:sum", number_or_text(result.loss)}}}}
      .dump();
}

}  // namespace twinkle::serve::tinker
