// deps: serve
// Any bytes as what the log keeps of operations and results; the first byte says of which kind. They are
// refused as a record that is damaged, or what was read is written and read again as it is, and an answer can
// be made of it on both wires.
#include "fuzz/fuzzing.h"
#include "twinkle/core/json.h"
#include "twinkle/serve/operation.h"
#include "twinkle/serve/tinker_wire.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::require;

template <class Work>
bool is_taken(Work&& work) {
  return fuzz::is_taken(work, {ErrorKind::kInvalidArgument, ErrorKind::kUnavailable});
}

// Numbers that are not numbers are kept to the bit, so bytes are compared.
template <class Value, class Decode>
void check(std::string_view bytes, Decode&& decode, Value& out) {
  if (!is_taken([&] { out = decode(bytes); })) return;
  const std::string written = encode(out);
  out = decode(written);
  require(encode(out) == written);
}

void check_operation(std::string_view record) {
  Json head;
  std::string_view body;
  if (!is_taken([&] { split_record(record, head, body); })) return;
  Operation op;
  if (is_taken([&] { op = operation_from(head, body); })) {
    Json again;
    std::string_view rest;
    const std::string whole = operation_record(op, false);
    split_record(whole, again, rest);
    require(operation_record(operation_from(again, rest), false) == whole);
    const std::string only_head = operation_record(op, true);
    split_record(only_head, again, rest);
    require(rest.empty() && operation_record(operation_from(again, rest), true) == only_head);
    require(size_of(op) >= static_cast<int64_t>(op.body.size()));
  }
  Result result;
  if (is_taken([&] { result = result_from(head, body); })) {
    Json again;
    std::string_view rest;
    const std::string whole = result_record("r", result);
    split_record(whole, again, rest);
    const Result back = result_from(again, rest);
    require(back.kind == result.kind && back.bytes == result.bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Pieces input(data, size);
  const int kind = input.byte() % 5;
  const std::string_view bytes = input.rest();
  if (kind == 0) {
    TrainCall call;
    check(bytes, decode_call, call);
  } else if (kind == 1) {
    SampleCall call;
    check(bytes, decode_sample, call);
  } else if (kind == 2) {
    CallResult result;
    check(bytes, decode_call_result, result);
    require(parse_json(tinker::call_to_json(result), "reply").is_object());
    require(!tinker::call_to_proto(result).empty());
  } else if (kind == 3) {
    SampleDone done;
    check(bytes, decode_sample_result, done);
    require(parse_json(tinker::sample_to_json(done), "reply").is_object());
    (void)tinker::sample_to_proto(done);
  } else {
    check_operation(bytes);
  }
  return 0;
}
