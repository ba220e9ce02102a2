#include "twinkle/data/packing.h"

#include <algorithm>
#include <bit>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle {
namespace {

void check_lengths(std::span<const int64_t> lengths, int64_t max_length) {
  if (max_length < 1 || max_length > 1 << 30)
    throw invalid_argument("[packing] max_length must be in 1..2^30, got " + std::to_string(max_length));
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1 || lengths[i] > max_length) {
      throw invalid_argument("[packing] item " + std::to_string(i) + " has " + std::to_string(lengths[i]) +
                             " tokens; a bin takes 1 to " + std::to_string(max_length));
    }
  }
}

// Which rooms have open bins; the next one at or above a given room is found word by word.
class RoomSet {
 public:
  explicit RoomSet(int64_t max_room) : words_(static_cast<size_t>(max_room) / 64 + 1, 0) {}
  void insert(int64_t room) { words_[static_cast<size_t>(room) >> 6] |= uint64_t{1} << (room & 63); }
  void erase(int64_t room) { words_[static_cast<size_t>(room) >> 6] &= ~(uint64_t{1} << (room & 63)); }
  int64_t at_least(int64_t room) const {
    auto word = static_cast<size_t>(room) >> 6;
    uint64_t bits = words_[word] & (~uint64_t{0} << (room & 63));
    while (bits == 0) {
      if (++word == words_.size()) return -1;
      bits = words_[word];
    }
    return static_cast<int64_t>(word << 6) + std::countr_zero(bits);
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace

std::vector<std::vector<int64_t>> pack_best_fit(std::span<const int64_t> lengths, int64_t max_length) {
  check_lengths(lengths, max_length);
  const auto n = static_cast<int64_t>(lengths.size());
  // Items by length, the longest first, equal ones in order.
  std::vector<int64_t> begin(static_cast<size_t>(max_length) + 2, 0);
  for (const int64_t length : lengths) ++begin[static_cast<size_t>(max_length - length) + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<int64_t> sorted(lengths.size());
  for (int64_t i = 0; i < n; ++i)
    sorted[static_cast<size_t>(begin[static_cast<size_t>(max_length - lengths[static_cast<size_t>(i)])]++)] =
        i;

  std::vector<int64_t> bin_of(lengths.size()), next_open;  // open bins of a room as lists through next_open
  std::vector<int64_t> open(static_cast<size_t>(max_length) + 1, -1);
  RoomSet rooms(max_length);
  int64_t num_bins = 0;
  for (const int64_t item : sorted) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    int64_t room = rooms.at_least(length), bin = 0;
    if (room < 0) {
      bin = num_bins++;
      next_open.push_back(-1);
      room = max_length;
    } else {
      bin = open[static_cast<size_t>(room)];
      open[static_cast<size_t>(room)] = next_open[static_cast<size_t>(bin)];
      if (open[static_cast<size_t>(room)] < 0) rooms.erase(room);
    }
    bin_of[static_cast<size_t>(item)] = bin;
    const int64_t left = room - length;
    if (left == 0) continue;
    next_open[static_cast<size_t>(bin)] = open[static_cast<size_t>(left)];
    open[static_cast<size_t>(left)] = bin;
    rooms.insert(left);
  }
  // Bins by their first item.
  std::vector<int64_t> place(static_cast<size_t>(num_bins), -1);
  std::vector<std::vector<int64_t>> out;
  out.reserve(static_cast<size_t>(num_bins));
  for (int64_t i = 0; i < n; ++i) {
    int64_t& at = place[static_cast<size_t>(bin_of[static_cast<size_t>(i)])];
    if (at < 0) {
      at = static_cast<int64_t>(out.size());
      out.emplace_back();
    }
    out[static_cast<size_t>(at)].push_back(i);
  }
  return out;
}

std::vector<std::vector<int64_t>> pack_in_order(std::span<const int64_t> lengths, int64_t max_length) {
  check_lengths(lengths, max_length);
  std::vector<std::vector<int64_t>> out;
  int64_t room = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > room) {
      out.emplace_back();
      room = max_length;
    }
    out.back().push_back(static_cast<int64_t>(i));
    room -= lengths[i];
  }
  return out;
}

