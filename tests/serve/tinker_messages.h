// Messages of the Tinker API as a client writes them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/thrown.h"
#include "twinkle/serve/tinker_wire.h"
#include "twinkle/serve/wire.h"

namespace twinkle::serve::tinker {

/// `dtype` as in Tinker's protobuf: 1 float32, 2 int64.
template <class T>
std::string tensor(const std::vector<T>& values, int64_t dtype, const std::vector<int64_t>& shape = {}) {
  WireWriter out;
  out.bytes(1, pack_array(values));
  out.integer(3, dtype);
  for (const int64_t size : shape) out.integer(4, size);
  return out.take();
}

inline std::string entry(const std::string& key, const std::string& value) {
  WireWriter out;
  out.bytes(1, key);
  out.bytes(2, value);
  return out.take();
}

inline std::string datum(const std::vector<int32_t>& tokens,
                         const std::map<std::string, std::string>& inputs) {
  WireWriter text, chunk, out;
  text.bytes(1, pack_array(tokens));
  chunk.bytes(1, text.str());
  out.bytes(1, chunk.str());
  for (const auto& [name, value] : inputs) out.bytes(2, entry(name, value));
  return out.take();
}

inline std::string request(const std::string& loss, const std::vector<std::string>& data) {
  WireWriter out;
  out.bytes(1, "s:train:0");
  out.integer(2, 7);
  for (const auto& d : data) out.bytes(3, d);
  out.bytes(4, loss);
  out.integer(99, 1);  // a field of a later version
  return out.take();
}

inline std::string error_of(const std::string& proto) {
  return test::thrown([&] { parse_call(proto); });
}

}  // namespace twinkle::serve::tinker
