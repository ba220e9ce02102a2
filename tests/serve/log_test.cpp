// The write-ahead log: what was acknowledged comes back, in order, whatever happens to the end of the file;
// damage inside what was acknowledged is told, not passed over.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "tests/temp_dir.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/log.h"

namespace twinkle::serve {
namespace {

constexpr size_t kHead = 32, kFileHead = 8;  // of a record and of a file

std::vector<std::string> records_of(const std::string& folder) {
  std::vector<std::string> out;
  const Log log(folder, [&](std::string_view record) { out.emplace_back(record); });
  return out;
}

// Appends one after the other, each durable before the next: every record but the last is vouched for.
void write_log(const std::string& folder, const std::vector<std::string>& payloads, bool in_order = true) {
  {
    Log log(folder, [](std::string_view) {});
    for (const auto& payload : payloads) {
      log.append(payload, nullptr);
      log.flush();
    }
  }
  if (in_order) return;
  // As if the process had been killed: without the last, empty record.
  const std::string path = folder + "/log-00000001";
  std::string bytes = read_file(path);
  bytes.resize(bytes.size() - kHead);
  write_file_atomic(path, bytes);
}

std::vector<std::string> three() { return {"one", std::string(3000, 'x'), std::string("a\0b", 3)}; }

TEST(Log, GivesBackWhatWasAppendedInOrder) {
  const test::TempDir dir;
  write_log(dir / "log", three());
  EXPECT_EQ(records_of(dir / "log"), three());
  EXPECT_EQ(records_of(dir / "log"), three());  // reading changes nothing
}

TEST(Log, AcknowledgesInTheOrderOfTheCalls) {
  const test::TempDir dir;
  std::vector<int> order;
  std::vector<std::string> expected;
  {
    Log log(dir / "log", [](std::string_view) {});
    for (int i = 0; i < 1000; ++i) {
      expected.push_back(std::to_string(i));
      log.append(std::to_string(i), [&order, i](std::exception_ptr error) {
        EXPECT_EQ(error, nullptr);
        order.push_back(i);
      });
    }
    log.flush();
  }
  std::vector<int> ascending(1000);
  for (int i = 0; i < 1000; ++i) ascending[static_cast<size_t>(i)] = i;
  EXPECT_EQ(order, ascending);
  EXPECT_EQ(records_of(dir / "log"), expected);
}

// A write that was under way when the power went: cut at every byte of the last record.
TEST(Log, CutsOffATornLastRecordAtEveryLength) {
  const test::TempDir dir;
  write_log(dir / "log", {"first", "second", "the last"}, false);
  const std::string path = dir / "log/log-00000001", whole = read_file(path);
  const size_t last = whole.size() - kHead - 8;
  for (size_t size = last; size < whole.size(); ++size) {
    write_file_atomic(path, whole.substr(0, size));
    EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"first", "second"})) << size;
  }
}

TEST(Log, GoesOnBehindATornEnd) {
  const test::TempDir dir;
  write_log(dir / "log", {"first", "torn"}, false);
  const std::string path = dir / "log/log-00000001", whole = read_file(path);
  write_file_atomic(path, whole.substr(0, whole.size() - 1));
  write_log(dir / "log", {"third"});
  EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"first", "third"}));
}

// Blocks of a write that never was acknowledged may reach the disk in any order: a later whole record that
// does not call what is before it durable proves nothing.
TEST(Log, CutsOffAnUnacknowledgedGroupWithAHole) {
  const test::TempDir dir;
  std::vector<std::string> expected = {"kept"};
  {
    std::atomic<bool> hold{false};
    Disk disk;
    disk.write = [&hold, real = disk.write](int fd, const char* data, size_t size, int64_t offset) {
      while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return real(fd, data, size, offset);
    };
    Log log(dir / "log", [](std::string_view) {}, disk);
    log.append("kept", nullptr);
    log.flush();
    hold = true;
    for (int i = 0; i < 10; ++i) {
      log.append("group " + std::to_string(i), nullptr);
      // The first is being written while the others become one group.
      if (i == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (i < 8) expected.push_back("group " + std::to_string(i));
    }
    hold = false;
  }
  const std::string path = dir / "log/log-00000001";
  std::string bytes = read_file(path);
  bytes.resize(bytes.size() - kHead);               // as if killed
  bytes[bytes.size() - 2 * (kHead + 7) + 20] ^= 1;  // in the last but one
  write_file_atomic(path, bytes);
  EXPECT_EQ(records_of(dir / "log"), expected);
}

// Every bit of a record that was acknowledged: told, never passed over.
TEST(Log, RefusesDamageInWhatWasAcknowledged) {
  const test::TempDir dir;
  write_log(dir / "log", {"first", "second", "third"});
  const std::string path = dir / "log/log-00000001", whole = read_file(path);
  for (size_t at = kFileHead; at < kFileHead + 2 * kHead + 11; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      write_file_atomic(path, bytes);
      try {
        records_of(dir / "log");
        ADD_FAILURE() << "byte " << at << " bit " << bit;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kUnavailable);
      }
    }
  }
}

