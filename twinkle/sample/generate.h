// Runs requests to their end in the caller's thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/sample/engine.h"

namespace twinkle {

/// Called with each new piece of text of a request's answer; return false to end that request.
using OnText = std::function<bool(size_t request, size_t answer, const std::string& piece)>;

/// The error with "what index: " put after its place, for calls with several requests.
Error naming(const Error& error, const std::string& what, size_t index);

/// One result a request, in order. The engine must have been made without a thread of its own. Errors name
/// the request, by its name where there are `names` or by its number when there are several; then nothing of
/// the others is given.
std::vector<SampleResult> generate(SampleEngine& engine, std::vector<SampleRequest> requests,
                                   const OnText& on_text = nullptr,
                                   const std::vector<std::string>& names = {});

}  // namespace twinkle
