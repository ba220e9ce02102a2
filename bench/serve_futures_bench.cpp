// deps: core
// As many samples in flight as a large team has: FUTURES requests are accepted, spread over SAMPLERS, then
// all of them are waited for by long polls, a list of each sampler and POLLS of single ones, and held for
// HOLD seconds; then the engine is let go (held_engine.cpp) and every answer must come, once and to who
// asked. A look at healthz is due every 10 ms all the time. The machine's limit beside it: as many looks a
// second as the server answers on one connection when nothing else goes on.
//
//   serve_futures_bench PORT SAMPLERS FILE [options]
//   --futures N, --connections N, --polls N, --hold SECONDS
//
// SAMPLERS: a file with "KEY SAMPLER" a line; FILE is made when the engine is to go on. Prints one JSON
// object.
#include <cstdio>
#include <fstream>
#include <unordered_map>

#include "bench/http_load.h"
#include "bench/http_probe.h"
#include "bench/train_body.h"
#include "twinkle/core/json.h"

namespace twinkle::bench {
namespace {

struct Sampler {
  std::string key, id;
  int64_t number = 0;
  int64_t cursor = 0;
};

struct Asked {
  size_t sampler = 0;
  std::vector<int64_t> prompt;
  int listed = 0, answered = 0;  // how often
};

class Futures {
 public:
  Futures(int port, const std::string& samplers) : port_(port) {
    std::ifstream file(samplers);
    for (std::string key, id; file >> key >> id;) samplers_.push_back({.key = key, .id = id});
    if (samplers_.empty()) throw invalid_argument("[bench] there are no samplers");
  }

  // Seconds until all were accepted.
  double submit(size_t count, size_t connections) {
    const auto start = Clock::now();
    std::vector<Asked> under_way(connections);
    size_t sent = 0;
    HttpLoad(port_, connections)
        .run(
            [&](size_t i) -> std::optional<Outgoing> {
              if (sent == count) return std::nullopt;
              Asked& asked = under_way[i];
              asked.sampler = sent % samplers_.size();
              const auto n = static_cast<int64_t>(sent++);
              asked.prompt = {1 + n % 500, 1 + n / 500 % 500, 1 + n / 250000, 7, 8, 9, 10, 11, 12, 13, 14,
                              15};
              Sampler& sampler = samplers_[asked.sampler];
              const Json body = {
                  {"sampling_session_id", sampler.id},
                  {"seq_id", ++sampler.number},
                  {"num_samples", 1},
                  {"prompt", {{"chunks", {{{"type", "encoded_text"}, {"tokens", asked.prompt}}}}}},
                  {"sampling_params", {{"max_tokens", 16}, {"temperature", 1.0}, {"seed", n}}}};
              return http_request("/api/v1/asample", sampler.key, body.dump());
            },
            [&](size_t i, const Incoming& reply) {
              const std::string id = text_of(reply.body, "request_id");
              if (reply.status != 200 || id.empty() || !asked_.emplace(id, under_way[i]).second)
                refused_ = std::to_string(reply.status) + " " + std::string(reply.body.substr(0, 200));
            });
    return seconds_since(start);
  }

  // Long polls until every future was listed and every one of `polls` of them has its answer. `on_held` is
  // called once, after `hold` seconds.
  void wait(size_t polls, double hold, const std::function<void()>& on_held) {
    std::vector<std::string> single;
    for (const auto& [id, asked] : asked_) {
      if (single.size() == polls) break;
      single.push_back(id);
    }
    std::thread holder([&] {
      std::this_thread::sleep_for(std::chrono::duration<double>(hold));
      on_held();
    });
    std::vector<int64_t> left(samplers_.size());
    for (const auto& [id, asked] : asked_) ++left[asked.sampler];
    std::vector<bool> done(single.size());
    HttpLoad(port_, samplers_.size() + single.size())
        .run(
            [&](size_t i) -> std::optional<Outgoing> {
              if (i >= samplers_.size()) {
                if (done[i - samplers_.size()]) return std::nullopt;
                const std::string& id = single[i - samplers_.size()];
                return retrieve(id, samplers_[asked_.at(id).sampler].key);
              }
              if (left[i] <= 0) return std::nullopt;
              const Json body = {
                  {"target", {{"type", "sampling_session"}, {"sampling_session_id", samplers_[i].id}}},
                  {"prev_cursor", samplers_[i].cursor}};
              return http_request("/api/v1/retrieve_futures", samplers_[i].key, body.dump());
            },
            [&](size_t i, const Incoming& reply) {
              if (i >= samplers_.size()) {
                const size_t at = i - samplers_.size();
                done[at] = reply.status != 408;
                if (done[at]) check_answer(single[at], reply);
                return;
              }
              const Json list = parse_json(reply.body, "retrieve_futures");
              samplers_[i].cursor = list.at("cursor");
              for (const auto& one : list.at("completions")) {
                const auto found = asked_.find(one.at("request_id").get<std::string>());
                if (found == asked_.end() || found->second.sampler != i || one.at("state") != "finished") {
                  ++wrong_;
                  continue;
                }
                ++found->second.listed;
                --left[i];
              }
            });
    holder.join();
  }