TEST(Log, RefusesAnotherFormat) {
  const test::TempDir dir;
  write_log(dir / "log", {"x"});
  const std::string path = dir / "log/log-00000001";
  std::string bytes = read_file(path);
  bytes[7] = '1';
  write_file_atomic(path, bytes);
  EXPECT_THROW(records_of(dir / "log"), Error);
}

std::optional<std::string> only_b(std::string_view record) {
  if (record == "long b") return "b";
  return record == "b" ? std::optional<std::string>("b") : std::nullopt;
}

TEST(Log, IsWrittenAnewAsAWhole) {
  const test::TempDir dir;
  {
    Log log(dir / "log", [](std::string_view) {});
    for (int i = 0; i < 100; ++i) log.append(i == 50 ? "long b" : "a", nullptr);
    log.append("b", nullptr);
    log.flush();
    const int64_t before = log.size_bytes();
    log.rewrite(only_b, [] { return "closing"; });
    EXPECT_LT(log.size_bytes(), before);
    log.append("c", nullptr);
  }
  EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"b", "b", "closing", "c"}));
}

// Appends go on, and each is in the new log once, whoever saw it.
TEST(Log, LosesNothingThatIsAppendedWhileItIsWrittenAnew) {
  const test::TempDir dir;
  std::atomic<int> appended{0};
  {
    Log log(dir / "log", [](std::string_view) {});
    std::atomic<bool> end{false};
    std::thread others([&] {
      for (; !end; ++appended) {
        log.append("k" + std::to_string(appended), nullptr);
        if (appended % 7 == 0) log.append(std::string(3000, 'd'), nullptr);
        if (appended % 50 == 0) log.flush();
      }
    });
    for (int i = 0; i < 10; ++i) {
      log.rewrite(
          [](std::string_view record) -> std::optional<std::string> {
            if (record[0] != 'k') return std::nullopt;
            return std::string(record);
          },
          [] { return "closing"; });
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    end = true;
    others.join();
  }
  int next = 0;
  for (const auto& record : records_of(dir / "log")) {
    if (record[0] != 'k') continue;
    EXPECT_EQ(record, "k" + std::to_string(next++));
  }
  EXPECT_EQ(next, appended);
}

// Nobody waits while the most of it is copied: here the disk does not go on until an append is durable.
TEST(Log, AcknowledgesWhileItIsWrittenAnew) {
  const test::TempDir dir;
  Disk disk;
  std::atomic<bool> rewriting{false};
  std::promise<void> begun, durable;
  disk.sync = [&, system = disk.sync](int fd) {
    if (rewriting.exchange(false)) {
      begun.set_value();
      EXPECT_EQ(durable.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    }
    return system(fd);
  };
  Log log(dir / "log", [](std::string_view) {}, disk);
  for (int i = 0; i < 1000; ++i) log.append("b", nullptr);
  log.flush();
  std::thread other([&] {
    begun.get_future().wait();
    log.append("late", [&](std::exception_ptr) { durable.set_value(); });
  });
  rewriting = true;
  log.rewrite(only_b, [] { return "closing"; });
  other.join();
  EXPECT_EQ(log.size_bytes(), static_cast<int64_t>(kFileHead + 1002 * kHead + 1000 + 7 + 4));
}

// A disk that fails at any of its steps leaves the log as it was.
// The new log has its name, and whether the disk knows that is not known: nothing more is accepted, and a
// start has what was.
TEST(Log, BreaksWhereTheNewNameMayNotLast) {
  const test::TempDir dir;
  Disk disk;
  bool fails = false;
  disk.sync_folder = [&, real = disk.sync_folder](int fd) {
    if (!fails) return real(fd);
    errno = EIO;
    return -1;
  };
  {
    Log log(dir / "log", [](std::string_view) {}, Disk{});
    log.append("a", nullptr);
    log.append("b", nullptr);
  }
  {
    Log log(dir / "log", [](std::string_view) {}, disk);
    fails = true;
    EXPECT_FALSE(log.broken());
    EXPECT_THROW(log.rewrite(only_b, [] { return "closing"; }), Error);
    EXPECT_TRUE(log.broken());
    bool refused = false;
    log.append("c", [&](std::exception_ptr error) { refused = error != nullptr; });
    log.flush();
    EXPECT_TRUE(refused);
  }
  EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"b", "closing"}));
}

