// Whole numbers of what is kept as JSON, in the log and the store. Free of state.
#pragma once

#include <utility>

#include "twinkle/core/json.h"

namespace twinkle::serve {

/// The number. What is no whole one, or none that T holds, is an error as get() throws for a text; get()
/// itself makes some number of it.
template <class T>
T whole(const Json& value) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
  if (!fits) throw Json::type_error::create(302, "this is no whole number in its range", &value);
  return value.get<T>();
}

/// The same of an entry of `head`, `otherwise` when there is none.
template <class T>
T whole_or(const Json& head, const char* key, T otherwise) {
  const auto found = head.find(key);
  return found == head.end() ? otherwise : whole<T>(*found);
}

}  // namespace twinkle::serve
