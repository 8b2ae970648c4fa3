// What the environment says of the emulation. docs/emulated-gpu.md lists the variables.
#pragma once
#include <cstddef>
#include <string>

namespace emulated {

// The numbers of a device. A rate is what the device reaches in practice, not its peak.
struct Device {
  const char* name;
  int major, minor;   // compute capability
  int processors;     // of the device
  double flops;       // operations/s in single precision: a multiplication and an addition are two
  double half_flops;  // the same in half precision
  double bandwidth;   // bytes/s of its memory
  double copy_to;     // bytes/s of copies from the host
  double copy_from;   // bytes/s of copies to the host
  double peer;        // bytes/s of copies between two devices
  double launch;      // seconds of the device that any operation takes besides its work
  double memory;      // bytes
};

enum class Fault { none, copy, wait, swap };

struct Settings {
  Device device;
  int count;        // of devices that this process sees
  bool arithmetic;  // kernels compute their values; without it they only take their time
  bool early;       // work is done as it is given to a stream; without it, as somebody waits for the stream
  Fault fault;      // planted, at the operation of this number, or from it on
  long fault_at;
  std::string trace;  // the file that copies are written to; empty: none
};

// Read once. A value that is not allowed is refused.
const Settings& settings();

// Ends the process with code 2, after a line that names the variable, its value, and what is allowed.
[[noreturn]] void refuse(const char* variable, const char* value, const std::string& allowed);

}  // namespace emulated
