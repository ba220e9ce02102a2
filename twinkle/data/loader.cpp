#include "twinkle/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

class FixedSamples final : public SampleSource {
 public:
  FixedSamples(std::vector<InputFeature> features, std::vector<int64_t> begins)
      : features_(std::move(features)), begins_(std::move(begins)) {}
  int64_t size() const override {
    return begins_.empty() ? static_cast<int64_t>(features_.size())
                           : static_cast<int64_t>(begins_.size()) - 1;
  }
  std::vector<InputFeature> sample(int64_t index) const override {
    const int64_t begin = begins_.empty() ? index : begins_[static_cast<size_t>(index)];
    const int64_t end = begins_.empty() ? index + 1 : begins_[static_cast<size_t>(index) + 1];
    return {features_.begin() + begin, features_.begin() + end};
  }

 private:
  std::vector<InputFeature> features_;
  std::vector<int64_t> begins_;
};

}  // namespace

std::shared_ptr<const SampleSource> samples_of(std::vector<InputFeature> features,
                                               std::vector<int64_t> begins) {
  if (!begins.empty()) {
    const bool sound = begins.front() == 0 && begins.back() == static_cast<int64_t>(features.size()) &&
                       std::is_sorted(begins.begin(), begins.end());
    if (!sound)
      throw invalid_argument("[data loader] begins of samples must ascend from 0 to the number of features");
  }
  return std::make_shared<FixedSamples>(std::move(features), std::move(begins));
}

std::pair<int64_t, int64_t> rank_slice(int64_t count, int64_t rank, int64_t world_size) {
  const int64_t share = count / world_size, extra = count % world_size;
  return {rank * share + std::min(rank, extra), (rank + 1) * share + std::min(rank + 1, extra)};
}

// Threads that make samples ahead, each once, in the order they were asked for.
struct DataLoader::Ahead {
  struct Made {
    Sample sample;
    std::string failure;  // why it cannot be used
    std::exception_ptr error;
    bool done = false;
  };
  Ahead(std::shared_ptr<const SampleSource> source, int64_t workers) : samples(std::move(source)) {
    for (int64_t i = 0; i < workers; ++i) threads.emplace_back([this] { work(); });
  }
  ~Ahead() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (auto& thread : threads) thread.join();
  }

  void ask(int64_t position, int64_t index) {
    {
      const std::lock_guard lock(mutex);
      if (!made.emplace(position, Made{}).second) return;
      queue.emplace_back(position, index);
    }
    wake.notify_one();
  }
  Made take(int64_t position) {
    std::unique_lock lock(mutex);
    ready.wait(lock, [&] { return made.at(position).done; });
    Made out = std::move(made.at(position));
    made.erase(position);
    return out;
  }
  // What lies behind is asked for no more: a last batch is cut otherwise than a full one.
  void forget_before(int64_t position) {
    const std::lock_guard lock(mutex);
    std::erase_if(queue, [&](const auto& entry) { return entry.first < position; });
    made.erase(made.begin(), made.lower_bound(position));
  }
  // What lies ahead is wrong after a jump.
  void clear() {
    std::unique_lock lock(mutex);
    queue.clear();
    ready.wait(lock, [&] { return busy == 0; });
    made.clear();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || !queue.empty(); });
      if (stop) return;
      const auto [position, index] = queue.front();
      queue.pop_front();
      ++busy;
      lock.unlock();
      Made result;
      try {
        result.sample = samples->sample(index);
      } catch (const Error& e) {
        if (e.kind() == ErrorKind::kInvalidArgument) {
          result.failure = e.what();
        } else {
          result.error = std::current_exception();
        }
      } catch (...) {
        result.error = std::current_exception();
      }
      result.done = true;
      lock.lock();
      --busy;
      if (const auto found = made.find(position); found != made.end()) found->second = std::move(result);
      ready.notify_all();
    }
  }

  std::shared_ptr<const SampleSource> samples;
  std::mutex mutex;
  std::condition_variable wake, ready;
  std::deque<std::pair<int64_t, int64_t>> queue;
  std::map<int64_t, Made> made;
  int64_t busy = 0;
  bool stop = false;
  std::vector<std::thread> threads;
};

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

