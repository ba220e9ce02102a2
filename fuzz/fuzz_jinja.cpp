// deps: text
// Any bytes as a chat template (up to the first NUL) and a JSON context (after it): rendering ends within its
// budgets, in text whose spans are sound or in an invalid_argument. The same input renders the same twice.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "twinkle/core/error.h"
#include "twinkle/text/jinja.h"

namespace {

using twinkle::Json;

void check_spans(const std::vector<twinkle::TextSpan>& spans, int64_t size, bool disjoint) {
  int64_t last = 0;
  for (const auto& span : spans) {
    if (span.begin < 0 || span.begin >= span.end || span.end > size) std::abort();
    if (disjoint && span.begin < last) std::abort();
    last = span.end;
  }
}

const Json& default_context() {
  static const Json context = {
      {"messages",
       {{{"role", "system"}, {"content", "Be kind"}},
        {{"role", "user"}, {"content", "Hi <b>é日本</b>\n"}},
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls",
          {{{"id", "c1"},
            {"function", {{"name", "f"}, {"arguments", {{"x", 1.5}, {"y", {1, nullptr, true}}}}}}}}}},
        {{"role", "tool"}, {"content", "{\"t\": 1}"}}}},
      {"tools",
       {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}}},
      {"add_generation_prompt", true},
      {"x", "text"},
      {"n", 7},
      {"l", {3, 1, 2}},
      {"d", {{"a", 1}, {"b", "two"}}}};
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const std::string_view source = input.substr(0, cut);
  const twinkle::RenderLimits limits{.max_steps = 200'000, .max_output_bytes = 1 << 20, .max_depth = 40};
  try {
    Json context = default_context();
    if (cut != std::string_view::npos) {
      context = twinkle::parse_json(input.substr(cut + 1), "context");
      if (!context.is_object()) return 0;
    }
    const auto parsed = twinkle::JinjaTemplate::parse(source);
    const auto out =
        parsed->render(context, limits, 1752148800, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    const auto bytes = static_cast<int64_t>(out.text.size());
    check_spans(out.input, bytes, true);
    check_spans(out.generation, bytes, false);
    for (const auto& message : out.messages) {
      if (message.span.begin < 0 || message.span.begin > message.span.end || message.span.end > bytes)
        std::abort();
    }
    if (parsed->render(context, limits, 1752148800, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}).text !=
        out.text)
      std::abort();
  } catch (const twinkle::Error& e) {
    if (e.kind() != twinkle::ErrorKind::kInvalidArgument) std::abort();
  }
  return 0;
}
