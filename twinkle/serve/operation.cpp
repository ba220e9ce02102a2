#include "twinkle/serve/operation.h"

#include <cmath>
#include <utility>

#include "twinkle/serve/short_lists.h"
#include "twinkle/serve/stored.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve {
namespace {

constexpr std::array<const char*, 8> kKinds = {"create_model", "call",         "optim_step", "save_weights",
                                               "load_weights", "save_sampler", "sample",     "unload"};
constexpr std::array<const char*, 5> kResults = {"json", "call", "sample", "user", "server"};

template <class Enum, size_t N>
Enum enum_from(const std::array<const char*, N>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw unavailable("[log] a record speaks of '" + name + "', which is unknown here");
  return static_cast<Enum>(found - names.begin());
}

std::vector<float> floats(std::string_view bytes) { return unpack_array<float>(bytes, kLogRecord); }
std::vector<int32_t> ints(std::string_view bytes) { return unpack_array<int32_t>(bytes, kLogRecord); }

}  // namespace

Result failure(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kNotFound:
    case ErrorKind::kConflict:
      return {Result::Kind::kUserError, error.what()};
    case ErrorKind::kExhausted:
      return {Result::Kind::kServerError, "the server has no room for this: memory or disk is full"};
    default:
      return {Result::Kind::kServerError, "the server could not carry this out; its own log says why"};
  }
}

int64_t size_of(const Operation& op) {
  constexpr int64_t kItself = 1024;
  const size_t args =
      op.args.empty() ? 0 : op.args.dump(-1, ' ', false, Json::error_handler_t::replace).size();
  return kItself + static_cast<int64_t>(args + op.body.size() + op.refused.size());
}

Operation head_of(Operation& op) {
  std::string body = std::exchange(op.body, {});
  Json args = std::exchange(op.args, nullptr);
  Operation head = op;
  op.body = std::move(body);
  op.args = std::move(args);
  return head;
}

// Calls.

std::string encode(const TrainCall& call) {
  WireWriter out;
  out.bytes(1, call.loss);
  for (const auto& [name, value] : call.loss_config) {
    WireWriter entry;
    entry.bytes(1, name);
    entry.real64(2, value);
    out.bytes(2, entry.str());
  }
  out.integer(3, call.forward_only ? 1 : 0);
  for (const auto& datum : call.data) {
    WireWriter d;
    d.bytes(5, shorten(datum.tokens));
    d.bytes(6, shorten(datum.targets));
    for (const auto& [name, values] : datum.inputs) {
      WireWriter input;
      input.bytes(1, name);
      input.bytes(3, shorten(values));
      d.bytes(3, input.str());
    }
    if (datum.columns > 0) d.integer(4, datum.columns);
    out.bytes(4, d.str());
  }
  return out.take();
}

// Fields 1 and 2 of a datum and 2 of an input are as the logs of format 2 have them.
TrainCall decode_call(std::string_view bytes) {
  TrainCall call;
  for (WireReader in(bytes, kLogRecord); in.next();) {
    if (in.field() == 1) call.loss = in.text();
    if (in.field() == 2) {
      std::string name;
      double value = 0;
      for (WireReader e(in.bytes(), kLogRecord); e.next();) {
        if (e.field() == 1) name = e.text();
        if (e.field() == 2) value = e.real64();
      }
      call.loss_config[name] = value;
    }
    if (in.field() == 3) call.forward_only = in.boolean();
    if (in.field() != 4) continue;
    Datum datum;
    for (WireReader d(in.bytes(), kLogRecord); d.next();) {
      if (d.field() == 1) datum.tokens = ints(d.bytes());
      if (d.field() == 2) datum.targets = ints(d.bytes());
      if (d.field() == 4) datum.columns = d.integer();
      if (d.field() == 5) datum.tokens = ints_from_short(d.bytes(), kLogRecord);
      if (d.field() == 6) datum.targets = ints_from_short(d.bytes(), kLogRecord);
      if (d.field() != 3) continue;
      std::string name;
      for (WireReader i(d.bytes(), kLogRecord); i.next();) {
        if (i.field() == 1) name = i.text();
        if (i.field() == 2) datum.inputs[name] = floats(i.bytes());
        if (i.field() == 3) datum.inputs[name] = floats_from_short(i.bytes(), kLogRecord);
      }
    }
    call.data.push_back(std::move(datum));
  }
  return call;
}

