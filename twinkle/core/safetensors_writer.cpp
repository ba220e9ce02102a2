// The writer of safetensors files. Bytes go to the disk in large aligned pieces past the page cache
// (O_DIRECT) where the file system allows it; elsewhere write-back is started piece by piece. One thread
// fills pieces while another writes them. Tensors lie as the reference writer lays them: widest type first,
// then by name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/json.h"
#include "twinkle/core/safetensors.h"

namespace twinkle {
namespace {

constexpr size_t kAlignment = 4096;
constexpr size_t kPieceBytes = 8 << 20;
constexpr int kPieces = 3;

Error write_error(const std::string& path, int code) {
  return file_error("[safetensors] cannot write '" + path + "'", code);
}

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

struct Piece {
  std::unique_ptr<std::byte, FreeDeleter> data;
  size_t used = 0;
  int64_t offset = 0;
};

// A file of known size, filled front to back.
class Sink {
 public:
  Sink(const std::string& path, int64_t size) : path_(path), size_(size) {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    // A small file gains nothing from passing the cache by.
    if (size >= static_cast<int64_t>(kPieceBytes)) fd_ = ::open(path.c_str(), flags | O_DIRECT, 0644);
    direct_ = fd_ >= 0;
    if (!direct_) fd_ = ::open(path.c_str(), flags, 0644);
    if (fd_ < 0) throw write_error(path, errno);
    // Asking for the room first finds a full disk before any work; not every file system can.
    if (::fallocate(fd_, 0, 0, size) != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
      const int code = errno;
      drop();
      throw write_error(path, code);
    }
    piece_bytes_ =
        std::min<size_t>(kPieceBytes, (static_cast<size_t>(size) + kAlignment - 1) / kAlignment * kAlignment);
    const int pieces = size <= static_cast<int64_t>(piece_bytes_) ? 1 : kPieces;
    for (int i = 0; i < pieces; ++i) {
      auto* memory =
          static_cast<std::byte*>(std::aligned_alloc(kAlignment, std::max(piece_bytes_, kAlignment)));
      if (memory == nullptr) {
        drop();
        throw exhausted("[safetensors] no memory for the buffers of '" + path + "'");
      }
      free_.push_back(Piece{.data = std::unique_ptr<std::byte, FreeDeleter>(memory)});
    }
    current_ = std::move(free_.front());
    free_.pop_front();
    if (pieces > 1) writer_ = std::thread([this] { work(); });
  }

  ~Sink() {
    stop();
    if (fd_ >= 0) drop();
  }

  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  /// Room in the current piece; never empty before the end of the file.
  std::span<std::byte> room() { return {current_.data.get() + current_.used, piece_bytes_ - current_.used}; }

  void advance(size_t bytes) {
    current_.used += bytes;
    if (current_.used == piece_bytes_) flush();
  }

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto piece = room();
      const size_t n = std::min(piece.size(), bytes.size());
      std::memcpy(piece.data(), bytes.data(), n);
      advance(n);
      bytes.remove_prefix(n);
    }
  }

  /// Writes what is left and makes it durable.
  void finish() {
    if (current_.used > 0) flush();
    stop();
    if (failure_) std::rethrow_exception(failure_);
    if (::ftruncate(fd_, size_) != 0 || ::fsync(fd_) != 0) throw write_error(path_, errno);
    if (::close(std::exchange(fd_, -1)) != 0) {
      ::unlink(path_.c_str());
      throw write_error(path_, errno);
    }
  }

 private:
  void drop() {
    ::close(std::exchange(fd_, -1));
    ::unlink(path_.c_str());
  }

