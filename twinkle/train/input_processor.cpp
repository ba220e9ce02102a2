#include "twinkle/train/input_processor.h"

namespace twinkle {
namespace {

const Registry<InputProcessor>::Add input_processor{
    {.name = "InputProcessor", .help = "Features as they are; sequences are packed without padding."},
    [](const Options&) { return std::make_unique<InputProcessor>(); }};

}  // namespace
}  // namespace twinkle
