// A whole server in this process, in a world that a seed spoils, and a client of a few tenants who sends, is
// cut off, sends again and goes on after each crash. What it was told must be what a server in a calm world
// tells of the same history.
//
// The seed says what is asked, which faults come and with which call of which part of the disk. The server's
// threads take turns as the machine lets them, so a seed that failed once may need some tries to fail again.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/serve/fake_engine.h"
#include "tests/serve/sim_disk.h"
#include "tests/serve/sim_world.h"
#include "tests/temp_dir.h"
#include "twinkle/serve/server.h"

namespace twinkle::serve {

struct SimOptions {
  uint64_t seed = 1;
  bool calm = false;         // nothing is spoilt
  bool disk_lies = false;    // syncs do nothing, and the power is lost at the end
  std::set<size_t> skipped;  // operations that are not asked for
};

class Simulation {
 public:
  /// What became of a run.
  struct Report {
    std::string wrong;                // what must not be; "" when all is well
    std::vector<std::string> told;    // of each operation
    std::vector<std::string> finals;  // weights and checkpoints at the end
    std::set<size_t> without_effect;  // operations that the server refused for good
    int64_t disk_faults = 0, crashes = 0, power_losses = 0, cut_requests = 0, operations = 0;
  };

  Simulation(const std::string& folder, SimOptions options)
      : options_(std::move(options)), random_(options_.seed), disk_(folder) {
    for (int m = 0; m < kModels; ++m) models_.push_back({.tenant = m % kTenants});
    make_history();
  }

  Report run() {
    try {
      next_life();
      begin();
      carry_on();
      finish();
    } catch (const std::exception& e) {
      report_.wrong = e.what();
    }
    network_.down();
    server_.reset();
    report_.disk_faults = disk_.faults();
    return report_;
  }

 private:
  static constexpr int kTenants = 2, kModels = 3, kRounds = 7, kMostLives = 4;
  struct Wrong : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  enum class Kind { kCall, kForward, kStep, kSave, kSaveForSampler, kSample, kLoad };
  struct Op {
    Kind kind = Kind::kCall;
    size_t model = 0;
    int64_t seq = 0;
    std::vector<int32_t> tokens;
    double learning_rate = 1;
    std::string name;     // of a checkpoint
    int64_t sampler = 0;  // its number
    std::string id;       // once acknowledged
    std::string result;   // once it was told
    bool over = false;    // told, or refused for good
  };
  struct Model {
    int tenant = 0;
    std::string id;
    std::vector<size_t> operations;  // in the order in which they are sent
    size_t sent = 0;
    int64_t last = 0;
  };
  struct Reply : SimReply {
    Json json() const { return body.empty() ? Json() : parse_json(body, "reply"); }
  };

  // The history: what each model's client asks for.

