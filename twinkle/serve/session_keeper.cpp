#include "twinkle/serve/session_keeper.h"

#include <cstdio>
#include <set>

namespace twinkle::serve {

SessionKeeper::SessionKeeper(Core& core, Store& store, double timeout)
    : core_(core), store_(store), timeout_(timeout) {
  for (const auto& session : store_.live_sessions()) heard_[session] = core_.clocks().steady();
}

bool SessionKeeper::touch(const std::string& session) {
  const std::lock_guard lock(mutex_);
  if (ending_.contains(session) || store_.session_ended(session)) return false;
  heard_[session] = core_.clocks().steady();
  return true;
}

std::vector<std::string> SessionKeeper::sweep() {
  std::set<std::string> ending;
  {
    const std::lock_guard lock(mutex_);  // whoever is heard of comes before or after all of this
    const auto finished = store_.finished_sessions();
    ending.insert(finished.begin(), finished.end());
    for (const auto& [session, heard] : heard_) {
      if (timeout_ > 0 && seconds_since(core_.clocks(), heard) >= timeout_) ending.insert(session);
    }
    if (ending.empty() && ending_.empty()) return {};
    std::set<std::string> busy;
    for (const auto& target : core_.busy_targets()) busy.insert(session_of(target));
    std::erase_if(ending, [&](const std::string& session) { return busy.contains(session); });
    ending_.insert(ending.begin(), ending.end());
    ending = ending_;
  }
  std::vector<std::string> ended;
  try {  // nobody waits for the disk here
    for (const auto& session : ending) {
      store_.end_session(session, core_.now());
      ended.push_back(session);
      const std::lock_guard lock(mutex_);
      heard_.erase(session);
      ending_.erase(session);
    }
  } catch (const std::exception& e) {  // as on a full disk: the rest next time
    std::fprintf(stderr, "sessions: %s\n", e.what());
  }
  if (!ended.empty()) core_.drop_ended();
  return ended;
}

std::string ended_text(double timeout) {
  char text[160];
  std::snprintf(
      text, sizeof(text),
      "the session has ended: nothing was heard of it for %g s. What it saved is still there; go on "
      "from a checkpoint",
      timeout);
  return text;
}

}  // namespace twinkle::serve
