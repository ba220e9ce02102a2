// A trainer in a process of its own: weights_sender adapter|merged|full MODEL SOCKET STEPS [STOP_AT_STEP]
// Trains and syncs after every step. In the middle of the sync of STOP_AT_STEP it says "half" and waits to be
// killed.
#include <unistd.h>

#include <cstdio>

#include "tests/sample/hand_over_testing.h"
#include "twinkle/sample/checkpoint_engine.h"

int main(int argc, char** argv) try {
  using namespace twinkle;
  if (argc < 5) return 2;
  const std::string what = argv[1];
  const int64_t steps = std::atoi(argv[4]), stop_at = argc > 5 ? std::atoi(argv[5]) : 0;
  const auto model = test::make_trainer(what, argv[2]);
  int64_t step = 0;
  SyncOptions options{.bucket_bytes = 1024};
  options.progress = [&](int64_t done, int64_t total) {
    if (step != stop_at || 2 * done < total) return;
    std::puts("half");
    std::fflush(stdout);
    for (;;) ::pause();
  };
  CheckpointEngineManager manager(*model, argv[3], options);
  for (step = 1; step <= steps; ++step) {
    test::train_step(*model);
    const SyncResult result = manager.sync_weights(what == "merged");
    std::printf("%s%s\n", result.version.c_str(), result.sent_base ? " with base" : "");
    std::fflush(stdout);
  }
} catch (const std::exception& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
