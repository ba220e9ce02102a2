// deps: serve
// Any bytes as a body of the Tinker API; the first byte says of which kind. It is refused as the client's
// mistake, or what was read is within its promises, comes back from the log's bytes as it is, and says the
// same on the other wire.
#include <cmath>

#include "fuzz/fuzzing.h"
#include "twinkle/core/json.h"
#include "twinkle/core/number_lists.h"
#include "twinkle/core/protobuf.h"
#include "twinkle/serve/tinker_datum.h"
#include "twinkle/serve/tinker_wire.h"
#include "twinkle/serve/wire.h"
#include "twinkle/serve/zstd_body.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::is_taken;
using fuzz::require;

bool same(const TrainCall& a, const TrainCall& b) {
  return a.loss == b.loss && a.loss_config == b.loss_config && a.forward_only == b.forward_only &&
         std::ranges::equal(a.data, b.data, [](const Datum& x, const Datum& y) {
           return x.tokens == y.tokens && x.targets == y.targets && x.inputs == y.inputs &&
                  x.columns == y.columns;
         });
}

bool same(const SampleCall& a, const SampleCall& b) {
  return a.prompt == b.prompt && a.weights == b.weights && a.tenant == b.tenant &&
         a.num_samples == b.num_samples && a.max_tokens == b.max_tokens && a.seed == b.seed &&
         a.temperature == b.temperature && a.top_p == b.top_p && a.top_k == b.top_k &&
         a.stop_strings == b.stop_strings && a.stop_tokens == b.stop_tokens &&
         a.stop_at_end == b.stop_at_end && a.prompt_logprobs == b.prompt_logprobs &&
         a.topk_prompt_logprobs == b.topk_prompt_logprobs &&
         a.prompt_logprobs_last_n == b.prompt_logprobs_last_n &&
         a.topk_sample_logprobs == b.topk_sample_logprobs && a.prompt_alt_tokens == b.prompt_alt_tokens &&
         a.prompt_targets.ids == b.prompt_targets.ids &&
         a.prompt_targets.layout.shape == b.prompt_targets.layout.shape &&
         a.prompt_targets.layout.crow == b.prompt_targets.layout.crow &&
         a.prompt_targets.layout.col == b.prompt_targets.layout.col;
}

std::vector<int64_t> shape_of(const Datum& datum) {
  const auto rows = static_cast<int64_t>(datum.tokens.size());
  return datum.columns == 0 ? std::vector<int64_t>{rows} : std::vector<int64_t>{rows, datum.columns};
}

Json to_json(const TrainCall& call, const char* key) {
  Json data = Json::array();
  for (const Datum& datum : call.data) {
    Json inputs = {
        {"target_tokens", {{"data", datum.targets}, {"dtype", "int64"}, {"shape", shape_of(datum)}}}};
    for (const auto& [name, values] : datum.inputs) {
      Json list = Json::array();
      for (const float x : values) list.push_back(static_cast<double>(x));
      inputs[name] = {{"data", std::move(list)}, {"dtype", "float32"}, {"shape", shape_of(datum)}};
    }
    data.push_back({{"model_input", {{"chunks", {{{"type", "encoded_text"}, {"tokens", datum.tokens}}}}}},
                    {"loss_fn_inputs", std::move(inputs)}});
  }
  return {{key, {{"data", std::move(data)}, {"loss_fn", call.loss}, {"loss_fn_config", call.loss_config}}}};
}

template <class T>
std::string tensor(const std::vector<T>& values, int64_t dtype, const std::vector<int64_t>& shape) {
  WireWriter out;
  out.bytes(1, pack_array(values));
  out.integer(3, dtype);
  for (const int64_t size : shape) out.integer(4, size);
  return out.take();
}

std::string to_proto(const TrainCall& call) {
  const auto entry = [](const std::string& name, const std::string& value) {
    WireWriter out;
    out.bytes(1, name);
    out.bytes(2, value);
    return out.take();
  };
  WireWriter out;
  for (const Datum& datum : call.data) {
    WireWriter text, chunk, d;
    text.bytes(1, pack_array(datum.tokens));
    chunk.bytes(1, text.str());
    d.bytes(1, chunk.str());
    const std::vector<int64_t> targets(datum.targets.begin(), datum.targets.end());
    d.bytes(2, entry("target_tokens", tensor(targets, 2, shape_of(datum))));
    for (const auto& [name, values] : datum.inputs)
      d.bytes(2, entry(name, tensor(values, 1, shape_of(datum))));
    out.bytes(3, d.str());
  }
  out.bytes(4, call.loss);
  for (const auto& [name, value] : call.loss_config) {
    WireWriter option;
    option.bytes(1, name);
    option.real64(2, value);
    out.bytes(5, option.str());
  }
  if (call.forward_only) out.integer(6, 1);
  return out.take();
}

