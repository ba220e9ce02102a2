// How the store speaks to SQLite. For the files of the store only.
#pragma once

#include <sqlite3.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "twinkle/serve/disk_full.h"
#include "twinkle/serve/store.h"

namespace twinkle::serve {

// A prepared statement with text parameters: values never become part of the SQL.
struct Store::Statement {
  Statement(sqlite3* database, const char* sql, std::initializer_list<std::string_view> values)
      : db(database) {
    if (sqlite3_prepare_v2(db, sql, -1, &statement, nullptr) != SQLITE_OK) fail();
    int at = 1;
    for (const auto value : values)
      sqlite3_bind_text(statement, at++, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
  }
  ~Statement() { sqlite3_finalize(statement); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  bool row() {
    const int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) return true;
    if (code != SQLITE_DONE) fail();
    return false;
  }
  std::string text(int column) const {
    const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
    return value == nullptr
               ? std::string()
               : std::string(value, static_cast<size_t>(sqlite3_column_bytes(statement, column)));
  }
  [[noreturn]] void fail() const {
    const std::string message = std::string("[store] ") + sqlite3_errmsg(db);
    if (sqlite3_errcode(db) == SQLITE_FULL) throw disk_full();
    throw unavailable(message);
  }
  sqlite3* db;
  sqlite3_stmt* statement = nullptr;
};

}  // namespace twinkle::serve
