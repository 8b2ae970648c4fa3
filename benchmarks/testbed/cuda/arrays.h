// Arrays on a device as kernels see them, and the names of C++ types that say what kernels take.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace emulated {

enum class Type { none, single, twice, half, byte, whole, long_whole };

// Of a name such as "float", "float const*" or "mshadow::half::half_t*"; none: another type.
Type type_of(const std::string& name);
size_t size_of(Type type);
double read(Type type, const void* at);
void write(Type type, void* at, double value);  // rounds to the nearest

// Elements of device memory. A range that is not within one allocation ends the process, as a real device ends a program's context.
class Array {
 public:
  Array() = default;
  Array(Type type, const void* address, size_t elements);
  double operator[](size_t index) const { return read(type_, at_ + index * size_); }
  void set(size_t index, double value) const { write(type_, at_ + index * size_, value); }

 private:
  Type type_ = Type::none;
  size_t size_ = 0;
  char* at_ = nullptr;
};

template <typename Element>
Element* elements(const void* address, size_t count);  // the same, for float and half as they lie in memory

// A name such as "A<B, C<D> >" in parts.
struct Name {
  std::string head;                    // "A"
  std::vector<std::string> arguments;  // "B", "C<D>"
  explicit Name(const std::string& text);
};

std::string last_part(const std::string& name);  // "c" of "a::b::c", "c<x::y>" of "a::c<x::y>"

}  // namespace emulated
