#include "twinkle/data/dataset.h"

#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/parallel_errors.h"
#include "twinkle/core/rng.h"
#include "twinkle/core/suggest.h"
#include "twinkle/data/dataset_internal.h"

namespace twinkle {
namespace dataset_internal {

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string at_place(const std::string& place, std::string_view message) {
  if (message.starts_with("[dataset] ")) return std::string(message);
  return "[dataset] " + place + ": " + std::string(message);
}

std::function<void(Row*)> renaming(const Json& names) {
  if (!names.is_object()) {
    throw invalid_argument("[dataset] column names must be an object {\"in the file\": \"new\"}, got " +
                           std::string(json_type_name(names)));
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [from, to] : names.items()) {
    if (!to.is_string() || to.get_ref<const std::string&>().empty())
      throw invalid_argument("[dataset] the new name of column '" + from + "' must be a string");
    pairs.emplace_back(from, to.get<std::string>());
  }
  return [pairs](Row* row) {
    Row out = Row::object();
    for (auto& [key, value] : row->items()) {
      std::string name = key;
      for (const auto& [from, to] : pairs) {
        if (key == from) name = to;
      }
      if (out.contains(name)) throw invalid_argument("two columns would be called '" + name + "'");
      out[name] = std::move(value);
    }
    *row = std::move(out);
  };
}

std::map<int64_t, std::string> each_row(int64_t count, BadRows bad_rows,
                                        const std::function<void(int64_t)>& fn) {
  const auto errors = errors_of_items(
      count, 16, bad_rows == BadRows::kRaise ? BadItems::kFirst : BadItems::kAll, [&](int64_t i) {
        try {
          fn(i);
        } catch (const Error&) {
          throw;
        } catch (const std::bad_alloc&) {
          throw;
        } catch (const std::exception& e) {  // a user's own function
          throw invalid_argument(e.what());
        }
      });
  std::map<int64_t, std::string> bad;
  for (const auto& [i, error] : errors) bad.emplace(i, error.what());
  return bad;
}

}  // namespace dataset_internal

namespace {

using dataset_internal::at_place;
using dataset_internal::dump;
using dataset_internal::each_row;

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
  for (int64_t i = start; i < stop; i += step) {
    rows.push_back(i);
    if (step >= stop - i) break;  // the next index may be past the last integer
  }
  if (rows.empty()) throw invalid_argument("[dataset] data_slice '" + std::string(text) + "' holds no row");
  return rows;
}

BadRows parse_bad_rows(std::string_view text) {
  if (text == "raise") return BadRows::kRaise;
  if (text == "drop") return BadRows::kDrop;
  throw invalid_argument("[dataset] bad_rows must be raise or drop, got '" + std::string(text) + "'");
}

std::string DatasetMeta::get_id() const {
  std::string id = dataset_id.empty() ? "__memory__" : dataset_id;
  for (char& c : id) c = c == '/' || c == '\\' || c == '.' ? '_' : c;
  return id + ":" + subset_name + ":" + split;
}

Dataset::Dataset(const DatasetMeta& meta) {
  sources_.push_back(open_source(meta));
  name_ = sources_[0].name;
  hash_sources();
}

int Dataset::add_dataset(const DatasetMeta& meta) {
  if (!mixed_.empty()) throw conflict("[dataset] add_dataset after mix_dataset; add first");
  if (!feature_rows_.empty()) throw conflict("[dataset] add_dataset after encode; add first");
  sources_.push_back(open_source(meta));
  name_ += "+" + sources_.back().name;
  hash_sources();
  return static_cast<int>(sources_.size()) - 1;
}

Dataset::Source Dataset::open_source(const DatasetMeta& meta) {
  Source out;
  const int given =
      (meta.dataset_id.empty() ? 0 : 1) + (meta.data.empty() ? 0 : 1) + (meta.generator ? 1 : 0);
  if (given == 0) throw invalid_argument("[dataset] needs a dataset_id, rows in `data` or a generator");
  if (given > 1)
    throw invalid_argument(
        "[dataset] has more than one of a dataset_id, rows in `data` and a generator; give one");
  if (meta.subset_name != "default") {
    throw invalid_argument("[dataset] subset_name '" + meta.subset_name +
                           "': local files have no subsets; give the path of the file");
  }
  if (meta.split != "train") {
    throw invalid_argument("[dataset] split '" + meta.split +
                           "': local files have no splits; give the path of the file");
  }
  if (!meta.dataset_id.empty()) {
    out.name = meta.dataset_id;
    out.files = RowFiles::open(meta.dataset_id, {.text_split = meta.text_split, .columns = meta.columns});
    out.refs = out.files->rows();
    for (const auto& note : out.files->notes()) notes_.push_back(note);
  } else {
    out.name = "memory";
    std::vector<Row> memory = meta.data;
    if (meta.generator) {
      while (auto row = meta.generator()) memory.push_back(std::move(*row));
      if (memory.empty()) throw invalid_argument("[dataset] the generator makes no row");
    }
    for (size_t i = 0; i < memory.size(); ++i) {
      if (!memory[i].is_object()) {
        throw invalid_argument("[dataset] row " + std::to_string(i + 1) +
                               ": expected an object of columns, got " +
                               std::string(json_type_name(memory[i])));
      }
      out.refs.push_back(
          {.file = -1, .number = static_cast<int32_t>(i + 1), .begin = static_cast<int64_t>(i)});
    }
    out.memory = std::make_shared<const std::vector<Row>>(std::move(memory));
  }
  if (meta.data_slice && !meta.slice.empty())
    throw invalid_argument("[dataset] has both data_slice and slice; give one");
  const auto count = static_cast<int64_t>(out.refs.size());
  std::optional<std::vector<int64_t>> wanted = meta.data_slice;
  if (!meta.slice.empty()) wanted = parse_data_slice(meta.slice, count);
  if (wanted) {
    std::vector<RowRef> chosen_refs;
    chosen_refs.reserve(wanted->size());
    for (const int64_t index : *wanted) {
      if (index < 0 || index >= count) {
        throw invalid_argument("[dataset] data_slice: row " + std::to_string(index) + " of '" + out.name +
                               "' does not exist; it has " + std::to_string(count) + " rows");
      }
      chosen_refs.push_back(out.refs[static_cast<size_t>(index)]);
    }
    if (chosen_refs.empty()) throw invalid_argument("[dataset] data_slice holds no row");
    out.refs = std::move(chosen_refs);
  }
  out.loaded_index.resize(out.refs.size());
  std::iota(out.loaded_index.begin(), out.loaded_index.end(), int64_t{0});
  std::vector<std::string> hashes(out.refs.size());
  parallel_for(static_cast<int64_t>(out.refs.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowRef& ref = out.refs[static_cast<size_t>(i)];
      hashes[static_cast<size_t>(i)] = ref.file < 0
                                           ? sha256_hex(dump((*out.memory)[static_cast<size_t>(ref.begin)]))
                                           : out.files->hash(ref);
    }
  });
  std::string all;
  all.reserve(64 * hashes.size());
  for (const auto& hash : hashes) all += hash;
  out.content_hash = sha256_hex(all);
  return out;
}

