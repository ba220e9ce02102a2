#include "twinkle/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "twinkle/core/error.h"

namespace twinkle::cli {

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw unavailable("[output] cannot write: " + std::string(std::strerror(errno)));
  }
}

void write_error(std::string_view text) {
  // Nothing is left to tell if this fails.
  [[maybe_unused]] const size_t written = std::fwrite(text.data(), 1, text.size(), stderr);
}

void flush_out() {
  if (std::fflush(stdout) != 0)
    throw unavailable("[output] cannot write: " + std::string(std::strerror(errno)));
}

void write_json(const Json& value, int indent) {
  write_out(value.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool use_color(std::string_view choice) {
  if (choice == "always") return true;
  if (choice == "never") return false;
  return ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string table_text(const std::vector<std::pair<std::string, std::string>>& rows, int indent) {
  size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : rows) {
    out += std::string(static_cast<size_t>(indent), ' ') + name + std::string(width + 2 - name.size(), ' ') +
           value + "\n";
  }
  return out;
}

}  // namespace twinkle::cli
