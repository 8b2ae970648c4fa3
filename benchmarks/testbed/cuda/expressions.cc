// mshadow's expressions. A kernel is MapPlanKernel<Saver, bits, Plan of the target, Plan of the expression>; its arguments are the target's
// plan, a stride, the shape (rows, columns), and the expression's plan. A plan is a structure whose layout follows from its type: a tensor
// is a pointer and, with two dimensions or more, a stride; a scalar is itself; others are the plans of their parts, one after another.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

#include "arrays.h"
#include "kernels.h"

namespace emulated {
namespace {

using Evaluate = std::function<double(int row, int column)>;

double combine(const std::string& operation, double one, double other) {
  if (operation == "plus") return one + other;
  if (operation == "minus") return one - other;
  if (operation == "mul") return one * other;
  return one / other;
}

bool combines(const std::string& operation) {
  return operation == "plus" || operation == "minus" || operation == "mul" || operation == "div";
}

// A tensor, or a slice of one: of some dimension, ``count`` indices from ``begin`` on, of the ``whole`` that the tensor has; ``height`` is
// the product of the dimensions between that one and the last. 0: a slice of the last dimension, or no slice.
struct Tensor {
  Type type = Type::none;
  const void* address = nullptr;
  int stride = 0;  // 0: one dimension
  int height = 0, begin = 0, whole = 0, count = 0;

  double get(int row, int column) const { return Array(type, at(row, column), 1)[0]; }
  void set(int row, int column, double value) const { Array(type, at(row, column), 1).set(0, value); }

 private:
  const void* at(int row, int column) const {
    if (height)
      row = (row / height / count * whole + row / height % count + begin) * height + row % height;
    else
      column += begin;
    return static_cast<const char*>(address) + (size_t(row) * stride + column) * size_of(type);
  }
};

// Reads the members of a plan in order, each at the next multiple of its size.
class Reader {
 public:
  explicit Reader(const void* plan) : begin_(static_cast<const char*>(plan)), at_(begin_) {}

  template <typename Member>
  Member take() {
    align(sizeof(Member));
    Member found;
    memcpy(&found, at_, sizeof found);
    at_ += sizeof found;
    return found;
  }
  const char* take_bytes(size_t size) {
    align(size);
    at_ += size;
    return at_ - size;
  }
  void align(size_t size) { at_ = begin_ + (at_ - begin_ + size - 1) / size * size; }

 private:
  const char *begin_, *at_;
};

// Tensor<gpu, dimensions, type>, or SliceExp<Tensor, gpu, type, dimensions, dimensions from the sliced one on>; of type none: another
// expression.
Tensor tensor(const Name& name, Reader& reader) {
  Tensor found;
  if (last_part(name.head) == "SliceExp") {
    found = tensor(Name(name.arguments.at(0)), reader);
    const bool last = name.arguments.at(4) == "1";
    if (!last) found.height = reader.take<int>();
    found.begin = reader.take<int>();
    if (last) return found;
    found.whole = reader.take<int>();
    found.count = reader.take<int>();
  } else if (last_part(name.head) == "Tensor") {
    found.type = type_of(name.arguments.at(2));
    found.address = reader.take<const void*>();
    if (name.arguments.at(1) != "1") {
      found.stride = reader.take<int>();
      reader.align(sizeof(void*));
    }
  }
  return found;
}

Evaluate largest(const Name& name, Reader& reader);

// What an expression of this type, with its plan next in ``reader``, gives for an element; empty if its arithmetic is not known.
Evaluate evaluate(const std::string& type, Reader& reader) {
  const Name name(type);
  const std::string kind = last_part(name.head);
  if (kind == "Tensor" || kind == "SliceExp") {
    const Tensor found = tensor(name, reader);
    if (found.type == Type::none) return {};
    return [found](int row, int column) { return found.get(row, column); };
  }
  if (kind == "ScalarExp") {
    const Type scalar = type_of(name.arguments.at(0));
    if (scalar == Type::none) return {};
    const double value = read(scalar, reader.take_bytes(size_of(scalar)));
    return [value](int, int) { return value; };
  }
  if (kind == "TypecastExp") return evaluate(name.arguments.at(2), reader);
  if (kind == "BinaryMapExp") {
    const std::string operation = last_part(name.arguments.at(0));
    const Evaluate one = evaluate(name.arguments.at(1), reader), other = evaluate(name.arguments.at(2), reader);
    if (!one || !other || !combines(operation)) return {};
    return [=](int row, int column) { return combine(operation, one(row, column), other(row, column)); };
  }
  if (kind == "ReduceWithAxisExp") return largest(name, reader);
  return {};
}

// The index of the largest element along an axis: ReduceWithAxisExp<maximum, expression, type, dimensions, true, dimensions>.
Evaluate largest(const Name& name, Reader& reader) {
  const Evaluate of = evaluate(name.arguments.at(1), reader);
  if (!of || last_part(name.arguments.at(0)) != "maximum" || name.arguments.at(4) != "true") return {};
  const int width = reader.take<int>(), trailing = reader.take<int>(), size = reader.take<int>(), last = reader.take<int>();
  return [=](int row, int column) {
    const int x = (row * width + column) / trailing, y = (row * width + column) % trailing;
    int best = 0;
    double value = -INFINITY;
    for (int k = 0; k < size; k++) {
      const int z = (x * size + k) * trailing + y;
      const double found = of(z / last, z % last);
      if (found > value) {
        value = found;
        best = k;
      }
    }
    return double(best);
  };
}

}  // namespace

Work expression(const Launch& launch) {
  const Name name(launch.name.substr(0, launch.name.find(">(") + 1));
  if (last_part(name.head) != "MapPlanKernel") return {};
  const std::string saver = last_part(name.arguments.at(0));
  Reader into(launch.arguments[0]), from(launch.arguments[3]);
  const Tensor target = tensor(Name(Name(name.arguments.at(2)).arguments.at(0)), into);
  const Evaluate value = evaluate(Name(name.arguments.at(3)).arguments.at(0), from);
  const std::string operation = saver.substr(0, saver.size() - 2);  // of "plusto"
  if (!value || target.type == Type::none || (saver != "saveto" && !combines(operation))) return {};
  const int *shape = &launch.argument<int>(2), rows = shape[0], columns = shape[1];
  return [=] {
    for (int row = 0; row < rows; row++)
      for (int column = 0; column < columns; column++) {
        const double found = value(row, column);
        target.set(row, column, saver == "saveto" ? found : combine(operation, target.get(row, column), found));
      }
  };
}

}  // namespace emulated
