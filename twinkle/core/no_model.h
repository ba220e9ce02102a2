// What a folder that should hold a model holds instead.
#pragma once

#include <string>

#include "twinkle/core/error.h"

namespace twinkle {

/// For a folder without a config.json: says what it is, and what to give in its place.
Error no_model(const std::string& path);

}  // namespace twinkle