DataLoader::DataLoader(std::vector<InputFeature> features, const DataLoaderOptions& options)
    : DataLoader(samples_of(std::move(features)), options) {}

DataLoader::DataLoader(std::shared_ptr<const SampleSource> samples, const DataLoaderOptions& options)
    : samples_(std::move(samples)), options_(options) {
  check_options();
  const int64_t n = num_features();
  if (n == 0) throw invalid_argument("[data loader] the data set has no features; was it encoded?");
  if (n < smallest_batch()) {
    throw invalid_argument("[data loader] " + std::to_string(n) +
                           " features never fill a batch of at least " + std::to_string(smallest_batch()));
  }
  if (options_.num_workers > 0) ahead_ = std::make_unique<Ahead>(samples_, options_.num_workers);
}

DataLoader::DataLoader(std::unique_ptr<SampleStream> stream, const DataLoaderOptions& options)
    : stream_(std::move(stream)), options_(options) {
  check_options();
}

void DataLoader::check_options() const {
  const auto& o = options_;
  if (o.batch_size < 1)
    throw invalid_argument("[data loader] batch_size must be >= 1, got " + std::to_string(o.batch_size));
  if (o.world_size < 1)
    throw invalid_argument("[data loader] world_size must be >= 1, got " + std::to_string(o.world_size));
  if (o.rank < 0 || o.rank >= o.world_size) {
    throw invalid_argument("[data loader] rank must be in 0.." + std::to_string(o.world_size - 1) + ", got " +
                           std::to_string(o.rank));
  }
  if (o.batch_size < o.world_size) {
    throw invalid_argument("[data loader] batch_size " + std::to_string(o.batch_size) +
                           " leaves some of the " + std::to_string(o.world_size) + " ranks without a row");
  }
  if (o.min_batch_size < 1 || o.min_batch_size > o.batch_size) {
    throw invalid_argument("[data loader] min_batch_size must be between 1 and batch_size " +
                           std::to_string(o.batch_size) + ", got " + std::to_string(o.min_batch_size));
  }
  if (o.num_workers < 0 || o.num_workers > 256)
    throw invalid_argument("[data loader] num_workers must be in 0..256, got " +
                           std::to_string(o.num_workers));
  if (o.prefetch < 1)
    throw invalid_argument("[data loader] prefetch must be >= 1, got " + std::to_string(o.prefetch));
  if (o.max_retries < 0)
    throw invalid_argument("[data loader] max_retries must be >= 0, got " + std::to_string(o.max_retries));
}

int64_t DataLoader::num_features() const { return samples_ ? samples_->size() : 0; }

int64_t DataLoader::smallest_batch() const { return std::max(options_.min_batch_size, options_.world_size); }

int64_t DataLoader::batches_per_epoch() const {
  if (stream_) throw conflict("[data loader] a stream has no known length");
  const int64_t full = num_features() / options_.batch_size, rest = num_features() % options_.batch_size;
  return full + (rest >= smallest_batch() ? 1 : 0);
}

int64_t DataLoader::epoch() const { return stream_ ? stream_epoch_ : consumed_ / num_features(); }

// Moves past a rest of the epoch that is too small for a batch.
void DataLoader::skip_short_rest() {
  const int64_t n = num_features();
  if (n - consumed_ % n < smallest_batch()) consumed_ = (consumed_ / n + 1) * n;
}

const std::vector<int64_t>& DataLoader::order_of(int64_t epoch) {
  if (order_epoch_ != epoch) {
    const int64_t n = num_features();
    if (options_.shuffle) {
      order_ = permutation(n, options_.seed, static_cast<uint64_t>(epoch));
    } else {
      order_.resize(static_cast<size_t>(n));
      std::iota(order_.begin(), order_.end(), int64_t{0});
    }
    order_epoch_ = epoch;
  }
  return order_;
}