  void stop() {
    if (!writer_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    writer_.join();
  }

  void flush() {
    current_.offset = std::exchange(offset_, offset_ + static_cast<int64_t>(current_.used));
    if (!writer_.joinable()) {
      write(current_);
      current_.used = 0;
      return;
    }
    std::unique_lock lock(mutex_);
    full_.push_back(std::move(current_));
    changed_.notify_all();
    changed_.wait(lock, [&] { return !free_.empty() || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    current_ = std::move(free_.front());
    free_.pop_front();
    current_.used = 0;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !full_.empty() || stopping_; });
      if (full_.empty()) return;
      Piece piece = std::move(full_.front());
      full_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        write(piece);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !failure_) failure_ = failure;
      free_.push_back(std::move(piece));
      changed_.notify_all();
      if (failure_) return;
    }
  }

  void write(const Piece& piece) {
    size_t length = piece.used;
    if (direct_ && length % kAlignment != 0) {  // the last piece; the tail is cut off in finish()
      const size_t padded = (length + kAlignment - 1) / kAlignment * kAlignment;
      std::memset(piece.data.get() + length, 0, padded - length);
      length = padded;
    }
    for (size_t done = 0; done < length;) {
      const ssize_t n =
          ::pwrite(fd_, piece.data.get() + done, length - done, piece.offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EINVAL && direct_) {  // accepted at open, refused now
        direct_ = false;
        ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_DIRECT);
        continue;
      }
      if (n < 0) throw write_error(path_, errno);
      if (n == 0) throw write_error(path_, ENOSPC);
      done += static_cast<size_t>(n);
    }
    if (!direct_ && size_ > static_cast<int64_t>(kPieceBytes)) {
      ::sync_file_range(fd_, piece.offset, static_cast<off64_t>(length), SYNC_FILE_RANGE_WRITE);
    }
  }

  std::string path_;
  int64_t size_ = 0, offset_ = 0;
  int fd_ = -1;
  bool direct_ = false;
  size_t piece_bytes_ = 0;
  Piece current_;

  std::thread writer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> full_, free_;
  std::exception_ptr failure_;
  bool stopping_ = false;
};

// The order of the reference's data types, in which wider ones come later.
int dtype_rank(const std::string& dtype) {
  static const std::vector<std::string> kOrder = {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0",
                                                  "I16",  "U16", "F16", "BF16",    "I32",     "U32",
                                                  "F32",  "C64", "F64", "I64",     "U64"};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), dtype) - kOrder.begin());
}

}  // namespace

SafetensorsPlan plan_safetensors(const std::vector<TensorToWrite>& tensors,
                                 const std::map<std::string, std::string>& metadata) {
  SafetensorsPlan plan;
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) {
    TW_CHECK(safetensors_dtype_bytes(tensor.dtype) > 0, "unknown dtype " + tensor.dtype);
    TW_CHECK(tensor.name != "__metadata__" && names.insert(tensor.name).second, "tensor name " + tensor.name);
    plan.order.push_back(&tensor);
  }
  std::sort(plan.order.begin(), plan.order.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const int rank_a = dtype_rank(a->dtype), rank_b = dtype_rank(b->dtype);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });

  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + Json(metadata).dump() + ",";
  int64_t at = 0;
  for (const auto* tensor : plan.order) {
    int64_t bytes = safetensors_dtype_bytes(tensor->dtype);
    for (const int64_t size : tensor->shape) bytes *= size;
    header += Json(tensor->name).dump() + ":{\"dtype\":\"" + tensor->dtype +
              "\",\"shape\":" + Json(tensor->shape).dump() + ",\"data_offsets\":[" + std::to_string(at) +
              "," + std::to_string(at + bytes) + "]},";
    at += bytes;
    plan.sizes.push_back(bytes);
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');

  const uint64_t header_bytes = header.size();
  plan.head.assign(reinterpret_cast<const char*>(&header_bytes), 8);
  plan.head += header;
  plan.total_bytes = static_cast<int64_t>(plan.head.size()) + at;
  return plan;
}

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const SafetensorsPlan plan = plan_safetensors(tensors, metadata);
  Sink sink(path, plan.total_bytes);
  sink.append(plan.head);
  for (size_t i = 0; i < plan.order.size(); ++i) {
    for (int64_t done = 0; done < plan.sizes[i];) {
      const auto room = sink.room();
      const size_t n = std::min(room.size(), static_cast<size_t>(plan.sizes[i] - done));
      plan.order[i]->fill(done, room.first(n));
      sink.advance(n);
      done += static_cast<int64_t>(n);
    }
  }
  sink.finish();
}

}  // namespace twinkle
