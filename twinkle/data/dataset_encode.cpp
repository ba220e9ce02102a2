// Rows to features: parts, checks, and the whole data set on all cores.
#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/data/dataset.h"
#include "twinkle/data/dataset_internal.h"
#include "twinkle/data/encoded_cache.h"

namespace twinkle {

using dataset_internal::at_place;
using dataset_internal::dump;
using dataset_internal::each_row;

namespace {

constexpr std::string_view kPrefix = "[dataset] ";

// Texts of an embedding row are compared, not trained on token by token.
bool is_compared(const std::string& part) {
  return part == "anchor" || part == "positive" || part == "negative";
}

void drop_empty_answer(Json* messages) {
  if (messages->size() < 2) return;
  const Json& last = messages->back();
  const bool calls = last.contains("tool_calls") && !last.at("tool_calls").empty();
  if (last.value("role", "") == "assistant" && !calls &&
      (!last.contains("content") || last.at("content") == ""))
    messages->erase(messages->size() - 1);
}

std::string deleted_by(const Template& tmpl) {
  return "deleted by the template (max_length " + std::to_string(tmpl.options().max_length) +
         ", truncation_strategy " + tmpl.options().truncation_strategy + ")";
}

}  // namespace

std::vector<Part> Dataset::parts(int64_t index) const {
  const auto [source, row] = at(index);
  if (!source->map) throw conflict("[dataset] call map() before asking for trajectories");
  const Row value = row_of(*source, row);
  try {
    std::vector<Part> out = source->map(value);
    if (out.empty()) throw invalid_argument("the preprocessor makes nothing of it");
    return out;
  } catch (const Error& e) {
    throw Error(e.kind(), at_place(place_of(*source, row), e.what()));
  }
}

Trajectory Dataset::trajectory(int64_t index) const { return std::move(parts(index).front().trajectory); }

std::vector<Trajectory> Dataset::trajectories() const {
  std::vector<Trajectory> out(static_cast<size_t>(size()));
  const auto bad =
      each_row(size(), BadRows::kRaise, [&](int64_t i) { out[static_cast<size_t>(i)] = trajectory(i); });
  if (!bad.empty()) throw invalid_argument(at_place(place(bad.begin()->first), bad.begin()->second));
  return out;
}

Dataset::EncodedRow Dataset::encode_row(const Template& tmpl, int64_t index,
                                        bool add_generation_prompt) const {
  EncodedRow out;
  std::vector<Part> given = parts(index);
  for (Part& part : given) {
    std::vector<InputFeature> features;
    const bool no_labels = add_generation_prompt || is_compared(part.name);
    if (add_generation_prompt) drop_empty_answer(&part.trajectory.messages);
    if (no_labels) {
      features.push_back(tmpl.encode_prompt(part.trajectory));
      if (features.back().input_ids.empty()) features.clear();
    } else {
      features = tmpl.encode(part.trajectory);
    }
    if (features.empty()) {
      out = {};
      out.remark = deleted_by(tmpl);
      out.deleted = true;
      return out;
    }
    if (!no_labels) {
      const size_t all = features.size();
      std::erase_if(features, [](const InputFeature& f) { return f.num_trained() == 0; });
      if (features.empty()) throw invalid_argument("no token of it is trained on (every label is masked)");
      if (given.size() > 1 && all > 1)
        throw invalid_argument("a row of several conversations cannot be split (truncation_strategy)");
      if (features.size() < all) {
        out.remark = std::to_string(all - features.size()) + " of its " + std::to_string(all) +
                     " parts have no trained token and are left out";
      }
    }
    for (auto& feature : features) {
      feature.origin = place(index);
      out.features.push_back(std::move(feature));
      out.parts.push_back(part.name);
    }
  }
  return out;
}

void Dataset::encode(BadRows bad_rows) {
  if (!template_) throw conflict("[dataset] encode needs a template; call set_template first");
  encode(*template_, bad_rows);
}

void Dataset::encode(const Template& tmpl, BadRows bad_rows, const std::string& cache_folder,
                     bool add_generation_prompt) {
  encode_rows(tmpl, bad_rows, cache_folder, add_generation_prompt);
  attach_recorder();
}

void Dataset::encode_rows(const Template& tmpl, BadRows bad_rows, const std::string& cache_folder,
                          bool add_generation_prompt) {
  if (sources_.size() > 1 && mixed_.empty())
    throw conflict("[dataset] encode: there are " + std::to_string(sources_.size()) +
                   " sources; mix them first");
  ensure_mapped();
  features_.clear();
  feature_rows_.clear();
  feature_parts_.clear();
  dropped_.clear();
  std::erase_if(left_out_, [](const LeftOut& row) { return row.step == "encode"; });
  EncodedData cached;
  const std::string key = cache_folder.empty() ? "" : cache_key(tmpl, bad_rows, add_generation_prompt);
  if (!key.empty() && load_encoded(cache_folder, key, &cached)) {
    features_ = std::move(cached.features);
    feature_rows_ = std::move(cached.rows);
    feature_parts_ = std::move(cached.parts);
    dropped_ = std::move(cached.dropped);
    // The same rows may lie in a file of another name now.
    for (size_t i = 0; i < dropped_.size(); ++i) {
      const auto& [row, was] = cached.dropped_at[i];
      if (dropped_[i].reason.starts_with(was))
        dropped_[i].reason = place(row) + dropped_[i].reason.substr(was.size());
      const auto [source, at_row] = at(row);
      note_left_out("encode", *source, at_row, dropped_[i].reason, dropped_[i].partial);
    }
    for (size_t i = 0; i < features_.size(); ++i) features_[i].origin = place(feature_rows_[i]);
    notes_.push_back("encoded rows taken from '" + cache_folder + "'");
    return;
  }
  const auto count = static_cast<size_t>(size());
  std::vector<EncodedRow> made(count);
  auto bad = each_row(size(), bad_rows, [&](int64_t i) {
    made[static_cast<size_t>(i)] = encode_row(tmpl, i, add_generation_prompt);
  });
  if (!bad.empty() && bad_rows == BadRows::kRaise) {
    throw invalid_argument(at_place(place(bad.begin()->first), bad.begin()->second));
  }
  for (int64_t i = 0; i < size(); ++i) {
    EncodedRow& row = made[static_cast<size_t>(i)];
    std::string reason = std::move(row.remark);
    if (const auto found = bad.find(i); found != bad.end()) reason = found->second;
    if (!reason.empty()) {
      const auto [source, at_row] = at(i);
      dropped_.push_back({source->loaded_index[static_cast<size_t>(at_row)],
                          at_place(place(i), reason).substr(kPrefix.size()), !row.features.empty()});
      cached.dropped_at.emplace_back(i, place(i));
      note_left_out("encode", *source, at_row, dropped_.back().reason, dropped_.back().partial);
    }
    for (size_t k = 0; k < row.features.size(); ++k) {
      features_.push_back(std::move(row.features[k]));
      feature_rows_.push_back(i);
      feature_parts_.push_back(std::move(row.parts[k]));
    }
    row = {};
  }
  if (features_.empty()) {
    std::string message =
        "[dataset] none of the " + std::to_string(size()) + " rows of '" + name_ + "' is left to train on";
    for (size_t i = 0; i < std::min<size_t>(3, dropped_.size()); ++i) message += "\n  " + dropped_[i].reason;
    throw invalid_argument(message);
  }
  if (!key.empty() && tmpl.has_read_clock()) {
    notes_.push_back("encoded rows are not kept in '" + cache_folder +
                     "': the chat template asks for the time");
  } else if (!key.empty()) {
    cached.features = features_;
    cached.rows = feature_rows_;
    cached.parts = feature_parts_;
    cached.dropped = dropped_;
    save_encoded(cache_folder, key, cached);
  }
}

// "" when a source is mapped by a function of the caller: what it does is not known.
std::string Dataset::cache_key(const Template& tmpl, BadRows bad_rows, bool add_generation_prompt) const {
  const TemplateOptions& o = tmpl.options();
  Json key = {{"program", TWINKLE_VERSION},
              {"rows", content_hash_},
              {"tokenizer", sha256_hex(dump(tmpl.tokenizer().to_json()) + dump(tmpl.tokenizer().config()))},
              {"chat_template", tmpl.chat_template_source()},
              {"template", tmpl.identity()},
              {"options",
               {o.max_length, o.truncation_strategy, o.use_chat_template, o.enable_thinking, o.default_system,
                o.chat_template_kwargs, o.loss_scale, o.split_rounds}},
              {"bad_rows", bad_rows == BadRows::kDrop},
              {"prompts", add_generation_prompt},
              {"sources", Json::array()}};
  for (const Source& source : sources_) {
    if (source.map_key.empty()) return "";
    key["sources"].push_back({source.map_key, source.edits_key, source.refs.size()});
  }
  return sha256_hex(dump(key));
}

void Dataset::check(const Template& tmpl) {
  if (!mixed_.empty()) throw conflict("[dataset] check after mix_dataset; check first");
  ensure_mapped();
  std::vector<std::string> reasons(static_cast<size_t>(size()));
  const auto bad = each_row(size(), BadRows::kDrop, [&](int64_t i) {
    const EncodedRow row = encode_row(tmpl, i);
    if (row.features.empty()) reasons[static_cast<size_t>(i)] = row.remark;
  });
  for (const auto& [i, reason] : bad) reasons[static_cast<size_t>(i)] = reason;
  // Nothing changes before it is known that something is left of every source.
  std::vector<DroppedRow> dropped;
  std::vector<std::pair<const Source*, int64_t>> dropped_at;
  std::vector<Source> left;
  size_t at_row = 0;
  for (const Source& source : sources_) {
    Source kept = source;
    kept.refs.clear();
    kept.loaded_index.clear();
    std::string key;
    for (size_t i = 0; i < source.refs.size(); ++i, ++at_row) {
      key.push_back(reasons[at_row].empty() ? '1' : '0');
      if (reasons[at_row].empty()) {
        kept.refs.push_back(source.refs[i]);
        kept.loaded_index.push_back(source.loaded_index[i]);
        continue;
      }
      const std::string where = place_of(source, static_cast<int64_t>(i));
      dropped.push_back(
          {source.loaded_index[i], at_place(where, reasons[at_row]).substr(kPrefix.size()), false});
      dropped_at.emplace_back(&source, static_cast<int64_t>(i));
    }
    if (kept.refs.empty()) {
      throw invalid_argument("[dataset] none of the rows of '" + source.name + "' can be encoded\n  " +
                             dropped.back().reason);
    }
    if (kept.refs.size() < source.refs.size()) kept.edits_key += "check" + sha256_hex(key);
    left.push_back(std::move(kept));
  }
  for (size_t k = 0; k < dropped.size(); ++k)
    note_left_out("check", *dropped_at[k].first, dropped_at[k].second, dropped[k].reason);
  sources_ = std::move(left);
  dropped_ = std::move(dropped);
}

std::shared_ptr<const SampleSource> Dataset::take_samples() {
  std::vector<int64_t> begins;
  for (size_t i = 0; i < features_.size(); ++i) {
    // Rows without named parts may have been split: their windows are samples of their own.
    if (i == 0 || feature_rows_[i] != feature_rows_[i - 1] || feature_parts_[i].empty())
      begins.push_back(static_cast<int64_t>(i));
  }
  begins.push_back(static_cast<int64_t>(features_.size()));
  return samples_of(std::move(features_), std::move(begins));
}

}  // namespace twinkle
