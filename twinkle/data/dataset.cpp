#include "twinkle/data/dataset.h"

#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <numeric>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// "[dataset] PLACE: what is wrong", whether or not the message already carries a place of its own.
std::string at_place(const std::string& place, std::string_view message) {
  if (message.starts_with("[dataset] ")) return std::string(message);
  return "[dataset] " + place + ": " + std::string(message);
}

// Runs fn(i) for every row on all cores. Returns what each bad row said, by row; with kRaise rows after the
// first bad one may be left out, and only the first counts, so the outcome does not depend on threads.
std::map<int64_t, std::string> each_row(int64_t count, BadRows bad_rows,
                                        const std::function<void(int64_t)>& fn) {
  std::map<int64_t, std::string> bad;
  std::mutex mutex;
  std::atomic<int64_t> first_bad{count};
  parallel_for(count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (bad_rows == BadRows::kRaise && i > first_bad.load(std::memory_order_relaxed)) return;
      std::string reason;
      try {
        fn(i);
        continue;
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::kInternal) throw;
        reason = e.what();
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& e) {  // a user's own function
        reason = e.what();
      }
      const std::lock_guard lock(mutex);
      bad[i] = reason;
      if (i < first_bad.load()) first_bad.store(i);
    }
  });
  return bad;
}

int64_t parse_index(std::string_view text, std::string_view all) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 0) {
    throw invalid_argument("[dataset] data_slice '" + std::string(all) +
                           "': expected start:stop, start:stop:step or a list of row "
                           "indices from 0, got '" +
                           std::string(text) + "'");
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

std::vector<int64_t> parse_data_slice(std::string_view text, int64_t num_rows) {
  std::vector<int64_t> rows;
  const auto past_end = [&](int64_t index) {
    return invalid_argument("[dataset] data_slice '" + std::string(text) + "': " + std::to_string(index) +
                            " is past the end of the " + std::to_string(num_rows) + " rows");
  };
  if (text.find(':') == std::string_view::npos) {
    for (const auto part : split(text, ',')) {
      rows.push_back(parse_index(part, text));
      if (rows.back() >= num_rows) throw past_end(rows.back());
    }
    return rows;
  }
  const auto parts = split(text, ':');
  if (parts.size() > 3)
    throw invalid_argument("[dataset] data_slice '" + std::string(text) + "': expected start:stop:step");
  const int64_t start = parts[0].empty() ? 0 : parse_index(parts[0], text);
  const int64_t stop = parts[1].empty() ? num_rows : parse_index(parts[1], text);
  const int64_t step = parts.size() < 3 || parts[2].empty() ? 1 : parse_index(parts[2], text);
  if (step == 0)
    throw invalid_argument("[dataset] data_slice '" + std::string(text) + "': the step must be >= 1");
  if (stop > num_rows) throw past_end(stop);
  for (int64_t i = start; i < stop; i += step) rows.push_back(i);
  if (rows.empty()) throw invalid_argument("[dataset] data_slice '" + std::string(text) + "' holds no row");
  return rows;
}

BadRows parse_bad_rows(std::string_view text) {
  if (text == "raise") return BadRows::kRaise;
  if (text == "drop") return BadRows::kDrop;
  throw invalid_argument("[dataset] bad_rows must be raise or drop, got '" + std::string(text) + "'");
}

Dataset::Dataset(const DatasetMeta& meta) {
  if (meta.dataset_id.empty() && meta.data.empty())
    throw invalid_argument("[dataset] needs a dataset_id or rows in `data`");
  if (!meta.dataset_id.empty() && !meta.data.empty())
    throw invalid_argument("[dataset] has both a dataset_id and rows in `data`; give one");
  if (meta.subset_name != "default") {
    throw invalid_argument("[dataset] subset_name '" + meta.subset_name +
                           "': local files have no subsets; give the path of the file");
  }
  if (meta.split != "train") {
    throw invalid_argument("[dataset] split '" + meta.split +
                           "': local files have no splits; give the path of the file");
  }
  if (meta.data.empty()) {
    name_ = meta.dataset_id;
    files_ = RowFiles::open(meta.dataset_id, meta.text_split);
    refs_ = files_->rows();
    notes_ = files_->notes();
  } else {
    name_ = "memory";
    memory_ = meta.data;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (!memory_[i].is_object()) {
        throw invalid_argument("[dataset] row " + std::to_string(i + 1) +
                               ": expected an object of columns, got " +
                               std::string(json_type_name(memory_[i])));
      }
      refs_.push_back({.file = -1, .number = static_cast<int32_t>(i + 1), .begin = static_cast<int64_t>(i)});
    }
  }
  if (meta.data_slice && !meta.slice.empty())
    throw invalid_argument("[dataset] has both data_slice and slice; give one");
  std::optional<std::vector<int64_t>> wanted = meta.data_slice;
  if (!meta.slice.empty()) wanted = parse_data_slice(meta.slice, size());
  if (wanted) {
    std::vector<RowRef> chosen;
    chosen.reserve(wanted->size());
    for (const int64_t index : *wanted) {
      if (index < 0 || index >= size()) {
        throw invalid_argument("[dataset] data_slice: row " + std::to_string(index) + " of '" + name_ +
                               "' does not exist; it has " + std::to_string(size()) + " rows");
      }
      chosen.push_back(refs_[static_cast<size_t>(index)]);
    }
    if (chosen.empty()) throw invalid_argument("[dataset] data_slice holds no row");
    refs_ = std::move(chosen);
  }
  loaded_index_.resize(refs_.size());
  std::iota(loaded_index_.begin(), loaded_index_.end(), int64_t{0});
  std::vector<std::string> hashes(refs_.size());
  parallel_for(size(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowRef& ref = refs_[static_cast<size_t>(i)];
      hashes[static_cast<size_t>(i)] = ref.file < 0
                                           ? sha256_hex(dump(memory_[static_cast<size_t>(ref.begin)]))
                                           : sha256_hex(files_->bytes(ref));
    }
  });
  std::string all;
  all.reserve(64 * hashes.size());
  for (const auto& hash : hashes) all += hash;
  content_hash_ = sha256_hex(all);
}

