#include "twinkle/serve/tinker_requests.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "twinkle/serve/tinker_wire.h"

namespace twinkle::serve::tinker {

int64_t need_number(const Json& body, const char* name) {
  const int64_t number = int_or(body, name, -1, 0, INT32_MAX);
  if (number < 0) throw invalid_argument("'" + std::string(name) + "' is missing");
  return number;
}

void check_metadata(const Json& metadata) {
  if (metadata.dump(-1, ' ', false, Json::error_handler_t::replace).size() > 64 << 10)
    throw invalid_argument("'user_metadata' is longer than 64 KiB");
}

void check_name(const std::string& name) {
  const bool plain = !name.empty() && name.size() <= 128 && name.front() != '.' &&
                     std::ranges::all_of(name, [](unsigned char c) {
                       return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                     });
  if (!plain)
    throw invalid_argument(
        "[save] a checkpoint's name has 1 to 128 letters, digits, '.', '_' and '-', got '" +
        name.substr(0, 128) + "'");
}

void check_optimizer(const Json& body) {
  const Json* optimizer = find(body, "optimizer_config");
  if (optimizer == nullptr) return;
  const std::string type = optimizer->is_object() ? text_or(*optimizer, "type", "") : "";
  if (type != "adamw")
    throw invalid_argument("[create_model] this server's optimizer is adamw, not '" + type.substr(0, 64) +
                           "'");
}

Json save_arguments(const Json& body, const char* kind, const std::string& name) {
  check_name(name);
  const int64_t ttl = int_or(body, "ttl_seconds", 0, 1, INT32_MAX);
  Json out = {{"kind", kind},
              {"name", name},
              {"overwrite", false},
              {"ttl_seconds", ttl > 0 ? Json(ttl) : Json(nullptr)}};
  if (const Json* metadata = find(body, "user_metadata")) {
    check_metadata(*metadata);
    out["user_metadata"] = *metadata;
  }
  return out;
}

std::optional<std::string> query_text(std::string_view target, std::string_view name) {
  const size_t mark = target.find('?');
  std::string_view query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(name) || pair.size() <= name.size() || pair[name.size()] != '=') continue;
    const std::string_view coded = pair.substr(name.size() + 1);
    std::string out;
    for (size_t i = 0; i < coded.size(); ++i) {
      unsigned int byte = 0;
      if (coded[i] == '%' && i + 2 < coded.size() &&
          std::from_chars(coded.data() + i + 1, coded.data() + i + 3, byte, 16).ptr == coded.data() + i + 3) {
        out.push_back(static_cast<char>(byte));
        i += 2;
      } else {
        out.push_back(coded[i] == '+' ? ' ' : coded[i]);
      }
    }
    return out;
  }
  return std::nullopt;
}

int64_t query_number(std::string_view target, std::string_view name, int64_t otherwise, int64_t most) {
  const auto text = query_text(target, name);
  if (!text) return otherwise;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0 || value > most)
    throw invalid_argument("'" + std::string(name) + "' must be a whole number from 0 to " +
                           std::to_string(most));
  return value;
}

std::string iso_time(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

double seconds_of(const std::string& time) {
  std::tm parts{};
  const char* rest = ::strptime(time.c_str(), "%Y-%m-%d", &parts);
  double fraction = 0, zone = 0;
  if (rest != nullptr && (*rest == 'T' || *rest == ' ')) {
    rest = ::strptime(rest + 1, "%H:%M", &parts);
    if (rest != nullptr && *rest == ':') rest = ::strptime(rest + 1, "%S", &parts);
    if (rest != nullptr && *rest == '.') {
      double place = 0.1;
      for (++rest; *rest >= '0' && *rest <= '9'; ++rest, place /= 10) fraction += place * (*rest - '0');
    }
    if (rest != nullptr && *rest == 'Z') {
      ++rest;
    } else if (rest != nullptr && (*rest == '+' || *rest == '-' || *rest == ' ')) {
      // '+' is a blank in a query that was not encoded.
      const double sign = *rest == '-' ? -1 : 1;
      std::tm offset{};
      rest = ::strptime(rest + 1, "%H:%M", &offset);
      zone = sign * (offset.tm_hour * 3600 + offset.tm_min * 60);
    }
  }
  if (rest != time.c_str() + time.size())
    throw invalid_argument("'" + std::string(time.c_str()).substr(0, 64) +
                           "' is not a time as 2026-01-31T00:00:00Z");
  return static_cast<double>(::timegm(&parts)) + fraction - zone;
}

}  // namespace twinkle::serve::tinker
