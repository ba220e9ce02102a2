// YAML configuration files (yaml-cpp), as a tree that knows its lines. Depth, size and aliases are capped, so
// that a hostile file costs no more than its own length. Thread-safe: values only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/core/json.h"

namespace twinkle {

struct YamlLimits {
  int max_depth = 32;
  int64_t max_nodes = 20000;  // aliases counted as what they stand for
  int64_t max_bytes = 4 << 20;
};

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string scalar;   // the text
  bool quoted = false;  // "5" is a string, 5 is a number
  std::vector<YamlNode> list;
  std::vector<YamlEntry> map;  // in the file's order
  int64_t line = 0;            // counted from 1; of a list or map below a key: that of the key
};

/// A key and its value; a pair of an incomplete type is not for every compiler.
struct YamlEntry {
  std::string first;
  YamlNode second;
};

/// The one document of `text`. invalid_argument "[`where` line N] ..." for what is not YAML, a second
/// document, a repeated key, a key that is not a plain scalar, or a limit that is passed. Tags other than
/// !!str are refused, and text that is not UTF-8.
YamlNode parse_yaml(std::string_view text, std::string_view where, const YamlLimits& limits = {});

/// The value in JSON; plain scalars are typed as in YAML's core schema.
Json yaml_to_json(const YamlNode& node);

}  // namespace twinkle
