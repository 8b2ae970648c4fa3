#include "error.h"

#include <cstdio>

namespace emulated {
namespace {

thread_local int last = success;
thread_local std::string text;

}  // namespace

int failed(Error code, const std::string& why) {
  last = code;
  text = why;
  return code;
}

int unknown(const std::string& what, int code) {
  failed(not_emulated, what + " is not emulated");
  fprintf(stderr, "emulated CUDA: %s\n", text.c_str());
  return code;
}

const char* last_text() { return text.empty() ? "no error" : text.c_str(); }

}  // namespace emulated

using namespace emulated;

extern "C" {

int cudaGetLastError() {
  const int found = last;
  last = success;
  return found;
}
int cudaPeekAtLastError() { return last; }
const char* cudaGetErrorString(int code) { return code ? last_text() : "no error"; }
const char* cudaGetErrorName(int code) {
  switch (code) {
    case success: return "cudaSuccess";
    case invalid_value: return "cudaErrorInvalidValue";
    case out_of_memory: return "cudaErrorMemoryAllocation";
    case invalid_device: return "cudaErrorInvalidDevice";
    case invalid_handle: return "cudaErrorInvalidResourceHandle";
    case not_emulated: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
int cuGetErrorString(int code, const char** found) {
  *found = cudaGetErrorString(code);
  return success;
}
const char* cudnnGetErrorString(int code) { return code ? last_text() : "no error"; }
const char* nvrtcGetErrorString(int code) { return code ? last_text() : "no error"; }
}
