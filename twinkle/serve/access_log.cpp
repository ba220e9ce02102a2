#include "twinkle/serve/access_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>

#include "twinkle/core/error.h"
#include "twinkle/core/json.h"

namespace twinkle::serve {
namespace {

constexpr size_t kMostWaiting = 10000;

}  // namespace

std::string iso_milliseconds(double seconds) {
  const auto milliseconds = static_cast<int64_t>(std::floor(seconds * 1000));
  const auto whole = static_cast<time_t>(milliseconds / 1000);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char day[32], text[48];
  std::strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof(text), "%s.%03dZ", day, static_cast<int>(milliseconds % 1000));
  return text;
}

AccessLog::AccessLog(std::string path, int64_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {
  open();
  if (fd_ < 0) throw unavailable("[access_log] cannot open '" + path_ + "': " + std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (fd_ > 2) ::close(fd_);
}

void AccessLog::open() {
  if (path_ == "-") {
    fd_ = 2;
    return;
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct stat info{};
  size_ = fd_ >= 0 && ::fstat(fd_, &info) == 0 ? info.st_size : 0;
}

void AccessLog::write(const HttpDone& done, std::string_view route, double now) {
  const Json line = {{"time", iso_milliseconds(now)},
                     {"method", done.method.empty() ? Json(nullptr) : Json(done.method)},
                     {"route", route.empty() ? Json(nullptr) : Json(route)},
                     {"status", done.status},
                     {"key", done.who.empty() ? Json(nullptr) : Json(done.who)},
                     {"bytes_in", done.bytes_in},
                     {"bytes_out", done.bytes_out},
                     {"ms", std::round(done.seconds * 1e6) / 1e3}};
  std::string text = line.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kMostWaiting) {
      ++lost_;
      return;
    }
    lines_.push_back(std::move(text));
  }
  changed_.notify_one();
}

int64_t AccessLog::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void AccessLog::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    std::deque<std::string> lines = std::move(lines_);
    lines_.clear();
    lock.unlock();
    int64_t lost = 0;
    std::string text;
    for (const auto& line : lines) text += line;
    try {
      put(text);
    } catch (const Error&) {
      lost = static_cast<int64_t>(lines.size());
    }
    lock.lock();
    lost_ += lost;
  }
}

void AccessLog::put(const std::string& text) {
  if (fd_ > 2 && size_ > 0 && size_ + static_cast<int64_t>(text.size()) > most_bytes_) {
    ::close(fd_);
    ::rename(path_.c_str(), (path_ + ".1").c_str());
    open();
  }
  if (fd_ < 0) open();
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd_, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw unavailable("[access_log] cannot write");
    at += static_cast<size_t>(n);
    size_ += n;
  }
}

}  // namespace twinkle::serve
