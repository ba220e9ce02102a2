#include "twinkle/serve/tar_source.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "twinkle/core/file_errors.h"

namespace twinkle::serve {
namespace {

constexpr int64_t kBlock = 512;

// Bytes in memory, then bytes of a file, then zeros.
struct Part {
  std::string head;
  int fd = -1;
  int64_t file_bytes = 0, zeros = 0;
};

// Links are followed up to the root only: whoever could write below it must not be sent what lies elsewhere.
int open_below(const std::string& root, const std::string& path) {
  const int folder = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) throw file_error("[download] cannot open a file", errno);
  open_how how{.flags = O_RDONLY | O_CLOEXEC,
               .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
  const auto fd = static_cast<int>(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof(how)));
  const int why = errno;
  ::close(folder);
  if (fd < 0 && (why == ELOOP || why == EXDEV)) throw not_found("[download] this is not a file");
  if (fd < 0) throw file_error("[download] cannot open a file", why);
  return fd;
}

class PartsSource : public BodySource {
 public:
  ~PartsSource() override {
    for (const Part& part : parts_) {
      if (part.fd >= 0) ::close(part.fd);
    }
  }
  void add(const std::string& root, const std::string& path, bool padded) {
    Part& part = parts_.emplace_back();
    if (!path.empty()) {
      part.fd = open_below(root, path);
      struct stat info{};
      if (::fstat(part.fd, &info) != 0) throw file_error("[download] cannot open a file", errno);
      if (!S_ISREG(info.st_mode)) throw not_found("[download] this is not a file");
      part.file_bytes = info.st_size;
    }
    if (padded) part.zeros = (kBlock - part.file_bytes % kBlock) % kBlock;
  }
  void add_zeros(int64_t bytes) { parts_.emplace_back().zeros = bytes; }
  Part& last() { return parts_.back(); }

  int64_t size_bytes() const override {
    int64_t sum = 0;
    for (const Part& part : parts_) sum += bytes_of(part);
    return sum;
  }
  size_t read(char* to, size_t most) override {
    size_t done = 0;
    while (done < most && at_ < parts_.size()) {
      const Part& part = parts_[at_];
      const auto head = static_cast<int64_t>(part.head.size()), room = static_cast<int64_t>(most - done);
      if (offset_ == bytes_of(part)) {
        ++at_;
        offset_ = 0;
      } else if (offset_ < head) {
        const int64_t n = std::min(room, head - offset_);
        std::memcpy(to + done, part.head.data() + offset_, static_cast<size_t>(n));
        advance(done, n);
      } else if (offset_ < head + part.file_bytes) {
        const int64_t n =
            ::pread(part.fd, to + done, static_cast<size_t>(std::min(room, head + part.file_bytes - offset_)),
                    offset_ - head);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;  // shorter than it was
        advance(done, n);
      } else {
        const int64_t n = std::min(room, bytes_of(part) - offset_);
        std::memset(to + done, 0, static_cast<size_t>(n));
        advance(done, n);
      }
    }
    return done;
  }

 private:
  static int64_t bytes_of(const Part& part) {
    return static_cast<int64_t>(part.head.size()) + part.file_bytes + part.zeros;
  }
  void advance(size_t& done, int64_t n) {
    done += static_cast<size_t>(n);
    offset_ += n;
  }

  std::vector<Part> parts_;
  size_t at_ = 0;
  int64_t offset_ = 0;  // within the part
};

// IEEE Std 1003.1, pax: "ustar Interchange Format". Sizes of 8 GiB and more are binary, as GNU tar has them.
std::string tar_header(const std::string& name, int64_t bytes) {
  std::string h(kBlock, '\0');
  const auto put = [&](size_t at, std::string_view text) { h.replace(at, text.size(), text); };
  const auto octal = [](uint64_t value, size_t digits) {
    std::string text(digits, '0');
    for (size_t i = digits; i-- > 0; value >>= 3) text[i] = static_cast<char>('0' + (value & 7));
    return text;
  };
  put(0, name);
  put(100, octal(0644, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  if (bytes < int64_t{1} << 33) {
    put(124, octal(static_cast<uint64_t>(bytes), 11));
  } else {
    h[124] = static_cast<char>(0x80);
    for (size_t i = 0; i < 8; ++i) h[135 - i] = static_cast<char>(static_cast<uint64_t>(bytes) >> (8 * i));
  }
  put(136, octal(0, 11));
  put(148, "        ");
  h[156] = '0';
  put(257, std::string_view("ustar\00000", 8));
  uint64_t sum = 0;
  for (const char c : h) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + '\0' + ' ');
  return h;
}

}  // namespace

std::shared_ptr<BodySource> tar_source(const std::string& root, const std::vector<TarEntry>& entries) {
  auto out = std::make_shared<PartsSource>();
  for (const TarEntry& entry : entries) {
    TW_CHECK(entry.name.size() < 100, entry.name);
    out->add(root, entry.path, true);
    out->last().head = tar_header(entry.name, out->last().file_bytes);
  }
  out->add_zeros(2 * kBlock);
  return out;
}

std::shared_ptr<BodySource> file_source(const std::string& root, const std::string& path) {
  auto out = std::make_shared<PartsSource>();
  out->add(root, path, false);
  return out;
}

}  // namespace twinkle::serve
