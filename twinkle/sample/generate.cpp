#include "twinkle/sample/generate.h"

namespace twinkle {

Error naming(const Error& error, const std::string& what, size_t index) {
  std::string message = error.what();
  const std::string place = "[sample] ";
  if (message.starts_with(place)) message.erase(0, place.size());
  return Error(error.kind(), place + what + " " + std::to_string(index) + ": " + message);
}

std::vector<SampleResult> generate(SampleEngine& engine, std::vector<SampleRequest> requests,
                                   const OnText& on_text, const std::vector<std::string>& names) {
  std::vector<std::shared_ptr<SampleJob>> jobs;
  struct CancelAtTheEnd {  // whatever ends this, on_text's exceptions too
    SampleEngine& engine;
    std::vector<std::shared_ptr<SampleJob>>& jobs;
    ~CancelAtTheEnd() {
      for (const auto& job : jobs) job->cancel();
      while (engine.step()) {
      }
    }
  } cancel{engine, jobs};
  std::vector<bool> ended(requests.size(), false);  // by on_text
  std::vector<SampleResult> out;
  const auto read_pieces = [&] {
    for (size_t i = 0; i < jobs.size() && on_text; ++i) {
      while (const auto piece = jobs[i]->poll()) {
        if (ended[i] || piece->text.empty() || on_text(i, piece->sequence, piece->text)) continue;
        ended[i] = true;
        jobs[i]->cancel();
      }
    }
  };
  size_t at = 0;
  try {
    for (at = 0; at < requests.size(); ++at) {
      requests[at].pieces = on_text != nullptr;
      jobs.push_back(engine.submit(std::move(requests[at])));
    }
    while (engine.step()) read_pieces();
    read_pieces();
    for (at = 0; at < jobs.size(); ++at) out.push_back(jobs[at]->wait());
  } catch (const Error& e) {
    if (at < names.size()) throw Error(e.kind(), "[" + names[at] + "] " + e.what());
    throw requests.size() > 1 ? naming(e, "request", at) : e;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    for (auto& sequence : out[i].sequences) {
      if (ended[i] && sequence.stop_reason == "abort") sequence.stop_reason = "stop";
    }
  }
  return out;
}

}  // namespace twinkle
