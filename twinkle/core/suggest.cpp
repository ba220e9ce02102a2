#include "twinkle/core/suggest.h"

#include <algorithm>
#include <cctype>

#include "twinkle/core/list_text.h"

namespace twinkle {
namespace {

std::string letters_of(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != '-' && c != '_') out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return out;
}

// Optimal string alignment distance: insert, delete, replace, swap of neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view given, std::span<const std::string> known) {
  const std::string key = letters_of(given.substr(0, 128));
  std::string best;
  size_t best_distance = std::max<size_t>(2, key.size() / 3) + 1;
  for (const auto& name : known) {
    const size_t distance = edit_distance(key, letters_of(name));
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view given, std::span<const std::string> known) {
  if (const std::string near = nearest_name(given, known); !near.empty())
    return " (did you mean '" + near + "'?)";
  const std::string list = joined(known);
  return list.empty() ? "" : " (known: " + list + ")";
}

}  // namespace twinkle
