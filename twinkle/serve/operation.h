// What a client asks to be done, and what becomes of it, in a form that no API's wire shows through: these
// are the bytes that the log keeps. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/clock.h"
#include "twinkle/core/error.h"
#include "twinkle/core/json.h"
#include "twinkle/serve/engine.h"

namespace twinkle::serve {

enum class OpKind {
  kCreateModel,
  kCall,
  kOptimStep,
  kSaveWeights,
  kLoadWeights,
  kSaveForSampler,
  kSample,
  kUnload
};

/// Where an error lies that reading the log meets.
inline constexpr const char* kLogRecord = "[log] a record";

/// What `work` reads of a record's head; unavailable when that is not as this program writes it.
template <class Work>
auto from_head(Work&& work) {
  try {
    return work();
  } catch (const Json::exception& e) {
    throw unavailable(std::string(kLogRecord) + " is not as this program writes it: " + e.what());
  }
}

/// Of the unloading of a model, which comes behind all that a client can number: nothing follows it.
inline constexpr int64_t kUnloadNumber = (int64_t{1} << 62) + 1;

struct Result {
  enum class Kind { kJson, kCall, kSample, kUserError, kServerError };
  Kind kind = Kind::kJson;
  std::string bytes;  // JSON, CallResult, SampleResult or a sentence
  bool failed() const { return kind == Kind::kUserError || kind == Kind::kServerError; }
};

/// The error a client is shown: its own mistakes in full, ours without what is inside.
Result failure(const Error& error);

struct Operation {
  uint64_t id = 0;         // order of acceptance, over all models
  std::string request_id;  // the client's name for the result
  OpKind kind = OpKind::kCall;
  std::string owner, target;  // the model or sampler
  int64_t seq = 0;            // the client's number within the target; creation is 0
  Json args = Json::object();
  std::string body;  // of a call or sample: encode()
  bool forward_only = false;
  double accepted = 0;  // seconds since 1970
  std::string refused;  // it was wrong on arrival: why. It takes its place in the order and fails there.

  // Not in the log.
  int64_t tokens = 0;  // that it brings, for limits and counts
  bool ended = false;  // its session is over: it is `refused` without taking a place in the order
  Clock::time_point arrived;
  std::shared_ptr<const Result> known;  // it was carried out before a restart: only its effect is wanted
  int64_t size_bytes = 0;               // of body, arguments and itself
  bool cancelled = false;               // of a sample: nobody wants the answer

  /// Whether what comes after it must see its effect. Calls add up in the order of their numbers, whenever
  /// they come.
  bool is_barrier() const { return kind != OpKind::kCall; }
};
using OpPtr = std::shared_ptr<Operation>;
/// What it takes in memory while it waits.
int64_t size_of(const Operation& op);
/// All of it but body and arguments, of which no copy is made meanwhile.
Operation head_of(Operation& op);

std::string encode(const TrainCall& call);
TrainCall decode_call(std::string_view bytes);
std::string encode(const SampleCall& call);
SampleCall decode_sample(std::string_view bytes);

struct CallResult {
  double loss = 0;
  std::vector<std::vector<float>> logprobs, elementwise_loss;  // the latter: cross_entropy only
  std::vector<int64_t> columns;                                // Datum::columns; empty: 0 for all
  int64_t columns_of(size_t datum) const { return columns.empty() ? 0 : columns[datum]; }
};
std::string encode(const CallResult& result);
CallResult decode_call_result(std::string_view bytes);
std::string encode(const SampleDone& done);
SampleDone decode_sample_result(std::string_view bytes);

/// A record of the log: a short JSON text and bytes.
std::string join_record(const Json& head, std::string_view body);
void split_record(std::string_view record, Json& head, std::string_view& body);

/// Without body and arguments when `only_head`: what is left of a finished operation.
std::string operation_record(const Operation& op, bool only_head);
Operation operation_from(const Json& head, std::string_view body);
std::string result_record(const std::string& request_id, const Result& result);
Result result_from(const Json& head, std::string_view body);

}  // namespace twinkle::serve