void check(const TrainCall& call) {
  int64_t targets = 0;
  bool on_both_wires = true;
  require(!call.data.empty());
  for (const Datum& datum : call.data) {
    const auto cells = static_cast<int64_t>(datum.tokens.size()) * datum.targets_per_token();
    require(!datum.tokens.empty() && static_cast<int64_t>(datum.targets.size()) == cells);
    require(datum.columns >= 0 && datum.columns <= tinker::kMostColumns);
    for (const int32_t id : datum.targets) require(id >= 0);
    for (const auto& [name, values] : datum.inputs) {
      require(static_cast<int64_t>(values.size()) == cells);
      for (const float x : values) require(std::isfinite(x));
      on_both_wires &= name != "sampled";  // of spans, which JSON does not have
    }
    // The engine looks at those of protobuf.
    on_both_wires &= std::ranges::all_of(datum.tokens, [](int32_t id) { return id >= 0; });
    targets += cells;
  }
  require(targets <= tinker::kMostTargets);
  for (const auto& [name, value] : call.loss_config) require(std::isfinite(value));
  require(same(decode_call(encode(call)), call));
  (void)tinker::note_on(call);
  if (!on_both_wires) return;
  const char* key = call.forward_only ? "forward_input" : "forward_backward_input";
  const std::string text = to_json(call, key).dump();
  require(same(tinker::parse_call(parse_json(text, "fuzz"), key), call));
  require(same(tinker::parse_call(parse_json_packed(text, "fuzz"), key), call));
  require(same(tinker::parse_call(to_proto(call)), call));
}

void check(const SampleCall& call) {
  require(call.num_samples >= 1 && (!call.max_tokens || *call.max_tokens >= 0));
  require(std::isfinite(call.temperature) && std::isfinite(call.top_p));
  for (const int32_t id : call.prompt) require(id >= 0);
  for (const int32_t id : call.stop_tokens) require(id >= 0);
  for (const int32_t id : call.prompt_targets.ids) require(id >= -1);
  require(same(decode_sample(encode(call)), call));
}

// One that is stored, not packed (RFC 8878, 3.1.1).
std::string zstd_frame(std::string_view bytes) {
  constexpr size_t kMostBlock = 128 << 10;
  const auto number = [](uint64_t value, size_t size) {
    return std::string(reinterpret_cast<const char*>(&value), size);
  };
  std::string out = number(0xFD2FB528, 4) + '\xA0' + number(bytes.size(), 4);  // one segment, 4 bytes of size
  do {
    const std::string_view block = bytes.substr(0, kMostBlock);
    bytes.remove_prefix(block.size());
    out.append(number(block.size() << 3 | (bytes.empty() ? 1 : 0), 3)).append(block);
  } while (!bytes.empty());
  return out;
}

void check_zstd(std::string_view bytes) {
  constexpr int64_t kMost = 1 << 20;
  const std::initializer_list<ErrorKind> kinds = {ErrorKind::kInvalidArgument, ErrorKind::kExhausted};
  std::string out;
  if (is_taken([&] { out = unpack_zstd(bytes, kMost); }, kinds)) {
    const auto size = static_cast<int64_t>(out.size());
    require(size <= kMost && unpack_zstd(bytes, size) == out);
    if (size > 0) require(!is_taken([&] { unpack_zstd(bytes, size - 1); }, {ErrorKind::kExhausted}));
  }
  const std::string frame = zstd_frame(bytes);
  require(unpack_zstd(frame, kMost) == bytes);
  const size_t cut = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]) % frame.size();
  require(!is_taken([&] { unpack_zstd(std::string_view(frame).substr(0, cut), kMost); }));
}

// AdamParams that were taken are taken again.
void check_adam(const Json& body) {
  Json args;
  if (!is_taken([&] { args = tinker::parse_adam(body); })) return;
  require(tinker::parse_adam({{"adam_params", args}}) == args);
  require(args.at("eps") > 0 && args.at("beta1") < 1 && args.at("beta2") < 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Pieces input(data, size);
  const int kind = input.byte() % 5;
  const std::string_view bytes = input.rest();
  if (kind == 0) {
    TrainCall call;
    is_taken([&] {
      const tinker::CallHead head = tinker::call_head(bytes);
      require(!head.model_id.empty() && head.seq_id >= -1 && head.seq_id != 0);
    });
    if (is_taken([&] { call = tinker::parse_call(bytes); })) check(call);
    return 0;
  }
  if (kind == 4) {
    check_zstd(bytes);
    return 0;
  }
  Json body;
  if (try_parse_json(bytes, body, 64) || !body.is_object()) return 0;
  if (kind == 1) {
    for (const char* key : {"forward_backward_input", "forward_input"}) {
      TrainCall call;
      if (is_taken([&] { call = tinker::parse_call(body, key); })) check(call);
    }
    is_taken([&] { (void)tinker::call_head(body); });
  } else if (kind == 2) {
    SampleCall call;
    if (is_taken([&] { call = tinker::parse_sample(body); })) check(call);
  } else {
    check_adam(body);
  }
  return 0;
}
