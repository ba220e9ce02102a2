#include "twinkle/data/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

constexpr size_t kChunk = 1 << 18;

bool ends_with_any_case(std::string_view text, std::string_view end) {
  if (text.size() < end.size()) return false;
  text.remove_prefix(text.size() - end.size());
  for (size_t i = 0; i < end.size(); ++i) {
    const char c = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] - 'A' + 'a') : text[i];
    if (c != end[i]) return false;
  }
  return true;
}

Error broken(const std::string& path, const std::string& reason) {
  return invalid_argument("[dataset] '" + path + "': " + reason);
}

void unpack_gzip(const std::string& path, std::string_view packed, TemporaryFile* out) {
  std::vector<char> buffer(kChunk);
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  size_t at = 0;
  bool ended = false;
  while (at < packed.size() || !ended) {
    if (ended) {
      // Members may follow one another; bytes of zero pad some files.
      if (packed[at] == 0) {
        ++at;
        continue;
      }
      inflateReset(&stream);
      ended = false;
    }
    const size_t given = std::min(kChunk, packed.size() - at);
    if (given == 0) throw broken(path, "the gzip file is cut short");
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + at));
    stream.avail_in = static_cast<uInt>(given);
    do {
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream.avail_out = static_cast<uInt>(buffer.size());
      const int code = inflate(&stream, Z_NO_FLUSH);
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        throw broken(path, std::string("not a sound gzip file") +
                               (stream.msg != nullptr ? std::string(": ") + stream.msg : ""));
      }
      out->write(buffer.data(), buffer.size() - stream.avail_out);
      ended = code == Z_STREAM_END;
    } while (!ended && (stream.avail_in > 0 || stream.avail_out == 0));
    at += given - stream.avail_in;
  }
}

void unpack_zstd(const std::string& path, std::string_view packed, TemporaryFile* out) {
  std::vector<char> buffer(kChunk);
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> stream(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (stream == nullptr) throw std::bad_alloc();
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  size_t left = packed.empty() ? 1 : 0;
  bool full = false;
  while (in.pos < in.size || full) {
    ZSTD_outBuffer to{buffer.data(), buffer.size(), 0};
    const size_t before = in.pos, hint = ZSTD_decompressStream(stream.get(), &to, &in);
    if (ZSTD_isError(hint) != 0)
      throw broken(path, std::string("not a sound zstd file: ") + ZSTD_getErrorName(hint));
    // A call that does nothing asks for the next frame, which need not come.
    if (in.pos > before || to.pos > 0) left = hint;
    out->write(buffer.data(), to.pos);
    full = to.pos == to.size;
  }
  if (left != 0) throw broken(path, "the zstd file is cut short");
}

}  // namespace

std::string without_compression(const std::string& path) {
  for (const std::string_view end : {".gz", ".zst"}) {
    if (ends_with_any_case(path, end)) return path.substr(0, path.size() - end.size());
  }
  return path;
}

void FileBytes::check_whole() const {
  struct stat info{};
  if (inode_ == 0 || ::stat(path_.c_str(), &info) != 0) return;
  if (info.st_dev != device_ || info.st_ino != inode_) return;
  const auto size = static_cast<size_t>(info.st_size);
  if (size >= map_.text().size()) return;
  throw unavailable("[dataset] '" + path_ + "' was cut from " + std::to_string(map_.text().size()) + " to " +
                    std::to_string(size) + " bytes while it was read");
}

TemporaryFile::TemporaryFile(const std::string& source) : source_(source) {
  const char* folder = std::getenv("TMPDIR");
  name_ = std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/twinkle-rows-XXXXXX";
  fd_ = ::mkstemp(name_.data());
  if (fd_ < 0) fail();
}

TemporaryFile::~TemporaryFile() {
  ::close(fd_);
  ::unlink(name_.c_str());
}

void TemporaryFile::write(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t done = ::write(fd_, data, size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail();
    data += done;
    size -= static_cast<size_t>(done);
  }
}

void TemporaryFile::fail() const {
  const int code = errno;
  const std::string message = "[dataset] cannot unpack '" + source_ + "' into '" + name_ +
                              "': " + std::strerror(code) + " (TMPDIR names another folder)";
  if (code == ENOSPC || code == EDQUOT) throw exhausted(message);
  throw unavailable(message);
}

FileBytes::FileBytes(const std::string& path) : path_(path) {
  const bool gzip = ends_with_any_case(path, ".gz"), zstd = ends_with_any_case(path, ".zst");
  if (!gzip && !zstd) {
    map_ = MappedFile(path);
    struct stat info{};
    if (::stat(path.c_str(), &info) == 0) device_ = info.st_dev, inode_ = info.st_ino;
    return;
  }
  const MappedFile packed(path);
  TemporaryFile out(path);
  if (gzip) {
    unpack_gzip(path, packed.text(), &out);
  } else {
    unpack_zstd(path, packed.text(), &out);
  }
  map_ = MappedFile(out.name());
}

}  // namespace twinkle
