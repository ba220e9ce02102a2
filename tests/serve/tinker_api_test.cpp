// Requests to the Tinker API without a network: what it answers when the disk is full or does not answer, and
// what a session's end means.
#include "twinkle/serve/tinker_api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/serve/fake_engine.h"
#include "tests/temp_dir.h"
#include "tests/thrown.h"

namespace twinkle::serve {
namespace {

constexpr const char* kAnn = "ann";

// A server without its sockets.
struct Api {
  explicit Api(const std::string& dir, Disk disk = {}, TinkerOptions options = {},
               CoreOptions core_options = {.gap_wait = std::chrono::milliseconds(30)})
      : store(made(dir) + "/store.db"), keys(dir + "/store.db"), credentials(store, keys) {
    options.model_names = {"base"};
    options.data_dir = dir;
    core_options.data_dir = dir;
    core_options.world.disk = std::move(disk);
    core = std::make_unique<Core>(core_options, store);
    core->start(std::make_unique<FakeEngine>());
    sessions = std::make_unique<SessionKeeper>(*core, store, 0);
    api = std::make_unique<TinkerApi>(*core, store, credentials, admission, *sessions, options,
                                      [this](std::chrono::milliseconds delay, std::function<void()> fn) {
                                        run_later(delay, std::move(fn));
                                      });
  }
  ~Api() {
    core.reset();
    over = true;
    for (bool any = true; any;) {
      std::vector<std::thread> running;
      {
        const std::lock_guard lock(mutex);
        running.swap(timers);
      }
      any = !running.empty();
      for (auto& timer : running) timer.join();
    }
  }
  void run_later(std::chrono::milliseconds delay, std::function<void()> fn) {
    const std::lock_guard lock(mutex);
    timers.emplace_back([this, until = std::chrono::steady_clock::now() + delay, fn = std::move(fn)] {
      while (!over && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!over) fn();
    });
  }
  static const std::string& made(const std::string& dir) {
    make_directories(dir);
    return dir;
  }

  HttpReply request(const std::string& method, const std::string& route, const Json& body,
                    const std::string& owner = kAnn) {
    auto promise = std::make_shared<std::promise<HttpReply>>();
    auto done = promise->get_future();
    const HttpRequest request{.method = method,
                              .target = "/api/v1/" + route,
                              .headers = {{"Host", "here:1"}},
                              .body = body.is_null() ? "" : body.dump()};
    EXPECT_EQ(api->refusal(request), 0) << route;
    const KeyEntry key{.id = "key-" + owner, .owner = owner, .limits = limits};
    api->handle(request, key, [promise](HttpReply reply) { promise->set_value(std::move(reply)); });
    return done.get();
  }
  Json post(const std::string& route, const Json& body, int status = 200, const std::string& owner = kAnn) {
    const HttpReply reply = request("POST", route, body, owner);
    EXPECT_EQ(reply.status, status) << route << ": " << reply.body;
    return reply.body.empty() ? Json() : parse_json(reply.body, "reply");
  }
  // Again for as long as the disk takes too long, as its client is told.
  Json post_until_taken(const std::string& route, const Json& body) {
    HttpReply reply = request("POST", route, body);
    for (int tries = 0; tries < 100 && reply.status == 503; ++tries) reply = request("POST", route, body);
    EXPECT_EQ(reply.status, 200) << route << ": " << reply.body;
    return parse_json(reply.body, "reply");
  }
  Json result(const Json& accepted) {
    return post("retrieve_future", {{"request_id", accepted.at("request_id")}});
  }

  std::string session() { return post("create_session", Json::object()).at("session_id"); }
  Json create(const std::string& session, int64_t number) {
    return post("create_model", {{"session_id", session},
                                 {"model_seq_id", number},
                                 {"base_model", "base"},
                                 {"lora_config", {{"rank", 8}, {"seed", 100}}}});
  }
  std::string model(const std::string& session) {
    const Json accepted = create(session, 0);
    result(accepted);
    return accepted.at("model_id");
  }

