// Which instruction sets were compiled in and which this CPU can run. Choosing one changes speed, never a bit.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace exactlm {

struct Isa {
  const DotTable* dot;
  const ElementwiseTable* elementwise;
};

std::vector<std::string> compiled_isas();      // slowest first
std::vector<std::string> supported_isas();     // of those, what this CPU runs; slowest first, never empty
const Isa* find_isa(const std::string& name);  // null if not compiled in or not supported here

}  // namespace exactlm