void Dataset::hash_sources() {
  content_hash_ = sources_[0].content_hash;
  if (sources_.size() == 1) return;
  std::string all;
  for (const Source& source : sources_) all += source.content_hash;
  for (const auto& [source, row] : mixed_) all += std::to_string(source) + ":" + std::to_string(row) + ",";
  content_hash_ = sha256_hex(all);
}

int64_t Dataset::size() const {
  if (!mixed_.empty()) return static_cast<int64_t>(mixed_.size());
  int64_t out = 0;
  for (const Source& source : sources_) out += static_cast<int64_t>(source.refs.size());
  return out;
}

std::pair<const Dataset::Source*, int64_t> Dataset::at(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw invalid_argument("[dataset] row " + std::to_string(index) + " of '" + name_ +
                           "' does not exist; it has " + std::to_string(size()) + " rows");
  }
  if (!mixed_.empty()) {
    const auto& [source, row] = mixed_[static_cast<size_t>(index)];
    return {&sources_[static_cast<size_t>(source)], row};
  }
  for (const Source& source : sources_) {
    if (index < static_cast<int64_t>(source.refs.size())) return {&source, index};
    index -= static_cast<int64_t>(source.refs.size());
  }
  throw internal_error("[dataset] row out of range");
}

Row Dataset::row_of(const Source& source, int64_t row) const {
  const RowRef& ref = source.refs[static_cast<size_t>(row)];
  Row out = ref.file < 0 ? (*source.memory)[static_cast<size_t>(ref.begin)] : source.files->parse(ref);
  for (const auto& edit : source.edits) {
    try {
      edit(&out);
    } catch (const Error& e) {
      throw Error(e.kind(), at_place(place_of(source, row), e.what()));
    }
  }
  return out;
}

std::string Dataset::place_of(const Source& source, int64_t row) const {
  const RowRef& ref = source.refs[static_cast<size_t>(row)];
  return ref.file < 0 ? "row " + std::to_string(ref.number) : source.files->place(ref);
}

Row Dataset::row(int64_t index) const {
  const auto [source, row] = at(index);
  return row_of(*source, row);
}

std::string Dataset::place(int64_t index) const {
  const auto [source, row] = at(index);
  return place_of(*source, row);
}