Row Dataset::row(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw invalid_argument("[dataset] row " + std::to_string(index) + " of '" + name_ +
                           "' does not exist; it has " + std::to_string(size()) + " rows");
  }
  const RowRef& ref = refs_[static_cast<size_t>(index)];
  return ref.file < 0 ? memory_[static_cast<size_t>(ref.begin)] : files_->parse(ref);
}

std::string Dataset::place(int64_t index) const {
  const RowRef& ref = refs_.at(static_cast<size_t>(index));
  return ref.file < 0 ? "row " + std::to_string(ref.number) : files_->place(ref);
}

void Dataset::map(const std::string& preprocessor, const Json& options) {
  if (!preprocessor.empty()) {
    std::shared_ptr<Preprocessor> made = Registry<Preprocessor>::create(preprocessor, options);
    map([made](const Row& row) { return (*made)(row); });
    return;
  }
  Row first;
  for (int64_t i = 0; i < std::min<int64_t>(size(), 100); ++i) {
    try {
      first = row(i);
      break;
    } catch (const Error& e) {  // encode() reports a malformed row as it is told to
      if (e.kind() != ErrorKind::kInvalidArgument) throw;
    }
  }
  if (first.is_null()) row(0);  // every row looked at is malformed: say what is wrong with the first
  PreprocessorGuess guess = guess_preprocessor(first);
  if (options.is_object()) {
    for (const auto& [key, value] : options.items()) guess.options[key] = value;
  }
  map(guess.name, guess.options);
  notes_.push_back("preprocessor " + guess.name + ": " + guess.why);
}

void Dataset::map(std::function<Trajectory(const Row&)> fn) {
  map_ = std::move(fn);
  features_.clear();
  feature_rows_.clear();
  dropped_.clear();
}

