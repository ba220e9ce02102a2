#include "twinkle/serve/credentials.h"

namespace twinkle::serve {

Credentials::Found Credentials::find(std::string_view credential, double now) const {
  if (!looks_like_token(credential)) return {.key = keys_.find(credential, now)};
  const auto token = signer_.read("auth", credential, now);
  if (!token || !token->claims.contains("key")) return {};
  auto key = keys_.by_id(token->claims.at("key"), now);
  if (token->expired || !key) return {.stale = true};
  return {.key = std::move(key)};
}

std::optional<std::string> Credentials::reader(std::string_view credential, double now) const {
  const auto key = find(credential, now).key;
  if (!key || !key->scopes.has(Scope::kRead)) return std::nullopt;
  return key->owner;
}

std::string Credentials::token_for(const KeyEntry& key, double now, double seconds) const {
  // "org_id" and "email" are what `tinker auth whoami` reads beside "sub".
  return signer_.sign("auth", {{"sub", key.owner}, {"key", key.id}, {"org_id", "twinkle"}, {"email", ""}},
                      now, seconds);
}

}  // namespace twinkle::serve
