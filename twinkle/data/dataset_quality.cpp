// Filters of whole conversations over a data set.
#include <map>
#include <unordered_map>
#include <utility>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/dataset_internal.h"
#include "twinkle/data/quality_filter.h"

namespace twinkle {

using dataset_internal::dump;

void Dataset::keep_rows(Source* source, const std::vector<char>& kept, const std::string& what) {
  size_t left = 0;
  std::string key;
  for (size_t i = 0; i < source->refs.size(); ++i) {
    key.push_back(kept[i] != 0 ? '1' : '0');
    if (kept[i] == 0) continue;
    source->refs[left] = source->refs[i];
    source->loaded_index[left++] = source->loaded_index[i];
  }
  source->refs.resize(left);
  source->loaded_index.resize(left);
  source->edits_key += what + sha256_hex(key);
}

void Dataset::quality_filter(const std::string& name, const Json& options, int source) {
  if (!feature_rows_.empty()) throw conflict("[dataset] quality_filter after encode; filter first");
  if (!mixed_.empty()) throw conflict("[dataset] quality_filter after mix_dataset; filter first");
  const std::shared_ptr<const QualityFilter> filter = Registry<QualityFilter>::create(name, options);
  struct Verdict {
    std::string reason, key;
    size_t size = 0;
  };
  for (Source* each : chosen(source, "quality_filter")) {
    if (!each->map) guess(each, nullptr);
    each->map = [before = each->map, filter](const Row& row) {
      std::vector<Part> parts = before(row);
      for (Part& part : parts) filter->edit(&part.trajectory);
      return parts;
    };
    if (!each->map_key.empty()) each->map_key += name + dump(options);
    std::vector<Verdict> verdicts(each->refs.size());
    // Rows that cannot be read have no verdict and stay: encode() reports them.
    dataset_internal::each_row(static_cast<int64_t>(verdicts.size()), BadRows::kDrop, [&](int64_t i) {
      Verdict verdict;
      for (const Part& part : each->map(row_of(*each, i))) {
        verdict.reason = filter->drop_reason(part.trajectory);
        if (!verdict.reason.empty()) break;
        const std::string key = filter->key(part.trajectory);
        if (!key.empty()) verdict.size += dump(part.trajectory.messages).size();
        verdict.key += key;
      }
      verdicts[static_cast<size_t>(i)] = std::move(verdict);
    });
    std::unordered_map<std::string, size_t> longest;
    for (size_t i = 0; i < verdicts.size(); ++i) {
      if (!verdicts[i].reason.empty() || verdicts[i].key.empty()) continue;
      const auto [found, fresh] = longest.emplace(verdicts[i].key, i);
      if (fresh) continue;
      const bool longer = verdicts[i].size > verdicts[found->second].size;
      verdicts[longer ? std::exchange(found->second, i) : i].reason = "duplicate";
    }
    std::vector<char> kept(verdicts.size(), 1);
    std::map<std::string, int64_t> counts;
    const size_t before = filtered_.size();
    for (size_t i = 0; i < verdicts.size(); ++i) {
      const std::string& reason = verdicts[i].reason;
      if (reason.empty()) continue;
      kept[i] = 0;
      ++counts[reason];
      filtered_.push_back({each->loaded_index[i],
                           place_of(*each, static_cast<int64_t>(i)) + ": " + name + ": " + reason, false});
    }
    if (counts.empty()) continue;
    std::string text;
    for (const auto& [reason, count] : counts)
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + reason;
    notes_.push_back(name + " leaves out " + std::to_string(filtered_.size() - before) + " of " +
                     std::to_string(verdicts.size()) + " rows (" + text +
                     "); the first: " + filtered_[before].reason);
    if (filtered_.size() - before == verdicts.size()) throw invalid_argument("[dataset] " + notes_.back());
    keep_rows(each, kept, "quality");
  }
}

}  // namespace twinkle