void Dataset::filter(const std::function<bool(const Row&)>& keep) {
  if (!feature_rows_.empty()) throw conflict("[dataset] filter after encode; filter first");
  std::vector<char> kept(refs_.size(), 1);
  const auto bad = each_row(size(), BadRows::kRaise, [&](int64_t i) {
    Row value;
    try {
      value = row(i);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kInvalidArgument) return;
      throw;
    }
    kept[static_cast<size_t>(i)] = keep(value) ? 1 : 0;
  });
  if (!bad.empty()) throw invalid_argument(at_place(place(bad.begin()->first), bad.begin()->second));
  size_t left = 0;
  for (size_t i = 0; i < refs_.size(); ++i) {
    if (kept[i] == 0) continue;
    refs_[left] = refs_[i];
    loaded_index_[left++] = loaded_index_[i];
  }
  if (left == 0) throw invalid_argument("[dataset] the filter leaves no row of '" + name_ + "'");
  refs_.resize(left);
  loaded_index_.resize(left);
}

void Dataset::ensure_mapped() {
  if (!map_) map("");
}

Trajectory Dataset::trajectory(int64_t index) const {
  if (!map_) throw conflict("[dataset] call map() before asking for trajectories");
  const Row value = row(index);
  try {
    return map_(value);
  } catch (const Error& e) {
    throw Error(e.kind(), at_place(place(index), e.what()));
  }
}

std::vector<Trajectory> Dataset::trajectories() const {
  std::vector<Trajectory> out(refs_.size());
  const auto bad =
      each_row(size(), BadRows::kRaise, [&](int64_t i) { out[static_cast<size_t>(i)] = trajectory(i); });
  if (!bad.empty()) throw invalid_argument(at_place(place(bad.begin()->first), bad.begin()->second));
  return out;
}

void Dataset::encode(const Template& tmpl, BadRows bad_rows) {
  ensure_mapped();
  features_.clear();
  feature_rows_.clear();
  dropped_.clear();
  std::vector<std::vector<InputFeature>> made(refs_.size());
  std::vector<std::string> remarks(
      refs_.size());  // why a row, or a part of it, is left out though it is not bad
  auto bad = each_row(size(), bad_rows, [&](int64_t i) {
    std::vector<InputFeature> features = tmpl.encode(trajectory(i));
    std::string& remark = remarks[static_cast<size_t>(i)];
    if (features.empty()) {
      remark = "deleted by the template (max_length " + std::to_string(tmpl.options().max_length) +
               ", truncation_strategy " + tmpl.options().truncation_strategy + ")";
      return;
    }
    const size_t all = features.size();
    std::erase_if(features, [](const InputFeature& f) { return f.num_trained() == 0; });
    if (features.empty()) throw invalid_argument("no token of it is trained on (every label is masked)");
    if (features.size() < all) {
      remark = std::to_string(all - features.size()) + " of its " + std::to_string(all) +
               " parts have no trained token and are left out";
    }
    made[static_cast<size_t>(i)] = std::move(features);
  });
  if (!bad.empty() && bad_rows == BadRows::kRaise) {
    throw invalid_argument(at_place(place(bad.begin()->first), bad.begin()->second));
  }
  for (int64_t i = 0; i < size(); ++i) {
    const auto at = static_cast<size_t>(i);
    std::string reason = std::move(remarks[at]);
    if (const auto found = bad.find(i); found != bad.end()) reason = found->second;
    if (!reason.empty())
      dropped_.push_back({loaded_index_[at], at_place(place(i), reason).substr(sizeof("[dataset] ") - 1),
                          !made[at].empty()});
    for (auto& feature : made[at]) {
      feature.origin = place(i);
      features_.push_back(std::move(feature));
      feature_rows_.push_back(i);
    }
    made[at] = {};
  }
  if (features_.empty()) {
    std::string message =
        "[dataset] none of the " + std::to_string(size()) + " rows of '" + name_ + "' is left to train on";
    for (size_t i = 0; i < std::min<size_t>(3, dropped_.size()); ++i) message += "\n  " + dropped_[i].reason;
    throw invalid_argument(message);
  }
}

}  // namespace twinkle
