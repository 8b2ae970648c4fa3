// NVRTC, and the kernels that MXNet compiles with it as it runs: fused element-wise operators. They are compiled to nothing, and take the
// time of their elements. With arithmetic a launch is an error: set MXNET_USE_FUSION=0.
#include <string>

#include "error.h"
#include "settings.h"
#include "streams.h"

using namespace emulated;

namespace {

constexpr double bytes_per_thread = 12;  // an element, of which two are read and one is written

struct Program {
  std::string name;
};

}  // namespace

extern "C" {

int nvrtcCreateProgram(Program** made, const char*, const char*, int, const char* const*, const char* const*) {
  *made = new Program;
  return success;
}
int nvrtcDestroyProgram(Program** old) {
  delete *old;
  *old = nullptr;
  return success;
}
int nvrtcAddNameExpression(Program* program, const char* name) {
  program->name = name;
  return success;
}
int nvrtcCompileProgram(Program*, int, const char* const*) { return success; }
int nvrtcGetPTXSize(Program*, size_t* size) {
  *size = 1;
  return success;
}
int nvrtcGetPTX(Program*, char* code) {
  *code = 0;
  return success;
}
int nvrtcGetProgramLogSize(Program*, size_t* size) {
  *size = 1;
  return success;
}
int nvrtcGetProgramLog(Program*, char* log) {
  *log = 0;
  return success;
}
int nvrtcGetLoweredName(Program* program, const char*, const char** name) {
  *name = program->name.c_str();
  return success;
}

int cuModuleLoadData(void** module, const void*) {
  *module = new char;
  return success;
}
int cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void*) {
  *module = new char;
  return success;
}
int cuModuleUnload(void* module) {
  delete static_cast<char*>(module);
  return success;
}
int cuModuleGetFunction(std::string** function, void*, const char* name) {
  *function = new std::string(name);
  return success;
}

int cuLaunchKernel(std::string* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
                   void* stream, void**, void**) {
  if (settings().arithmetic) return unknown("the arithmetic of the compiled kernel " + *function);
  const Device& device = settings().device;
  give(stream_of(stream), Engine::kernels, device.launch + bytes_per_thread * gx * gy * gz * bx * by * bz / device.bandwidth, {});
  return success;
}
}
