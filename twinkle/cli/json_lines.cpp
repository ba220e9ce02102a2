#include "twinkle/cli/json_lines.h"

#include <algorithm>

#include "twinkle/core/error.h"

namespace twinkle::cli {

void each_json_line(std::string_view text, const std::string& name,
                    const std::function<void(const Json&, const std::string&)>& fn) {
  size_t number = 0;
  bool any = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = name + " row " + std::to_string(number);
    fn(parse_json(line, place, kMaxJsonDepth, WideIntegers::kRefuse), place);
    any = true;
  }
  if (!any) throw invalid_argument("[" + name + "] has no rows");
}

}  // namespace twinkle::cli
