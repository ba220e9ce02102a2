// The Tinker API: a thin layer over Core and Store. It parses, looks whether what is named belongs to who
// asks, submits, and renders results. What is wrong with the content of an operation fails through its
// future, never at submission: a client that sent one of several chunks would wait for ever.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "twinkle/serve/ack_waits.h"
#include "twinkle/serve/admission.h"
#include "twinkle/serve/core.h"
#include "twinkle/serve/credentials.h"
#include "twinkle/serve/downloads.h"
#include "twinkle/serve/http.h"
#include "twinkle/serve/session_keeper.h"

namespace twinkle::serve {

struct TinkerOptions {
  std::vector<std::string> model_names;  // of the base model; the first is the one that is told
  std::string tokenizer_id;  // folder that a client on this machine can load, "" when there is none
  std::chrono::milliseconds poll{25000};          // how long retrieve_future waits
  std::chrono::milliseconds ack_deadline{20000};  // how long a reply waits for the disk
  std::string data_dir;
  std::string public_url;              // under which clients know this server; "": the Host they send
  std::string scheme = "http";         // of addresses with that Host, unless a proxy says otherwise
  std::string path_prefix;             // of them
  double url_seconds = 3600;           // of a download
  double token_seconds = 3600;         // of what a key was exchanged for
  Json client_flags = Json::object();  // beside those of client/config, or instead
};

/// What client/config answers. invalid_argument for a flag that no client knows, or of another type.
Json client_flags(const Json& changes);

class TinkerApi {
 public:
  /// `after` runs a function later (HttpServer::after).
  using After = std::function<void(std::chrono::milliseconds, std::function<void()>)>;
  TinkerApi(Core& core, Store& store, const Credentials& credentials, Admission& admission,
            SessionKeeper& sessions, TinkerOptions options, After after);

  /// Whether there is such a route, and for this method: 0, else 404 or 405.
  int refusal(const HttpRequest& request) const;
  /// Its path with '*' for what varies; "" when there is no such route.
  std::string_view route_name(const HttpRequest& request) const;
  /// Whether handle() waits for the file of the store.
  bool waits_for_store(const HttpRequest& request) const { return find_route(request).store_file; }
  struct RouteName {
    std::string_view method, path;  // '*' stands for one part that varies
  };
  /// All there are.
  static std::vector<RouteName> routes();
  /// What a key must have for it.
  Scope needed_scope(const HttpRequest& request) const;
  void handle(const HttpRequest& request, const KeyEntry& key, HttpServer::Respond respond);
  /// Whether its own signature opens a path, so that it needs no key; then what it answers.
  static bool is_download(std::string_view path) { return Downloads::has(path); }
  HttpReply download(const HttpRequest& request) const;

 private:
  struct Call {
    const HttpRequest& request;
    const KeyEntry& key;
    const std::string& owner;
    std::vector<std::string> arguments;  // the parts of the path that vary
    HttpServer::Respond respond;
    Json body = Json::object();
    std::string_view proto;  // instead of `body`
    std::string note;        // for the client's log
  };
  using Route = void (TinkerApi::*)(Call&);
  struct Found {
    Route route = nullptr;
    std::vector<std::string> arguments;
    bool wrong_method = false;
    std::string_view name = {};
    bool store_file = false;
  };
  struct Entry {
    const char *method, *path;  // '*' in the path stands for one part of it
    Route route;
    bool store_file = false;
  };
  static constexpr bool kStoreFile =
      true;  // it reads or writes that of the store, which the disk may hold up
  Found find_route(const HttpRequest& request) const;
  static std::span<const Entry> main_routes();
  static std::span<const Entry> training_routes();    // tinker_training.cpp
  static std::span<const Entry> checkpoint_routes();  // tinker_checkpoints.cpp
  static std::span<const Entry> sampler_routes();     // tinker_samplers.cpp
  static std::span<const Entry> account_routes();     // tinker_accounts.cpp
  static std::array<std::span<const Entry>, 5> route_tables();

  void client_config(Call& call);
  void dynamic_config(Call& call);
  void capabilities(Call& call);
  void create_session(Call& call);
  void session_heartbeat(Call& call);
  void finish_session(Call& call);
  void telemetry(Call& call);
  void create_model(Call& call);
  void unload_model(Call& call);
  void get_info(Call& call);
  void forward_backward(Call& call);
  void forward(Call& call);
  void optim_step(Call& call);
  void save_weights(Call& call);
  void save_weights_for_sampler(Call& call);
  void load_weights(Call& call);
  void weights_info(Call& call);
  void create_sampling_session(Call& call);
  void get_sampler(Call& call);
  void asample(Call& call);
  void retrieve_future(Call& call);

  void training_runs(Call& call);
  void training_run(Call& call);
  void run_checkpoints(Call& call);
  void all_checkpoints(Call& call);
  void delete_checkpoint(Call& call);
  void set_checkpoint_ttl(Call& call);
  void sessions(Call& call);
  void get_session(Call& call);

  void publish(Call& call);
  void unpublish(Call& call);
  void archive(Call& call);
  void save_weights_external(Call& call);
  void external_urls(Call& call);
  void copy_weights(Call& call);

  void cancel_future(Call& call);
  void retrieve_futures(Call& call);
  void join_sampling_session(Call& call);
  void create_custom_loss(Call& call);

  void auth_token(Call& call);
  void own_key(Call& call);
  void delete_own_key(Call& call);
  void session_project(Call& call);
  void search_sessions(Call& call);
  void trace_export(Call& call);
  void audit(Call& call);
  void usage_events(Call& call);
  void storage_usage(Call& call);

  Json run_to_json(const ModelEntry& model) const;
  std::string checkpoint_path(const Call& call) const;
  void training_call(Call& call, const char* json_key);
  void submit(Call& call, Operation op, Json reply = Json::object());
  Operation model_operation(Call& call, OpKind kind);
  std::string over(const std::string& session, const std::string& owner) const;
  std::string base_url(const HttpRequest& request) const;
  Checkpoint readable_checkpoint(const Call& call) const;
  void note(const Call& call, const char* event, const std::string& path, Json details = Json::object());
  // Limits of a key, told as errors of the operation: waiting does not help (tinker_limits.cpp).
  void check_models(const Call& call) const;
  /// Stores the model unless it is there already; gives the one that is there afterwards.
  ModelEntry put_new(const Call& call, const ModelEntry& model);
  void check_checkpoint_bytes(const Call& call, Operation& op) const;
  bool is_base_model(const std::string& name) const;
  Session need_session(const Call& call);

  Core& core_;
  Store& store_;
  const Credentials& credentials_;
  Admission& admission_;
  SessionKeeper& sessions_;
  TinkerOptions options_;
  After after_;
  AckWaits acks_;
  Downloads downloads_;
  std::mutex making_;  // of models: each is counted before the next is allowed
};

}  // namespace twinkle::serve
