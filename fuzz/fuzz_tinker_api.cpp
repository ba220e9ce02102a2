// deps: serve
// Any bytes as a request to the Tinker API without its sockets: the first byte picks the route, the second
// how the body is packed, the rest is the body, or the query of a GET. There is one reply, which is the
// client's mistake or a result and never an error of the server; a request that was refused has made nothing;
// what was accepted gets its result; and an operation with a number is the same when it is sent again.
#include "fuzz/serve_fuzzing.h"
#include "twinkle/serve/tinker_api.h"
#include "twinkle/serve/tinker_wire.h"

namespace {

using namespace twinkle;
using namespace twinkle::serve;
using fuzz::require;

constexpr const char* kOwner = "ann";

struct Route {
  const char *method, *path;
  bool spends = false;  // what the next requests need may be gone
};
constexpr Route kRoutes[] = {{"POST", "forward_backward"},
                             {"POST", "forward"},
                             {"POST", "asample"},
                             {"POST", "create_model"},
                             {"POST", "optim_step"},
                             {"POST", "create_session"},
                             {"POST", "session_heartbeat"},
                             {"POST", "sessions/s/finish", true},
                             {"POST", "unload_model", true},
                             {"POST", "telemetry"},
                             {"POST", "client/config"},
                             {"POST", "client/dynamic_config"},
                             {"POST", "get_info"},
                             {"POST", "save_weights"},
                             {"POST", "save_weights_for_sampler"},
                             {"POST", "save_weights_external"},
                             {"POST", "load_weights", true},
                             {"POST", "weights_info"},
                             {"POST", "create_sampling_session"},
                             {"POST", "retrieve_future"},
                             {"POST", "retrieve_futures"},
                             {"POST", "cancel_future"},
                             {"POST", "join_sampling_session"},
                             {"POST", "create_custom_loss"},
                             {"POST", "auth/token"},
                             {"POST", "sessions/search"},
                             {"PUT", "sessions/s/project"},
                             {"PUT", "training_runs/s:train:0/checkpoints/weights/w/ttl"},
                             {"DELETE", "training_runs/s:train:0/checkpoints/weights/w", true},
                             {"GET", "training_runs"},
                             {"GET", "training_runs/s:train:0"},
                             {"GET", "training_runs/s:train:0/checkpoints"},
                             {"GET", "training_runs/s:train:0/checkpoints/weights/w/archive"},
                             {"GET", "checkpoints"},
                             {"GET", "sessions"},
                             {"GET", "sessions/s"},
                             {"GET", "samplers/s:sample:0"},
                             {"GET", "audit"},
                             {"GET", "billing/usage/events"},
                             {"GET", "billing/usage/checkpoints/current"}};

struct Api {
  Api()
      : dir(fuzz::empty_folder("api")),
        store(dir + "/store.db"),
        keys(dir + "/store.db"),
        credentials(store, keys) {
    core = std::make_unique<Core>(CoreOptions{.data_dir = dir,
                                              .gap_wait = std::chrono::milliseconds(0),
                                              .world = {.disk = fuzz::disk_in_memory()}},
                                  store);
    core->start(std::make_unique<FakeEngine>());
    sessions = std::make_unique<SessionKeeper>(*core, store, 0);
    const TinkerOptions options{
        .model_names = {"base"}, .poll = kPoll, .data_dir = dir, .public_url = "http://x"};
    api = std::make_unique<TinkerApi>(*core, store, credentials, admission, *sessions, options,
                                      [this](std::chrono::milliseconds delay, std::function<void()> fn) {
                                        if (delay <= kPoll) polls.push_back(std::move(fn));
                                      });
    store.put(Session{.id = "s", .owner = kOwner});
    store.put(SamplerEntry{.id = "s:sample:0", .session = "s", .owner = kOwner, .base_model = "base"});
    done("create_model",
         R"({"session_id":"s","model_seq_id":0,"base_model":"base","lora_config":{"rank":8,"seed":100}})");
    done("save_weights", R"({"model_id":"s:train:0","path":"w"})");
  }
  ~Api() {
    polls.clear();
    core.reset();
  }
  void done(const char* route, const char* body) {
    const HttpReply reply = send({.method = "POST", .target = std::string("/api/v1/") + route, .body = body});
    require(!result(reply).failed());
  }
  HttpReply send(const HttpRequest& request) {
    require(api->refusal(request) == 0);
    const auto box = std::make_shared<fuzz::Mailbox<HttpReply>>();
    api->handle(request, {.id = "key-ann", .owner = kOwner},
                [box](HttpReply reply) { box->put(std::move(reply)); });
    // The time of those that wait for a result is over.
    for (const auto& fn : std::exchange(polls, {})) fn();
    return box->wait();
  }
  // Of what was accepted.
  Result result(const HttpReply& reply) {
    const std::string id = parse_json(reply.body, "reply").at("request_id");
    const Core::Outcome outcome = fuzz::outcome_of(*core, id, kOwner);
    require(outcome.state == Core::Outcome::State::kDone);
    return *outcome.result;
  }
  std::vector<size_t> what_there_is() const {
    const double now = core->now();
    return {store.sessions_of(kOwner).size(), store.models_of(kOwner).size(),
            store.samplers_of(kOwner, "").size(), store.checkpoints_of(kOwner, "", now).size(),
            static_cast<size_t>(core->counts().results)};
  }

