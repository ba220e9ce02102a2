// The Tinker API: a thin layer over Core and Store. It parses, looks whether what is named belongs to who
// asks, submits, and renders results. What is wrong with the content of an operation fails through its
// future, never at submission: a client that sent one of several chunks would wait for ever.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "twinkle/serve/core.h"
#include "twinkle/serve/http.h"

namespace twinkle::serve {

struct TinkerOptions {
  std::vector<std::string> model_names;  // of the base model; the first is the one that is told
  std::string tokenizer_id;  // folder that a client on this machine can load, "" when there is none
  std::chrono::milliseconds poll{25000};  // how long retrieve_future waits
};

class TinkerApi {
 public:
  /// `after` runs a function later (HttpServer::after).
  using After = std::function<void(std::chrono::milliseconds, std::function<void()>)>;
  TinkerApi(Core& core, Store& store, TinkerOptions options, After after);

  /// Whether there is such a route, and for this method: 0, else 404 or 405.
  int refusal(const HttpRequest& request) const;
  /// `owner`: whose key it was.
  void handle(const HttpRequest& request, const std::string& owner, HttpServer::Respond respond);

 private:
  struct Call {
    const HttpRequest& request;
    const std::string& owner;
    std::vector<std::string> arguments;  // the parts of the path that vary
    HttpServer::Respond respond;
    Json body = Json::object();
    std::string_view proto;  // instead of `body`
  };
  using Route = void (TinkerApi::*)(Call&);
  struct Found {
    Route route = nullptr;
    std::vector<std::string> arguments;
    bool wrong_method = false;
  };
  Found find_route(const HttpRequest& request) const;

  void client_config(Call& call);
  void dynamic_config(Call& call);
  void capabilities(Call& call);
  void create_session(Call& call);
  void session_heartbeat(Call& call);
  void finish_session(Call& call);
  void telemetry(Call& call);
  void create_model(Call& call);
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

  Json run_to_json(const ModelEntry& model) const;
  std::string checkpoint_path(const Call& call) const;
  void training_call(Call& call, const char* json_key);
  void submit(Call& call, Operation op, Json reply = Json::object());
  Operation model_operation(Call& call, OpKind kind);
  bool is_base_model(const std::string& name) const;
  Session need_session(const Call& call);

  Core& core_;
  Store& store_;
  TinkerOptions options_;
  After after_;
};

}  // namespace twinkle::serve
