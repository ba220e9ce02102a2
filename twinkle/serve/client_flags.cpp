// What client/config tells the official package to do.
#include "twinkle/core/suggest.h"
#include "twinkle/serve/tinker_api.h"

namespace twinkle::serve {

Json client_flags(const Json& changes) {
  // Chunks one after the other: a client then survives whatever becomes of one of them.
  Json flags = {{"pjwt_auth_enabled", false},
                {"use_pyqwest_transport", false},
                {"parallel_fwdbwd_chunks", false},
                {"proto_compress_fwdbwd", true},
                {"sample_use_retrieve_futures", false},
                {"sample_join_sampling_session", true},
                {"custom_loss_server_side", false},
                {"create_model_via_load_weights", false},
                {"sample_no_retries", false},
                {"sample_enable_stuck_detection", true},
                {"sample_max_concurrent_requests", 2000},
                {"sample_dispatch_bytes_semaphore_size", 10485760},
                {"inflight_response_bytes_semaphore_size", 52428800},
                {"fwdbwd_max_chunk_len", 1024},
                {"fwdbwd_max_chunk_bytes_count", 5000000},
                {"fwdbwd_dispatch_bytes_semaphore_size", 50000000},
                {"billing_exception_max_pause_duration_sec", 3600}};
  std::vector<std::string> names;
  for (const auto& [name, value] : flags.items()) names.push_back(name);
  for (const auto& [name, value] : changes.items()) {
    if (!flags.contains(name))
      throw invalid_argument("[client_flags] there is no '" + name + "'" + did_you_mean(name, names));
    if (flags[name].is_boolean() != value.is_boolean() ||
        (!value.is_boolean() && !value.is_number_unsigned()))
      throw invalid_argument("[client_flags] '" + name + "' must be " +
                             (flags[name].is_boolean() ? "true or false" : "a whole number"));
    flags[name] = value;
  }
  return flags;
}

}  // namespace twinkle::serve