  static constexpr std::chrono::milliseconds kPoll{100};
  std::string dir;
  Store store;
  Keys keys;
  Credentials credentials;
  Admission admission{{}, 1 << 20, [] { return 0.0; }};
  std::unique_ptr<SessionKeeper> sessions;
  std::vector<std::function<void()>> polls;  // of the thread that sends
  std::unique_ptr<Core> core;
  std::unique_ptr<TinkerApi> api;
};

// The client's number of an operation that was accepted; 0: none.
int64_t number_of(const HttpRequest& request) {
  const bool proto = request.header("content-type") == "application/x-protobuf";
  if (proto) return std::max<int64_t>(tinker::call_head(std::string_view(request.body)).seq_id, 0);
  const Json body = parse_json(request.body, "fuzz");
  for (const char* key : {"model_seq_id", "custom_loss_seq_id"}) {
    if (tinker::find(body, key) != nullptr) return 1;
  }
  return std::max<int64_t>(tinker::seq_of(body), 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto api = std::make_unique<Api>();
  static int uses = 0;
  if (!api || ++uses > 2000) {
    api.reset();
    api = std::make_unique<Api>();
    uses = 0;
  }
  fuzz::Pieces input(data, size);
  const Route& route = kRoutes[input.byte() % std::size(kRoutes)];
  const uint8_t packed = input.byte();
  HttpRequest request{.method = route.method, .target = std::string("/api/v1/") + route.path};
  const bool proto = (packed & 1) != 0, zstd = (packed & 2) != 0;
  if (proto) request.headers.emplace_back("Content-Type", "application/x-protobuf");
  if (zstd) request.headers.emplace_back("Content-Encoding", "zstd");
  if ((packed & 4) != 0) request.headers.emplace_back("Accept", "application/x-protobuf");
  if (request.method == "GET") {
    request.target += "?" + std::string(input.rest());
  } else {
    request.body = input.rest();
  }
  const auto before = api->what_there_is();
  const HttpReply reply = api->send(request);
  const bool is_future = std::string_view(route.path) == "retrieve_future";
  const bool json = reply.content_type == "application/json" && !reply.body.empty();
  const Json body = json ? parse_json(reply.body, "reply") : Json::object();
  if (reply.status >= 500) std::fprintf(stderr, "%d %s\n", reply.status, reply.body.c_str());
  require(reply.status == 200 || reply.status == 204 || (reply.status >= 400 && reply.status < 500));
  if (reply.status >= 400) require(api->what_there_is() == before);
  bool spent = route.spends && reply.status < 400;
  if (reply.status == 200 && body.contains("request_id") && !is_future) {
    const Result result = api->result(reply);
    if (result.kind == Result::Kind::kServerError) std::fprintf(stderr, "%s\n", result.bytes.c_str());
    require(result.kind != Result::Kind::kServerError);
    const int64_t number = zstd ? 0 : number_of(request);
    if (number > 0)
      require(parse_json(api->send(request).body, "reply").at("request_id") == body.at("request_id"));
    spent |= zstd || number > 1000;  // those below it come too late
  }
  if (spent) api.reset();
  return 0;
}