double packing_fill(std::span<const int64_t> lengths, const std::vector<std::vector<int64_t>>& bins,
                    int64_t max_length) {
  if (bins.empty()) return 0;
  double tokens = 0;
  for (const auto& bin : bins) {
    for (const int64_t item : bin) tokens += static_cast<double>(lengths[static_cast<size_t>(item)]);
  }
  return tokens / (static_cast<double>(max_length) * static_cast<double>(bins.size()));
}

InputFeature cut_feature(const InputFeature& whole, int64_t begin, int64_t end) {
  InputFeature out;
  out.input_ids.assign(whole.input_ids.begin() + begin, whole.input_ids.begin() + end);
  out.labels.assign(whole.labels.begin() + begin, whole.labels.begin() + end);
  out.labels.back() = kIgnoreIndex;  // its target lies outside
  if (!whole.weights.empty()) {
    out.weights.assign(whole.weights.begin() + begin, whole.weights.begin() + end);
    out.weights.back() = 0;
  }
  out.origin = whole.origin;
  out.row = whole.row;
  return out;
}

namespace {

std::vector<InputFeature> cut_at_bins(const std::vector<InputFeature>& features, int64_t max_length) {
  std::vector<InputFeature> out;
  int64_t room = max_length;
  for (const InputFeature& feature : features) {
    const auto size = static_cast<int64_t>(feature.input_ids.size());
    for (int64_t begin = 0; begin < size;) {
      const int64_t end = std::min(size, begin + room);
      out.push_back(begin == 0 && end == size ? feature : cut_feature(feature, begin, end));
      room -= end - begin;
      if (room == 0) room = max_length;
      begin = end;
    }
  }
  return out;
}

std::vector<int64_t> lengths_of(const std::vector<InputFeature>& features) {
  std::vector<int64_t> out;
  out.reserve(features.size());
  for (const auto& feature : features) out.push_back(static_cast<int64_t>(feature.input_ids.size()));
  return out;
}

}  // namespace

PackingDataset::PackingDataset(std::vector<InputFeature> features, const PackingOptions& options)
    : features_(std::move(features)) {
  static const std::vector<std::string> kStrategies = {"best_fit", "in_order", "wrapped"};
  if (std::find(kStrategies.begin(), kStrategies.end(), options.strategy) == kStrategies.end()) {
    throw invalid_argument("[packing] unknown strategy '" + options.strategy + "'" +
                           did_you_mean(options.strategy, kStrategies));
  }
  if (options.strategy == "wrapped") {
    if (options.max_length < 2)
      throw invalid_argument("[packing] wrapped bins need a max_length of 2 or more");
    features_ = cut_at_bins(features_, options.max_length);
  }
  const std::vector<int64_t> lengths = lengths_of(features_);
  bins_ = options.strategy == "best_fit" ? pack_best_fit(lengths, options.max_length)
                                         : pack_in_order(lengths, options.max_length);
  fill_ = packing_fill(lengths, bins_, options.max_length);
  for (const int64_t length : lengths) num_tokens_ += length;
}

std::vector<InputFeature> PackingDataset::sample(int64_t index) const {
  std::vector<InputFeature> out;
  for (const int64_t item : bins_.at(static_cast<size_t>(index)))
    out.push_back(features_[static_cast<size_t>(item)]);
  return out;
}

IterablePackingDataset::IterablePackingDataset(std::unique_ptr<SampleStream> stream,
                                               const StreamPackingOptions& options)
    : stream_(std::move(stream)), options_(options) {
  if (options_.max_length < 1)
    throw invalid_argument("[packing] max_length must be >= 1, got " + std::to_string(options_.max_length));
  if (options_.packing_interval < 1) {
    throw invalid_argument("[packing] packing_interval must be >= 1, got " +
                           std::to_string(options_.packing_interval));
  }
}

void IterablePackingDataset::pull(std::vector<InputFeature> sample) {
  Waiting entry{.number = pulled_++, .length = 0, .features = std::move(sample)};
  for (const auto& feature : entry.features) entry.length += static_cast<int64_t>(feature.input_ids.size());
  if (entry.length > options_.max_length) {
    throw invalid_argument("[packing] sample " + std::to_string(entry.number) + " has " +
                           std::to_string(entry.length) + " tokens, a bin takes " +
                           std::to_string(options_.max_length));
  }
  waiting_.push_back(std::move(entry));
}