TEST(Log, StaysWhenItCanNotBeWrittenAnew) {
  for (const std::string step : {"write", "sync", "rename"}) {
    const test::TempDir dir;
    {
      Disk disk;
      std::atomic<bool> full{false};
      const auto fails = [&](const char* name) {
        if (!full || step != name) return false;
        errno = ENOSPC;
        return true;
      };
      disk.write = [&, system = disk.write](int fd, const char* data, size_t size, int64_t at) -> long {
        return fails("write") ? -1 : system(fd, data, size, at);
      };
      disk.sync = [&, system = disk.sync](int fd) { return fails("sync") ? -1 : system(fd); };
      disk.rename = [&, system = disk.rename](const char* from, const char* to) {
        return fails("rename") ? -1 : system(from, to);
      };
      Log log(dir / "log", [](std::string_view) {}, disk);
      log.append("a", nullptr);
      log.flush();
      full = true;
      EXPECT_THROW(log.rewrite(only_b, [] { return "closing"; }), Error) << step;
      full = false;
      log.append("c", [](std::exception_ptr error) { EXPECT_FALSE(error); });
    }
    EXPECT_FALSE(file_exists(dir / "log/log-00000002.new"));
    EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"a", "c"})) << step;
  }
}

// Format 2 is read, and its file says from then on that it may hold records that only format 3 knows.
TEST(Log, ReadsFormat2AndGoesOnAsFormat3) {
  const test::TempDir dir;
  const std::string path = dir / "log/log-00000001";
  write_log(dir / "log", {"x", "y"});
  std::string bytes = read_file(path);
  EXPECT_EQ(bytes.substr(0, 8), "TWKLLOG3");
  bytes[7] = '2';
  write_file_atomic(path, bytes);
  EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(read_file(path).substr(0, 8), "TWKLLOG3");
  bytes[7] = '4';
  write_file_atomic(path, bytes);
  EXPECT_THROW(records_of(dir / "log"), Error);
}

// A new log that was not finished does not count.
TEST(Log, IgnoresAnUnfinishedReplacement) {
  const test::TempDir dir;
  write_log(dir / "log", {"x"});
  write_file_atomic(dir / "log/log-00000002.new", "TWKLLOG3 half");
  EXPECT_EQ(records_of(dir / "log"), std::vector<std::string>{"x"});
  EXPECT_FALSE(file_exists(dir / "log/log-00000002.new"));
}

// A full disk fails the appends that meet it, and nothing else.
TEST(Log, FailsAppendsThatTheDiskRefuses) {
  const test::TempDir dir;
  std::atomic<bool> full{false};
  {
    Disk disk;
    disk.write = [&full, real = disk.write](int fd, const char* data, size_t size, int64_t offset) -> long {
      if (!full) return real(fd, data, size, offset);
      if (size > 5) return real(fd, data, 5, offset);  // a part fits
      errno = ENOSPC;
      return -1;
    };
    Log log(dir / "log", [](std::string_view) {}, disk);
    std::vector<bool> failed;
    const auto append = [&](const std::string& payload) {
      log.append(payload, [&failed](std::exception_ptr error) { failed.push_back(error != nullptr); });
      log.flush();
    };
    append("before");
    full = true;
    append("lost");
    full = false;
    append("after");
    EXPECT_EQ(failed, (std::vector<bool>{false, true, false}));
  }
  EXPECT_EQ(records_of(dir / "log"), (std::vector<std::string>{"before", "after"}));
}

