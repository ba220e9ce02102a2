// Renders JSON lines {template, context, now?} and prints {text} or {error} lines: our side of the parity
// test.
#include <iostream>
#include <map>
#include <string>

#include "twinkle/core/error.h"
#include "twinkle/text/jinja.h"

int main() {
  std::ios::sync_with_stdio(false);
  std::map<std::string, std::shared_ptr<const twinkle::JinjaTemplate>> cache;
  std::string line;
  while (std::getline(std::cin, line)) {
    twinkle::Json reply;
    try {
      const twinkle::Json request = twinkle::parse_json(line, "request", 400);
      auto& parsed = cache[request.at("template").get<std::string>()];
      if (parsed == nullptr)
        parsed = twinkle::JinjaTemplate::parse(request.at("template").get<std::string>());
      const auto out = parsed->render(request.at("context"), {}, request.value("now", int64_t{-1}));
      reply["text"] = out.text;
      twinkle::Json spans = twinkle::Json::array();
      for (const auto& span : out.generation) spans.push_back({span.begin, span.end});
      reply["generation"] = spans;
    } catch (const twinkle::Error& e) {
      reply = {{"error", e.what()}};
    }
    std::cout << reply.dump(-1, ' ', false, twinkle::Json::error_handler_t::replace) << "\n";
  }
}
