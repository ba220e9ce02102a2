// Prometheus's text format, version 0.0.4: families of samples with labels. Free of state.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace twinkle::serve {

class MetricsText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;
  /// Begins a family; `type` is counter, gauge or histogram.
  MetricsText& family(std::string_view name, std::string_view type, std::string_view help);
  /// A sample of it; `suffix` such as "_bucket".
  MetricsText& sample(double value, Labels labels = {}, std::string_view suffix = "");
  const std::string& text() const { return text_; }

 private:
  std::string text_, name_;
};

}  // namespace twinkle::serve
