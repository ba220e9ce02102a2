// Keys: hashes only, scopes, rotation, and changes by another process.
#include "twinkle/serve/keys.h"

#include <gtest/gtest.h>

#include "tests/temp_dir.h"
#include "tests/thrown.h"
#include "twinkle/core/files.h"

namespace twinkle::serve {
namespace {

using test::thrown;

TEST(Keys, AreFoundByTheirHashUntilTheyEnd) {
  const test::TempDir dir;
  Keys keys(dir / "store.db");
  EXPECT_TRUE(keys.empty());
  const std::string key = keys.add({.name = "ann", .scopes = Scopes::parse({"train"})}, 100);
  EXPECT_TRUE(key.starts_with("tml-"));
  EXPECT_EQ(key.size(), 4u + 48u);
  const auto entry = keys.find(key, 100);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->name, "ann");
  // By hand: the owner is the first 16 digits of the key's SHA-256.
  EXPECT_EQ(entry->owner, "user-" + sha256_hex(key).substr(0, 16));
  EXPECT_EQ(keys.find(key + "x", 100), nullptr);
  EXPECT_EQ(keys.find("", 100), nullptr);
  EXPECT_NE(keys.find(key, 200), nullptr);
  keys.revoke("ann", 200);
  EXPECT_EQ(keys.find(key, 200), nullptr);
  EXPECT_EQ(keys.find(key, 100), nullptr) << "whatever becomes of the clock";
  EXPECT_TRUE(to_json(keys.list().at(0)).at("revoked").get<bool>());
  EXPECT_HAS(thrown([&] { keys.revoke("ann", 201); }, ErrorKind::kNotFound), "no valid key");
  EXPECT_EQ(read_file(dir / "store.db").find(key), std::string::npos);
}

TEST(Keys, KeepTheirOwnerWhenTheyAreRotated) {
  const test::TempDir dir;
  std::string old, fresh;
  {
    Keys keys(dir / "store.db");
    old = keys.add({.name = "ann", .limits = {.models = 3}, .priority = 7}, 0);
    fresh = keys.rotate("ann", 60, 1000);
    EXPECT_NE(keys.find(old, 1059), nullptr);
    EXPECT_EQ(keys.find(old, 1060), nullptr);
  }
  Keys keys(dir / "store.db");  // as another start finds it
  ASSERT_NE(keys.find(fresh, 2000), nullptr);
  EXPECT_EQ(keys.find(fresh, 2000)->owner, "user-" + sha256_hex(old).substr(0, 16));
  EXPECT_EQ(keys.find(fresh, 2000)->limits.models, 3);
  EXPECT_EQ(keys.find(fresh, 2000)->priority, 7);
  EXPECT_EQ(keys.priority_of(keys.find(fresh, 2000)->owner, 2000), 7);
  EXPECT_EQ(keys.priority_of("user-other", 2000), 1);
  // A change while both are valid leaves the end of each.
  const std::string late = keys.rotate("ann", 500, 2000);
  keys.change("ann", [](KeyEntry& entry) { entry.limits.models = 4; }, 2100);
  EXPECT_EQ(keys.find(late, 1e9)->limits.models, 4);
  EXPECT_EQ(keys.find(fresh, 2499)->limits.models, 4);
  EXPECT_EQ(keys.find(fresh, 2500), nullptr);
  keys.change("ann", [](KeyEntry& entry) { entry.expires = 5000; }, 2100);
  EXPECT_NE(keys.find(late, 4999), nullptr);
  EXPECT_EQ(keys.find(late, 5000), nullptr);
  EXPECT_EQ(keys.find(fresh, 2500), nullptr);
  const std::string rotated = keys.find(late, 2999)->id;
  const std::string last = keys.rotate("ann", 0, 3000);
  EXPECT_EQ(keys.by_id(rotated, 3000), nullptr);  // what names the old key is worth as little
  EXPECT_EQ(keys.find(late, 3000), nullptr);
  EXPECT_NE(keys.find(last, 3000), nullptr);
}

// Also when the server that had been given it on its command line starts again.
TEST(Keys, StayRevoked) {
  const test::TempDir dir;
  Keys keys(dir / "store.db");
  const std::string key = keys.add({.name = "ann"}, 100, "tml-ann-0123456789abcdef");
  EXPECT_EQ(keys.add({}, 110, key), key);
  keys.revoke("ann", 200);
  EXPECT_HAS(thrown([&] { keys.add({}, 201, key); }, ErrorKind::kConflict), "the key 'ann' was revoked");
  EXPECT_FALSE(keys.find(key, 202));
}

TEST(Keys, FollowAnotherProcess) {
  const test::TempDir dir;
  Keys server(dir / "store.db"), command(dir / "store.db");
  const std::string key = command.add({.name = "ann"}, 0);
  EXPECT_EQ(server.find(key, 0), nullptr);
  server.refresh();
  EXPECT_NE(server.find(key, 0), nullptr);
  command.revoke("ann", 1);
  server.refresh();
  EXPECT_EQ(server.find(key, 1), nullptr);
}

// What a process changes it changes on what there is, however old its own picture of it.
TEST(Keys, StayRevokedWhoeverChangesThem) {
  const test::TempDir dir;
  Keys one(dir / "store.db"), other(dir / "store.db");
  const std::string key = one.add({.name = "ann"}, 0);
  other.refresh();
  one.revoke("ann", 1);
  EXPECT_NE(other.find(key, 1), nullptr);  // until it looks
  const auto raise = [](KeyEntry& entry) { entry.priority = 9; };
  EXPECT_HAS(thrown([&] { other.change("ann", raise, 1); }, ErrorKind::kNotFound), "no valid key");
  EXPECT_HAS(thrown([&] { other.rotate("ann", 60, 1); }, ErrorKind::kNotFound), "no valid key");
  EXPECT_EQ(other.find(key, 0), nullptr);
  EXPECT_EQ(Keys(dir / "store.db").find(key, 0), nullptr);
}

TEST(Keys, SayWhatIsWrong) {
  const test::TempDir dir;
  Keys keys(dir / "store.db");
  keys.add({.name = "ann"}, 0);
  EXPECT_HAS(thrown([&] { keys.add({.name = "ann"}, 0); }, ErrorKind::kConflict), "'ann'");
  EXPECT_HAS(thrown([&] { keys.add({.name = "a b"}, 0); }), "'a b'");
  EXPECT_HAS(thrown([&] { keys.add({}, 0, "tml-short"); }), "16 characters");
  EXPECT_HAS(thrown([&] { keys.rotate("bob", 0, 0); }, ErrorKind::kNotFound), "'bob'");
  EXPECT_HAS(thrown([] { Scopes::parse({"trian"}); }), "did you mean 'train'?");
  EXPECT_HAS(thrown([] { Scopes::parse({}); }), "needs one of");
  // A given key that is known stays as it is.
  const std::string given = keys.add({.name = "given", .priority = 5}, 0, "tml-0123456789abcdef");
  keys.add({}, 0, given);
  EXPECT_EQ(keys.find(given, 0)->priority, 5);
}

TEST(Keys, OfTheFirstServersMayDoEverything) {
  const test::TempDir dir;
  const std::string key = "tml-0123456789abcdef", hash = sha256_hex(key);
  {
    const Database db(dir / "store.db");
    db.run("CREATE TABLE keys(hash TEXT PRIMARY KEY, owner TEXT NOT NULL)");
    Statement(db, "INSERT INTO keys VALUES(?, ?)", {hash, "user-of-old"}).row();
  }
  for (int start = 0; start < 2; ++start) {
    Keys keys(dir / "store.db");
    ASSERT_NE(keys.find(key, 0), nullptr);
    EXPECT_EQ(keys.find(key, 0)->owner, "user-of-old");
    EXPECT_TRUE(keys.find(key, 0)->scopes.has(Scope::kAdmin));
  }
}

TEST(Scopes, OfRoutes) {
  const std::vector<std::tuple<const char*, const char*, Scope>> rows = {
      {"POST", "client/config", Scope::kAny},
      {"POST", "retrieve_future", Scope::kAny},
      {"GET", "samplers/s:sample:0", Scope::kAny},
      {"POST", "create_session", Scope::kUse},
      {"POST", "sessions/s/finish", Scope::kUse},
      {"GET", "sessions/s", Scope::kRead},
      {"POST", "get_info", Scope::kRead},
      {"POST", "asample", Scope::kSample},
      {"POST", "forward_backward", Scope::kTrain},
      {"DELETE", "training_runs/r/checkpoints/weights/x", Scope::kTrain},
      {"POST", "a/route/of/tomorrow", Scope::kTrain},
      {"GET", "a/route/of/tomorrow", Scope::kRead}};
  for (const auto& [method, route, scope] : rows) EXPECT_EQ(needed_scope(method, route), scope) << route;
  const Scopes read = Scopes::parse({"read"}), train = Scopes::parse({"train"}),
               sample = Scopes::parse({"sample"});
  EXPECT_FALSE(read.has(Scope::kUse));
  EXPECT_TRUE(train.has(Scope::kUse) && sample.has(Scope::kUse));
  EXPECT_TRUE(train.has(Scope::kRead));
  EXPECT_FALSE(sample.has(Scope::kRead));
  EXPECT_FALSE(train.has(Scope::kSample) || train.has(Scope::kAdmin));
  EXPECT_EQ(train.names(), std::vector<std::string>{"train"});
}

}  // namespace
}  // namespace twinkle::serve
