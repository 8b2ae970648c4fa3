// Copies, by the engine of their direction. A copy must lie within an allocation, and its direction must fit its addresses.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "memory.h"
#include "settings.h"
#include "streams.h"

namespace emulated {
namespace {

enum Kind { host_to_host, to_device, from_device, on_device, by_address };

struct Copy {
  void* to;
  const void* from;
  size_t size;  // bytes
};

std::mutex mutex;  // guards the trace, and all of planted faults
long copies_from = 0;
Copy previous{};
bool planted = false;

FILE* open_trace() {
  const std::string& path = settings().trace;
  FILE* file = path.empty() ? nullptr : fopen(path.c_str(), "a");
  if (!file && !path.empty()) refuse("EMULATED_CUDA_TRACE", path.c_str(), "a file that can be written");
  return file;
}

void trace(const char* direction, int device, size_t size) {
  static FILE* file = open_trace();
  if (file) {
    std::lock_guard<std::mutex> lock(mutex);
    fprintf(file, "%.6f %s %d %zu\n", now(), direction, device, size);
    fflush(file);
  }
}

// Exchange the bytes of a copy with those of the one before it, where they differ; true if that was done.
bool exchange(const Copy& what, const Copy& before) {
  auto *one = static_cast<char*>(what.to), *other = static_cast<char*>(before.to);
  if (what.size != before.size || !is_pinned(one) || !is_pinned(other) || !memcmp(one, other, what.size)) return false;
  std::swap_ranges(one, one + what.size, other);
  return true;
}

// A planted fault in the copies to the host: one is left out, or its bytes are exchanged with those of the one before it. If a copy cannot
// have the fault, a later one has it.
Work as_planted(const Copy& what, Work work) {
  const auto& found = settings();
  if (found.fault != Fault::copy && found.fault != Fault::swap) return work;
  std::lock_guard<std::mutex> lock(mutex);
  if (++copies_from < found.fault_at || planted) return work;
  if (found.fault == Fault::copy) {
    planted = true;
    return [] {};
  }
  return [=] {
    work();
    std::lock_guard<std::mutex> lock(mutex);
    planted = planted || exchange(what, std::exchange(previous, what));
  };
}

double seconds(int source, int target, size_t size) {
  const Device& device = settings().device;
  const double rate = source == -1       ? device.copy_to
                      : target == -1     ? device.copy_from
                      : source == target ? device.bandwidth / 2
                                         : device.peer;
  return device.launch + size / rate;
}

// The bytes are taken from memory that is not pinned at once, and are in such memory when the call returns.
int copy(Copy what, int kind, Stream* stream) {
  const int target = device_of(what.to), source = device_of(what.from);
  const int expected = source == -1 ? (target == -1 ? host_to_host : to_device) : (target == -1 ? from_device : on_device);
  if (kind != by_address && kind != expected) return failed(invalid_value, "cudaMemcpy: the direction does not fit the addresses");
  if (!bytes(what.to, what.size) || !bytes(what.from, what.size)) return failed(invalid_value, "cudaMemcpy: not within an allocation");
  if (!what.size) return success;
  const char* names[] = {"host", "to", "from", "on"};
  trace(names[expected], std::max(source, target), what.size);
  const Engine engine = expected == to_device ? Engine::to_device : expected == from_device ? Engine::from_device : Engine::none;
  std::shared_ptr<std::vector<char>> taken;
  if (expected == to_device && !is_pinned(what.from)) {
    const char* begin = static_cast<const char*>(what.from);
    taken = std::make_shared<std::vector<char>>(begin, begin + what.size);
  }
  Work work = [what, taken] { memmove(bytes(what.to, what.size), taken ? taken->data() : bytes(what.from, what.size), what.size); };
  if (expected == from_device) work = as_planted(what, std::move(work));
  give(stream, engine, seconds(source, target, what.size), std::move(work));
  if (expected == host_to_host || (expected == from_device && !is_pinned(what.to))) synchronize(stream);
  return success;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  return copy({to, from, size}, kind, stream_of(stream));
}

int cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  synchronize_all();  // as the default stream does
  Stream* stream = stream_of(nullptr);
  const int code = copy({to, from, size}, kind, stream);
  synchronize(stream);
  return code;
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void* stream) {
  return copy({to, from, size}, on_device, stream_of(stream));
}

int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int kind, void* stream) {
  for (size_t row = 0; row < height; row++) {
    const int code =
        copy({static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width}, kind, stream_of(stream));
    if (code) return code;
  }
  return success;
}

int cudaMemsetAsync(void* to, int value, size_t size, void* stream) {
  if (device_of(to) == -1 || !bytes(to, size)) return failed(invalid_value, "cudaMemset: not within an allocation");
  const Device& device = settings().device;
  Work work;
  if (settings().arithmetic) work = [to, value, size] { memset(bytes(to, size), value, size); };
  give(stream_of(stream), Engine::kernels, device.launch + size / device.bandwidth, work);
  return success;
}
}
