// `twinkle-server keys`.
#include <chrono>
#include <ctime>

#include "twinkle/cli/output.h"
#include "twinkle/cli/server/launch_options.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/suggest.h"
#include "twinkle/serve/keys.h"

namespace twinkle::cli {
namespace {

using serve::KeyEntry;
using serve::Keys;

double clock_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<ArgGroup> keys_groups() {
  ArgSpec scopes = arg("scopes", ParamType::kStringList, Json({"read", "train", "sample", "admin"}),
                       "What it may do. read: look; train: also models and checkpoints; sample: samplers; "
                       "admin: /metrics and everybody's state.");
  ArgSpec rate = arg("requests_per_second", ParamType::kFloat, 0.0, "Requests a second.");
  rate.param.min = 0;
  ArgSpec owner = arg("owner_of", ParamType::kString, nullptr,
                      "Name of another key: this one comes from the same owner and sees the same things.");
  ArgSpec days = arg("expires_days", ParamType::kFloat, nullptr, "It is valid for so long.");
  days.param.min = 0;
  days.param.max = 36500;
  ArgSpec grace = arg("grace_seconds", ParamType::kFloat, 0.0, "rotate: how long the old key stays valid.");
  grace.param.min = 0;
  ArgGroup group{"KeysArgs", "Keys", {}};
  ArgSpec action = arg("action", ParamType::kString, "list", "add, list, change, rotate or revoke.");
  group.args = {
      action,
      arg("name", ParamType::kString, nullptr, "The key's name (or id)."),
      data_dir_option(),
      scopes,
      owner,
      days,
      grace,
      whole_number("priority", 1, 1, 100,
                   "Its share of the training passes when several owners want them, to others' numbers."),
      arg("json", ParamType::kBool, false, "Print JSON.")};
  ArgGroup limits{"KeyLimitArgs", "Limits (0: what launch says)", {}};
  limits.args = {rate, whole_number("bytes_in_flight", 0, 0, 1e15, "Bytes of bodies under way."),
                 whole_number("models", 0, 0, 1e9, "Models in training."),
                 whole_number("checkpoint_bytes", 0, 0, 1e18, "Bytes of checkpoints."),
                 whole_number("tokens_per_minute", 0, 0, 1e15, "Tokens: trained, prompts and sampled.")};
  return {group, limits};
}

std::string name_of(const ParsedArgs& args) {
  if (!args.has("name"))
    throw invalid_argument("[keys] '" + args.get_string("action") + "' needs the key's name");
  return args.get_string("name");
}

// Options that were given, over what the key has.
void read_entry(const ParsedArgs& args, KeyEntry& entry) {
  const auto given = [&](const char* name) { return args.given(name); };
  if (given("scopes")) entry.scopes = serve::Scopes::parse(args.get_strings("scopes"));
  if (given("requests_per_second")) entry.limits.requests_per_second = args.get_float("requests_per_second");
  if (given("bytes_in_flight")) entry.limits.bytes_in_flight = args.get_int("bytes_in_flight");
  if (given("models")) entry.limits.models = args.get_int("models");
  if (given("checkpoint_bytes")) entry.limits.checkpoint_bytes = args.get_int("checkpoint_bytes");
  if (given("tokens_per_minute")) entry.limits.tokens_per_minute = args.get_int("tokens_per_minute");
  if (given("priority")) entry.priority = args.get_int("priority");
  if (args.has("expires_days")) entry.expires = clock_now() + args.get_float("expires_days") * 86400;
}

KeyEntry entry_of(const Keys& keys, const std::string& name) {
  for (const auto& entry : keys.list()) {
    if ((entry.name == name || entry.id == name) && (!entry.expires || *entry.expires > clock_now()))
      return entry;
  }
  throw not_found("[keys] there is no valid key with the name '" + name + "'");
}

void show(bool json, const std::string& name, const std::string& key) {
  if (json) {
    write_json({{"name", name}, {"api_key", key}});
  } else {
    write_out(key + "\n");
    write_error("this is shown once; only a hash of it is kept\n");
  }
}

std::string limits_text(const serve::KeyLimits& limits) {
  std::string out;
  const auto say = [&](auto value, const char* unit) {
    if (value <= 0) return;
    char text[64];
    std::snprintf(text, sizeof(text), "%.15g %s", static_cast<double>(value), unit);
    out += (out.empty() ? "" : ", ") + std::string(text);
  };
  say(limits.requests_per_second, "requests/s");
  say(limits.bytes_in_flight, "bytes in flight");
  say(limits.models, "models");
  say(limits.checkpoint_bytes, "bytes of checkpoints");
  say(limits.tokens_per_minute, "tokens/min");
  return out.empty() ? "-" : out;
}

std::string time_text(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

void list(const Keys& keys, bool json) {
  for (const auto& entry : keys.list()) {
    if (json) {
      write_json(to_json(entry));
      continue;
    }
    std::string scopes;
    for (const auto& name : entry.scopes.names()) scopes += (scopes.empty() ? "" : ",") + name;
    std::string until;
    if (entry.expires) {
      const bool over = *entry.expires <= clock_now();
      until = (entry.revoked ? "  revoked " : over ? "  expired " : "  expires ") + time_text(*entry.expires);
    }
    write_out(entry.name + "  " + entry.id + "  " + scopes + "  " + limits_text(entry.limits) +
              "  priority " + std::to_string(entry.priority) + until + "\n");
  }
}

int keys(const ParsedArgs& args) {
  static const std::vector<std::string> actions = {"add", "list", "change", "rotate", "revoke"};
  const std::string action = args.get_string("action"), folder = args.get_string("data_dir");
  const bool json = args.get_bool("json");
  if (std::ranges::find(actions, action) == actions.end())
    throw invalid_argument("[keys] unknown action '" + action + "'" + did_you_mean(action, actions));
  if (action != "add" && !file_exists(folder + "/store.db"))
    throw not_found("[keys] there are no keys in '" + folder +
                    "'; say with --data-dir where the server's are");
  make_directories(folder);
  Keys keys(folder + "/store.db");
  if (action == "list") {
    list(keys, json);
  } else if (action == "add") {
    KeyEntry entry{.name = name_of(args)};
    read_entry(args, entry);
    if (args.has("owner_of")) entry.owner = entry_of(keys, args.get_string("owner_of")).owner;
    show(json, entry.name, keys.add(entry, clock_now()));
  } else if (action == "change") {
    keys.change(name_of(args), [&](KeyEntry& entry) { read_entry(args, entry); }, clock_now());
  } else if (action == "rotate") {
    show(json, name_of(args), keys.rotate(name_of(args), args.get_float("grace_seconds"), clock_now()));
  } else {
    keys.revoke(name_of(args), clock_now());
  }
  return 0;
}

const AddServerCommand add_keys({
    .name = "keys",
    .summary = "Add, list, change, rotate and revoke keys",
    .usage = "add|list|change|rotate|revoke [NAME] [options]",
    .description = "Works on the data folder, also while a server runs on it: the server follows within a "
                   "second. A key is "
                   "shown once. For example: twinkle-server keys add ann --scopes train,sample --models 3",
    .positionals = {"action", "name"},
    .groups = keys_groups,
    .run = keys,
    .order = 40,
});

}  // namespace
}  // namespace twinkle::cli
