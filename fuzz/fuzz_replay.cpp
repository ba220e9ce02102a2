// deps: serve
// A server's start over a log of any records: as its own, made of small numbers (an even first byte), or as
// texts and bytes with 0xFF between them. It refuses the log as damaged; or it carries out what is left,
// writes the log anew where the second bit of the first byte says so, keeps the results that the log has, and
// starts again over what it wrote.
#include <map>
#include <vector>

#include "fuzz/serve_fuzzing.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::require;

constexpr const char* kOwner = "ann";
constexpr int kNumModels = 2;

std::string model_name(int index) { return "s:train:" + std::to_string(index % kNumModels); }

// Samplers and models are those of the store, numbers are small, so that records meet.
Operation operation_of(fuzz::Pieces& input) {
  Operation op{.owner = kOwner, .target = model_name(input.byte())};
  op.kind = static_cast<OpKind>(input.byte() % 8);
  op.id = 1 + input.byte() % 16;
  op.request_id = "r" + std::to_string(op.id);
  op.seq = static_cast<int8_t>(input.byte()) % 8;
  const uint8_t flags = input.byte();
  op.forward_only = op.kind == OpKind::kCall && (flags & 1) != 0;
  if ((flags & 6) == 6) op.refused = "it was wrong";
  const bool flag = (flags & 8) != 0;
  switch (op.kind) {
    case OpKind::kCreateModel:
      op.args = {{"rank", 8}, {"seed", flags}, {"attention", true}, {"mlp", true}, {"unembedding", true}};
      break;
    case OpKind::kCall:
      op.body = encode(TrainCall{.data = {{.tokens = {flags}, .targets = {1}}},
                                 .loss = "cross_entropy",
                                 .forward_only = op.forward_only});
      break;
    case OpKind::kOptimStep:
      op.args = {{"learning_rate", 1.0}, {"beta1", 0.9},        {"beta2", 0.95},
                 {"eps", 1e-8},          {"weight_decay", 0.0}, {"grad_clip_norm", 0.0}};
      break;
    case OpKind::kSaveWeights:
      op.args = {{"kind", flag ? "weights" : "sampler_weights"},
                 {"name", std::string(1, static_cast<char>('a' + flags % 3))},
                 {"overwrite", (flags & 16) != 0},
                 {"ttl_seconds", nullptr}};
      break;
    case OpKind::kLoadWeights:
      op.args = {{"path", "tinker://" + model_name(flags) + "/weights/a"}, {"optimizer", flag}};
      break;
    case OpKind::kSaveForSampler:
      op.args = {{"sampler", "s:sample:" + std::to_string(flags % 3)}};
      break;
    case OpKind::kSample:
      op.target = "s:sample:0";
      op.body = encode(SampleCall{.prompt = {flags}, .tenant = kOwner});
      break;
    case OpKind::kUnload:
      op.seq = kUnloadNumber;
      break;
  }
  return op;
}

std::vector<std::string> records_of_numbers(fuzz::Pieces& input) {
  std::vector<std::string> out;
  std::map<std::pair<std::string, int64_t>, uint64_t> numbers;  // a server gives each to one operation
  while (!input.empty() && out.size() < 40) {
    switch (const uint8_t what = input.byte(); what % 8) {
      default: {
        const Operation op = operation_of(input);
        if (numbers.try_emplace({op.target, op.seq}, op.id).first->second == op.id)
          out.push_back(operation_record(op, what % 8 == 5));
        break;
      }
      case 6: {
        const std::string request = "r" + std::to_string(1 + input.byte() % 16);
        const bool failed = (what & 8) != 0;
        out.push_back(result_record(request, {failed ? Result::Kind::kUserError : Result::Kind::kJson,
                                              failed ? "it failed" : R"({"folder":"checkpoints/1"})"}));
        break;
      }
      case 7: {
        const bool unloaded = (what & 8) != 0;
        Json head = {{"record", "snapshot"},
                     {"model", model_name(what >> 4)},
                     {"folder", unloaded ? "" : "snapshots/" + std::to_string(input.byte() % 16)},
                     {"closed", static_cast<int8_t>(input.byte()) % 8}};
        if (unloaded) head["unloaded"] = true;
        out.push_back(join_record(head, ""));
        break;
      }
    }
  }
  return out;
}

std::vector<std::string> records_of_texts(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty() && out.size() < 40) {
    const std::string_view one = text.substr(0, text.find('\xFF'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const size_t end = std::min(one.find('\0'), one.size());
    Json head;
    if (!try_parse_json(one.substr(0, end), head)) {
      out.push_back(join_record(head, one.substr(std::min(end + 1, one.size()))));
    } else if (!one.empty()) {
      out.emplace_back(one);
    }
  }
  return out;
}

// What the log says is done, by request.
std::map<std::string, std::string> results_of(const std::vector<std::string>& records) {
  std::map<std::string, std::string> out;
  std::map<std::string, bool> known;
  for (const auto& record : records) {
    Json head;
    std::string_view body;
    split_record(record, head, body);
    const std::string kind = head.at("record");
    if (kind == "operation" || kind == "done") known[head.at("request")] = true;
    if (kind == "result" && known.contains(head.at("request"))) out[head.at("request")] = body;
  }
  return out;
}

struct Server {
  Store store;
  Core core;
  Server(const std::string& dir, bool rewrites)
      : store(dir + "/store.db"),
        core({.data_dir = dir,
              .gap_wait = std::chrono::milliseconds(0),
              .log_bytes = rewrites ? 0 : 1 << 20,
              .world = {.clocks = {.wall = [] { return 1e9; }}, .disk = fuzz::disk_in_memory()}},
             store) {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Pieces input(data, size);
  const uint8_t kind = input.byte();
  const bool numbers = (kind & 1) == 0, rewrites = (kind & 2) != 0;
  const auto records = numbers ? records_of_numbers(input) : records_of_texts(input.rest());
  const std::string dir = fuzz::empty_folder("data");
  {
    Store store(dir + "/store.db");
    store.put(Session{.id = "s", .owner = kOwner});
    for (int i = 0; i < kNumModels; ++i) {
      store.put(ModelEntry{.id = model_name(i), .session = "s", .owner = kOwner, .shape = {.rank = 8}});
    }
    store.put(SamplerEntry{.id = "s:sample:0", .session = "s", .owner = kOwner});
    Log log(dir + "/log", [](std::string_view) {}, fuzz::disk_in_memory());
    for (const auto& record : records) log.append(record, nullptr);
    log.flush();
  }
  std::unique_ptr<Server> server;
  const bool opens = fuzz::is_taken([&] { server = std::make_unique<Server>(dir, rewrites); },
                                    {ErrorKind::kUnavailable, ErrorKind::kInvalidArgument});
  require(opens || !numbers);
  if (!opens) return 0;
  server->core.start(std::make_unique<FakeEngine>());
  server.reset();  // carries out one turn, and snapshots
  server = std::make_unique<Server>(dir, rewrites);
  server->core.start(std::make_unique<FakeEngine>());
  if (!numbers) return 0;
  for (const auto& [request, bytes] : results_of(records)) {
    const Core::Outcome outcome = fuzz::outcome_of(server->core, request, kOwner);
    require(outcome.state == Core::Outcome::State::kDone && outcome.result->bytes == bytes);
  }
  return 0;
}
