// What the models of a data folder were trained on: they only go on with the same numbers on the same weights
// of the base and the same instruction set.
#pragma once

#include <string>

#include "twinkle/serve/disk.h"
#include "twinkle/serve/engine.h"

namespace twinkle::serve {

/// A folder with models and no `basis.json` is taken as it is. Compares the engine with what the folder's
/// `basis.json` says and writes the file where there is none. `has_models`: the folder holds some, which
/// would go on otherwise; without any, or with `accept_change`, a difference only changes the file. conflict
/// that says how to start instead.
void check_basis(const Disk& disk, const std::string& data_dir, const EngineInfo& engine, bool has_models,
                 bool accept_change);

}  // namespace twinkle::serve
