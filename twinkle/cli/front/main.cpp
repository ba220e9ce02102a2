// The program `twinkle`: knows every command, runs those that need no tensors, and becomes twinkle-engine for
// the others. It does not link torch, so it starts in a few milliseconds.
#include "twinkle/cli/command.h"

int main(int argc, char** argv) { return twinkle::cli::run_program(argc, argv, /*is_engine=*/false); }
