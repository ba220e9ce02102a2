// Jinja templates as Hugging Face chat templates use them (trim_blocks and lstrip_blocks on, loop controls,
// `generation` blocks, tojson as transformers sets it up). Parsing and rendering are bounded in depth, steps,
// output and memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/json.h"
#include "twinkle/text/text_span.h"

namespace twinkle {

struct RenderLimits {
  int64_t max_steps = 10'000'000;
  int64_t max_output_bytes = 256 << 20;
  int64_t max_value_bytes = 256 << 20;  // of the lists and dicts that the template makes and keeps
  int max_depth = 128;
};

/// What one turn of a loop over elements of the context's `messages` wrote.
struct MessageSpan {
  int64_t message = 0;  // index in `messages`
  int64_t loop = 0;     // which loop over messages, in order of execution
  TextSpan span;
};

struct Rendered {
  std::string text;
  std::vector<TextSpan> generation;  // what {% generation %} blocks produced
  std::vector<TextSpan>
      input;  // characters that came from string values of the context, not from the template
  std::vector<MessageSpan> messages;
  bool read_clock = false;  // strftime_now gave the time of day
};

class JinjaTemplate {
 public:
  /// invalid_argument "[chat template] line L, column C: ..." on a syntax error.
  static std::shared_ptr<const JinjaTemplate> parse(std::string_view source);
  virtual ~JinjaTemplate() = default;
  /// Variables come from the object `context`. raise_exception's message arrives as invalid_argument; `now`
  /// (seconds since the epoch, local civil time already applied) feeds strftime_now; -1: the clock. Strings
  /// of `own` (bos_token and the like) are variables too, but do not count as input.
  virtual Rendered render(const Json& context, const RenderLimits& limits = {}, int64_t now = -1,
                          const Json& own = nullptr) const = 0;
  virtual bool has_generation_blocks() const = 0;
};

}  // namespace twinkle