void IterablePackingDataset::refill() {
  bool rewound = false;
  while (!ended_ && static_cast<int64_t>(waiting_.size()) < options_.packing_interval) {
    Json mark = stream_->state();
    if (marks_.empty() || marks_.back().second != mark) marks_.emplace_back(pulled_, std::move(mark));
    auto sample = stream_->next();
    if (sample) {
      pull(std::move(*sample));
      rewound = false;
    } else if (options_.cyclic && !rewound) {
      stream_->rewind();
      rewound = true;
    } else {
      ended_ = true;
    }
  }
  max_waiting_ = std::max(max_waiting_, static_cast<int64_t>(waiting_.size()));
}

std::optional<std::vector<InputFeature>> IterablePackingDataset::next() {
  refill();
  if (waiting_.empty()) return std::nullopt;
  // The waiting samples by length, of equal ones the oldest last so that it is taken first.
  std::vector<size_t> by_length(waiting_.size() - 1);
  for (size_t i = 1; i < waiting_.size(); ++i) by_length[i - 1] = i;
  std::sort(by_length.begin(), by_length.end(), [&](size_t a, size_t b) {
    return waiting_[a].length != waiting_[b].length ? waiting_[a].length < waiting_[b].length : a > b;
  });
  std::vector<size_t> chosen = {0};
  int64_t room = options_.max_length - waiting_[0].length;
  while (room > 0 && !by_length.empty()) {
    const auto fits = std::upper_bound(by_length.begin(), by_length.end(), room,
                                       [&](int64_t space, size_t i) { return space < waiting_[i].length; });
    if (fits == by_length.begin()) break;
    room -= waiting_[*(fits - 1)].length;
    chosen.push_back(*(fits - 1));
    by_length.erase(fits - 1, by_length.end());
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<InputFeature> out;
  for (const size_t i : chosen) {
    for (auto& feature : waiting_[i].features) out.push_back(std::move(feature));
    waiting_[i].length = 0;
  }
  std::erase_if(waiting_, [](const Waiting& w) { return w.length == 0; });
  const int64_t oldest = waiting_.empty() ? pulled_ : waiting_.front().number;
  while (marks_.size() > 1 && marks_[1].first <= oldest) marks_.pop_front();
  return out;
}

void IterablePackingDataset::rewind() {
  stream_->rewind();
  waiting_.clear();
  marks_.clear();
  pulled_ = 0;
  ended_ = false;
}

// Where the stream stood before the oldest waiting sample, and which of those since still wait.
Json IterablePackingDataset::state() const {
  Json waiting = Json::array();
  for (const Waiting& w : waiting_) waiting.push_back(w.number);
  const bool started = !marks_.empty();
  return {{"stream", started ? marks_.front().second : stream_->state()},
          {"first", started ? marks_.front().first : pulled_},
          {"pulled", pulled_},
          {"waiting", waiting},
          {"ended", ended_}};
}

void IterablePackingDataset::restore(const Json& state) {
  const auto bad = [](const char* what) {
    return invalid_argument(std::string("[packing] the state of the stream is not sound: ") + what);
  };
  for (const char* key : {"stream", "first", "pulled", "waiting", "ended"}) {
    if (!state.is_object() || !state.contains(key)) throw bad(key);
  }
  if (!state["first"].is_number_integer() || !state["pulled"].is_number_integer() ||
      !state["waiting"].is_array() || !state["ended"].is_boolean())
    throw bad("types");
  const auto last = state["pulled"].get<int64_t>();
  std::vector<int64_t> wanted;
  for (const Json& number : state["waiting"]) {
    if (!number.is_number_integer()) throw bad("waiting");
    wanted.push_back(number.get<int64_t>());
  }
  stream_->restore(state["stream"]);
  waiting_.clear();
  marks_.clear();
  pulled_ = state["first"].get<int64_t>();
  size_t at = 0;
  while (pulled_ < last) {
    Json mark = stream_->state();
    if (marks_.empty() || marks_.back().second != mark) marks_.emplace_back(pulled_, std::move(mark));
    auto sample = stream_->next();
    if (!sample && options_.cyclic) {
      stream_->rewind();
      sample = stream_->next();
    }
    if (!sample) throw bad("the data ends before the samples that were waiting");
    const int64_t number = pulled_;
    pull(std::move(*sample));
    if (at < wanted.size() && wanted[at] == number) {
      ++at;
    } else {
      waiting_.pop_back();
    }
  }
  if (at != wanted.size()) throw bad("waiting");
  ended_ = state["ended"].get<bool>();
}

}  // namespace twinkle
