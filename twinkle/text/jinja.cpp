#include "twinkle/text/jinja.h"

#include "twinkle/core/error.h"
#include "twinkle/text/jinja_lexer.h"
#include "twinkle/text/jinja_runtime.h"

namespace twinkle {
namespace {

constexpr size_t kMaxSourceBytes = 4 << 20;

class Template final : public JinjaTemplate {
 public:
  explicit Template(jinja::Program program) : program_(std::move(program)) {}

  Rendered render(const Json& context, const RenderLimits& limits, int64_t now,
                  const Json& own) const override {
    if (!context.is_object()) {
      throw invalid_argument("[chat template] the context must be an object, got " +
                             std::string(json_type_name(context)));
    }
    try {
      return jinja::Runtime(program_, limits, now).render(context, own);
    } catch (const jinja::Fault& fault) {
      if (fault.verbatim || fault.offset < 0)
        throw invalid_argument(std::string("[chat template] ") + fault.what());
      throw invalid_argument("[chat template] " + jinja::place_in(program_.source, fault.offset) + ": " +
                             fault.what());
    }
  }

  bool has_generation_blocks() const override { return program_.has_generation; }

 private:
  jinja::Program program_;
};

}  // namespace

std::shared_ptr<const JinjaTemplate> JinjaTemplate::parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    throw invalid_argument("[chat template] the template has " + std::to_string(source.size()) +
                           " bytes, at most " + std::to_string(kMaxSourceBytes) + " are accepted");
  }
  try {
    return std::make_shared<const Template>(jinja::parse_program(source));
  } catch (const jinja::Fault& fault) {
    throw invalid_argument("[chat template] " +
                           jinja::place_in(jinja::normalise_source(source), fault.offset) + ": " +
                           fault.what());
  }
}

}  // namespace twinkle
