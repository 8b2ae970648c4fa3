// The kernels of a fully connected layer's bias, and of softmax with its gradient. All in single precision.
#include <algorithm>
#include <cmath>
#include <string>

#include "arrays.h"
#include "kernels.h"

namespace emulated {
namespace {

struct Plan {  // of a tensor of two dimensions
  float* address;
  int stride;
};

Work add_bias(const Launch& launch) {  // to each row
  auto *matrix = launch.argument<float*>(0), *bias = launch.argument<float*>(1);
  const size_t rows = launch.argument<size_t>(2), columns = launch.argument<size_t>(3);
  return [=] {
    float *into = elements<float>(matrix, rows * columns), *from = elements<float>(bias, columns);
    for (size_t i = 0; i < rows * columns; i++) into[i] += from[i % columns];
  };
}

Work sum_rows(const Launch& launch) {  // the first of two steps: a part of the rows for each block
  auto *partial = launch.argument<float*>(0), *gradient = launch.argument<float*>(1);
  const size_t columns = launch.argument<size_t>(2), rows = launch.argument<size_t>(3), blocks = launch.blocks_y,
               share = (rows + blocks - 1) / blocks;
  return [=] {
    float *into = elements<float>(partial, blocks * columns), *from = elements<float>(gradient, rows * columns);
    std::fill(into, into + blocks * columns, 0.f);
    for (size_t row = 0; row < rows; row++)
      for (size_t column = 0; column < columns; column++) into[row / share * columns + column] += from[row * columns + column];
  };
}

Work sum_parts(const Launch& launch) {
  auto *partial = launch.argument<float*>(0), *out = launch.argument<float*>(1);
  const size_t columns = launch.argument<int>(2), blocks = launch.argument<int>(3);
  const int request = launch.argument<int>(4);
  return [=] {
    float *from = elements<float>(partial, blocks * columns), *into = elements<float>(out, columns);
    for (size_t column = 0; column < columns; column++) {
      float sum = request == 3 ? into[column] : 0;
      for (size_t block = 0; block < blocks; block++) sum += from[block * columns + column];
      into[column] = sum;
    }
  };
}

Work softmax(const Launch& launch, size_t rows) {
  const Plan target = launch.argument<Plan>(0), source = launch.argument<Plan>(1);
  const int columns = launch.argument<int>(2);
  return [=] {
    for (size_t row = 0; row < rows; row++) {
      float *into = elements<float>(target.address + row * target.stride, columns),
            *from = elements<float>(source.address + row * source.stride, columns);
      const float largest = *std::max_element(from, from + columns);
      float sum = 0;
      for (int i = 0; i < columns; i++) sum += into[i] = std::exp(from[i] - largest);
      for (int i = 0; i < columns; i++) into[i] /= sum;
    }
  };
}

Work softmax_gradient(const Launch& launch, size_t rows) {
  const Plan target = launch.argument<Plan>(0), source = launch.argument<Plan>(1);
  auto* labels = launch.argument<float*>(2);
  const int columns = launch.argument<int>(3);
  return [=] {
    float* label = elements<float>(labels, rows);
    for (size_t row = 0; row < rows; row++) {
      float *into = elements<float>(target.address + row * target.stride, columns),
            *from = elements<float>(source.address + row * source.stride, columns);
      for (int i = 0; i < columns; i++) into[i] = from[i] - (i == static_cast<int>(label[row]) ? 1.f : 0.f);
    }
  };
}

}  // namespace

Work layer(const Launch& launch) {
  const Name kernel(launch.name.substr(0, launch.name.find(">(") + 1));
  const std::string what = last_part(kernel.head);
  auto takes = [&](size_t index) { return kernel.arguments.size() > index && kernel.arguments[index] == "float"; };
  if (what == "add_bias_kernel" && takes(0)) return add_bias(launch);
  if (what == "AddBiasGradKernelPhase1" && takes(1) && takes(2)) return sum_rows(launch);
  if (what == "AddBiasGradKernelPhase2" && takes(0) && takes(1)) return sum_parts(launch);
  if (what == "SoftmaxKernel" && takes(1)) return softmax(launch, launch.blocks_x);
  if (what == "SoftmaxGradKernel" && takes(1) && launch.name.find(", float)") == std::string::npos)
    return softmax_gradient(launch, launch.blocks_x);
  return {};
}

}  // namespace emulated