  // Asks for every answer that was not seen yet.
  double fetch(size_t connections) {
    const auto start = Clock::now();
    std::vector<std::string> ids(connections);
    auto next = asked_.begin();
    HttpLoad(port_, connections)
        .run(
            [&](size_t i) -> std::optional<Outgoing> {
              while (next != asked_.end() && next->second.answered > 0) ++next;
              if (next == asked_.end()) return std::nullopt;
              ids[i] = next->first;
              return retrieve(ids[i], samplers_[(next++)->second.sampler].key);
            },
            [&](size_t i, const Incoming& reply) { check_answer(ids[i], reply); });
    return seconds_since(start);
  }

  size_t accepted() const { return asked_.size(); }
  const std::string& refused() const { return refused_; }
  size_t count(bool (*is)(const Asked&)) const {
    size_t out = 0;
    for (const auto& [id, asked] : asked_) out += is(asked) ? 1 : 0;
    return out;
  }
  int64_t wrong() const { return wrong_; }

 private:
  static Outgoing retrieve(const std::string& id, const std::string& key) {
    return http_request("/api/v1/retrieve_future", key, Json{{"request_id", id}}.dump());
  }

  // The engine answers with the prompt.
  void check_answer(const std::string& id, const Incoming& reply) {
    Asked& asked = asked_.at(id);
    const Json answer = reply.status == 200 ? parse_json(reply.body, "retrieve_future") : Json();
    if (!answer.contains("sequences") || answer["sequences"].at(0).at("tokens") != Json(asked.prompt)) {
      ++wrong_;
    } else {
      ++asked.answered;
    }
  }

  int port_;
  std::vector<Sampler> samplers_;
  std::unordered_map<std::string, Asked> asked_;  // by request id
  std::string refused_;
  int64_t wrong_ = 0;
};

int run(int argc, char** argv) {
  const Options options(argc, argv, 4);
  const int port = std::stoi(argv[1]);
  const auto count = static_cast<size_t>(options.number("--futures", 131072));
  const auto connections = static_cast<size_t>(options.number("--connections", 64));
  const Outgoing healthz = http_request("/api/v1/healthz", "");

  size_t looks = 0;
  const auto start = Clock::now();
  HttpLoad(port, 1).run(
      [&](size_t) { return seconds_since(start) < 1 ? std::optional(healthz) : std::nullopt; },
      [&](size_t, const Incoming&) { ++looks; });

  Futures futures(port, argv[2]);
  Json out = {{"futures", count}, {"quiet_looks_per_s", looks}};
  const auto note = [&](const char* phase, Probe& probe) {
    const Probe::Seen seen = probe.stop();
    out[phase] = {{"looks", seen.ms.size()},
                  {"failed", seen.failed},
                  {"p50_ms", percentile(seen.ms, 0.5)},
                  {"p99_ms", percentile(seen.ms, 0.99)},
                  {"max_ms", percentile(seen.ms, 1)}};
  };
  {
    Probe probe(port, healthz);
    out["submit_s"] = futures.submit(count, connections);
    note("while_submitting", probe);
  }
  out["accepted"] = futures.accepted();
  if (!futures.refused().empty()) throw unavailable("[bench] refused: " + futures.refused());
  double answers_s = 0;
  {
    Probe held(port, healthz);
    std::optional<Probe> after;
    Clock::time_point released;
    futures.wait(static_cast<size_t>(options.number("--polls", 2000)),
                 static_cast<double>(options.number("--hold", 30)), [&] {
                   note("while_held", held);
                   released = Clock::now();
                   after.emplace(port, healthz);
                   std::ofstream(argv[3]) << "go";
                 });
    answers_s = seconds_since(released);
    note("while_answering", *after);
  }
  out["answers_s"] = answers_s;
  {
    Probe probe(port, healthz);
    out["fetch_s"] = futures.fetch(connections);
    note("while_fetching", probe);
  }
  out["lost"] = futures.count([](const Asked& asked) { return asked.listed == 0 || asked.answered == 0; });
  out["duplicated"] = futures.count([](const Asked& asked) { return asked.listed > 1; });
  out["wrong"] = futures.wrong();
  std::printf("%s\n", out.dump().c_str());
  return out["lost"] == 0 && out["duplicated"] == 0 && out["wrong"] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace twinkle::bench

int main(int argc, char** argv) try {
  if (argc < 4) throw twinkle::invalid_argument("usage: serve_futures_bench PORT SAMPLERS FILE [options]");
  return twinkle::bench::run(argc, argv);
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
