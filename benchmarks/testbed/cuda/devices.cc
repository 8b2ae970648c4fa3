// What a program asks of the devices. cudaDeviceProp is written as far as MXNet reads it; what follows is left alone.
#include <cstddef>
#include <cstring>
#include <string>

#include "error.h"
#include "settings.h"

using namespace emulated;

namespace {

struct Properties {  // the beginning of cudaDeviceProp of CUDA 11.2
  char name[256];
  char uuid[16], luid[8];
  unsigned luid_mask;
  size_t memory, shared_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, block[3], grid[3], clock;
  size_t constant;
  int major, minor;
  size_t texture_alignment, texture_pitch;
  int overlap, processors;
};
static_assert(offsetof(Properties, memory) == 288 && offsetof(Properties, major) == 360 && offsetof(Properties, processors) == 388, "");

enum Attribute {
  threads_per_block = 1,
  block_x = 2,
  grid_x = 5,
  shared_per_block = 8,
  warp = 10,
  processors = 16,
  major = 75,
  minor = 76,
  shared_optin = 97
};

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  *count = settings().count;
  return *count ? success : failed(Error(100), "no devices");
}

int cudaDriverGetVersion(int* version) {
  *version = 11020;
  return success;
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case threads_per_block: *value = 1024; return success;
    case block_x: *value = 1024; return success;
    case grid_x: *value = 2147483647; return success;
    case shared_per_block:
    case shared_optin: *value = 49152; return success;
    case warp: *value = 32; return success;
    case processors: *value = settings().device.processors; return success;
    case major: *value = settings().device.major; return success;
    case minor: *value = settings().device.minor; return success;
  }
  return unknown("cudaDeviceGetAttribute(" + std::to_string(attribute) + ")");
}

int cudaGetDeviceProperties(Properties* into, int) {
  const Device& device = settings().device;
  memset(static_cast<void*>(into), 0, sizeof *into);
  strncpy(into->name, device.name, sizeof into->name - 1);
  into->memory = static_cast<size_t>(device.memory);
  into->shared_per_block = 49152;
  into->registers_per_block = 65536;
  into->warp_size = 32;
  into->pitch = 2147483647;
  into->threads_per_block = 1024;
  into->block[0] = into->block[1] = 1024;
  into->block[2] = 64;
  into->grid[0] = 2147483647;
  into->grid[1] = into->grid[2] = 65535;
  into->clock = 1500000;
  into->constant = 65536;
  into->major = device.major;
  into->minor = device.minor;
  into->texture_alignment = 512;
  into->overlap = 1;
  into->processors = device.processors;
  return success;
}

int cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;  // copies between devices go through cudaMemcpyPeerAsync
  return success;
}

int cuDeviceGet(int* device, int number) {
  *device = number;
  return success;
}

int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = nullptr;
  return success;
}
}
