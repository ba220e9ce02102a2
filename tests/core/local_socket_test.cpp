#include "twinkle/core/local_socket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/temp_dir.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

ErrorKind kind_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.kind();
  }
  return ErrorKind::kInternal;
}

TEST(LocalSocket, CarriesBytesBothWays) {
  const test::TempDir dir;
  LocalListener listener(dir / "s");
  struct stat info{};
  ASSERT_EQ(::stat((dir / "s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "this user only";
  std::thread other([&] {
    LocalSocket socket = LocalSocket::connect(dir / "s");
    socket.write(bytes_of("hello"));
    char answer[3];
    EXPECT_EQ(socket.read(std::as_writable_bytes(std::span(answer))), 3u);
    EXPECT_EQ(std::string(answer, 3), "yes");
  });
  auto socket = listener.accept();
  ASSERT_TRUE(socket.has_value());
  char text[5];
  EXPECT_EQ(socket->read(std::as_writable_bytes(std::span(text))), 5u);
  EXPECT_EQ(std::string(text, 5), "hello");
  socket->write(bytes_of("yes"));
  other.join();
  EXPECT_EQ(socket->read(std::as_writable_bytes(std::span(text))), 0u) << "the other side closed";
  EXPECT_EQ(kind_of([&] {
              for (int i = 0; i < 100; ++i) socket->write(bytes_of(std::string(10000, 'x')));
            }),
            ErrorKind::kUnavailable);
}

TEST(LocalSocket, NoticesADeadProcessAndASilentOne) {
  const test::TempDir dir;
  const std::string path = dir / "s";
  LocalListener listener(path);
  const pid_t child = ::fork();
  if (child == 0) {
    LocalSocket socket = LocalSocket::connect(path);
    socket.write(bytes_of("ab"));
    for (;;) ::pause();
  }
  auto socket = listener.accept();
  ASSERT_TRUE(socket.has_value());
  char text[4];
  socket->set_timeout(0.05);
  EXPECT_EQ(kind_of([&] { socket->read(std::as_writable_bytes(std::span(text))); }), ErrorKind::kUnavailable);
  socket->set_timeout(0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(socket->read(std::as_writable_bytes(std::span(text))), 0u);
}

TEST(LocalListener, ReplacesWhatTheDeadLeftAndNothingElse) {
  const test::TempDir dir;
  const std::string path = dir / "s";
  const pid_t child = ::fork();
  if (child == 0) {
    LocalListener listener(path);
    ::_exit(0);  // without removing it
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(kind_of([&] { LocalSocket::connect(path); }), ErrorKind::kUnavailable);
  {
    LocalListener listener(path);
    EXPECT_EQ(kind_of([&] { LocalListener second(path); }), ErrorKind::kConflict);
    std::thread stopper([&] { listener.stop(); });
    EXPECT_EQ(kind_of([&] {
                while (listener.accept()) {  // what the second one tried
                }
                throw not_found("stopped");
              }),
              ErrorKind::kNotFound);
    stopper.join();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(kind_of([&] { LocalSocket::connect(path); }), ErrorKind::kNotFound);
  std::ofstream(path) << "a file";
  EXPECT_EQ(kind_of([&] { LocalListener listener(path); }), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(kind_of([&] { LocalListener listener(dir / std::string(200, 'x')); }),
            ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace twinkle
