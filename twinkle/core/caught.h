// What a block that catches everything caught.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "twinkle/core/error.h"

namespace twinkle {

/// To be called in a catch block: the Error as it is; what else derives from std::exception as `internal`, at
/// `place`.
inline Error caught_error(std::string_view place) {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::exception& e) {
    return internal_error("[" + std::string(place) + "] " + e.what());
  }
}

}  // namespace twinkle
