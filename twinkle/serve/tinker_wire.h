// Tinker's requests and replies, as JSON and protobuf, to and from operations. What is wrong in a request is
// invalid_argument in words for the client. Free of state.
#pragma once

#include <string>
#include <string_view>

#include "twinkle/serve/operation.h"
#include "twinkle/serve/tinker_json.h"

namespace twinkle::serve::tinker {

/// What of a forward_backward says where it belongs; read before all else.
struct CallHead {
  std::string model_id;
  int64_t seq_id = -1;  // -1: none was given
  bool forward_only = false;
};
CallHead call_head(std::string_view proto);
CallHead call_head(const Json& body);

/// The data and the loss. Lengths, shapes, numbers that are not finite, names of losses and their options are
/// checked here; token ids by the engine, which knows the vocabulary.
TrainCall parse_call(std::string_view proto);
/// `key`: "forward_backward_input" or "forward_input".
TrainCall parse_call(const Json& body, const char* key);
/// What whoever uses the loss should know, "" when that is nothing.
std::string note_on(const TrainCall& call);

/// AdamParams with their defaults, checked, as the arguments of an optim_step.
Json parse_adam(const Json& body);
/// Everything but the weights and the tenant.
SampleCall parse_sample(const Json& body);

/// Replies to retrieve_future.
std::string call_to_proto(const CallResult& result);
std::string call_to_json(const CallResult& result);
std::string sample_to_proto(const SampleDone& done);
std::string sample_to_json(const SampleDone& done);

}  // namespace twinkle::serve::tinker
