// cuDNN. A call's time is that of its operations or of its bytes, whichever is longer; both follow from the descriptors' shapes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "error.h"
#include "memory.h"
#include "settings.h"
#include "streams.h"

namespace emulated {
namespace {

constexpr int not_supported = 9;  // CUDNN_STATUS_NOT_SUPPORTED
enum Type { single, twice, half };

struct Handle {
  void* stream = nullptr;
};

struct Shape {  // of a tensor or of a filter
  int type = single;
  std::vector<int> dims;
  double count() const {
    double product = 1;
    for (int dim : dims) product *= dim;
    return product;
  }
  double inner() const { return dims.empty() || !dims[0] ? 0 : count() / dims[0]; }
  double size() const { return count() * (type == twice ? 8 : type == half ? 2 : 4); }
};

struct Activation {
  int mode = 0;
};

int set(Shape* shape, int type, int count, const int* dims) {
  shape->type = type;
  shape->dims.assign(dims, dims + count);
  return success;
}

// Give a stream an operation that moves so many bytes. With arithmetic, one whose work is not known is an error.
int give(Handle* handle, const char* name, double operations, double moved, bool in_half, Work work = {}) {
  const Device& device = settings().device;
  if (settings().arithmetic && !work) return unknown(std::string("the arithmetic of ") + name, not_supported);
  const double seconds = std::max(operations / (in_half ? device.half_flops : device.flops), moved / device.bandwidth);
  emulated::give(stream_of(handle->stream), Engine::kernels, device.launch + seconds, std::move(work));
  return success;
}

// Forward, to the data and to the filter: each output element is a sum of as many products as an output channel of the filter has weights.
int convolve(Handle* handle, const char* name, const Shape* input, const Shape* filter, const Shape* output) {
  const double products = output->count() * filter->inner();
  return give(handle, name, 2 * products, input->size() + filter->size() + output->size(), input->type == half);
}

struct Algorithm {  // cudnnConvolution*AlgoPerf_t
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};
static_assert(sizeof(Algorithm) == 48, "");

int one_algorithm(int* count, Algorithm* found) {
  *count = 1;
  *found = {};
  found->algorithm = 1;
  return success;
}

template <typename Function>
Work each(const Shape* shape, std::vector<const void*> arrays, Function function) {
  if (!settings().arithmetic || shape->type != single) return {};
  const auto count = static_cast<size_t>(shape->count());
  return [=] {
    std::vector<float*> found;
    for (const void* array : arrays) found.push_back(reinterpret_cast<float*>(bytes(array, count * sizeof(float))));
    for (size_t i = 0; i < count; i++) function(found, i);
  };
}

float activated(int mode, float x) {  // sigmoid, relu, tanh
  return mode == 0 ? 1 / (1 + std::exp(-x)) : mode == 1 ? std::max(x, 0.f) : std::tanh(x);
}

float slope(int mode, float y) { return mode == 0 ? y * (1 - y) : mode == 1 ? (y > 0 ? 1.f : 0.f) : 1 - y * y; }

}  // namespace
}  // namespace emulated

using namespace emulated;

// Descriptors without a say in times.
#define DESCRIPTOR(Name)                           \
  int cudnnCreate##Name##Descriptor(void** made) { \
    *made = new char;                              \
    return success;                                \
  }                                                \
  int cudnnDestroy##Name##Descriptor(void* old) {  \
    delete static_cast<char*>(old);                \
    return success;                                \
  }

// What the library would choose an algorithm by: there is one, which needs no workspace.
#define CONVOLUTION(Name)                                                                                         \
  int cudnnFindConvolution##Name##Algorithm(void*, void*, void*, void*, void*, int, int* count, Algorithm* f) {   \
    return one_algorithm(count, f);                                                                               \
  }                                                                                                               \
  int cudnnGetConvolution##Name##Algorithm_v7(void*, void*, void*, void*, void*, int, int* count, Algorithm* f) { \
    return one_algorithm(count, f);                                                                               \
  }                                                                                                               \
  int cudnnGetConvolution##Name##AlgorithmMaxCount(void*, int* count) {                                           \
    *count = 1;                                                                                                   \
    return success;                                                                                               \
  }                                                                                                               \
  int cudnnGetConvolution##Name##WorkspaceSize(void*, void*, void*, void*, void*, int, size_t* size) {            \
    *size = 0;                                                                                                    \
    return success;                                                                                               \
  }

