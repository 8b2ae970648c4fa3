// cuBLAS: products of matrices, with the time of their operations or of their bytes, whichever is longer. Matrices are by columns.
#include <algorithm>
#include <type_traits>

#include "error.h"
#include "memory.h"
#include "settings.h"
#include "streams.h"

namespace emulated {
namespace {

constexpr int not_supported = 15;        // CUBLAS_STATUS_NOT_SUPPORTED
constexpr int real_32 = 0, real_16 = 2;  // cudaDataType

struct Handle {
  void* stream = nullptr;
  int math = 0;
};

struct Matrix {
  const void* at;
  int leading;
  long long stride;  // from a matrix to the next of a batch, in elements
  bool transposed;
};

struct Product {
  int m, n, k, batch;
  Matrix a, b, c;
  float alpha, beta;
};

float* floats(const Matrix& matrix, int number) {  // the size of the whole is checked where the product is given
  return reinterpret_cast<float*>(bytes(matrix.at, sizeof(float))) + number * matrix.stride;
}

void multiply(const Product& p) {
  for (int number = 0; number < p.batch; number++) {
    const float *a = floats(p.a, number), *b = floats(p.b, number);
    float* c = floats(p.c, number);
    for (int column = 0; column < p.n; column++)
      for (int row = 0; row < p.m; row++) {
        float sum = 0;
        for (int i = 0; i < p.k; i++)
          sum += (p.a.transposed ? a[i + row * p.a.leading] : a[row + i * p.a.leading]) *
                 (p.b.transposed ? b[column + i * p.b.leading] : b[i + column * p.b.leading]);
        float& out = c[row + column * p.c.leading];
        out = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * out);
      }
  }
}

bool fits(const Matrix& matrix, int rows, int columns, int batch) {
  if (matrix.transposed) std::swap(rows, columns);
  const long long last = (batch - 1) * matrix.stride + (columns - 1LL) * matrix.leading + rows;
  return bytes(matrix.at, last * sizeof(float)) != nullptr;
}

int product(Handle* handle, const char* name, const Product& p, int type) {
  const Device& device = settings().device;
  const double element = type == real_16 ? 2 : type == real_32 ? 4 : 8;
  const double operations = 2.0 * p.m * p.n * p.k * p.batch;
  const double moved = element * p.batch * (double(p.m) * p.k + double(p.k) * p.n + double(p.m) * p.n);
  Work work;
  if (settings().arithmetic) {
    if (type != real_32) return unknown(std::string("the arithmetic of ") + name + " in other than single precision", not_supported);
    if (!fits(p.a, p.m, p.k, p.batch) || !fits(p.b, p.k, p.n, p.batch) || !fits(p.c, p.m, p.n, p.batch))
      return failed(invalid_value, std::string(name) + ": a matrix is not within an allocation");
    work = [p] { multiply(p); };
  }
  const double rate = type == real_16 ? device.half_flops : device.flops;
  give(stream_of(handle->stream), Engine::kernels, device.launch + std::max(operations / rate, moved / device.bandwidth), work);
  return success;
}

float scalar(const void* at, int type) {  // half-precision scalars belong to products that have no arithmetic
  return type == real_32 ? *static_cast<const float*>(at) : 1;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

int cublasCreate_v2(Handle** made) {
  *made = new Handle;
  return success;
}
int cublasDestroy_v2(Handle* old) {
  delete old;
  return success;
}
int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  return success;
}
int cublasSetPointerMode_v2(Handle*, int) { return success; }
int cublasSetMathMode(Handle* handle, int mode) {
  handle->math = mode;
  return success;
}
int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math;
  return success;
}

int cublasSgemm_v2(Handle* handle, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int lda, const void* b, int ldb,
                   const float* beta, void* c, int ldc) {
  return product(handle, __func__, {m, n, k, 1, {a, lda, 0, ta != 0}, {b, ldb, 0, tb != 0}, {c, ldc, 0, false}, *alpha, *beta}, real_32);
}

int cublasSgemmEx(Handle* handle, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int type, int lda, const void* b,
                  int, int ldb, const float* beta, void* c, int, int ldc) {
  return product(handle, __func__, {m, n, k, 1, {a, lda, 0, ta != 0}, {b, ldb, 0, tb != 0}, {c, ldc, 0, false}, *alpha, *beta}, type);
}

int cublasGemmEx(Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type, int lda, const void* b,
                 int, int ldb, const void* beta, void* c, int, int ldc, int, int) {
  return product(handle, __func__,
                 {m, n, k, 1, {a, lda, 0, ta != 0}, {b, ldb, 0, tb != 0}, {c, ldc, 0, false}, scalar(alpha, type), scalar(beta, type)},
                 type);
}

int cublasSgemmStridedBatched(Handle* handle, int ta, int tb, int m, int n, int k, const float* alpha, const void* a, int lda, long long sa,
                              const void* b, int ldb, long long sb, const float* beta, void* c, int ldc, long long sc, int batch) {
  return product(handle, __func__, {m, n, k, batch, {a, lda, sa, ta != 0}, {b, ldb, sb, tb != 0}, {c, ldc, sc, false}, *alpha, *beta},
                 real_32);
}

int cublasGemmStridedBatchedEx(Handle* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type, int lda,
                               long long sa, const void* b, int, int ldb, long long sb, const void* beta, void* c, int, int ldc,
                               long long sc, int batch, int, int) {
  return product(
      handle, __func__,
      {m, n, k, batch, {a, lda, sa, ta != 0}, {b, ldb, sb, tb != 0}, {c, ldc, sc, false}, scalar(alpha, type), scalar(beta, type)}, type);
}

int cublasHgemmStridedBatched(Handle* handle, int ta, int tb, int m, int n, int k, const void*, const void* a, int lda, long long sa,
                              const void* b, int ldb, long long sb, const void*, void* c, int ldc, long long sc, int batch) {
  return product(handle, __func__, {m, n, k, batch, {a, lda, sa, ta != 0}, {b, ldb, sb, tb != 0}, {c, ldc, sc, false}, 1, 0}, real_16);
}

int cusolverDnCreate(Handle** made) {
  *made = new Handle;
  return success;
}
int cusolverDnDestroy(Handle* old) {
  delete old;
  return success;
}
int cusolverDnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return success;
}
}