// The sources that a call is about.
std::vector<Dataset::Source*> Dataset::chosen(int source, const char* what) {
  std::vector<Source*> out;
  if (source < -1 || source >= static_cast<int>(sources_.size())) {
    throw invalid_argument(std::string("[dataset] ") + what + ": there is no source " +
                           std::to_string(source) + " of " + std::to_string(sources_.size()));
  }
  if (source >= 0) return {&sources_[static_cast<size_t>(source)]};
  if (sources_.size() > 1 && mixed_.empty()) {
    throw conflict(std::string("[dataset] ") + what + ": there are " + std::to_string(sources_.size()) +
                   " sources; name one, or mix them first");
  }
  for (Source& each : sources_) out.push_back(&each);
  return out;
}

void Dataset::mix_dataset(const MixOptions& options) {
  if (sources_.size() < 2)
    throw conflict("[dataset] mix_dataset: there is only one source; add_dataset first");
  if (!mixed_.empty()) throw conflict("[dataset] mix_dataset: the sources are mixed already");
  const size_t n = sources_.size();
  std::vector<int64_t> lengths;
  for (const Source& source : sources_) lengths.push_back(static_cast<int64_t>(source.refs.size()));
  const bool all = options.stopping == "all_exhausted";
  if (!all && options.stopping != "first_exhausted") {
    throw invalid_argument("[dataset] stopping must be first_exhausted or all_exhausted, got '" +
                           options.stopping + "'");
  }
  std::vector<std::pair<int32_t, int64_t>> order;
  if (!options.interleave) {
    for (size_t s = 0; s < n; ++s) {
      for (int64_t i = 0; i < lengths[s]; ++i) order.emplace_back(static_cast<int32_t>(s), i);
    }
  } else if (options.probabilities.empty()) {
    const int64_t rounds = all ? *std::max_element(lengths.begin(), lengths.end())
                               : *std::min_element(lengths.begin(), lengths.end());
    for (int64_t i = 0; i < rounds; ++i) {
      for (size_t s = 0; s < n; ++s) order.emplace_back(static_cast<int32_t>(s), i % lengths[s]);
    }
  } else {
    double sum = 0;
    bool sound = options.probabilities.size() == n;
    for (const double p : options.probabilities) sound = sound && p > 0 && p <= 1, sum += p;
    if (!sound || std::abs(sum - 1) > 1e-6) {
      throw invalid_argument("[dataset] probabilities must be " + std::to_string(n) +
                             " numbers above 0 whose sum is 1");
    }
    CounterRng rng(options.seed, hash_name("mix_dataset"));
    std::vector<int64_t> next(n, 0);
    std::vector<char> ended(n, 0);
    size_t num_ended = 0;
    while (all ? num_ended < n : num_ended == 0) {
      double draw = rng.next_double();
      size_t s = 0;
      while (s + 1 < n && draw >= options.probabilities[s]) draw -= options.probabilities[s++];
      order.emplace_back(static_cast<int32_t>(s), next[s]);
      if (++next[s] < lengths[s]) continue;
      next[s] = 0;
      num_ended += ended[s] == 0 ? 1 : 0;
      ended[s] = 1;
    }
  }
  mixed_ = std::move(order);
  hash_sources();
}

// The first rows usually have all; one that cannot be read is reported when it is encoded.
void Dataset::check_columns(std::vector<std::string> wanted, const std::vector<Source*>& sources) const {
  std::set<std::string> there;
  for (const Source* source : sources) {
    for (int64_t i = 0; !wanted.empty() && i < static_cast<int64_t>(source->refs.size()); ++i) {
      Row row;
      try {
        row = row_of(*source, i);
      } catch (const Error&) {
        continue;
      }
      for (const auto& [name, value] : row.items()) there.insert(name);
      std::erase_if(wanted, [&](const std::string& name) { return row.contains(name); });
    }
  }
  if (wanted.empty()) return;
  const std::vector<std::string> known(there.begin(), there.end());
  throw invalid_argument("[dataset] no row of '" + name_ + "' has a column '" + wanted.front() + "'" +
                         did_you_mean(wanted.front(), known));
}

void Dataset::rename_columns(const Json& names, int source, bool may_lack) {
  const auto rename = dataset_internal::renaming(names);
  const std::vector<Source*> sources = chosen(source, "rename_columns");
  if (!may_lack) {
    std::vector<std::string> wanted;
    for (const auto& [from, to] : names.items()) wanted.push_back(from);
    check_columns(std::move(wanted), sources);
  }
  for (Source* each : sources) {
    each->edits_key += "rename" + names.dump();
    each->edits.push_back(rename);
  }
}

