// labels: quick
// Atomic writes leave devices, pipes and links what they are; a folder is locked by one holder at a time.
#include "twinkle/core/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <vector>

#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/left_overs.h"

namespace twinkle {
namespace {

class Files : public ::testing::Test {
 protected:
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(root_), {}));
  }
  const test::TempDir temp_;
  const std::string root_ = temp_.path();
};

TEST_F(Files, AtomicWritesReplaceAFile) {
  write_file_atomic(root_ + "/a", "one");
  write_file_atomic(root_ + "/a", "two");
  EXPECT_EQ(read_file(root_ + "/a"), "two");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, LeftOversOfWritersThatDiedGo) {
  int status = 0;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, &status, 0);
  const std::string gone = std::to_string(dead), ours = std::to_string(::getpid()), running = "1";
  std::vector<std::string> kept = {"metrics.jsonl", "metrics.jsonl.tmp-" + running + "-0",
                                   "x.tmp-" + gone + "-draft", "y.tmp-" + gone, ".tmp-" + gone + "-0"};
  for (const auto& name : kept) write_file_atomic(root_ + "/" + name, "x");
  for (const auto& name :
       {"metrics.jsonl.tmp-" + gone + "-0", "a.tmp-b.tmp-" + gone + "-17", "summary.json.tmp-" + ours + "-3"})
    write_file_atomic(root_ + "/" + name, "x");
  remove_left_over_files(root_);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(root_))
    left.push_back(entry.path().filename().string());
  std::sort(kept.begin(), kept.end());
  std::sort(left.begin(), left.end());
  EXPECT_EQ(left, kept);
}

TEST_F(Files, AtomicWritesGoThroughAPipe) {
  const std::string pipe = root_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto reader = std::async(std::launch::async, [&] { return read_file(pipe); });
  write_file_atomic(pipe, "through");
  EXPECT_EQ(reader.get(), "through");
  struct stat info{};
  ASSERT_EQ(::stat(pipe.c_str(), &info), 0);
  EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

TEST_F(Files, AtomicWritesFollowALink) {
  write_file_atomic(root_ + "/target", "one");
  ASSERT_EQ(::symlink("target", (root_ + "/link").c_str()), 0);
  write_file_atomic(root_ + "/link", "two");
  EXPECT_TRUE(std::filesystem::is_symlink(root_ + "/link"));
  EXPECT_EQ(read_file(root_ + "/target"), "two");
  EXPECT_EQ(entries(), 2u);
}

TEST_F(Files, WhatNeverEndsIsRefused) {
  EXPECT_EQ(test::thrown([] { read_file("/dev/zero"); }, ErrorKind::kExhausted),
            "[files] '/dev/zero' does not end: it is no regular file and more than 256 MiB came out of it");
  // Nobody writes into this pipe: opening it would wait for ever.
  ASSERT_EQ(::mkfifo((root_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(test::thrown([&] { MappedFile(root_ + "/pipe"); }),
            "[files] '" + root_ + "/pipe' is not a regular file");
}

TEST_F(Files, TheSystemsReasonsHaveKinds) {
  const auto kind = [](int code) { return file_error("[files] cannot copy 'x'", code).kind(); };
  EXPECT_EQ(kind(ENOSPC), ErrorKind::kExhausted);
  EXPECT_EQ(kind(EDQUOT), ErrorKind::kExhausted);
  EXPECT_EQ(kind(ENOENT), ErrorKind::kNotFound);
  EXPECT_EQ(kind(EACCES), ErrorKind::kUnavailable);
  const std::filesystem::filesystem_error thrown("copy", "a", "b",
                                                 std::error_code(EACCES, std::system_category()));
  EXPECT_EQ(std::string(file_error(thrown).what()),
            "[files] cannot use 'b': Permission denied; make it accessible, or give another");
  EXPECT_EQ(test::thrown([&] { copy_file(root_ + "/absent", root_ + "/copy"); }, ErrorKind::kNotFound),
            "[files] cannot copy '" + root_ + "/absent' to '" + root_ + "/copy': No such file or directory");
}

TEST_F(Files, AFolderHasOneHolder) {
  {
    const FolderLock first(root_);
    EXPECT_TRUE(first.guarded());
    try {
      const FolderLock second(root_);
      FAIL() << "locked twice";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConflict);
    }
  }
  EXPECT_NO_THROW(FolderLock again(root_));
}

}  // namespace
}  // namespace twinkle