  int64_t number(int64_t below) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(below)); }
  bool one_in(int64_t n) { return number(n) == 0; }

  void make_history() {
    for (size_t m = 0; m < models_.size(); ++m) {
      Model& model = models_[m];
      std::vector<std::string> saved;
      int64_t samplers = 0;
      const auto add = [&](Op op) {
        op.model = m;
        model.operations.push_back(ops_.size());
        ops_.push_back(std::move(op));
      };
      const auto tokens = [&] {
        std::vector<int32_t> out;
        for (int64_t i = 0; i <= number(6); ++i) out.push_back(static_cast<int32_t>(number(50) + 1));
        if (one_in(25)) out[0] = 666;  // which the engine refuses
        return out;
      };
      for (int r = 0; r < kRounds; ++r) {
        const int64_t calls = 1 + number(3);
        for (int64_t c = 0; c < calls; ++c)
          add({.kind = Kind::kCall, .seq = ++model.last, .tokens = tokens()});
        // Chunks of one batch may overtake one another.
        if (calls > 1 && one_in(3)) std::swap(model.operations.back(), *(model.operations.end() - 2));
        if (one_in(5)) {  // the gradients wait for the step meanwhile
          saved.push_back(one_in(2) ? "a" : "b");
          add({.kind = Kind::kSave, .seq = ++model.last, .name = saved.back()});
        }
        if (one_in(3)) add({.kind = Kind::kForward, .seq = ++model.last, .tokens = tokens()});
        const double rates[] = {1, 0.5, 0.25};
        add({.kind = Kind::kStep, .seq = ++model.last, .learning_rate = rates[number(3)]});
        if (one_in(2)) {
          saved.push_back(one_in(2) ? "a" : "b");
          add({.kind = Kind::kSave, .seq = ++model.last, .name = saved.back()});
        }
        if (one_in(4)) {
          add({.kind = Kind::kSaveForSampler,
               .seq = ++model.last,
               .sampler = static_cast<int64_t>(10 * m) + samplers++});
        }
        for (int64_t s = 0; samplers > 0 && s < number(3); ++s) {
          const int64_t sampler = static_cast<int64_t>(10 * m) + number(samplers);
          add({.kind = Kind::kSample,
               .seq = sample_numbers_[sampler]++,
               .tokens = {5, 6},
               .sampler = sampler});
        }
        if (!saved.empty() && one_in(4))
          add({.kind = Kind::kLoad,
               .seq = ++model.last,
               .name = saved[static_cast<size_t>(number(static_cast<int64_t>(saved.size())))]});
      }
    }
  }

  std::string model_id(const Op& op) const { return models_[op.model].id; }
  std::string sampler_id(const Op& op) const {
    return sessions_[static_cast<size_t>(models_[op.model].tenant)] + ":sample:" + std::to_string(op.sampler);
  }
  std::pair<std::string, Json> request_of(const Op& op) const {
    Json body = {{"model_id", model_id(op)}, {"seq_id", op.seq}};
    switch (op.kind) {
      case Kind::kCall:
      case Kind::kForward: {
        const Json input = {
            {"loss_fn", "cross_entropy"},
            {"data",
             {{{"model_input", {{"chunks", {{{"tokens", op.tokens}}}}}},
               {"loss_fn_inputs",
                {{"target_tokens",
                  {{"data", op.tokens}, {"dtype", "int64"}, {"shape", {op.tokens.size()}}}}}}}}}};
        const bool forward = op.kind == Kind::kForward;
        body[forward ? "forward_input" : "forward_backward_input"] = input;
        return {forward ? "forward" : "forward_backward", body};
      }
      case Kind::kStep:
        body["adam_params"] = {{"learning_rate", op.learning_rate}};
        return {"optim_step", body};
      case Kind::kSave:
        body.update(Json{{"path", op.name}, {"overwrite", true}});
        return {"save_weights", body};
      case Kind::kSaveForSampler:
        body["sampling_session_seq_id"] = op.sampler;
        return {"save_weights_for_sampler", body};
      case Kind::kSample:
        return {"asample",
                {{"sampling_session_id", sampler_id(op)},
                 {"seq_id", op.seq},
                 {"prompt", {{"chunks", {{{"tokens", op.tokens}}}}}},
                 {"sampling_params", {{"seed", 100 * op.sampler + op.seq}, {"max_tokens", 4}}}}};
      case Kind::kLoad:
        body.update(Json{{"path", "tinker://" + model_id(op) + "/weights/" + op.name}, {"optimizer", true}});
        return {"load_weights", body};
    }
    return {};
  }

  // The world.

  // What the disk does in the next life of the server.
  SimDisk::Plan next_plan() {
    SimDisk::Plan plan{.seed = mixed({options_.seed, static_cast<uint64_t>(life_)}),
                       .until = INT64_MAX,
                       .lies = options_.disk_lies};
    if (options_.calm || options_.disk_lies || life_ > lives_) return plan;
    constexpr uint64_t kReadsOfALife = 3;
    const uint64_t reads = mixed({plan.seed, kReadsOfALife});
    if (reads % 4 == 0) plan.read_one_in = 12;
    plan.reads_from = reads / 4 % 300;
    switch (number(8)) {
      case 0:
        break;
      case 1:
        plan.sync_ms = 40;
        break;
      case 2:
        plan.one_in = 8;
        plan.parts = {SimDisk::kLog};
        break;
      case 3:
        plan.one_in = 2;
        plan.full = true;
        plan.from = number(60);
        plan.until = plan.from + 30;
        plan.parts = {SimDisk::kLog, SimDisk::kStore, SimDisk::kModels};
        break;
      case 4:
        plan.one_in = 5;
        plan.syncs = true;
        plan.parts = {SimDisk::kStore};
        break;
      case 5:
        plan.one_in = 40;
        plan.syncs = true;
        plan.parts = {SimDisk::kLog};
        break;
      case 6:
        plan.one_in = 4;
        plan.syncs = true;
        plan.parts = {SimDisk::kModels};
        break;
      default:
        plan.one_in = 25;
        plan.syncs = true;
        plan.parts = {SimDisk::kLog, SimDisk::kStore, SimDisk::kModels, SimDisk::kOther};
        break;
    }
    if (!one_in(3)) {
      plan.death_of = static_cast<SimDisk::Part>(number(SimDisk::kNumParts));
      plan.death_at = number(plan.death_of == SimDisk::kLog ? 150 : 30);
    }
    return plan;
  }

  // The server goes, one way or another, and another one starts over what is left.
  void next_life() {
    close_kept();
    network_.down();
    if (server_) {
      const bool orderly = !disk_.dead() && !options_.disk_lies && one_in(3);
      if (!orderly) {
        disk_.stop();
        ++report_.crashes;
      }
      server_.reset();
      if (!orderly && (options_.disk_lies || one_in(2))) {
        ++report_.power_losses;
        disk_.lose_power(random_());
      } else {
        disk_.restart();
      }
    }
    ++life_;
    random_.seed(mixed({options_.seed, 1, static_cast<uint64_t>(life_)}));
    life_operations_ = options_.calm ? INT64_MAX : 15 + number(60);
    if (!options_.calm) clocks_.jump(static_cast<double>(number(20 * 86400) - 10 * 86400));
    SimDisk::Plan plan = next_plan();
    for (int tries = 0;; ++tries) {
      if (tries > 0) plan.read_one_in = 0;  // or it reads the same in vain
      disk_.follow(plan);
      if (open()) return;
      network_.down();
      server_.reset();
      if (disk_.dead()) {
        ++report_.crashes;
        if (one_in(2)) {
          ++report_.power_losses;
          disk_.lose_power(random_());
        } else {
          disk_.restart();
        }
      }
      if (tries == 10) throw Wrong("the server does not start any more: " + why_not_);
      if (tries > 2) plan = {.until = INT64_MAX, .lies = options_.disk_lies};
    }
  }

  bool open() {
    ServerOptions options{.data_dir = disk_.root()};
    options.core.gap_wait = std::chrono::milliseconds(5);
    options.core.snapshot_operations = 6;
    options.core.log_bytes = 12'000;
    options.core.upkeep_wait = std::chrono::milliseconds(4);
    options.tinker.model_names = {"base"};
    options.tinker.poll = std::chrono::milliseconds(300);
    options.tinker.ack_deadline = std::chrono::milliseconds(20);
    options.session_timeout = 86400;  // the pauses are silence too
    for (int t = 0; t < kTenants; ++t) options.api_keys.push_back(key_of(t));
    options.world = {.clocks = clocks_.clocks(), .disk = disk_.disk(), .sockets = network_.sockets()};
    const auto seen = std::make_shared<FakeEngine::Seen>();
    seen->disk = options.world.disk;
    try {
      server_ = std::make_unique<Server>(options, [seen] { return std::make_unique<FakeEngine>(seen); });
    } catch (const Error& e) {
      why_not_ = e.what();
      return false;
    }
    while (!server_->ready()) {
      if (why_not_ = server_->engine_error(); !why_not_.empty()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }

  // The client.

  static std::string key_of(int tenant) { return "tml-tenant-" + std::to_string(tenant) + "-0123456789"; }
  void close_kept() {
    if (kept_ >= 0) ::close(kept_);
    kept_ = -1;
  }

  std::string text_of(int tenant, const std::string& route, const Json& body) const {
    const std::string text = body.dump();
    return "POST /api/v1/" + route + " HTTP/1.1\r\nHost: localhost\r\nX-API-Key: " + key_of(tenant) +
           "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(text.size()) +
           "\r\n\r\n" + text;
  }

  // One try. Nothing: the network swallowed the request or its reply.
  std::optional<Reply> try_once(int tenant, const std::string& route, const Json& body) {
    const std::string text = text_of(tenant, route, body);
    int how = 100;
    if (!options_.calm && one_in(6)) how = static_cast<int>(number(7));
    if (kept_ < 0 || how < 100) {
      close_kept();
      kept_ = network_.connect();
    }
    if (how < 4) ++report_.cut_requests;
    switch (how) {
      case 0:  // it is cut off on its way
        send_all(kept_, std::string_view(text).substr(
                            0, static_cast<size_t>(number(static_cast<int64_t>(text.size())))));
        close_kept();
        return std::nullopt;
      case 1:  // its reply is lost
        send_all(kept_, text);
        close_kept();
        return std::nullopt;
      case 2:  // or cut off
        send_all(kept_, text);
        read_reply(kept_, static_cast<size_t>(1 + number(60)));
        close_kept();
        return std::nullopt;
      case 3: {  // it comes in pieces, the machine stands still between them
        const size_t half = text.size() / 2;
        send_all(kept_, std::string_view(text).substr(0, half));
        clocks_.pause(static_cast<double>(number(150)));
        if (!send_all(kept_, std::string_view(text).substr(half))) return close_kept(), std::nullopt;
        break;
      }
      case 4: {  // it comes twice at once
        const int other = network_.connect();
        send_all(kept_, text);
        send_all(other, text);
        const SimReply first = read_reply(other), second = read_reply(kept_);
        ::close(other);
        if (first.status == 200 && second.status == 200 && route != "retrieve_future" &&
            route != "create_session" && first.body != second.body)
          throw Wrong("two answers to one request: " + first.body + " and " + second.body);
        return second.status == 0 || second.status == 507 ? (close_kept(), std::nullopt)
                                                          : std::optional(Reply{second});
      }
      case 5:
        network_.no_descriptors(1 + static_cast<int>(number(2)));
        close_kept();
        kept_ = network_.connect();
        send_all(kept_, text);
        break;
      default:
        if (!send_all(kept_, text)) return close_kept(), std::nullopt;
        break;
    }
    const SimReply reply = read_reply(kept_);
    if (reply.late && !disk_.dead()) throw Wrong("no answer to " + route);
    if (reply.status == 0) return close_kept(), std::nullopt;
    return Reply{reply};
  }

  // Until there is an answer that stays: of a disk that is full only where `once` says so.
  Reply post(int tenant, const std::string& route, const Json& body, bool refusal_counts = false) {
    for (int tries = 0; tries < 2000; ++tries) {
      if (!options_.calm && one_in(10))
        one_in(2) ? clocks_.pause(static_cast<double>(number(10)))
                  : clocks_.jump(static_cast<double>(number(20 * 86400) - 10 * 86400));
      if (disk_.dead() || (tries > 0 && tries % 25 == 0)) next_life();
      const auto reply = try_once(tenant, route, body);
      if (!reply) continue;
      if (reply->status == 507 && refusal_counts && tries == 0) return *reply;
      const bool passes = reply->status == 408 || reply->status == 429 || reply->status >= 500;
      if (!passes) return *reply;
      last_ = std::to_string(reply->status) + " " + reply->body;
    }
    throw Wrong("no end to " + route + ": " + last_);
  }
  Json need(int tenant, const std::string& route, const Json& body) {
    const Reply reply = post(tenant, route, body);
    if (reply.status != 200) throw Wrong(route + ": " + std::to_string(reply.status) + " " + reply.body);
    return reply.json();
  }

  void begin() {
    for (int t = 0; t < kTenants; ++t)
      sessions_.push_back(need(t, "create_session", Json::object()).at("session_id"));
    for (size_t m = 0; m < models_.size(); ++m) {
      const Json body = {{"session_id", sessions_[static_cast<size_t>(models_[m].tenant)]},
                         {"model_seq_id", m},
                         {"base_model", "base"},
                         {"lora_config", {{"rank", 8}, {"seed", 100 + m}}}};
      const Json accepted = need(models_[m].tenant, "create_model", body);
      models_[m].id = accepted.at("model_id");
      const std::string made = result_of(models_[m].tenant, accepted.at("request_id"));
      if (made.find("create_model") == std::string::npos) throw Wrong("no model: " + made);
    }
  }

  // Names of this run become those of all runs.
  std::string plain(std::string text) const {
    for (size_t t = 0; t < sessions_.size(); ++t) {
      for (size_t at; (at = text.find(sessions_[t])) != std::string::npos;)
        text.replace(at, sessions_[t].size(), "session" + std::to_string(t));
    }
    return text;
  }
  std::string result_of(int tenant, const std::string& id) {
    const Reply reply = post(tenant, "retrieve_future", {{"request_id", id}});
    return plain(std::to_string(reply.status) + " " + reply.body);
  }

  int tenant_of(const Op& op) const { return models_[op.model].tenant; }
  bool skipped(size_t at) const { return options_.skipped.contains(at); }

  void send(size_t at) {
    Op& op = ops_[at];
    if (op.kind == Kind::kSample) tell_all(op.model);  // its sampler is there by then
    const auto [route, body] = request_of(op);
    const bool may_give_up = op.kind != Kind::kSample && one_in(2);
    const Reply reply = post(tenant_of(op), route, body, may_give_up);
    ++report_.operations;
    if (reply.status == 507) {
      if (!op.id.empty()) throw Wrong("what was accepted is refused: " + describe(at));
      op.over = true;
      report_.without_effect.insert(at);
      return;
    }
    if (reply.status != 200) {
      if (op.kind != Kind::kSample)
        throw Wrong(route + ": " + std::to_string(reply.status) + " " + reply.body);
      op.result = plain(std::to_string(reply.status) + " " + reply.body);  // its sampler is not there
      op.over = true;
      return;
    }
    const std::string id = reply.json().at("request_id");
    if (!op.id.empty() && op.id != id)
      throw Wrong("another id of " + describe(at) + ": " + op.id + ", " + id);
    op.id = id;
  }

  void tell(size_t at) {
    Op& op = ops_[at];
    if (op.id.empty()) return;
    const std::string result = result_of(tenant_of(op), op.id);
    if (op.over && result != op.result)
      throw Wrong("the result of " + describe(at) + " was " + op.result + ", is " + result);
    op.result = result;
    if (op.over) return;
    op.over = true;
    const bool asks_the_disk =
        op.kind == Kind::kSave || op.kind == Kind::kSaveForSampler || op.kind == Kind::kSample;
    if (result.find("\"server\"") != std::string::npos) {
      if (!asks_the_disk) throw Wrong(describe(at) + " failed: " + result);
      report_.without_effect.insert(at);
    }
    if (op.kind == Kind::kSample) check_completions(op);
  }
  void tell_all(size_t model) {
    for (size_t i = 0; i < models_[model].sent; ++i) {
      if (!ops_[models_[model].operations[i]].over) tell(models_[model].operations[i]);
    }
  }

  // A client that asks what came since it last asked is told of each sample. A life that the log did not take
  // down tells nothing: then the next one does.
  void check_completions(const Op& op) {
    auto& [cursor, heard] = cursors_[op.sampler];
    Json got;
    for (int tries = 1; tries <= 12; ++tries) {
      got = need(tenant_of(op), "retrieve_futures",
                 {{"target", {{"type", "sampling_session"}, {"sampling_session_id", sampler_id(op)}}},
                  {"prev_cursor", cursor}});
      for (const Json& one : got.at("completions")) heard.insert(one.at("request_id").get<std::string>());
      cursor = got.at("cursor");
      if (heard.contains(op.id)) return;
      if (tries % 3 != 0) continue;
      if (!disk_.log_fails()) break;
      next_life();
    }
    throw Wrong("nobody tells that " + op.id + " is done: behind " + std::to_string(cursor) + " there is " +
                got.dump());
  }

  std::string describe(size_t at) const {
    const Op& op = ops_[at];
    return "operation " + std::to_string(at) + " (" + request_of(op).first + ", number " +
           std::to_string(op.seq) + " of model " + std::to_string(op.model) + ")";
  }

  void carry_on() {
    for (;;) {
      std::vector<size_t> left;
      for (size_t m = 0; m < models_.size(); ++m) {
        if (models_[m].sent < models_[m].operations.size()) left.push_back(m);
      }
      if (left.empty()) return;
      Model& model = models_[left[static_cast<size_t>(number(static_cast<int64_t>(left.size())))]];
      const size_t at = model.operations[model.sent];
      random_.seed(mixed({options_.seed, 2, at}));
      if (skipped(at)) {
        ops_[at].over = true;
      } else {
        send(at);
      }
      ++model.sent;
      if (options_.calm) continue;
      const size_t earlier = model.operations[static_cast<size_t>(number(static_cast<int64_t>(model.sent)))];
      if (one_in(6) && !ops_[earlier].id.empty()) send(earlier);
      if (one_in(3)) tell(earlier);
      if (--life_operations_ <= 0) next_life();
    }
  }

  void finish() {
    lives_ = 0;  // no faults any more
    if (!options_.calm) next_life();
    for (size_t m = 0; m < models_.size(); ++m) tell_all(m);
    if (options_.disk_lies || (!options_.calm && one_in(2))) next_life();
    for (size_t at = 0; at < ops_.size(); ++at) tell(at);
    for (const Op& op : ops_) report_.told.push_back(op.result);
    for (size_t m = 0; m < models_.size(); ++m) {
      const Op forward{.kind = Kind::kForward, .model = m, .seq = models_[m].last + 1, .tokens = {1}};
      const auto [route, body] = request_of(forward);
      const Json accepted = need(models_[m].tenant, route, body);
      report_.finals.push_back(result_of(models_[m].tenant, accepted.at("request_id")));
      const std::string owner = server_->keys().find(key_of(models_[m].tenant), 1.7e9)->owner;
      for (const char* name : {"a", "b"}) {
        const auto found =
            server_->store().checkpoint("tinker://" + models_[m].id + "/weights/" + name, owner, 0);
        report_.finals.push_back(found ? read_file(disk_.root() + "/" + found->folder + "/weights.json")
                                       : "none");
      }
    }
    check_folders();
  }

  // What was refused, failed or replaced has left no folder.
  void check_folders() {
    std::set<std::string> stray;
    for (int i = 0; i < 300; ++i) {
      stray.clear();
      const auto used = server_->store().folders();
      for (const char* room : {"checkpoints", "samplers"}) {
        for (const auto& entry : std::filesystem::directory_iterator(disk_.root() + "/" + room)) {
          const std::string folder = room + ("/" + entry.path().filename().string());
          if (!used.contains(folder)) stray.insert(folder);
        }
      }
      if (stray.empty()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw Wrong("a folder that nobody has: " + *stray.begin());
  }

  const SimOptions options_;
  std::mt19937_64 random_;
  SimDisk disk_;
  SimClocks clocks_;
  SimNetwork network_;
  std::unique_ptr<Server> server_;
  std::vector<Model> models_;
  std::vector<Op> ops_;
  std::vector<std::string> sessions_;
  std::map<int64_t, int64_t> sample_numbers_;
  std::map<int64_t, std::pair<uint64_t, std::set<std::string>>> cursors_;  // by sampler; and who was done
  Report report_;
  std::string why_not_, last_;
  int life_ = 0;
  int lives_ = options_.calm ? 0 : 1 + static_cast<int>(mixed({options_.seed}) % kMostLives);
  int64_t life_operations_ = INT64_MAX;
  int kept_ = -1;  // a connection
};

}  // namespace twinkle::serve