namespace {

Json cast_value(const Json& value, const std::string& type) {
  const auto fail = [&]() -> Error {
    return invalid_argument("cannot be cast to " + type + ": " + dump(value).substr(0, 80));
  };
  if (value.is_null()) return value;
  if (type == "string") return value.is_string() ? value : Json(dump(value));
  Json parsed = value;
  if (value.is_string() && try_parse_json(value.get_ref<const std::string&>(), parsed)) throw fail();
  if (type == "json") return parsed;
  if (type == "bool") {
    if (parsed.is_boolean()) return parsed;
    if (parsed.is_number_integer() && (parsed == 0 || parsed == 1)) return parsed == 1;
    throw fail();
  }
  if (!parsed.is_number()) throw fail();
  if (type == "float") return parsed.get<double>();
  if (parsed.is_number_integer()) return parsed;
  const double number = parsed.get<double>();
  if (number != std::floor(number) || std::abs(number) > 9e15) throw fail();
  return static_cast<int64_t>(number);
}

}  // namespace

void Dataset::cast_column(const std::string& column, const std::string& type, int source) {
  static const std::vector<std::string> kTypes = {"string", "int", "float", "bool", "json"};
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end())
    throw invalid_argument("[dataset] cast_column: unknown type '" + type + "'" + did_you_mean(type, kTypes));
  for (Source* each : chosen(source, "cast_column")) {
    each->edits_key += "cast" + Json::array({column, type}).dump();
    each->edits.push_back([column, type](Row* row) {
      const auto found = row->find(column);
      if (found == row->end()) throw invalid_argument("has no column '" + column + "' to cast");
      try {
        *found = cast_value(*found, type);
      } catch (const Error& e) {
        throw invalid_argument("column '" + column + "' " + e.what());
      }
    });
  }
}

void Dataset::map(const std::string& preprocessor, const Json& options, int source) {
  if (!preprocessor.empty()) {
    std::shared_ptr<Preprocessor> made = Registry<Preprocessor>::create(preprocessor, options);
    map_parts([made](const Row& row) { return made->parts(row); }, source);
    for (Source* each : chosen(source, "map"))
      each->map_key = preprocessor + (options.is_null() ? "{}" : dump(options));
    return;
  }
  for (Source* each : chosen(source, "map")) guess(each, options);
}

void Dataset::guess(Source* source, const Json& options) {
  std::vector<Row> rows;
  const auto count = static_cast<int64_t>(source->refs.size());
  for (int64_t i = 0; i < std::min(count, kRowsToGuessFrom); ++i) {
    try {
      rows.push_back(row_of(*source, i));
    } catch (const Error& e) {  // encode() reports a malformed row as it is told to
      if (e.kind() != ErrorKind::kInvalidArgument) throw;
    }
  }
  if (rows.empty()) row_of(*source, 0);  // every row looked at is malformed: say what is wrong with the first
  const PreprocessorGuess found = guess_preprocessor(rows, options);
  map(found.name, found.options, static_cast<int>(source - sources_.data()));
  notes_.push_back("preprocessor " + found.name + ": " + found.why);
}

void Dataset::map(std::function<Trajectory(const Row&)> fn, int source) {
  map_parts(
      [fn = std::move(fn)](const Row& row) {
        std::vector<Part> out(1);
        out[0].trajectory = fn(row);
        return out;
      },
      source);
}

void Dataset::map_parts(std::function<std::vector<Part>(const Row&)> fn, int source) {
  for (Source* each : chosen(source, "map")) {
    each->map = fn;
    each->map_key.clear();
  }
  features_.clear();
  feature_rows_.clear();
  feature_parts_.clear();
  dropped_.clear();
}

void Dataset::filter(const std::function<bool(const Row&)>& keep, int source) {
  if (!feature_rows_.empty()) throw conflict("[dataset] filter after encode; filter first");
  if (!mixed_.empty()) throw conflict("[dataset] filter after mix_dataset; filter first");
  for (Source* each : chosen(source, "filter")) {
    std::vector<char> kept(each->refs.size(), 1);
    const auto bad = each_row(static_cast<int64_t>(each->refs.size()), BadRows::kRaise, [&](int64_t i) {
      Row value;
      try {
        value = row_of(*each, i);
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::kInvalidArgument) return;
        throw;
      }
      kept[static_cast<size_t>(i)] = keep(value) ? 1 : 0;
    });
    if (!bad.empty())
      throw invalid_argument(at_place(place_of(*each, bad.begin()->first), bad.begin()->second));
    if (std::find(kept.begin(), kept.end(), 1) == kept.end())
      throw invalid_argument("[dataset] the filter leaves no row of '" + each->name + "'");
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] == 0) note_left_out("filter", *each, static_cast<int64_t>(i), "the filter says no");
    }
    keep_rows(each, kept, "filter");
  }
}

void Dataset::ensure_mapped() {
  for (Source& source : sources_) {
    if (!source.map) guess(&source, nullptr);
  }
}

}  // namespace twinkle
