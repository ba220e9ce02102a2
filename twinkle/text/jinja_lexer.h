// Tokens of a template, with Jinja's white space control (trim_blocks and lstrip_blocks on). Throws Fault
// with the offset on bad syntax; offsets count bytes of the normalised source.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "twinkle/text/jinja_value.h"

namespace twinkle::jinja {

enum class Tok : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  Tok type = Tok::kEnd;
  std::string text;  // data, name, decoded string or operator
  Int integer = 0;
  double real = 0;
  int64_t offset = 0;
};

/// Line ends become \n and one at the very end is dropped, as Jinja does.
std::string normalise_source(std::string_view source);
std::vector<Token> tokenize(const std::string& source);
/// "line L, column C" of an offset.
std::string place_in(std::string_view source, int64_t offset);

[[noreturn]] void fault_at(int64_t offset, const std::string& message);

}  // namespace twinkle::jinja
