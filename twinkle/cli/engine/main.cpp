// The program `twinkle-engine`: runs the commands that need tensors. `twinkle` starts it; its options are the
// same.
#include "twinkle/cli/command.h"

int main(int argc, char** argv) { return twinkle::cli::run_program(argc, argv, /*is_engine=*/true); }
