// The few things that are asked of SQLite. A database is used by one thread at a time; errors are
// `unavailable`, of a full disk with its own words.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace twinkle::serve {

/// A file, readable by its owner only, with a write-ahead log and durable commits. Several processes may have
/// it open.
class Database {
 public:
  /// `vfs`: the name of one that SQLite knows (Disk::sqlite_vfs); "": its own.
  explicit Database(const std::string& path, const std::string& vfs = "");
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  void run(const char* sql) const;
  sqlite3* get() const { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

/// What is written until commit() is written whole; without it, nothing is. What is read is the newest, and
/// nobody else writes meanwhile.
class Transaction {
 public:
  explicit Transaction(const Database& database) : database_(database) { database.run("BEGIN IMMEDIATE"); }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  const Database& database_;
  bool open_ = true;
};

/// A prepared statement with text parameters: values never become part of the SQL.
class Statement {
 public:
  Statement(const Database& database, const char* sql, std::initializer_list<std::string_view> values = {});
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  /// Goes to the next row; false behind the last.
  bool row();
  std::string text(int column) const;

 private:
  [[noreturn]] void fail() const;
  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace twinkle::serve
