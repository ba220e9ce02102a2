// What a trainer and a sampler in two processes say to each other; the frames are those of
// core/tensor_stream. One connection is one sync:
//
//   trainer   about    what comes: {"what": "adapter" | "model", ...}, see about_specs()
//   sampler   reply    {"status": "go"}; or "base": send the model that the adapter sits on first, then
//                      announce the adapter again; or "error" with kind and message, after which it hangs up
//   trainer   buckets  a safetensors file, an adapter's or the model's
//   trainer   end      {"weights_id": ...} of a model, {} of an adapter
//   sampler   reply    {"status": "done", "version": ..., "isa": ...} once requests get the new weights, or
//                      "error"
#pragma once

#include "twinkle/core/error.h"
#include "twinkle/core/registry.h"

namespace twinkle {

inline const std::vector<ParamSpec>& about_specs() {
  static const std::vector<ParamSpec> specs = {
      {.name = "protocol",
       .type = ParamType::kInt,
       .help = "of these messages",
       .required = true,
       .min = 1,
       .max = 1},
      {.name = "what", .help = "what comes", .required = true, .choices = {"adapter", "model"}},
      {.name = "name", .default_value = "", .help = "of the adapter"},
      {.name = "as_default",
       .type = ParamType::kBool,
       .default_value = false,
       .help = "requests that name no adapter mean this one"},
      {.name = "base", .default_value = "", .help = "weights_id of the model that the adapter sits on"},
      {.name = "facts",
       .type = ParamType::kJson,
       .help = "model_facts of the trainer's model",
       .required = true},
      {.name = "adapter_config", .type = ParamType::kJson, .help = "as PEFT writes it"},
      {.name = "file_bytes",
       .type = ParamType::kInt,
       .help = "of the safetensors file",
       .required = true,
       .min = 8},
      {.name = "bucket_bytes",
       .type = ParamType::kInt,
       .help = "of every bucket but the last",
       .required = true,
       .min = 8}};
  return specs;
}

inline Json error_reply(const Error& error) {
  return {{"status", "error"}, {"kind", error_kind_name(error.kind())}, {"message", error.what()}};
}

/// The error that a reply reports.
inline Error error_of(const Json& reply) {
  const auto text = [&](const char* key) {
    const auto found = reply.find(key);
    return found != reply.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  for (const ErrorKind kind : {ErrorKind::kInvalidArgument, ErrorKind::kNotFound, ErrorKind::kExhausted,
                               ErrorKind::kConflict, ErrorKind::kInternal}) {
    if (text("kind") == error_kind_name(kind)) return Error(kind, text("message"));
  }
  return unavailable(text("message"));
}

}  // namespace twinkle
