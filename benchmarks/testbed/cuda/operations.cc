// MXNet's element-wise kernels, mxnet_generic_kernel<Operation, types of the arguments>, of which the first argument is the number of
// elements.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "arrays.h"
#include "kernels.h"

namespace emulated {
namespace {

using Function = double (*)(double, double);

enum Request { nothing, replace, in_place, add };  // OpReqType

const std::map<std::string, Function> functions = {
    {"identity", [](double a, double) { return a; }},    {"negation", [](double a, double) { return -a; }},
    {"square", [](double a, double) { return a * a; }},  {"plus", [](double a, double b) { return a + b; }},
    {"minus", [](double a, double b) { return a - b; }}, {"rminus", [](double a, double b) { return b - a; }},
    {"mul", [](double a, double b) { return a * b; }},   {"div", [](double a, double b) { return a / b; }},
};

// One argument of a kernel: elements, or one value for all.
struct Operand {
  Type type = Type::none;
  const void* address = nullptr;  // of elements; null: a value
  double value = 0;

  Operand(const std::string& name, const void* argument) : type(type_of(name)) {
    if (name.back() == '*')
      address = *static_cast<void* const*>(argument);
    else if (type != Type::none)
      value = read(type, argument);
  }
};

void assign(const Array& into, size_t index, int request, double value) {
  if (request == add) value += into[index];
  if (request != nothing) into.set(index, value);
}

// op_with_req<Operation, request>: the target, then one operand or two.
Work element_wise(const Name& operation, const Name& kernel, const Launch& launch, size_t count) {
  const std::string what = last_part(operation.arguments.at(0));
  const int request = atoi(operation.arguments.at(1).c_str());
  std::vector<Operand> operands;
  for (size_t i = 1; i < kernel.arguments.size(); i++) operands.emplace_back(kernel.arguments[i], launch.arguments[i]);
  for (const Operand& operand : operands)
    if (operand.type == Type::none) return {};
  double constant = 0;
  Function function = nullptr;
  if (what.rfind("set_to_int<", 0) == 0)
    constant = atof(what.c_str() + 11);
  else if (functions.count(what))
    function = functions.at(what);
  else
    return {};
  return [=] {
    std::vector<Array> arrays;
    for (const Operand& operand : operands) arrays.push_back(operand.address ? Array(operand.type, operand.address, count) : Array());
    auto get = [&](size_t operand, size_t i) {
      if (operand >= operands.size()) return 0.;
      return operands[operand].address ? arrays[operand][i] : operands[operand].value;
    };
    for (size_t i = 0; i < count; i++) assign(arrays[0], i, request, function ? function(get(1, i), get(2, i)) : constant);
  };
}

// MXNet's structure for updates of up to 60 weights at once; weights, gradients and results may be in half precision.
struct Updates {
  static constexpr int limit = 60;
  int count;
  size_t largest, sizes[limit];
  void *weights[limit], *gradients[limit];
  float *momenta[limit], *weights32[limit];
  void* results[limit];
  float rates[limit], decays[limit], clip, rescale, momentum;
};

void update(const Updates& all, int number, Type type, bool with_momentum, bool mixed, int request) {
  const size_t size = all.sizes[number];
  const Array weights(type, all.weights[number], size), gradients(type, all.gradients[number], size),
      results(type, all.results[number], size);
  float* momenta = with_momentum ? elements<float>(all.momenta[number], size) : nullptr;
  float* masters = mixed ? elements<float>(all.weights32[number], size) : nullptr;
  const float rate = all.rates[number], decay = all.decays[number];
  for (size_t i = 0; i < size; i++) {
    float weight = mixed ? masters[i] : static_cast<float>(weights[i]);
    float step = all.rescale * static_cast<float>(gradients[i]);
    if (all.clip >= 0) step = std::min(std::max(step, -all.clip), all.clip);
    step += decay * weight;
    if (with_momentum) {
      momenta[i] *= all.momentum;
      momenta[i] -= rate * step;
      weight += momenta[i];
    } else {
      weight -= rate * step;
    }
    if (mixed) masters[i] = weight;
    assign(results, i, request, weight);
  }
}

Work sgd(const Name& operation, const Name& kernel, const Launch& launch) {  // MultiSGDKernel<float, momentum, mixed precision>
  const Type type = type_of(Name(kernel.arguments.at(1)).arguments.at(0));
  if (type == Type::none || operation.arguments.at(0) != "float") return {};
  const Updates all = launch.argument<Updates>(1);
  const bool with_momentum = operation.arguments.at(1) == "true", mixed = operation.arguments.at(2) == "true";
  const int request = launch.argument<int>(2);
  return [=] {
    for (int number = 0; number < all.count; number++) update(all, number, type, with_momentum, mixed, request);
  };
}

Work adam(const Name& kernel, const Launch& launch, size_t count) {
  if (kernel.arguments.at(1) != "float*") return {};
  void* arrays[5];
  float numbers[7];
  for (size_t i = 0; i < 5; i++) arrays[i] = launch.argument<void*>(1 + i);
  for (size_t i = 0; i < 7; i++) numbers[i] = launch.argument<float>(6 + i);
  const int request = launch.argument<int>(13);
  return [=] {
    const Array results(Type::single, arrays[0], count), weights(Type::single, arrays[3], count), gradients(Type::single, arrays[4], count);
    float *means = elements<float>(arrays[1], count), *variances = elements<float>(arrays[2], count);
    const float clip = numbers[0], rescale = numbers[1], beta1 = numbers[2], beta2 = numbers[3], rate = numbers[4], decay = numbers[5];
    for (size_t i = 0; i < count; i++) {
      float gradient = static_cast<float>(gradients[i]) * rescale;
      if (clip >= 0) gradient = std::min(std::max(gradient, -clip), clip);
      gradient += static_cast<float>(weights[i]) * decay;
      means[i] = beta1 * means[i] + (1 - beta1) * gradient;
      variances[i] = beta2 * variances[i] + (1 - beta2) * gradient * gradient;
      assign(results, i, request, static_cast<float>(weights[i]) - rate * means[i] / (std::sqrt(variances[i]) + numbers[6]));
    }
  };
}

}  // namespace

Work operation(const Launch& launch) {
  const Name kernel(launch.name.substr(0, launch.name.find(">(") + 1));
  if (last_part(kernel.head) != "mxnet_generic_kernel") return {};
  const Name operation(kernel.arguments.at(0));
  const std::string what = last_part(operation.head);
  const auto count = static_cast<size_t>(std::max(launch.argument<int>(0), 0));
  if (what == "op_with_req") return element_wise(operation, kernel, launch, count);
  if (what == "MultiSGDKernel") return sgd(operation, kernel, launch);
  if (what == "AdamUpdateKernel") return adam(kernel, launch, count);
  return {};
}

}  // namespace emulated
