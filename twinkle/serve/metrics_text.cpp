#include "twinkle/serve/metrics_text.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace twinkle::serve {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

std::string metric_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[40];
  const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;
  std::snprintf(text, sizeof(text), whole ? "%.0f" : "%.9g", value);
  return text;
}

}  // namespace

MetricsText& MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ +=
      "# HELP " + name_ + " " + escaped(help, false) + "\n# TYPE " + name_ + " " + std::string(type) + "\n";
  return *this;
}

MetricsText& MetricsText::sample(double value, Labels labels, std::string_view suffix) {
  text_ += name_ + std::string(suffix);
  bool first = true;
  for (const auto& [key, label] : labels) {
    text_ += (first ? "{" : ",") + std::string(key) + "=\"" + escaped(label, true) + "\"";
    first = false;
  }
  text_ += (first ? " " : "} ") + metric_number(value) + "\n";
  return *this;
}

}  // namespace twinkle::serve