DataLoader::Sample DataLoader::make(int64_t index, std::string* failure) const {
  try {
    return samples_->sample(index);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kInvalidArgument) throw;
    *failure = e.what();
    return {};
  }
}

void DataLoader::failed(int64_t index, const std::string& reason) {
  if (failed_.insert(index).second) failures_.push_back("sample " + std::to_string(index) + ": " + reason);
}

std::vector<InputFeature> DataLoader::next() {
  std::vector<InputFeature> batch = stream_ ? next_of_stream() : next_of_samples();
  size_t at = 0;
  for (const int64_t size : last_sizes_) {
    std::shared_ptr<const FetchedRow> told;
    for (const size_t end = at + static_cast<size_t>(size); at < end; ++at) {
      const auto row = std::move(batch[at].row);
      if (row == nullptr || row == told) continue;
      row->fetched();
      told = row;
    }
  }
  return batch;
}

std::vector<InputFeature> DataLoader::next_of_samples() {
  const int64_t n = num_features();
  const bool may_fail = samples_->may_fail();
  int64_t failed_in_a_row = 0;
  for (;;) {
    const int64_t current = consumed_ / n;
    const std::vector<int64_t>& order = order_of(current);
    const int64_t begin_position = consumed_ % n, room = n - begin_position;
    const auto [slice_begin, slice_end] =
        rank_slice(std::min(options_.batch_size, room), options_.rank, options_.world_size);
    if (ahead_) ahead_->forget_before(current * n + begin_position);
    std::vector<int64_t> indices;  // of the whole batch
    std::vector<Sample> made;      // likewise; only this rank's where none can fail
    int64_t position = begin_position;
    for (; position < n && static_cast<int64_t>(indices.size()) < options_.batch_size; ++position) {
      const int64_t index = order[static_cast<size_t>(position)],
                    place = static_cast<int64_t>(indices.size());
      Sample sample;
      std::string failure;
      bool made_here = false;
      if (may_fail || (place >= slice_begin && place < slice_end)) {
        if (ahead_) {
          const int64_t far = options_.batch_size * options_.prefetch;
          for (int64_t p = position; p < std::min(n, position + far); ++p) {
            const int64_t slot = (p - begin_position) % options_.batch_size;
            const bool mine = may_fail || (slot >= slice_begin && slot < slice_end);
            if (mine) ahead_->ask(current * n + p, order[static_cast<size_t>(p)]);
          }
          Ahead::Made result = ahead_->take(current * n + position);
          if (result.error) std::rethrow_exception(result.error);
          sample = std::move(result.sample);
          failure = std::move(result.failure);
        } else {
          sample = make(index, &failure);
        }
        made_here = true;
      }
      if (!failure.empty() && options_.bad_rows == BadRows::kRaise) throw invalid_argument(failure);
      if (made_here && failure.empty() && sample.empty()) {  // which is no fault of the row
        failed(index, "the template leaves it out");
        continue;
      }
      if (!failure.empty()) {
        failed(index, failure);
        if (++failed_in_a_row > options_.max_retries) {
          throw invalid_argument("[data loader] " + std::to_string(failed_in_a_row) +
                                 " samples in a row cannot be used (max_retries " +
                                 std::to_string(options_.max_retries) + "); the last: " + failure);
        }
        continue;
      }
      failed_in_a_row = 0;
      indices.push_back(index);
      made.push_back(std::move(sample));
    }
    consumed_ = current * n + position;
    const auto count = static_cast<int64_t>(indices.size());
    if (count < smallest_batch()) {  // the rest of the epoch was too small
      if (begin_position == 0) {
        throw invalid_argument("[data loader] a whole epoch of " + std::to_string(n) + " samples has only " +
                               std::to_string(count) + " that can be used, a batch needs at least " +
                               std::to_string(smallest_batch()));
      }
      continue;
    }
    skip_short_rest();
    const auto [begin, end] = rank_slice(count, options_.rank, options_.world_size);
    last_indices_.assign(indices.begin() + begin, indices.begin() + end);
    last_sizes_.clear();
    std::vector<InputFeature> batch;
    for (int64_t i = begin; i < end; ++i) {
      Sample& sample = made[static_cast<size_t>(i)];
      last_sizes_.push_back(static_cast<int64_t>(sample.size()));
      for (auto& feature : sample) batch.push_back(std::move(feature));
    }
    return batch;
  }
}

