// Tokens: read back as they were signed, and nothing else is.
#include "twinkle/serve/token.h"

#include <gtest/gtest.h>

#include "tests/temp_dir.h"
#include "twinkle/serve/credentials.h"

namespace twinkle::serve {
namespace {

TEST(Token, IsAJsonWebToken) {
  // The signature is that of Python's hmac.new(b"secret", text, "sha256"), by base64.urlsafe_b64encode.
  const TokenSigner signer("secret");
  const std::string token = signer.sign("auth", {{"sub", "ann"}}, 1000.5, 60);
  EXPECT_EQ(token,
            "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
            "eyJzdWIiOiJhbm4iLCJ1c2UiOiJhdXRoIiwiaWF0IjoxMDAwLCJleHAiOjEwNjF9."
            "Rh-jICTs7MYTaEszln7Ro5YNaZC7w4FMAvHOxxXORpg");
}

TEST(Token, IsReadForItsUseAndItsTimeOnly) {
  const TokenSigner signer("secret"), other("another");
  const std::string token = signer.sign("auth", {{"sub", "ann"}}, 1000, 60);
  ASSERT_TRUE(signer.read("auth", token, 1059));
  EXPECT_EQ(signer.read("auth", token, 1059)->claims.at("sub"), "ann");
  EXPECT_FALSE(signer.read("auth", token, 1059)->expired);
  EXPECT_TRUE(signer.read("auth", token, 1060)->expired);
  EXPECT_FALSE(signer.read("file", token, 1000));
  EXPECT_FALSE(other.read("auth", token, 1000));
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(signer.read("auth", changed, 1000)) << i;
  }
  for (const char* text : {"", ".", "..", "a.b", "a.b.c", "eyJhbGciOiJub25lIn0.e30."})
    EXPECT_FALSE(signer.read("auth", text, 1000)) << text;
}

TEST(Token, StandsForAnOwnerThatHasAKey) {
  const test::TempDir dir;
  const std::string key = "tml-0123456789abcdef";
  std::string token, owner;
  {
    Store store(dir / "store.db");
    Keys keys(dir / "store.db");
    keys.add({.name = "ann", .scopes = Scopes::parse({"read"})}, 900, key);
    owner = keys.find(key, 1000)->owner;
    const Credentials credentials(store, keys);
    token = credentials.token_for(*keys.find(key, 1000), 1000, 60);
    EXPECT_EQ(credentials.find(key, 1000).key->owner, owner);
  }
  Store store(dir / "store.db");  // the secret is that of the folder
  Keys keys(dir / "store.db");
  const Credentials credentials(store, keys);
  EXPECT_EQ(credentials.find(token, 1001).key->owner, owner);
  EXPECT_FALSE(credentials.find(token, 1001).key->scopes.has(Scope::kTrain));  // what its key may
  EXPECT_EQ(credentials.reader(token, 1001), owner);
  const auto late = credentials.find(token, 2000);
  EXPECT_FALSE(late.key);
  EXPECT_TRUE(late.stale);
  EXPECT_FALSE(credentials.find("tml-another-key-0123", 1000).stale);
  const std::string strangers = credentials.token_for({.id = "key-none", .owner = owner}, 1000, 60);
  EXPECT_FALSE(credentials.find(strangers, 1001).key);
  keys.revoke("ann", 1010);
  EXPECT_FALSE(credentials.find(token, 1011).key);
  EXPECT_TRUE(credentials.find(token, 1011).stale);
}

}  // namespace
}  // namespace twinkle::serve
