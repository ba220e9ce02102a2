#include "twinkle/serve/credentials.h"

namespace twinkle::serve {

Credentials::Found Credentials::find(std::string_view credential, double now) const {
  if (!looks_like_token(credential)) return {.owner = store_.owner_of_key(credential)};
  const auto token = signer_.read("auth", credential, now);
  if (!token) return {};
  const std::string owner = token->claims.at("sub");
  if (token->expired || !store_.has_key_of(owner)) return {.stale = true};
  return {.owner = owner};
}

std::string Credentials::token_for(const std::string& owner, double now, double seconds) const {
  // "org_id" and "email" are what `tinker auth whoami` reads beside "sub".
  return signer_.sign("auth", {{"sub", owner}, {"org_id", "twinkle"}, {"email", ""}}, now, seconds);
}

}  // namespace twinkle::serve
