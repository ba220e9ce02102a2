// deps: serve
// Any bytes as what names somebody or something, by the first byte: tokens, keys and what is kept of them,
// queries, times, scopes, entries of the store. What was written is read as it was; what is not ours opens
// nothing; what is wrong is refused as the client's mistake, or as a damaged file.
#include "fuzz/fuzzing.h"
#include "twinkle/core/json.h"
#include "twinkle/serve/credentials.h"
#include "twinkle/serve/tinker_requests.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::is_taken;
using fuzz::require;

constexpr const char* kKey = "tml-0123456789abcdef";
constexpr double kNow = 1e9;

// Our own claims, and one byte of the token changed.
void check_signed(std::string_view text, uint8_t place, uint8_t change) {
  Json claims;
  if (try_parse_json(text, claims, 64) || !claims.is_object()) return;
  const TokenSigner signer("secret"), other("another");
  const std::string token = signer.sign("auth", claims, kNow, 60);
  require(looks_like_token(token));
  const auto read = signer.read("auth", token, kNow);
  if (!read) {
    require(token.size() > 4096);  // none is longer
    return;
  }
  for (const auto& [name, value] : claims.items()) {
    if (name != "use" && name != "iat" && name != "exp") require(read->claims.at(name) == value);
  }
  require(!read->expired && signer.read("auth", token, kNow + 60)->expired);
  require(!signer.read("file", token, kNow) && !other.read("auth", token, kNow));
  std::string changed = token;
  char& letter = changed[place * changed.size() / 256];
  letter = static_cast<char>(letter ^ change);
  require(bool(signer.read("auth", changed, kNow)) == (change == 0));
}

// The store's folder with one key in it.
struct Known {
  std::string path = fuzz::empty_folder("known") + "/store.db";
  Store store{path};
  Keys keys{path};
  Credentials credentials{store, keys};
  std::string token;
  Known() {
    keys.add({.name = "ann", .owner = "ann"}, kNow, kKey);
    token = credentials.token_for(*keys.find(kKey, kNow), kNow, 60);
  }
};

void check_credential(std::string_view text) {
  static const Known known;
  const auto found = known.credentials.find(text, kNow);
  require(bool(found.key) == (text == kKey || text == known.token));
  require(bool(known.credentials.reader(text, kNow)) == bool(found.key));
  (void)TokenSigner("secret").read("auth", text, kNow);
}

void check_query(std::string_view text) {
  std::string coded;
  for (const char c : text) {
    char part[4];
    std::snprintf(part, sizeof(part), "%%%02X", static_cast<unsigned char>(c));
    coded += part;
  }
  require(tinker::query_text("/a?x=1&name=" + coded + "&name=2", "name") == text);
  require(!tinker::query_text("/a?x=" + coded, "name"));
  const auto value = tinker::query_text(text, "n");
  int64_t number = 0;
  if (is_taken([&] { number = tinker::query_number(text, "n", 7, 1000); }))
    require(number >= 0 && number <= 1000 && (value || number == 7));
}

void check_time(const std::string& text) {
  double seconds = 0;
  if (!is_taken([&] { seconds = tinker::seconds_of(text); })) return;
  require(text.find('\0') == std::string::npos);
  require(std::abs(seconds) < 1e12);
  constexpr double kYear10000 = 253402300800;  // of five digits, which are not read
  if (seconds >= 0 && seconds < kYear10000)
    require(tinker::seconds_of(tinker::iso_time(seconds)) == std::floor(seconds));
}

void check_scopes(std::string_view text) {
  std::vector<std::string> names;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    names.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  Scopes scopes;
  if (is_taken([&] { scopes = Scopes::parse(names); }))
    require(Scopes::parse(scopes.names()).names() == scopes.names());
  is_taken([&] { tinker::check_name(std::string(text)); });
  (void)needed_scope("POST", text);
}

constexpr std::initializer_list<ErrorKind> kDamaged = {ErrorKind::kInvalidArgument, ErrorKind::kUnavailable};

template <class Tables>
std::string file_with_tables(const char* folder) {
  const std::string path = fuzz::empty_folder(folder) + "/store.db";
  const Tables made(path);
  return path;
}

// A row of what is kept of keys; the second time it is as the program itself writes it.
void check_key_row(std::string_view text) {
  static const std::string path = file_with_tables<Keys>("keys");
  static const Database database(path);
  const auto put = [](std::string_view entry) {
    Statement(database, "INSERT OR REPLACE INTO api_keys VALUES('hash', ?)", {entry}).row();
  };
  put(text);
  std::vector<KeyEntry> list;
  if (!is_taken([&] { list = Keys(path).list(); }, kDamaged)) return;
  require(list.size() == 1);
  const Json shown = to_json(list[0]);
  put(shown.dump());
  require(to_json(Keys(path).list().at(0)) == shown);
}

// The same of what there is.
void check_store_row(std::string_view text) {
  static const std::string path = file_with_tables<Store>("store");
  static const Database database(path);
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string_view kind = text.substr(0, line), entry = text.substr(std::min(line + 1, text.size()));
  Statement(database, "INSERT OR REPLACE INTO things VALUES(?, 'one', ?)", {kind, entry}).row();
  is_taken([&] { (void)Store(path).folders(); }, kDamaged);
  Statement(database, "DELETE FROM things").row();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Pieces input(data, size);
  const int kind = input.byte() % 7;
  if (kind == 0) {
    const uint8_t place = input.byte(), change = input.byte();
    check_signed(input.rest(), place, change);
    return 0;
  }
  const std::string text(input.rest());
  if (kind == 1) check_credential(text);
  if (kind == 2) check_query(text);
  if (kind == 3) check_time(text);
  if (kind == 4) check_scopes(text);
  if (kind == 5) check_key_row(text);
  if (kind == 6) check_store_row(text);
  return 0;
}
