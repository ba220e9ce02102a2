// `twinkle list`: the registry's components, printed. The program that runs it decides which ones are linked.
#pragma once

#include "twinkle/core/args.h"

namespace twinkle::cli {

int list_components(const ParsedArgs& args);

}  // namespace twinkle::cli
