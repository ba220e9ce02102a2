// The machine as a server sees it. What a server promises depends on these alone, so a test that gives it
// another world decides what the clocks say and what the disk and the network do to it.
#pragma once

#include "twinkle/serve/clocks.h"
#include "twinkle/serve/disk.h"
#include "twinkle/serve/sockets.h"

namespace twinkle::serve {

struct World {
  Clocks clocks;
  Disk disk;
  Sockets sockets;
};

}  // namespace twinkle::serve
