// Whose a credential is: a key, or a token that a key was exchanged for. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/serve/keys.h"
#include "twinkle/serve/store.h"
#include "twinkle/serve/token.h"

namespace twinkle::serve {

class Credentials {
 public:
  Credentials(Store& store, const Keys& keys) : keys_(keys), signer_(store.secret()) {}

  struct Found {
    std::shared_ptr<const KeyEntry> key;
    bool stale = false;  // it was a token of ours: another exchange of the key helps
  };
  Found find(std::string_view credential, double now) const;
  /// The owner of a credential that came beside the request's own; nothing when it is none of ours, or its
  /// key may not read.
  std::optional<std::string> reader(std::string_view credential, double now) const;
  /// A token that stands for a key for so long, as long as the key is valid.
  std::string token_for(const KeyEntry& key, double now, double seconds) const;
  const TokenSigner& signer() const { return signer_; }

 private:
  const Keys& keys_;
  TokenSigner signer_;
};

}  // namespace twinkle::serve
