// Bodies of forward_backward for the server's benches, in both wires: rows of a language model's training, as
// the tinker package sends them. What differs from request to request comes first, so that many share the
// rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/core/protobuf.h"

namespace twinkle::bench {

inline constexpr int64_t kRowTokens = 500, kRowJsonBytes = 5950;

/// Rows whose JSON has about as many bytes.
inline int64_t rows_of_json(int64_t bytes) {
  return std::max<int64_t>(1, (bytes + kRowJsonBytes / 2) / kRowJsonBytes);
}

inline std::vector<int64_t> row_tokens(int64_t row) {
  std::vector<int64_t> out;
  uint32_t state = static_cast<uint32_t>(row) * 2654435761u + 1;
  for (int64_t i = 0; i < kRowTokens; ++i) {
    state = state * 1664525u + 1013904223u;
    out.push_back(3 + (state >> 16) % 509);  // of a vocabulary of 512
  }
  return out;
}

inline std::string json_begin(const std::string& model, int64_t number) {
  return R"({"model_id":")" + model + R"(","seq_id":)" + std::to_string(number) + ",";
}

inline std::string json_rest(int64_t rows) {
  std::string out =
      R"("type":"forward_backward","forward_backward_input":{"loss_fn":"cross_entropy","data":[)";
  for (int64_t row = 0; row < rows; ++row) {
    std::string ids, weights;
    for (const int64_t id : row_tokens(row)) {
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
      weights += weights.empty() ? "1.0" : ",1.0";
    }
    const std::string shape = "\"shape\":[" + std::to_string(kRowTokens) + "]";
    out += (row == 0 ? "" : ",") +
           std::string(R"({"model_input":{"chunks":[{"type":"encoded_text","tokens":[)") + ids +
           R"(]}]},"loss_fn_inputs":{"target_tokens":{"data":[)" + ids + R"(],"dtype":"int64",)" + shape +
           R"(},"weights":{"data":[)" + weights + R"(],"dtype":"float32",)" + shape + "}}}";
  }
  return out + "]}}";
}

inline std::string proto_begin(const std::string& model, int64_t number) {
  WireWriter out;
  out.bytes(1, model);
  out.integer(2, number);
  return out.take();
}

inline std::string proto_rest(int64_t rows) {
  const auto packed = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  const auto entry = [](const std::string& name, const std::string& data, int64_t dtype) {
    WireWriter tensor, out;
    tensor.bytes(1, data);
    tensor.integer(3, dtype);
    tensor.integer(4, kRowTokens);
    out.bytes(1, name);
    out.bytes(2, tensor.str());
    return out.take();
  };
  WireWriter out;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int64_t> ids = row_tokens(row);
    WireWriter text, chunk, datum;
    text.bytes(1, packed(std::vector<int32_t>(ids.begin(), ids.end())));
    chunk.bytes(1, text.str());
    datum.bytes(1, chunk.str());
    datum.bytes(2, entry("target_tokens", packed(ids), 2));
    datum.bytes(2, entry("weights", packed(std::vector<float>(ids.size(), 1.0f)), 1));
    out.bytes(3, datum.str());
  }
  out.bytes(4, "cross_entropy");
  return out.take();
}

}  // namespace twinkle::bench
