// Fields of Tinker's JSON requests: read with their type checked, errors that name the field. Free of state.
#pragma once

#include <string>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle::serve::tinker {

/// Operations without a number come behind all others, and still before the unloading (kUnloadNumber).
inline constexpr int64_t kMostSeq = int64_t{1} << 61;

/// Nothing for null and what is not there.
const Json* find(const Json& object, const char* key);
std::string need_text(const Json& body, const char* key);
std::string text_or(const Json& body, const char* key, const std::string& otherwise);
int64_t int_or(const Json& body, const char* key, int64_t otherwise, int64_t least, int64_t most);
double number_or(const Json& body, const char* key, double otherwise);
bool bool_or(const Json& body, const char* key, bool otherwise);
/// The number of an operation of a model, -1 for none: they begin at 1.
int64_t seq_of(const Json& body);

/// invalid_argument "<where>: <why>".
[[noreturn]] void bad(const std::string& where, const std::string& why);
/// A whole number that fits into 64 bits with a sign, which one above 2^63-1 does not.
int64_t whole_number(const Json& value, const std::string& where);
/// Not below 0 and not above 2^31-1; the vocabulary is the engine's to know.
int32_t token_id(int64_t id, const std::string& where);
/// The tokens of a ModelInput: all its chunks of text, one behind the other.
std::vector<int32_t> tokens_of(const Json* model_input, const std::string& where);

/// A text for what JSON has no number for: a bare NaN is not JSON.
Json number_or_text(double value);

}  // namespace twinkle::serve::tinker