// What became of records, in the order in which it was told: "NAME" or "NAME refused".
struct Told {
  std::mutex mutex;
  std::vector<std::string> list;
  Log::OnDurable of(const std::string& name) {
    return [this, name](const std::exception_ptr& error) {
      const std::lock_guard lock(mutex);
      list.push_back(name + (error ? " refused" : ""));
    };
  }
  std::vector<std::string> now() {
    const std::lock_guard lock(mutex);
    return list;
  }
  // Waits until there are so many.
  std::vector<std::string> once(size_t wanted) {
    for (int i = 0; i < 1000 && now().size() < wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return now();
  }
};
using Names = std::vector<std::string>;

// Once it is full there is room for writes of less than that many bytes.
Disk disk_with_room(const std::atomic<bool>& full, size_t bytes) {
  Disk disk;
  disk.write = [&full, bytes, real = disk.write](int fd, const char* data, size_t size,
                                                 int64_t offset) -> long {
    if (!full || size < bytes) return real(fd, data, size, offset);
    errno = ENOSPC;
    return -1;
  };
  return disk;
}

// A record that must be there is held until the disk takes it, with those that must come behind it; nobody is
// told of it before, and what may be refused is.
TEST(Log, HoldsWhatMustBeThereUntilTheDiskTakesIt) {
  const test::TempDir dir;
  std::atomic<bool> full{false};
  Told told;
  {
    Log log(dir / "log", [](std::string_view) {}, disk_with_room(full, 1000));
    const auto append = [&](const std::string& name, bool must, size_t size = 1) {
      log.append(name + std::string(size, '.'), told.of(name), must);
      log.flush();
    };
    append("before", true);
    full = true;
    append("large", false, 2000);
    append("between", true);
    EXPECT_FALSE(log.holds());
    append("held", true, 2000);
    EXPECT_TRUE(log.holds());
    EXPECT_FALSE(log.broken());
    append("behind", true);
    append("new", false);
    EXPECT_EQ(log.pending(), 2);
    EXPECT_EQ(told.now(), (Names{"before", "large refused", "between", "new refused"}));
    full = false;
    EXPECT_EQ(told.once(6), (Names{"before", "large refused", "between", "new refused", "held", "behind"}));
    append("after", false);
    EXPECT_FALSE(log.holds());
  }
  EXPECT_EQ(records_of(dir / "log"),
            (Names{"before.", "between.", "held" + std::string(2000, '.'), "behind.", "after."}));
}

// Nobody knows what the disk holds after a failed fsync: all of it is written once more before anybody is
// told.
TEST(Log, WritesAgainWhatAFailedSyncLeftOpen) {
  const test::TempDir dir;
  std::atomic<bool> fails{false};
  std::atomic<int> writes{0};
  Told told;
  {
    Disk disk;
    disk.write = [&writes, real = disk.write](int fd, const char* data, size_t size, int64_t offset) {
      ++writes;
      return real(fd, data, size, offset);
    };
    disk.sync = [&fails, real = disk.sync](int fd) {
      if (!fails) return real(fd);
      errno = EIO;
      return -1;
    };
    Log log(dir / "log", [](std::string_view) {}, disk);
    const auto append = [&](const std::string& name) {
      log.append(name, told.of(name));
      log.flush();
    };
    append("a");
    fails = true;
    append("b");
    append("c");  // which has not been near the disk
    EXPECT_EQ(told.now(), (Names{"a", "c refused"}));
    const int before = writes;
    fails = false;
    EXPECT_EQ(told.once(3), (Names{"a", "c refused", "b"}));
    EXPECT_GT(writes, before);
    append("d");
  }
  EXPECT_EQ(records_of(dir / "log"), (Names{"a", "b", "d"}));
}

// An end does not wait for a disk that takes nothing.
TEST(Log, GivesUpWhatItHoldsAtTheEnd) {
  const test::TempDir dir;
  std::atomic<bool> full{false};
  Told told;
  {
    Log log(dir / "log", [](std::string_view) {}, disk_with_room(full, 0));
    log.append("a", told.of("a"), true);
    log.flush();
    full = true;
    log.append("b", told.of("b"), true);
    log.flush();
    EXPECT_EQ(told.now(), Names{"a"});
    log.give_up();
    while (log.pending() > 0) log.flush();
    EXPECT_TRUE(log.broken());
    EXPECT_EQ(told.now(), (Names{"a", "b refused"}));
  }
  EXPECT_EQ(records_of(dir / "log"), Names{"a"});
}

}  // namespace
}  // namespace twinkle::serve