  Store store;
  Keys keys;
  Credentials credentials;
  KeyLimits limits;  // of every key
  Admission admission{{}, 1 << 20, [] { return 0.0; }};
  std::unique_ptr<SessionKeeper> sessions;
  std::unique_ptr<Core> core;
  std::unique_ptr<TinkerApi> api;
  std::atomic<bool> over{false};
  std::mutex mutex;
  std::vector<std::thread> timers;
};

TEST(TinkerApi, TellsThatTheDiskIsFull) {
  const test::TempDir dir;
  std::atomic<bool> full{false};
  Disk disk;
  disk.write = [&full, real = disk.write](int fd, const char* data, size_t size, int64_t offset) -> long {
    if (!full) return real(fd, data, size, offset);
    errno = ENOSPC;
    return -1;
  };
  Api api(dir / "data", disk);
  const std::string model = api.model(api.session());
  const Json step = {{"model_id", model}, {"seq_id", 1}};
  full = true;
  EXPECT_HAS(api.post("optim_step", step, 507).dump(), "the server's disk is full");
  full = false;
  EXPECT_HAS(api.result(api.post("optim_step", step)).dump(), "nothing has been accumulated");
}

// What has no number comes behind all that have one, and is not taken for the unloading, which is behind
// that.
TEST(TinkerApi, NumbersEndBeforeThatOfTheUnloading) {
  const test::TempDir dir;
  Api api(dir / "data");
  const std::string model = api.model(api.session());
  constexpr int64_t kMost = int64_t{1} << 61;
  EXPECT_HAS(api.post("optim_step", {{"model_id", model}, {"seq_id", kMost + 1}}, 400).dump(),
             "must be a whole number");
  for (const Json& step : {Json{{"model_id", model}, {"seq_id", kMost}}, Json{{"model_id", model}}})
    EXPECT_HAS(api.result(api.post("optim_step", step)).dump(), "nothing has been accumulated");
  EXPECT_EQ(api.result(api.post("unload_model", {{"model_id", model}})).at("model_id"), model);
  EXPECT_HAS(api.result(api.post("optim_step", {{"model_id", model}})).dump(), "unloaded");
}

TEST(TinkerApi, AModelThatWasUnloadedMakesRoomForAnother) {
  const test::TempDir dir;
  Api api(dir / "data");
  api.limits.models = 1;
  const std::string session = api.session(), model = api.model(session);
  EXPECT_HAS(api.result(api.create(session, 1)).dump(), "may have 1 models in training");
  api.result(api.post("unload_model", {{"model_id", model}}));
  EXPECT_EQ(api.result(api.create(session, 2)).at("model_id"), session + ":train:2");
  EXPECT_HAS(api.result(api.create(session, 3)).dump(), "may have 1 models in training");
}

TEST(TinkerApi, WaitsForTheDiskNoLongerThanADeadline) {
  const test::TempDir dir;
  std::atomic<bool> hangs{false};
  Disk disk;
  disk.sync = [&hangs, real = disk.sync](int fd) {
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return real(fd);
  };
  Api api(dir / "data", disk, {.ack_deadline = std::chrono::milliseconds(100)});
  const Json made = api.post_until_taken("create_model", {{"session_id", api.session()},
                                                          {"model_seq_id", 0},
                                                          {"base_model", "base"},
                                                          {"lora_config", {{"rank", 8}}}});
  api.result(made);
  const Json step = {{"model_id", made.at("model_id")}, {"seq_id", 1}};
  hangs = true;
  for (int i = 0; i < 2; ++i)
    EXPECT_HAS(api.post("optim_step", step, 503).dump(), "takes too long to answer; send the same request");
  hangs = false;
  const Json first = api.post_until_taken("optim_step", step), again = api.post("optim_step", step);
  EXPECT_EQ(first, again);
}

// A client asks again at once after 408, and is silent about it.
TEST(TinkerApi, APollEndsWithTheStateOfTheQueueOrWithTheResult) {
  const test::TempDir dir;
  Api api(dir / "data", {}, {.poll = std::chrono::milliseconds(100)},
          {.gap_wait = std::chrono::milliseconds(450)});
  const std::string model = api.model(api.session());
  const Json behind_a_gap = api.post("optim_step", {{"model_id", model}, {"seq_id", 2}});
  const Json ask = {{"request_id", behind_a_gap.at("request_id")}};
  int polls = 0;
  HttpReply reply;
  const auto begin = std::chrono::steady_clock::now();
  while ((reply = api.request("POST", "retrieve_future", ask)).status == 408) {
    ++polls;
    EXPECT_EQ(parse_json(reply.body, "reply"),
              (Json{{"type", "try_again"}, {"request_id", ask.at("request_id")}, {"queue_state", "active"}}));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(polls, 1);
  EXPECT_LE(polls, static_cast<int>(took.count() / 0.1)) << "a poll waits its whole time";
  EXPECT_EQ(reply.status, 200);
  EXPECT_HAS(reply.body, "nothing has been accumulated");
  // What is done is told at once, to as many as ask, as often as they ask.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(api.request("POST", "retrieve_future", ask).body, reply.body);
}

TEST(TinkerApi, AFinishedSessionTakesNothingNew) {
  const test::TempDir dir;
  Api api(dir / "data");
  const std::string session = api.session(), model = api.model(session);
  const Json saved = api.result(api.post(
      "save_weights_for_sampler", {{"model_id", model}, {"seq_id", 1}, {"sampling_session_seq_id", 0}}));
  const std::string sampler = saved.at("sampling_session_id");
  const std::string folder = dir / ("data/" + api.store.sampler(sampler, kAnn)->folder);
  EXPECT_TRUE(is_directory(folder));
  api.post("session_heartbeat", {{"session_id", session}});
  // Another's word ends nothing.
  api.post("sessions/" + session + "/finish", {{"reason", {{"type", "errored"}}}}, 204, "bob");
  api.post("session_heartbeat", {{"session_id", session}});
  api.post("sessions/" + session + "/finish", {{"reason", {{"type", "interrupted"}}}, {"detail", nullptr}},
           204);
  api.post("sessions/" + session + "/finish", {{"reason", {{"type", "success"}}}}, 204);
  EXPECT_EQ(api.store.session(session, kAnn)->finished, "interrupted");
  api.post("session_heartbeat", {{"session_id", session}}, 410);
  EXPECT_HAS(api.result(api.post("optim_step", {{"model_id", model}, {"seq_id", 2}})).dump(), "was finished");
  EXPECT_HAS(api.post("create_sampling_session",
                      {{"session_id", session}, {"sampling_session_seq_id", 7}, {"base_model", "base"}}, 400)
                 .dump(),
             "was finished");
  for (int i = 0; i < 100 && is_directory(folder); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_directory(folder));
  EXPECT_HAS(api.result(api.post("asample", {{"sampling_session_id", sampler},
                                             {"seq_id", 0},
                                             {"prompt", {{"chunks", {{{"tokens", {1}}}}}}}}))
                 .dump(),
             "was finished");
  // Nor is another reason given once its end is noted.
  EXPECT_EQ(api.sessions->sweep(), std::vector{session});
  EXPECT_HAS(api.result(api.post("optim_step", {{"model_id", model}, {"seq_id", 3}})).dump(), "was finished");
}

TEST(TinkerApi, GivesEachClientOfASamplerItsNumber) {
  const test::TempDir dir;
  std::string sampler;
  {
    Api api(dir / "data");
    sampler =
        api.post("create_sampling_session",
                 {{"session_id", api.session()}, {"sampling_session_seq_id", 0}, {"base_model", "base"}})
            .at("sampling_session_id");
    EXPECT_EQ(api.post("join_sampling_session", {{"sampling_session_id", sampler}}).at("client_counter"), 1);
    EXPECT_EQ(api.post("join_sampling_session", {{"sampling_session_id", sampler}}).at("client_counter"), 2);
    api.post("join_sampling_session", {{"sampling_session_id", sampler}}, 404, "bob");
  }
  Api api(dir / "data");
  EXPECT_EQ(api.post("join_sampling_session", {{"sampling_session_id", sampler}}).at("client_counter"), 3);
}

TEST(TinkerApi, LeavesNothingOfWhatItRefuses) {
  const test::TempDir dir;
  Api api(dir / "data");
  const std::string session = api.session();
  const auto refusal = [&](const std::string& route, Json body) {
    body["session_id"] = session;
    return api.result(api.post(route, body)).dump();
  };
  EXPECT_HAS(
      refusal("create_model", {{"model_seq_id", 5}, {"base_model", "no"}, {"lora_config", {{"rank", 4}}}}),
      "'no' is not here");
  EXPECT_HAS(refusal("create_model", {{"model_seq_id", 6}, {"base_model", "base"}, {"lora_config", 5}}),
             "'lora_config' must be an object");
  EXPECT_HAS(refusal("load_weights", {{"model_seq_id", 7}, {"path", "tinker://nothing/weights/x"}}),
             "there is no checkpoint");
  EXPECT_TRUE(api.store.models_of(kAnn).empty());
  api.post("create_session", {{"display_name", 5}}, 400);
  api.post("sessions/search", {{"display_name", "z"}});
}

TEST(TinkerApi, WhatHasANameKeepsItsWeights) {
  const test::TempDir dir;
  Api api(dir / "data");
  const std::string session = api.session(), model = api.model(session);
  const auto saved = [&](const std::string& of) {
    const Json result =
        api.result(api.post("save_weights", {{"model_id", of}, {"seq_id", 1}, {"path", "x"}}));
    return result.value("path", result.dump());
  };
  const auto copy = [&](const std::string& from, int status) {
    return api
        .post("copy_weights", {{"source_path", from}, {"session_id", session}, {"model_seq_id", 7}}, status)
        .dump();
  };
  const std::string mine = saved(model), other = saved(api.model(api.session()));
  const std::string copied = copy(mine, 200);
  EXPECT_EQ(copy(mine, 200), copied);  // sent again
  EXPECT_HAS(copy(other, 400), "is there already, with other weights");
  // The sampler of the base model stays that.
  const std::string sampler =
      api.post("create_sampling_session",
               {{"session_id", session}, {"sampling_session_seq_id", 0}, {"base_model", "base"}})
          .at("sampling_session_id");
  EXPECT_HAS(api.result(api.post("save_weights_for_sampler",
                                 {{"model_id", model}, {"seq_id", 2}, {"sampling_session_seq_id", 0}}))
                 .dump(),
             "has other weights already");
  EXPECT_EQ(api.store.sampler(sampler, kAnn)->folder, "");
}

TEST(TinkerApi, TellsWhichSamplesAreDone) {
  const test::TempDir dir;
  Json first, cursor;
  std::string sampler;
  const auto sample = [&](Api& api, int64_t seq, const Json& tokens) {
    return api.post("asample", {{"sampling_session_id", sampler},
                                {"seq_id", seq},
                                {"prompt", {{"chunks", {{{"tokens", tokens}}}}}}});
  };
  const auto poll = [&](Api& api, const Json& after, int64_t client, bool at_once) {
    Json body = {
        {"target",
         {{"type", "sampling_session"}, {"sampling_session_id", sampler}, {"cloned_sampler_id", client}}},
        {"prev_cursor", after},
        {"retrieved_request_ids", {"unknown"}}};
    if (at_once) body["timeout"] = 0.0;
    return api.post("retrieve_futures", body);
  };
  {
    Api api(dir / "data", Disk{}, {.poll = std::chrono::milliseconds(300)});
    sampler =
        api.post("create_sampling_session",
                 {{"session_id", api.session()}, {"sampling_session_seq_id", 0}, {"base_model", "base"}})
            .at("sampling_session_id");
    EXPECT_EQ(poll(api, 0, 0, true), (Json{{"completions", Json::array()}, {"cursor", 0}}));
    EXPECT_EQ(poll(api, 0, 0, false),
              (Json{{"completions", Json::array()}, {"cursor", 0}}));  // after a while
    first = sample(api, 0, {1});
    api.result(first);  // done before the next one is
    const Json failing = sample(api, 1, Json::array());
    const Json other = sample(api, 5'000'000'003, {1});  // of the fifth client
    for (const Json& accepted : {failing, other}) api.result(accepted);
    const Json done = poll(api, 0, 0, false);
    ASSERT_EQ(done.at("completions").size(), 2u) << done;
    EXPECT_EQ(done["completions"][0]["request_id"], first["request_id"]);
    EXPECT_EQ(done["completions"][0]["state"], "finished");
    EXPECT_EQ(done["completions"][1]["request_id"], failing["request_id"]);
    EXPECT_EQ(done["completions"][1]["state"], "failed");
    cursor = done.at("cursor");
    EXPECT_EQ(poll(api, cursor, 0, true).at("completions"), Json::array());
    EXPECT_EQ(poll(api, INT64_MAX, 0, true), done) << "nobody was given that cursor";
    const Json of_fifth = poll(api, 0, 5, true).at("completions");
    ASSERT_EQ(of_fifth.size(), 1u);
    EXPECT_EQ(of_fifth[0]["request_id"], other["request_id"]);
    EXPECT_EQ(
        api.request("POST", "retrieve_futures",
                    {{"target", {{"type", "sampling_session"}, {"sampling_session_id", sampler}}}}, "bob")
            .status,
        404);
  }
  // After a restart nobody knows what a client has seen of it: all comes again, behind its cursor.
  Api api(dir / "data");
  EXPECT_EQ(poll(api, cursor, 0, false).at("completions").size(), 2u);
}

TEST(TinkerApi, OpensTheAddressesThatItGaveOut) {
  const test::TempDir dir;
  Api api(dir / "data");
  const std::string model = api.model(api.session());
  const std::string path =
      api.result(api.post("save_weights_external", {{"model_id", model}, {"seq_id", 1}, {"path", "e"}}))
          .at("path");
  EXPECT_TRUE(path.ends_with("/external_weights/e")) << path;
  const std::string folder = dir / ("data/" + api.store.checkpoint(path, kAnn, 0)->folder);
  test::write_text(folder + "/adapter_config.json", "{}");  // the fake engine writes no adapter
  const std::string urls = "training_runs/" + model + "/checkpoints/external_weights/e/external_weights_urls";
  EXPECT_EQ(api.request("GET", urls, nullptr, "bob").status, 404);
  const Json given = parse_json(api.request("GET", urls, nullptr).body, "reply");
  const std::string url = given.at("urls").at("adapter_config.json");
  ASSERT_TRUE(url.starts_with("http://here:1/api/v1/download/")) << url;
  const auto fetch = [&](const std::string& address) {
    return api.api->download(
        {.method = "GET", .target = address.substr(std::string("http://here:1").size())});
  };
  const HttpReply reply = fetch(url);
  ASSERT_EQ(reply.status, 200);
  char text[8];
  EXPECT_EQ(std::string(text, reply.source->read(text, sizeof(text))), "{}");
  EXPECT_EQ(fetch(url + "x").status, 403);
  std::string changed = url;
  changed[60] = changed[60] == 'A' ? 'B' : 'A';
  EXPECT_EQ(fetch(changed).status, 403);
  const std::string other = "weights.json";
  EXPECT_EQ(fetch(url.substr(0, url.rfind('/') + 1) + other).status, 403);
  // A token of a key opens no file.
  const std::string jwt = api.post("auth/token", Json::object()).at("jwt");
  EXPECT_EQ(fetch("http://here:1/api/v1/download/" + jwt + "/adapter_config.json").status, 403);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(fetch(url).status, 404);
}

TEST(TinkerApi, GivesOutAddressesUnderWhichItIsReached) {
  const test::TempDir dir;
  TinkerOptions options;
  options.scheme = "https";
  options.path_prefix = "/team";
  Api api(dir / "data", Disk{}, options);
  const std::string model = api.model(api.session());
  api.result(api.post("save_weights", {{"model_id", model}, {"seq_id", 1}, {"path", "x"}}));
  const HttpReply reply =
      api.request("GET", "training_runs/" + model + "/checkpoints/weights/x/archive", nullptr);
  EXPECT_NE((reply.body + (reply.headers.empty() ? "" : reply.headers[0].second))
                .find("https://here:1/team/api/v1/download/"),
            std::string::npos)
      << reply.status << reply.body;
}

TEST(TinkerApi, RefusesFlagsThatNoClientKnows) {
  EXPECT_EQ(client_flags({{"pjwt_auth_enabled", true}}).at("pjwt_auth_enabled"), true);
  EXPECT_HAS(test::thrown([] { client_flags({{"pjwt_auth_enable", true}}); }),
             "did you mean 'pjwt_auth_enabled'");
  EXPECT_HAS(test::thrown([] { client_flags({{"pjwt_auth_enabled", 1}}); }), "must be true or false");
  EXPECT_HAS(test::thrown([] { client_flags({{"fwdbwd_max_chunk_len", nullptr}}); }),
             "must be a whole number");
}

}  // namespace
}  // namespace twinkle::serve