std::string encode(const CallResult& result) {
  WireWriter out;
  out.real64(1, result.loss);
  for (const auto& values : result.logprobs) out.bytes(2, pack_array(values));
  for (const auto& values : result.elementwise_loss) out.bytes(3, pack_array(values));
  for (const int64_t columns : result.columns) out.integer(4, columns);
  return out.take();
}

CallResult decode_call_result(std::string_view bytes) {
  CallResult result;
  for (WireReader in(bytes, kLogRecord); in.next();) {
    if (in.field() == 1) result.loss = in.real64();
    if (in.field() == 2) result.logprobs.push_back(floats(in.bytes()));
    if (in.field() == 3) result.elementwise_loss.push_back(floats(in.bytes()));
    if (in.field() == 4) result.columns.push_back(in.integer());
  }
  const auto one_of_each = [&](size_t count) { return count == 0 || count == result.logprobs.size(); };
  if (!one_of_each(result.elementwise_loss.size()) || !one_of_each(result.columns.size()))
    throw unavailable(std::string(kLogRecord) + " of a result does not have the same of every datum");
  return result;
}

// Records.

std::string join_record(const Json& head, std::string_view body) {
  const std::string text = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto size = static_cast<uint32_t>(text.size());
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  return out.append(text).append(body);
}

void split_record(std::string_view record, Json& head, std::string_view& body) {
  uint32_t size = 0;
  if (record.size() < sizeof(size)) throw unavailable("[log] a record is too short");
  std::memcpy(&size, record.data(), sizeof(size));
  if (size > record.size() - sizeof(size)) throw unavailable("[log] a record is too short");
  head = parse_json(record.substr(sizeof(size), size), "log");
  body = record.substr(sizeof(size) + size);
}

std::string operation_record(const Operation& op, bool only_head) {
  Json head = {{"record", only_head ? "done" : "operation"},
               {"id", op.id},
               {"request", op.request_id},
               {"kind", kKinds[static_cast<size_t>(op.kind)]},
               {"owner", op.owner},
               {"target", op.target},
               {"seq", op.seq},
               {"forward_only", op.forward_only},
               {"accepted", op.accepted}};
  if (only_head) return join_record(head, "");
  head["args"] = op.args;
  if (!op.refused.empty()) head["refused"] = op.refused;
  return join_record(head, op.body);
}

Operation operation_from(const Json& head, std::string_view body) {
  return from_head([&] {
    return Operation{.id = whole<uint64_t>(head.at("id")),
                     .request_id = head.at("request"),
                     .kind = enum_from<OpKind>(kKinds, head.at("kind")),
                     .owner = head.at("owner"),
                     .target = head.at("target"),
                     .seq = whole<int64_t>(head.at("seq")),
                     .args = head.value("args", Json::object()),
                     .body = std::string(body),
                     .forward_only = head.at("forward_only"),
                     .accepted = head.value("accepted", 0.0),
                     .refused = head.value("refused", std::string())};
  });
}

std::string result_record(const std::string& request_id, const Result& result) {
  return join_record(
      {{"record", "result"}, {"request", request_id}, {"kind", kResults[static_cast<size_t>(result.kind)]}},
      result.bytes);
}

Result result_from(const Json& head, std::string_view body) {
  return from_head(
      [&] { return Result{enum_from<Result::Kind>(kResults, head.at("kind")), std::string(body)}; });
}

}  // namespace twinkle::serve
