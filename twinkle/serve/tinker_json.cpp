#include "twinkle/serve/tinker_json.h"

#include <cmath>
#include <limits>

#include "twinkle/core/error.h"
#include "twinkle/core/number_lists.h"

namespace twinkle::serve::tinker {
namespace {

bool fits(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
}

}  // namespace

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
  if (!fits(*value) || value->get<int64_t>() < least || value->get<int64_t>() > most) {
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

int64_t seq_of(const Json& body) {
  const int64_t seq = int_or(body, "seq_id", 0, 0, kMostSeq);
  return seq == 0 ? -1 : seq;
}

void bad(const std::string& where, const std::string& why) { throw invalid_argument(where + ": " + why); }

int64_t whole_number(const Json& value, const std::string& where) {
  if (!value.is_number_integer()) bad(where, "holds something that is not a whole number");
  if (!fits(value)) bad(where, value.dump() + " is out of range");
  return value.get<int64_t>();
}

int32_t token_id(int64_t id, const std::string& where) {
  if (id < 0 || id > std::numeric_limits<int32_t>::max())
    bad(where, "token " + std::to_string(id) + " is out of range");
  return static_cast<int32_t>(id);
}

// Packages before 0.18 leave the type out, in images too.
std::string type_of_chunk(const Json& chunk) {
  const char* untyped = chunk.contains("location") ? "image_asset_pointer"
                        : chunk.contains("data")   ? "image"
                                                   : "encoded_text";
  return text_or(chunk, "type", untyped);
}

std::vector<int32_t> tokens_of(const Json* model_input, const std::string& where) {
  std::vector<int32_t> tokens;
  const Json* chunks = model_input == nullptr ? nullptr : find(*model_input, "chunks");
  if (chunks == nullptr || !chunks->is_array()) bad(where, "needs a list 'chunks'");
  for (const auto& chunk : *chunks) {
    if (!chunk.is_object()) bad(where, "a chunk must be an object");
    const std::string type = type_of_chunk(chunk);
    if (type != "encoded_text") bad(where, "chunks of type '" + type + "' need a model that sees or hears");
    const Json* list = find(chunk, "tokens");
    if (list != nullptr && is_packed(*list)) {
      const auto ids = packed_integers(*list);
      if (!ids) bad(where, "tokens must be whole numbers");
      for (const int64_t id : *ids) tokens.push_back(token_id(id, where));
      continue;
    }
    if (list == nullptr || !list->is_array()) bad(where, "a text chunk needs a list 'tokens'");
    for (const auto& x : *list) {
      if (!x.is_number_integer()) bad(where, "tokens must be whole numbers");
      tokens.push_back(token_id(whole_number(x, where), where));
    }
  }
  return tokens;
}

Json number_or_text(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

}  // namespace twinkle::serve::tinker
