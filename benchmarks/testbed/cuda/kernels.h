// Kernels: what is launched, by name, and the arithmetic of those that are computed.
#pragma once
#include <string>
#include <vector>

#include "streams.h"

namespace emulated {

struct Launch {
  const std::string& name;      // readable, as c++filt has it
  void** arguments;             // where each is
  unsigned blocks_x, blocks_y;  // of the grid

  template <typename Type>
  const Type& argument(size_t index) const {
    return *static_cast<const Type*>(arguments[index]);
  }
};

// The arithmetic of a kernel with the arguments that it is launched with; empty if it is none of the file's. The values are of the kernel's
// own order of additions where that does not matter to a test: a sum over rows may differ from a device's in its last bits.
Work expression(const Launch& launch);  // expressions.cc: mshadow's expressions, such as the sum of the arrays of two devices
Work operation(const Launch& launch);   // operations.cc: MXNet's element-wise operators and optimizers
Work layer(const Launch& launch);       // layers.cc: the bias of a fully connected layer, softmax

}  // namespace emulated
