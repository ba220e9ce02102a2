// The server's YAML file. It is either in Twinkle's own form, options by their names
//   model_id: /models/Qwen3.5-4B
//   limit: {models: 3}
// or the server_config.yaml of the Python Twinkle (applications, http_options, persistence ...), or both at
// once. What of the latter has another meaning here is told in a note, never passed over in silence.
// Free of state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/args.h"

namespace twinkle::serve {

struct ServerConfig {
  std::vector<ConfigValue> values;  // of the options `groups` declares
  std::vector<std::string> notes;   // "server_config.yaml line 3: ..."
  std::vector<std::string> errors;  // "[server_config.yaml line 3] ..."; all that there are
};

/// `name`: of the file, for messages. Throws nothing for what the text says.
ServerConfig read_server_config(std::string_view text, const std::string& name,
                                const std::vector<ArgGroup>& groups);

}  // namespace twinkle::serve