extern "C" {

size_t cudnnGetVersion() { return 8100; }

int cudnnCreate(Handle** made) {
  *made = new Handle;
  return success;
}
int cudnnDestroy(Handle* old) {
  delete old;
  return success;
}
int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return success;
}

int cudnnCreateTensorDescriptor(Shape** made) {
  *made = new Shape;
  return success;
}
int cudnnDestroyTensorDescriptor(Shape* old) {
  delete old;
  return success;
}
int cudnnSetTensorNdDescriptor(Shape* shape, int type, int count, const int* dims, const int*) { return set(shape, type, count, dims); }
int cudnnSetTensor4dDescriptor(Shape* shape, int, int type, int n, int c, int h, int w) {
  const int dims[] = {n, c, h, w};
  return set(shape, type, 4, dims);
}

int cudnnCreateFilterDescriptor(Shape** made) {
  *made = new Shape;
  return success;
}
int cudnnDestroyFilterDescriptor(Shape* old) {
  delete old;
  return success;
}
int cudnnSetFilterNdDescriptor(Shape* shape, int type, int, int count, const int* dims) { return set(shape, type, count, dims); }
int cudnnSetFilter4dDescriptor(Shape* shape, int type, int, int k, int c, int h, int w) {
  const int dims[] = {k, c, h, w};
  return set(shape, type, 4, dims);
}

DESCRIPTOR(Convolution)
DESCRIPTOR(Pooling)
DESCRIPTOR(Dropout)
CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)

int cudnnSetConvolution2dDescriptor(void*, int, int, int, int, int, int, int, int) { return success; }
int cudnnSetConvolutionNdDescriptor(void*, int, const int*, const int*, const int*, int, int) { return success; }
int cudnnSetConvolutionGroupCount(void*, int) { return success; }
int cudnnSetConvolutionMathType(void*, int) { return success; }
int cudnnSetPooling2dDescriptor(void*, int, int, int, int, int, int, int, int) { return success; }
int cudnnSetPoolingNdDescriptor(void*, int, int, int, const int*, const int*, const int*) { return success; }

int cudnnCreateActivationDescriptor(Activation** made) {
  *made = new Activation;
  return success;
}
int cudnnDestroyActivationDescriptor(Activation* old) {
  delete old;
  return success;
}
int cudnnSetActivationDescriptor(Activation* activation, int mode, int, double) {
  activation->mode = mode;
  return success;
}

int cudnnConvolutionForward(Handle* handle, const void*, const Shape* x, const void*, const Shape* w, const void*, void*, int, void*,
                            size_t, const void*, const Shape* y, void*) {
  return convolve(handle, __func__, x, w, y);
}
int cudnnConvolutionBackwardData(Handle* handle, const void*, const Shape* w, const void*, const Shape* dy, const void*, void*, int, void*,
                                 size_t, const void*, const Shape* dx, void*) {
  return convolve(handle, __func__, dx, w, dy);
}
int cudnnConvolutionBackwardFilter(Handle* handle, const void*, const Shape* x, const void*, const Shape* dy, const void*, void*, int,
                                   void*, size_t, const void*, const Shape* dw, void*) {
  return convolve(handle, __func__, x, dw, dy);
}
int cudnnConvolutionBackwardBias(Handle* handle, const void*, const Shape* dy, const void*, const void*, const Shape*, void*) {
  return give(handle, __func__, 0, dy->size(), false);
}
int cudnnAddTensor(Handle* handle, const void*, const Shape*, const void*, const void*, const Shape* c, void*) {
  return give(handle, __func__, 0, 2 * c->size(), false);
}

