#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "error.h"
#include "settings.h"
#include "streams.h"

namespace emulated {
namespace {

constexpr size_t range = size_t(1) << 44, large = size_t(1) << 20, alignment = 512;

struct Allocation {
  int device;
  size_t size;
  char* bytes;
};

struct Memory {
  std::shared_mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
  std::map<uintptr_t, size_t> pinned;
  std::map<int, double> used;
  uintptr_t begin, next;

  Memory() {
    void* reserved = mmap(nullptr, range, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
      perror("emulated CUDA: no addresses for device memory");
      abort();
    }
    begin = next = reinterpret_cast<uintptr_t>(reserved);
  }
};

Memory& memory() {
  static Memory* made = new Memory;  // outlives the threads that use it at exit
  return *made;
}

bool on_device(uintptr_t address) { return address - memory().begin < range; }

// The allocation of an address, or null; the caller holds the mutex.
const std::pair<const uintptr_t, Allocation>* find(uintptr_t address) {
  auto after = memory().allocations.upper_bound(address);
  if (after == memory().allocations.begin()) return nullptr;
  const auto& found = *std::prev(after);
  return address - found.first < found.second.size ? &found : nullptr;
}

char* obtain(size_t size) {
  if (size < large) {
    void* found;
    if (posix_memalign(&found, alignment, size)) return nullptr;
    memset(found, 0, size);
    return static_cast<char*>(found);
  }
  void* found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

}  // namespace

void* allocate(int device, size_t size) {
  size = (std::max<size_t>(size, 1) + alignment - 1) / alignment * alignment;
  std::unique_lock<std::shared_mutex> lock(memory().mutex);
  if (memory().used[device] + size > settings().device.memory || memory().next + size + alignment > memory().begin + range) return nullptr;
  char* found = obtain(size);
  if (!found) return nullptr;
  if (settings().arithmetic) memset(found, 0xff, size);  // no number: what nobody has written shows
  const uintptr_t address = memory().next;
  memory().next += size + alignment;  // a gap, so that a range past the end is found
  memory().allocations[address] = {device, size, found};
  memory().used[device] += size;
  return reinterpret_cast<void*>(address);
}

bool release(void* address) {
  Allocation old;
  {
    std::unique_lock<std::shared_mutex> lock(memory().mutex);
    auto found = memory().allocations.find(reinterpret_cast<uintptr_t>(address));
    if (found == memory().allocations.end()) return false;
    old = found->second;
    memory().allocations.erase(found);
    memory().used[old.device] -= old.size;
  }
  if (old.size < large)
    free(old.bytes);
  else
    munmap(old.bytes, old.size);
  return true;
}

void* pin(size_t size) {
  void* found;
  if (posix_memalign(&found, 4096, std::max<size_t>(size, 1))) return nullptr;
  std::unique_lock<std::shared_mutex> lock(memory().mutex);
  memory().pinned[reinterpret_cast<uintptr_t>(found)] = size;
  return found;
}

bool unpin(void* address) {
  {
    std::unique_lock<std::shared_mutex> lock(memory().mutex);
    if (!memory().pinned.erase(reinterpret_cast<uintptr_t>(address))) return false;
  }
  free(address);
  return true;
}

int device_of(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (!on_device(number)) return -1;
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  const auto* found = find(number);
  return found ? found->second.device : -1;
}

bool is_pinned(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  auto after = memory().pinned.upper_bound(number);
  return after != memory().pinned.begin() && number - std::prev(after)->first < std::prev(after)->second;
}

size_t room(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  const auto* found = find(number);
  return found ? found->second.size - (number - found->first) : 0;
}

char* bytes(const void* address, size_t size) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (!on_device(number)) return const_cast<char*>(static_cast<const char*>(address));
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  const auto* found = find(number);
  if (!found || found->second.size - (number - found->first) < size) return nullptr;
  return found->second.bytes + (number - found->first);
}

double used(int device) {
  std::shared_lock<std::shared_mutex> lock(memory().mutex);
  auto found = memory().used.find(device);
  return found == memory().used.end() ? 0 : found->second;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

int cudaMalloc(void** address, size_t size) {
  *address = allocate(current_device(), size);
  return *address ? success : failed(out_of_memory, "cudaMalloc: the device's memory is full");
}

int cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + alignment - 1) / alignment * alignment;
  return cudaMalloc(address, *pitch * height);
}

int cudaFree(void* address) {
  if (!address) return success;
  synchronize_all();  // work that was given before may still use it
  return release(address) ? success : failed(invalid_value, "cudaFree: no address of device memory");
}

int cudaHostAlloc(void** address, size_t size, unsigned) {
  *address = pin(size);
  return *address ? success : failed(out_of_memory, "cudaHostAlloc: no memory");
}

int cudaFreeHost(void* address) {
  if (!address) return success;
  synchronize_all();
  return unpin(address) ? success : failed(invalid_value, "cudaFreeHost: no address of pinned memory");
}

int cudaMemGetInfo(size_t* available, size_t* total) {
  *total = static_cast<size_t>(settings().device.memory);
  *available = static_cast<size_t>(settings().device.memory - used(current_device()));
  return success;
}
}
