// A program to be killed: trains and saves after every step, then waits.  saves_for_ever full|lora DIRECTORY
#include <unistd.h>

#include "tests/train/train_model_testing.h"

int main(int argc, char** argv) {
  using namespace twinkle::testing;
  if (argc != 3) return 2;
  const auto model = make_model(exact_case(std::string(argv[1]) == "full"));
  for (int64_t step = 0; step < 48; ++step) {
    train_step(*model, batch(step));
    model->save({.output_dir = argv[2]});
  }
  for (;;) ::pause();
}