int cudnnDeriveBNTensorDescriptor(Shape* derived, const Shape* x, int) {
  const int dims[] = {1, x->dims.size() > 1 ? x->dims[1] : 1, 1, 1};
  return set(derived, x->type == half ? single : x->type, 4, dims);
}
int cudnnBatchNormalizationForwardTraining(Handle* handle, int, const void*, const void*, const Shape* x, const void*, const Shape*, void*,
                                           const Shape*, const void*, const void*, double, void*, void*, double, void*, void*) {
  return give(handle, __func__, 0, 3 * x->size(), false);
}
int cudnnBatchNormalizationForwardInference(Handle* handle, int, const void*, const void*, const Shape* x, const void*, const Shape*, void*,
                                            const Shape*, const void*, const void*, const void*, const void*, double) {
  return give(handle, __func__, 0, 2 * x->size(), false);
}
int cudnnBatchNormalizationBackward(Handle* handle, int, const void*, const void*, const void*, const void*, const Shape* x, const void*,
                                    const Shape*, const void*, const Shape*, void*, const Shape*, const void*, void*, void*, double,
                                    const void*, const void*) {
  return give(handle, __func__, 0, 5 * x->size(), false);
}

int cudnnPoolingForward(Handle* handle, void*, const void*, const Shape* x, const void*, const void*, const Shape* y, void*) {
  return give(handle, __func__, 0, x->size() + y->size(), false);
}
int cudnnPoolingBackward(Handle* handle, void*, const void*, const Shape* y, const void*, const Shape*, const void*, const Shape* x,
                         const void*, const void*, const Shape*, void*) {
  return give(handle, __func__, 0, 2 * x->size() + 2 * y->size(), false);
}

int cudnnActivationForward(Handle* handle, const Activation* activation, const void*, const Shape* shape, const void* x, const void*,
                           const Shape*, void* y) {
  const int mode = activation->mode;
  return give(handle, __func__, 0, 2 * shape->size(), false,
              each(shape, {x, y}, [mode](auto& at, size_t i) { at[1][i] = activated(mode, at[0][i]); }));
}
int cudnnActivationBackward(Handle* handle, const Activation* activation, const void*, const Shape* shape, const void* y, const Shape*,
                            const void* dy, const Shape*, const void*, const void*, const Shape*, void* dx) {
  const int mode = activation->mode;
  return give(handle, __func__, 0, 4 * shape->size(), false,
              each(shape, {y, dy, dx}, [mode](auto& at, size_t i) { at[2][i] = at[1][i] * slope(mode, at[0][i]); }));
}

int cudnnSoftmaxForward(Handle* handle, int, int, const void*, const Shape* x, const void*, const void*, const Shape*, void*) {
  return give(handle, __func__, 0, 3 * x->size(), false);
}
int cudnnSoftmaxBackward(Handle* handle, int, int, const void*, const Shape* y, const void*, const Shape*, const void*, const void*,
                         const Shape*, void*) {
  return give(handle, __func__, 0, 4 * y->size(), false);
}

int cudnnDropoutGetStatesSize(Handle*, size_t* size) {
  *size = 1 << 20;
  return success;
}
int cudnnDropoutGetReserveSpaceSize(const Shape* x, size_t* size) {
  *size = static_cast<size_t>(x->count() / 8) + 16;
  return success;
}
int cudnnSetDropoutDescriptor(void*, Handle*, float, void*, size_t, unsigned long long) { return success; }
int cudnnRestoreDropoutDescriptor(void*, Handle*, float, void*, size_t, unsigned long long) { return success; }
int cudnnDropoutForward(Handle* handle, void*, const Shape* x, const void*, const Shape*, void*, void*, size_t) {
  return give(handle, __func__, 0, 2 * x->size(), false);
}
int cudnnDropoutBackward(Handle* handle, void*, const Shape* dy, const void*, const Shape*, void*, void*, size_t) {
  return give(handle, __func__, 0, 2 * dy->size(), false);
}
}
