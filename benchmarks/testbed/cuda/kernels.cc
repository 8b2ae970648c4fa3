// Launches. The time of a kernel is that of its elements' bytes: two are read and one is written for each.
#include "kernels.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "settings.h"

namespace emulated {
namespace {

struct Dimensions {
  unsigned x, y, z;
  size_t count() const { return size_t(x) * y * z; }
};

struct Configuration {
  Dimensions grid, block;
  size_t shared;
  void* stream;
};

struct Attributes {  // the beginning of cudaFuncAttributes
  size_t shared, constant, local;
  int threads_per_block, registers, ptx_version, binary_version;
};

constexpr double bytes_per_element = 12;

// libmxnet registers some 10,000 kernels as it is loaded, of which few are launched: their names are made readable only then.
std::mutex mutex;
std::unordered_map<const void*, const char*>& registered() {
  static auto* found = new std::unordered_map<const void*, const char*>;
  return *found;
}
std::unordered_map<const void*, std::string>& named() {
  static auto* found = new std::unordered_map<const void*, std::string>;
  return *found;
}

const std::string& name_of(const void* function) {
  std::lock_guard<std::mutex> lock(mutex);
  std::string& name = named()[function];
  if (name.empty()) {
    auto found = registered().find(function);
    const char* mangled = found == registered().end() ? "a kernel without a name" : found->second;
    std::unique_ptr<char, decltype(&free)> readable(abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), free);
    name = readable ? readable.get() : mangled;
  }
  return name;
}

// Kernels in which a thread works on several elements: their number is the product of two arguments.
struct Rows {
  const char* name;
  size_t rows, columns;  // which arguments
  bool wide;             // size_t, or int
};
constexpr Rows by_rows[] = {
    {"::LayerNormFusedForwardKernel", 0, 1, false},
    {"::LayerNormFusedBackwardKernel_Data", 0, 1, false},
    {"::LayerNormFusedBackwardKernel_PartGammaBeta", 0, 1, false},
    {"::softmax_stride1_compute_kernel", 6, 3, false},
    {"::softmax_stride1_grad_kernel", 7, 4, false},
    {"::add_bias_kernel", 2, 3, true},
    {"::AddBiasGradKernelPhase1", 2, 3, true},
};

// How many elements a kernel works on. MXNet's own kernels, of which the grid is limited, have that as first argument.
size_t elements(const std::string& name, void** arguments, size_t threads) {
  auto whole = [&](size_t index) { return static_cast<size_t>(std::max(*static_cast<int*>(arguments[index]), 0)); };
  if (name.find("mxnet_generic_kernel") != std::string::npos) return whole(0);
  const std::string head = name.substr(0, name.find('<', name.find("::")));
  for (const Rows& known : by_rows) {
    if (head.find(known.name) == std::string::npos) continue;
    if (!known.wide) return whole(known.rows) * whole(known.columns);
    return *static_cast<size_t*>(arguments[known.rows]) * *static_cast<size_t*>(arguments[known.columns]);
  }
  return threads;
}

thread_local std::vector<Configuration> configurations;

Work arithmetic(const Launch& launch) {
  for (const auto& known : {expression, operation, layer})
    if (Work work = known(launch)) return work;
  return {};
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*, int*) {
  std::lock_guard<std::mutex> lock(mutex);
  registered()[function] = name;
}

unsigned __cudaPushCallConfiguration(Dimensions grid, Dimensions block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, stream});
  return success;
}

int __cudaPopCallConfiguration(Dimensions* grid, Dimensions* block, size_t* shared, void** stream) {
  const Configuration found = configurations.back();
  configurations.pop_back();
  *grid = found.grid;
  *block = found.block;
  *shared = found.shared;
  *stream = found.stream;
  return success;
}

int cudaLaunchKernel(const void* function, Dimensions grid, Dimensions block, void** arguments, size_t, void* stream) {
  const std::string& name = name_of(function);
  const size_t threads = grid.count() * block.count();
  const Device& device = settings().device;
  Work work;
  if (settings().arithmetic && !(work = arithmetic({name, arguments, grid.x, grid.y}))) return unknown("the arithmetic of " + name);
  give(stream_of(stream), Engine::kernels, device.launch + bytes_per_element * elements(name, arguments, threads) / device.bandwidth, work);
  return success;
}

int cudaFuncGetAttributes(Attributes* attributes, const void*) {
  *attributes = {};
  attributes->threads_per_block = 1024;
  return success;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 8;
  return success;
}
}
