#include "arrays.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "memory.h"

namespace emulated {
namespace {

float from_half(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 0) return (sign ? -1.f : 1.f) * fraction * 0x1p-24f;
  const uint32_t made = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  float value;
  memcpy(&value, &made, sizeof value);
  return value;
}

uint16_t to_half(float value) {  // to the nearest, ties to even
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = bits >> 16 & 0x8000;
  const uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;
  if (size < 0x38800000) {  // below the smallest normal number: a multiple of 2**-24
    float whole;
    memcpy(&whole, &size, sizeof whole);
    whole = whole * 0x1p24f + 0x1p23f;  // the addition rounds
    memcpy(&bits, &whole, sizeof bits);
    return sign | static_cast<uint16_t>(bits & 0x7fff);
  }
  return sign | static_cast<uint16_t>((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

char* inside(const void* address, size_t size) {
  char* found = bytes(address, size);
  if (!found || device_of(address) == -1) {
    fprintf(stderr, "emulated CUDA: a kernel uses %zu bytes at %p, which are not within an allocation of a device\n", size, address);
    abort();
  }
  return found;
}

}  // namespace

Type type_of(const std::string& name) {
  const std::string plain = name.substr(0, name.find_first_of(" *"));
  if (plain == "float") return Type::single;
  if (plain == "double") return Type::twice;
  if (plain == "mshadow::half::half_t") return Type::half;
  if (name == "unsigned char" || name == "unsigned char*" || plain == "bool") return Type::byte;
  if (plain == "int") return Type::whole;
  if (plain == "long") return Type::long_whole;
  return Type::none;
}

size_t size_of(Type type) {
  const size_t sizes[] = {0, 4, 8, 2, 1, 4, 8};
  return sizes[static_cast<int>(type)];
}

double read(Type type, const void* at) {
  switch (type) {
    case Type::single: return *static_cast<const float*>(at);
    case Type::twice: return *static_cast<const double*>(at);
    case Type::half: return from_half(*static_cast<const uint16_t*>(at));
    case Type::byte: return *static_cast<const unsigned char*>(at);
    case Type::whole: return *static_cast<const int*>(at);
    case Type::long_whole: return static_cast<double>(*static_cast<const int64_t*>(at));
    case Type::none: break;
  }
  return 0;
}

void write(Type type, void* at, double value) {
  switch (type) {
    case Type::single: *static_cast<float*>(at) = static_cast<float>(value); break;
    case Type::twice: *static_cast<double*>(at) = value; break;
    case Type::half: *static_cast<uint16_t*>(at) = to_half(static_cast<float>(value)); break;
    case Type::byte: *static_cast<unsigned char*>(at) = static_cast<unsigned char>(value); break;
    case Type::whole: *static_cast<int*>(at) = static_cast<int>(value); break;
    case Type::long_whole: *static_cast<int64_t*>(at) = static_cast<int64_t>(value); break;
    case Type::none: break;
  }
}

Array::Array(Type type, const void* address, size_t elements)
    : type_(type), size_(size_of(type)), at_(inside(address, elements * size_of(type))) {}

template <>
float* elements<float>(const void* address, size_t count) {
  return reinterpret_cast<float*>(inside(address, count * sizeof(float)));
}

Name::Name(const std::string& text) {
  const size_t open = text.find('<');
  head = text.substr(0, open);
  if (open == std::string::npos) return;
  int depth = 0;
  std::string argument;
  for (size_t i = open; i < text.size(); i++) {
    const char c = text[i];
    const bool opens = c == '<' || c == '(', closes = c == '>' || c == ')';
    if (opens && depth++ == 0) continue;
    if (closes) depth--;
    if (depth == 0 || (depth == 1 && c == ',')) {
      const size_t first = argument.find_first_not_of(' '), last = argument.find_last_not_of(' ');
      if (first != std::string::npos) arguments.push_back(argument.substr(first, last - first + 1));
      argument.clear();
      if (depth == 0) return;
      continue;
    }
    argument += c;
  }
}

std::string last_part(const std::string& name) {
  const size_t colon = name.substr(0, name.find('<')).rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

}  // namespace emulated
