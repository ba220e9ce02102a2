// Rows that filters leave out, and the list of all rows that were left out.
#include <algorithm>
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

namespace {

// Conversations that a judge gets at once.
constexpr size_t kJudgedTogether = 64;

struct Verdict {
  std::string reason, key;
  size_t size = 0;
  std::vector<Trajectory> conversations;  // for a judge
};

// What a judge says of rows [begin, end).
void judge_rows(QualityFilter::Judge* judge, std::vector<Verdict>* verdicts, size_t begin, size_t end) {
  std::vector<Trajectory> all;
  std::vector<size_t> row_of;
  for (size_t i = begin; i < end; ++i) {
    for (Trajectory& conversation : (*verdicts)[i].conversations) {
      all.push_back(std::move(conversation));
      row_of.push_back(i);
    }
    (*verdicts)[i].conversations.clear();
  }
  if (all.empty()) return;
  std::vector<std::string> reasons = judge->drop_reasons(all);
  if (reasons.size() != all.size())
    throw invalid_argument("[dataset] a filter judged " + std::to_string(reasons.size()) + " of " +
                           std::to_string(all.size()) + " conversations");
  for (size_t k = 0; k < all.size(); ++k) {
    std::string& reason = (*verdicts)[row_of[k]].reason;
    if (reason.empty()) reason = std::move(reasons[k]);
  }
}

}  // namespace

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
  apply_filter(Registry<QualityFilter>::create(name, options), name, name + dump(options), source);
}

void Dataset::quality_filter(std::shared_ptr<const QualityFilter> filter, const std::string& name,
                             int source) {
  apply_filter(std::move(filter), name, "", source);
}

void Dataset::apply_filter(std::shared_ptr<const QualityFilter> filter, const std::string& name,
                           const std::string& key, int source) {
  if (!feature_rows_.empty()) throw conflict("[dataset] quality_filter after encode; filter first");
  if (!mixed_.empty()) throw conflict("[dataset] quality_filter after mix_dataset; filter first");
  for (Source* each : chosen(source, "quality_filter")) {
    if (!each->map) guess(each, nullptr);
    const std::function<std::vector<Part>(const Row&)> unedited = each->map;
    each->map = [unedited, filter](const Row& row) {
      std::vector<Part> parts = unedited(row);
      for (Part& part : parts) filter->edit(&part.trajectory);
      return parts;
    };
    const std::unique_ptr<QualityFilter::Judge> judge = filter->start_judging();
    std::vector<Verdict> verdicts(each->refs.size());
    const auto look_at = [&](int64_t i) {
      Verdict verdict;
      const Row row = row_of(*each, i);
      verdict.reason = filter->row_drop_reason(row);
      if (verdict.reason.empty()) {
        for (Part& part : unedited(row)) {
          if (judge) {
            filter->edit(&part.trajectory);
          } else {
            verdict.reason = filter->edit_and_judge(&part.trajectory);
          }
          if (!verdict.reason.empty()) break;
          const std::string likeness = filter->key(part.trajectory);
          if (!likeness.empty()) verdict.size += dump(part.trajectory.messages).size();
          verdict.key += likeness;
          if (judge) verdict.conversations.push_back(std::move(part.trajectory));
        }
      }
      verdicts[static_cast<size_t>(i)] = std::move(verdict);
    };
    // Rows that cannot be read have no verdict and stay: encode() reports them.
    const size_t step = judge ? kJudgedTogether : std::max<size_t>(1, verdicts.size());
    for (size_t begin = 0; begin < verdicts.size(); begin += step) {
      const size_t end = std::min(begin + step, verdicts.size());
      dataset_internal::each_row(static_cast<int64_t>(end - begin), BadRows::kDrop,
                                 [&](int64_t i) { look_at(static_cast<int64_t>(begin) + i); });
      if (judge) judge_rows(judge.get(), &verdicts, begin, end);
    }
    // What a filter of the caller does is not known, nor what the rows are mapped by when that is not.
    each->map_key = key.empty() || each->map_key.empty() ? "" : each->map_key + key + filter->edits_key();
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
      const std::string place = place_of(*each, static_cast<int64_t>(i));
      filtered_.push_back({each->loaded_index[i], place + ": " + name + ": " + reason, false});
      left_out_.push_back({name, reason, place, each - sources_.data(), each->refs[i], false});
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

void Dataset::note_left_out(const std::string& step, const Source& source, int64_t row, std::string reason,
                            bool partial) {
  std::string place = place_of(source, row);
  if (const std::string prefix = place + ": "; reason.starts_with(prefix)) reason.erase(0, prefix.size());
  left_out_.push_back({step, std::move(reason), std::move(place), &source - sources_.data(),
                       source.refs[static_cast<size_t>(row)], partial});
}

std::string Dataset::dropped_log() const {
  std::string out;
  for (const LeftOut& row : left_out_) {
    Json line = {{"step", row.step}, {"drop_reason", row.reason}, {"place", row.place}, {"row", nullptr}};
    if (row.partial) line["partial"] = true;
    const Source& source = sources_[static_cast<size_t>(row.source)];
    try {
      line["row"] = row.ref.file < 0 ? (*source.memory)[static_cast<size_t>(row.ref.begin)]
                                     : source.files->parse(row.ref);
    } catch (const Error& e) {  // it was left out for what it is
      if (e.kind() != ErrorKind::kInvalidArgument) throw;
    }
    out += dump(line) + "\n";
  }
  return out;
}

}  // namespace twinkle