std::vector<InputFeature> DataLoader::next_of_stream() {
  // What was pulled before an error stays for the next call.
  std::vector<Sample>& batch = pulled_;
  bool rewound = false;
  while (static_cast<int64_t>(batch.size()) < options_.batch_size) {
    auto sample = stream_->next();
    if (sample) {
      batch.push_back(std::move(*sample));
      continue;
    }
    const auto count = static_cast<int64_t>(batch.size());
    if (count >= smallest_batch()) break;
    if (rewound)
      throw invalid_argument("[data loader] the stream never fills a batch of at least " +
                             std::to_string(smallest_batch()));
    batch.clear();
    stream_->rewind();
    ++stream_epoch_;
    rewound = true;
  }
  const auto count = static_cast<int64_t>(batch.size());
  consumed_ += count;
  const auto [begin, end] = rank_slice(count, options_.rank, options_.world_size);
  last_indices_.clear();
  last_sizes_.clear();
  std::vector<InputFeature> out;
  for (int64_t i = begin; i < end; ++i) {
    last_sizes_.push_back(static_cast<int64_t>(batch[static_cast<size_t>(i)].size()));
    for (auto& feature : batch[static_cast<size_t>(i)]) out.push_back(std::move(feature));
  }
  batch.clear();
  return out;
}

void DataLoader::resume_from_checkpoint(int64_t consumed_train_samples) {
  if (consumed_train_samples < 0) {
    throw invalid_argument("[data loader] consumed_train_samples must be >= 0, got " +
                           std::to_string(consumed_train_samples));
  }
  if (stream_) {
    stream_->rewind();
    pulled_.clear();
    consumed_ = stream_epoch_ = 0;
    while (consumed_ < consumed_train_samples) next_of_stream();
    if (consumed_ != consumed_train_samples) {
      throw invalid_argument("[data loader] " + std::to_string(consumed_train_samples) +
                             " samples end in the middle of a batch of " +
                             std::to_string(options_.batch_size));
    }
    return;
  }
  if (ahead_) ahead_->clear();
  consumed_ = consumed_train_samples;
  skip_short_rest();
}

Json DataLoader::get_state() const {
  Json out = {{"consumed_train_samples", consumed_}};
  if (stream_) {
    if (!pulled_.empty())
      throw conflict(
          "[data loader] the last batch was broken off by an error; there is no state to go on from");
    out["epoch"] = stream_epoch_;
    out["stream"] = stream_->state();
  }
  return out;
}

void DataLoader::restore_state(const Json& state) {
  const auto number = [&](const char* key) {
    const auto found = state.is_object() ? state.find(key) : state.end();
    if (!state.is_object() || found == state.end() || !found->is_number_integer() ||
        found->get<int64_t>() < 0)
      throw invalid_argument(std::string("[data loader] the state has no '") + key + "'");
    return found->get<int64_t>();
  };
  const int64_t consumed = number("consumed_train_samples");
  if (!stream_) return resume_from_checkpoint(consumed);
  const int64_t epoch = number("epoch");
  if (!state.contains("stream")) throw invalid_argument("[data loader] the state is not that of a stream");
  stream_->restore(state.at("stream"));
  pulled_.clear();
  consumed_ = consumed;
  stream_epoch_ = epoch;
}

}  // namespace twinkle
