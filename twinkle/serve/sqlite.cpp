#include "twinkle/serve/sqlite.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include "twinkle/serve/disk_full.h"

namespace twinkle::serve {

Database::Database(const std::string& path, const std::string& vfs) {
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  if (sqlite3_open_v2(path.c_str(), &db_, kFlags, vfs.empty() ? nullptr : vfs.c_str()) != SQLITE_OK) {
    const std::string why = db_ == nullptr ? "no memory" : sqlite3_errmsg(db_);
    sqlite3_close(db_);
    throw unavailable("[store] cannot open '" + path + "': " + why);
  }
  try {
    ::chmod(path.c_str(), 0600);
    sqlite3_busy_timeout(db_, 5000);
    run("PRAGMA journal_mode=WAL");
    run("PRAGMA synchronous=FULL");
    run("PRAGMA trusted_schema=OFF");
  } catch (...) {
    sqlite3_close(db_);
    throw;
  }
}

Database::~Database() { sqlite3_close(db_); }

void Database::run(const char* sql) const {
  char* message = nullptr;
  if (sqlite3_exec(db_, sql, nullptr, nullptr, &message) == SQLITE_OK) return;
  const std::string why = message == nullptr ? sqlite3_errmsg(db_) : message;
  sqlite3_free(message);
  if (sqlite3_errcode(db_) == SQLITE_FULL) throw disk_full();
  throw unavailable("[store] " + why);
}

Transaction::~Transaction() {
  if (open_) sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::commit() {
  database_.run("COMMIT");
  open_ = false;
}

Statement::Statement(const Database& database, const char* sql,
                     std::initializer_list<std::string_view> values)
    : db_(database.get()) {
  if (sqlite3_prepare_v2(db_, sql, -1, &statement_, nullptr) != SQLITE_OK) fail();
  int at = 1;
  for (const auto value : values)
    sqlite3_bind_text(statement_, at++, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
}

Statement::~Statement() { sqlite3_finalize(statement_); }

bool Statement::row() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) fail();
  return false;
}

std::string Statement::text(int column) const {
  const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return value == nullptr ? std::string()
                          : std::string(value, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
}

void Statement::fail() const {
  const std::string message = std::string("[store] ") + sqlite3_errmsg(db_);
  if (sqlite3_errcode(db_) == SQLITE_FULL) throw disk_full();
  throw unavailable(message);
}

}  // namespace twinkle::serve
