// A disk that fails as a seed says, and that can lose its power: what was not synced is then there, torn or
// gone, name by name and write by write. It keeps real files, so that whoever else reads needs no seam, and
// beside them what a real disk would hold. SQLite comes to it through a VFS of its own. Thread-safe.
//
// It is strict: a file's bytes are durable after a sync of the file, its name after a sync of the folder.
// What a failed sync was to write may never come to the disk, whatever is synced later, unless its page is
// written again.
#pragma once

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/core/files.h"
#include "twinkle/serve/disk.h"

namespace twinkle::serve {

/// A number that depends on these alone.
inline uint64_t mixed(std::initializer_list<uint64_t> values) {
  uint64_t x = 0x9e3779b97f4a7c15;
  for (const uint64_t value : values) {
    x ^= value + 0x9e3779b97f4a7c15 + (x << 6) + (x >> 2);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x;
}

class SimDisk {
 public:
  /// Parts of the data folder, by the first letter of their name; a database is `kStore`.
  enum Part { kLog, kStore, kModels, kOther, kNumParts };
  /// What happens until the next plan. Calls that change something are counted by part.
  struct Plan {
    uint64_t seed = 0;
    int64_t from = 0, until = 0;  // calls of a part among which faults come
    int one_in = 0;               // so many of them fail; 0: none
    std::set<int> parts;          // of which
    bool full = false;            // writes fail as on a full disk, else as on a broken one
    bool syncs = false;           // also syncs fail
    int read_one_in = 0;          // so many reads of the log and the store fail; 0: none
    uint64_t reads_from = 0;      // behind so many that do not
    int sync_ms = 0;              // one sync in eight takes so long
    int64_t death_at = -1;        // with this call of `death_of` the machine stops
    Part death_of = kLog;
    bool lies = false;  // no sync does anything
  };

  explicit SimDisk(std::string root) : root_(std::move(root)) {
    make_directories(root_);
    register_vfs();
  }
  ~SimDisk() { sqlite3_vfs_unregister(&vfs_); }
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  Disk disk() {
    Disk out;
    out.open = [this](const char* path, int flags) { return open(path, flags); };
    out.write = [this](int fd, const char* data, size_t size, int64_t at) {
      return write(node_of(fd), fd, data, size, at);
    };
    out.truncate = [this](int fd, int64_t size) { return truncate(node_of(fd), fd, size); };
    out.sync = [this](int fd) { return sync(node_of(fd)); };
    out.sync_folder = [this](int fd) { return sync_names(node_of(fd)); };
    out.rename = [this](const char* from, const char* to) { return rename(from, to); };
    out.remove = [this](const char* path) { return remove(path); };
    out.make_folder = [this](const char* path) { return make_folder(path); };
    out.map = [this](const std::string& path) {
      check_read(path);
      return MappedFile(path);
    };
    out.sqlite_vfs = vfs_name_;
    return out;
  }

  void follow(const Plan& plan) {
    const std::lock_guard lock(mutex_);
    plan_ = plan;
    for (auto& calls : calls_) calls = 0;
    reads_ = 0;
    log_fails_ = false;
  }
  /// The machine has stopped: nothing can be changed any more.
  bool dead() const { return dead_; }
  void stop() { dead_ = true; }
  /// It goes on with what the program left: the process was killed.
  void restart() { dead_ = false; }
  /// It goes on with what the disk has.
  void lose_power(uint64_t seed) {
    const std::lock_guard lock(mutex_);
    random_ = seed;
    std::filesystem::remove_all(root_);
    root_node_ = after_power_loss(*root_node_, root_);
    descriptors_.clear();
    dead_ = false;
  }
  int64_t faults() const { return faults_; }
  /// A write or a sync of the log has failed since the plan began.
  bool log_fails() const { return log_fails_; }
  const std::string& root() const { return root_; }

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  struct Change {  // of bytes; without data: of the size
    int64_t at = 0;
    std::string data;
    bool size_only = false;
  };
  static void apply(std::string& bytes, const Change& change) {
    if (change.size_only) return bytes.resize(static_cast<size_t>(change.at), '\0');
    const auto at = static_cast<size_t>(change.at);
    if (bytes.size() < at + change.data.size()) bytes.resize(at + change.data.size(), '\0');
    bytes.replace(at, change.data.size(), change.data);
  }
  struct NameChange {  // `gone` goes and `name` is `node`, at once; each may be ""
    std::string gone, name;
    NodePtr node;
  };
  struct Node {
    bool folder = false;
    Part part = kOther;
    std::map<std::string, NodePtr> names, durable_names;
    std::vector<NameChange> name_changes;
    std::string now, durable;  // what a reader finds, and what the disk has
    std::vector<Change> changes;
    void change(Change made) {
      apply(now, made);
      changes.push_back(std::move(made));
    }
  };

  // Where things are.
  std::string relative(const std::string& path) const {
    return path.size() > root_.size() ? path.substr(root_.size() + 1) : "";
  }
  static std::string first_part(std::string& path) {
    const size_t slash = path.find('/');
    std::string out = path.substr(0, slash);
    path = slash == std::string::npos ? "" : path.substr(slash + 1);
    return out;
  }
  static Part part_of(const std::string& relative) {
    if (relative.starts_with("log")) return kLog;
    if (relative.starts_with("store.db")) return kStore;
    return relative.find('/') != std::string::npos ? kModels : kOther;
  }
  NodePtr find(const std::string& path) const {
    NodePtr at = root_node_;
    for (std::string rest = relative(path); !rest.empty();) {
      const auto found = at->names.find(first_part(rest));
      if (found == at->names.end()) return nullptr;
      at = found->second;
    }
    return at;
  }
  NodePtr folder_of(const std::string& path) const { return find(path.substr(0, path.rfind('/'))); }
  static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  void change_names(Node& folder, const NameChange& change) {
    if (!change.gone.empty()) folder.names.erase(change.gone);
    if (!change.name.empty()) folder.names[change.name] = change.node;
    folder.name_changes.push_back(change);
  }
  NodePtr made(const std::string& path, bool folder) {
    auto node = std::make_shared<Node>();
    node->folder = folder;
    node->part = part_of(relative(path));
    change_names(*folder_of(path), {"", name_of(path), node});
    return node;
  }
  NodePtr node_of(int fd) {
    const std::lock_guard lock(mutex_);
    return descriptors_.at(fd);
  }

  // Whether a call fails; under mutex_.
  int fault(Part part, bool is_sync) {
    if (dead_) return EIO;
    const int64_t call = calls_[part]++;
    if (part == plan_.death_of && call == plan_.death_at) {
      dead_ = true;
      return EIO;
    }
    if (plan_.one_in == 0 || !plan_.parts.contains(part) || call < plan_.from || call >= plan_.until ||
        (is_sync && !plan_.syncs) ||
        mixed({plan_.seed, part, static_cast<uint64_t>(call)}) % static_cast<uint64_t>(plan_.one_in) != 0)
      return 0;
    ++faults_;
    if (part == kLog) log_fails_ = true;
    return plan_.full && !is_sync ? ENOSPC : EIO;
  }
  // Whether a read fails; under mutex_.
  bool read_fault() {
    if (dead_) return true;
    const uint64_t read = reads_++;
    if (plan_.read_one_in == 0 || read < plan_.reads_from ||
        mixed({plan_.seed, 11, read}) % static_cast<uint64_t>(plan_.read_one_in) != 0)
      return false;
    ++faults_;
    return true;
  }
  void check_read(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (read_fault()) throw unavailable("[sim] cannot read '" + path + "'");
  }
  static int failed(int error) {
    errno = error;
    return -1;
  }

  // The calls.
  int open(const std::string& path, int flags) {
    const std::lock_guard lock(mutex_);
    if (!path.starts_with(root_)) {  // what the folder is in
      const int fd = Disk::system_open(path.c_str(), flags);
      if (fd >= 0) descriptors_[fd] = std::make_shared<Node>();
      return fd;
    }
    NodePtr node = find(path);
    const bool changes = (flags & O_TRUNC) != 0 || (node == nullptr && (flags & O_CREAT) != 0);
    if (const int error = changes ? fault(part_of(relative(path)), false) : dead_ ? EIO : 0)
      return failed(error);
    const int fd = Disk::system_open(path.c_str(), flags);
    if (fd < 0) return fd;
    if (!node) node = made(path, false);
    if ((flags & O_TRUNC) != 0) node->change({.size_only = true});
    descriptors_[fd] = node;
    return fd;
  }
  long write(const NodePtr& node, int fd, const char* data, size_t size, int64_t at) {
    const std::lock_guard lock(mutex_);
    if (dead_) return failed(EIO);
    if (const int error = fault(node->part, false)) {  // a part of it may have come through
      const uint64_t some = mixed({plan_.seed, 7, static_cast<uint64_t>(calls_[node->part])}) % (2 * size);
      if (dead_ || some == 0 || some >= size) return failed(error);
      size = some;
    }
    const long n = Disk::system_write(fd, data, size, at);
    if (n > 0) node->change({.at = at, .data = std::string(data, static_cast<size_t>(n))});
    return n;
  }
  int truncate(const NodePtr& node, int fd, int64_t size) {
    const std::lock_guard lock(mutex_);
    if (const int error = dead_ ? EIO : 0) return failed(error);
    const int result = Disk::system_truncate(fd, size);
    if (result == 0) node->change({.at = size, .size_only = true});
    return result;
  }
  int sync(const NodePtr& node) {
    int delay = 0;
    {
      const std::lock_guard lock(mutex_);
      if (const int error = fault(node->part, true)) {
        if (dead_) return failed(error);
        for (const Change& change : node->changes) {
          if (next() % 2 == 0) write_back(*node, change);
        }
        node->changes.clear();
        return failed(error);
      }
      if (plan_.lies) return 0;
      for (const Change& change : node->changes) write_back(*node, change);
      node->changes.clear();
      if (plan_.sync_ms > 0 && next() % 8 == 0) delay = plan_.sync_ms;
    }
    if (delay > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    return 0;
  }
  int sync_names(const NodePtr& node) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault(node->part, true)) return failed(error);
    if (plan_.lies) return 0;
    node->durable_names = node->names;
    node->name_changes.clear();
    return 0;
  }
  int rename(const std::string& from, const std::string& to) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault(part_of(relative(from)), false)) return failed(error);
    const NodePtr node = find(from);
    std::error_code ignored;
    if (node && node->folder) std::filesystem::remove_all(to, ignored);  // they are exchanged
    const int result = Disk::system_rename(from.c_str(), to.c_str());
    if (result == 0) change_names(*folder_of(from), {name_of(from), name_of(to), node});
    return result;
  }
  int remove(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault(part_of(relative(path)), false)) return failed(error);
    const int result = Disk::system_remove(path.c_str());
    if (result == 0 && find(path)) change_names(*folder_of(path), {name_of(path), "", nullptr});
    return result;
  }
  int make_folder(const std::string& path) {
    const std::lock_guard lock(mutex_);
    if (find(path)) return failed(EEXIST);
    if (const int error = fault(part_of(relative(path)), false)) return failed(error);
    const int result = Disk::system_make_folder(path.c_str());
    if (result == 0) made(path, true);
    return result;
  }

  // The loss of power.
  uint64_t next() { return random_ = mixed({random_}); }
  // The memory that a program writes to goes to the disk in whole pages.
  static void write_back(Node& node, const Change& change) {
    constexpr size_t kPage = 4096;
    if (change.size_only) return apply(node.durable, change);
    const size_t begin = static_cast<size_t>(change.at) / kPage * kPage;
    const size_t end = (static_cast<size_t>(change.at) + change.data.size() + kPage - 1) / kPage * kPage;
    if (begin < node.now.size())
      apply(node.durable, {.at = static_cast<int64_t>(begin), .data = node.now.substr(begin, end - begin)});
  }
  NodePtr after_power_loss(const Node& old, const std::string& path) {
    auto node = std::make_shared<Node>();
    node->folder = old.folder;
    node->part = old.part;
    if (!old.folder) {
      node->durable = old.durable;
      const uint64_t how = next() % 3;  // nothing of it, some of it, torn
      for (Change change : old.changes) {
        if (how == 0 || next() % 2 == 0) continue;
        if (how == 2 && !change.size_only && change.data.size() > 1)
          change.data.resize(1 + next() % (change.data.size() - 1));
        apply(node->durable, change);
      }
      node->now = node->durable;
      write_file_atomic(path, node->durable);
      return node;
    }
    make_directories(path);
    auto names = old.durable_names;
    const uint64_t kept = next() % 3 == 0 ? next() % (old.name_changes.size() + 1) : 0;  // in their order
    for (uint64_t i = 0; i < kept; ++i) {
      const NameChange& change = old.name_changes[i];
      if (!change.gone.empty()) names.erase(change.gone);
      if (!change.name.empty()) names[change.name] = change.node;
    }
    for (const auto& [name, child] : names) node->names[name] = after_power_loss(*child, path + "/" + name);
    node->durable_names = node->names;
    return node;
  }

  // SQLite: its own VFS does the work, its files' writes and syncs come through here.
  struct SqliteFile {
    sqlite3_file base;
    SimDisk* disk;
    NodePtr* node;      // null: a file that nobody needs after a crash
    bool syncs_folder;  // with its first sync, as SQLite does of a log that may be new
    sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };
  static SqliteFile& self(sqlite3_file* file) { return *reinterpret_cast<SqliteFile*>(file); }
  static SimDisk& self(sqlite3_vfs* vfs) { return *static_cast<SimDisk*>(vfs->pAppData); }
  sqlite3_vfs* system() const { return sqlite3_vfs_find("unix"); }

  void register_vfs() {
    static std::atomic<int> count{0};
    vfs_name_ = "sim-" + std::to_string(count++);
    vfs_ = *system();
    vfs_.zName = vfs_name_.c_str();
    vfs_.pAppData = this;
    vfs_.pNext = nullptr;
    vfs_.szOsFile = static_cast<int>(sizeof(SqliteFile)) + system()->szOsFile;
    vfs_.xOpen = [](sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out) {
      return self(vfs).sqlite_open(path, file, flags, out);
    };
    vfs_.xDelete = [](sqlite3_vfs* vfs, const char* path, int sync_folder) {
      return self(vfs).sqlite_delete(path, sync_folder != 0);
    };
    vfs_.xAccess = [](sqlite3_vfs* vfs, const char* path, int flags, int* out) {
      sqlite3_vfs* real = self(vfs).system();
      return real->xAccess(real, path, flags, out);
    };
    vfs_.xFullPathname = [](sqlite3_vfs* vfs, const char* path, int size, char* out) {
      sqlite3_vfs* real = self(vfs).system();
      return real->xFullPathname(real, path, size, out);
    };
    sqlite3_vfs_register(&vfs_, 0);
  }
  int sqlite_open(const char* path, sqlite3_file* file, int flags, int* out) {
    SqliteFile& f = self(file);
    f = {.base = {}, .disk = this, .node = nullptr, .syncs_folder = false};
    constexpr int kKept = SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL;
    const std::lock_guard lock(mutex_);
    if (dead_) return SQLITE_CANTOPEN;
    const bool kept = path != nullptr && (flags & kKept) != 0;
    NodePtr node = kept ? find(path) : nullptr;
    if (kept && !node && fault(kStore, false) != 0) return SQLITE_CANTOPEN;
    const int result = system()->xOpen(system(), path, f.real(), flags, out);
    if (f.real()->pMethods != nullptr) f.base.pMethods = methods();
    if (result != SQLITE_OK || !kept) return result;
    if (!node) node = made(path, false);
    f.syncs_folder = (flags & SQLITE_OPEN_MAIN_DB) == 0;
    f.node = new NodePtr(node);
    return result;
  }
  int sqlite_delete(const char* path, bool sync_folder) {
    {
      const std::lock_guard lock(mutex_);
      if (fault(kStore, false) != 0) return SQLITE_IOERR_DELETE;
      const int result = system()->xDelete(system(), path, 0);
      if (result != SQLITE_OK) return result;
      if (find(path)) change_names(*folder_of(path), {name_of(path), "", nullptr});
    }
    if (sync_folder && sync_names(root_node_) != 0) return SQLITE_IOERR_DIR_FSYNC;
    return SQLITE_OK;
  }
  int sqlite_read(SqliteFile& f, void* to, int size, int64_t at) {
    const std::lock_guard lock(mutex_);
    if (f.node != nullptr && read_fault()) return SQLITE_IOERR_READ;
    return f.real()->pMethods->xRead(f.real(), to, size, at);
  }
  int sqlite_write(SqliteFile& f, const void* data, int size, int64_t at) {
    const std::lock_guard lock(mutex_);
    if (f.node == nullptr) return f.real()->pMethods->xWrite(f.real(), data, size, at);
    if (const int error = fault(kStore, false)) return error == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    const int result = f.real()->pMethods->xWrite(f.real(), data, size, at);
    if (result == SQLITE_OK) {
      (*f.node)->change(
          {.at = at, .data = std::string(static_cast<const char*>(data), static_cast<size_t>(size))});
    }
    return result;
  }
  int sqlite_truncate(SqliteFile& f, int64_t size) {
    const std::lock_guard lock(mutex_);
    if (dead_) return SQLITE_IOERR_TRUNCATE;
    const int result = f.real()->pMethods->xTruncate(f.real(), size);
    if (result == SQLITE_OK && f.node != nullptr) (*f.node)->change({.at = size, .size_only = true});
    return result;
  }
  int sqlite_sync(SqliteFile& f) {
    if (f.node == nullptr) return SQLITE_OK;
    if (sync(*f.node) != 0) return SQLITE_IOERR_FSYNC;
    if (f.syncs_folder && sync_names(root_node_) != 0) return SQLITE_IOERR_DIR_FSYNC;
    f.syncs_folder = false;
    return SQLITE_OK;
  }
  static const sqlite3_io_methods* methods() {
    static const sqlite3_io_methods all = {
        .iVersion = 2,
        .xClose =
            [](sqlite3_file* file) {
              SqliteFile& f = self(file);
              delete std::exchange(f.node, nullptr);
              return f.real()->pMethods->xClose(f.real());
            },
        .xRead = [](sqlite3_file* file, void* to, int size,
                    sqlite3_int64 at) { return self(file).disk->sqlite_read(self(file), to, size, at); },
        .xWrite = [](sqlite3_file* file, const void* data, int size,
                     sqlite3_int64 at) { return self(file).disk->sqlite_write(self(file), data, size, at); },
        .xTruncate = [](sqlite3_file* file,
                        sqlite3_int64 size) { return self(file).disk->sqlite_truncate(self(file), size); },
        .xSync = [](sqlite3_file* file, int) { return self(file).disk->sqlite_sync(self(file)); },
        .xFileSize =
            [](sqlite3_file* file, sqlite3_int64* size) {
              return self(file).real()->pMethods->xFileSize(self(file).real(), size);
            },
        .xLock = [](sqlite3_file* file,
                    int how) { return self(file).real()->pMethods->xLock(self(file).real(), how); },
        .xUnlock = [](sqlite3_file* file,
                      int how) { return self(file).real()->pMethods->xUnlock(self(file).real(), how); },
        .xCheckReservedLock =
            [](sqlite3_file* file, int* out) {
              return self(file).real()->pMethods->xCheckReservedLock(self(file).real(), out);
            },
        .xFileControl =
            [](sqlite3_file* file, int what, void* with) {
              return self(file).real()->pMethods->xFileControl(self(file).real(), what, with);
            },
        .xSectorSize = [](sqlite3_file*) { return 4096; },
        .xDeviceCharacteristics = [](sqlite3_file*) { return 0; },
        .xShmMap =
            [](sqlite3_file* file, int page, int size, int extend, void volatile** out) {
              return self(file).real()->pMethods->xShmMap(self(file).real(), page, size, extend, out);
            },
        .xShmLock =
            [](sqlite3_file* file, int at, int n, int flags) {
              return self(file).real()->pMethods->xShmLock(self(file).real(), at, n, flags);
            },
        .xShmBarrier =
            [](sqlite3_file* file) { self(file).real()->pMethods->xShmBarrier(self(file).real()); },
        .xShmUnmap =
            [](sqlite3_file* file, int remove) {
              return self(file).real()->pMethods->xShmUnmap(self(file).real(), remove);
            }};
    return &all;
  }

  const std::string root_;
  std::mutex mutex_;  // guards the rest
  NodePtr root_node_ = [] {
    auto node = std::make_shared<Node>();
    node->folder = true;
    return node;
  }();
  std::map<int, NodePtr> descriptors_;
  Plan plan_;
  int64_t calls_[kNumParts] = {};
  uint64_t reads_ = 0;
  uint64_t random_ = 1;
  std::atomic<bool> dead_{false};
  std::atomic<int64_t> faults_{0};
  std::atomic<bool> log_fails_{false};
  std::string vfs_name_;
  sqlite3_vfs vfs_{};
};

}  // namespace twinkle::serve
