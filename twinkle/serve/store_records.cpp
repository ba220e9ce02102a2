// What the store only ever adds to, and reads from the file: the audit log and usage.
#include <sqlite3.h>

#include "twinkle/serve/store.h"

namespace twinkle::serve {
namespace {

constexpr int64_t kMostNotes = 1'000'000;

// Numbers are bound as text and compared as numbers.
std::string sql_number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6f", value);
  return text;
}

}  // namespace

void Store::note(const std::string& owner, const std::string& event, const Json& details, double now) {
  const std::lock_guard writing(writing_);
  Statement(db_, "INSERT INTO notes(owner, time, event, details) VALUES(?, CAST(? AS REAL), ?, ?)",
            {owner, sql_number(now), event, details.dump(-1, ' ', false, Json::error_handler_t::replace)})
      .row();
  if (sqlite3_last_insert_rowid(db_.get()) % 1000 != 0) return;
  Statement(db_, "DELETE FROM notes WHERE id <= (SELECT MAX(id) FROM notes) - CAST(? AS INTEGER)",
            {std::to_string(kMostNotes)})
      .row();
}

std::vector<Note> Store::notes_of(const std::string& owner, const std::string& prefix, double from,
                                  double to) {
  const std::lock_guard writing(writing_);
  std::vector<Note> out;
  Statement rows(
      db_,
      "SELECT time, event, details FROM notes WHERE owner = ? AND time >= CAST(? AS REAL) AND time "
      "< CAST(? AS REAL) AND substr(event, 1, length(?)) = ? ORDER BY id LIMIT 10000",
      {owner, sql_number(from), sql_number(to), prefix, prefix});
  while (rows.row()) {
    out.push_back({.time = std::stod(rows.text(0)),
                   .event = rows.text(1),
                   .details = parse_json(rows.text(2), "store")});
  }
  return out;
}

void Store::add(const std::vector<Usage>& used) {
  if (used.empty()) return;
  const std::lock_guard writing(writing_);
  Transaction transaction(db_);
  for (const Usage& u : used) {
    Statement(db_,
              "INSERT INTO usage VALUES(?, CAST(? AS REAL), ?, ?, ?, CAST(? AS INTEGER)) ON CONFLICT DO "
              "UPDATE SET count = count + excluded.count",
              {u.owner, sql_number(u.hour), u.session, u.base_model, u.kind, std::to_string(u.count)})
        .row();
  }
  transaction.commit();
}

std::vector<Usage> Store::usage_of(const std::string& owner, double from, double to) {
  const std::lock_guard writing(writing_);
  std::vector<Usage> out;
  Statement rows(db_,
                 "SELECT hour, session, base_model, kind, count FROM usage WHERE owner = ? AND hour >= "
                 "CAST(? AS REAL) AND hour < CAST(? AS REAL) ORDER BY hour, count DESC",
                 {owner, sql_number(from), sql_number(to)});
  while (rows.row()) {
    out.push_back({.hour = std::stod(rows.text(0)),
                   .owner = owner,
                   .session = rows.text(1),
                   .base_model = rows.text(2),
                   .kind = rows.text(3),
                   .count = std::stoll(rows.text(4))});
  }
  return out;
}

}  // namespace twinkle::serve
