#include "settings.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>

namespace emulated {
namespace {

// Rates in single precision are those that MXNet's published speeds of ResNet-50 ask for (docs/emulated-gpu.md), of the A100 a guess with
// TF32. The links are PCIe 3.0, of the A100 4.0.
const std::pair<const char*, Device> presets[] = {
    {"m60", {"Tesla M60", 5, 2, 16, 2.7e12, 2.7e12, 130e9, 11e9, 11e9, 10e9, 6e-6, 8e9}},
    {"v100", {"Tesla V100-SXM2-16GB", 7, 0, 80, 11.5e12, 50e12, 780e9, 11e9, 11e9, 40e9, 4e-6, 16e9}},
    {"a100", {"A100-SXM4-40GB", 8, 0, 108, 40e12, 120e12, 1300e9, 22e9, 22e9, 200e9, 4e-6, 40e9}},
};

const char* given(const char* variable) {
  const char* value = getenv(variable);
  return value && *value ? value : nullptr;
}

double number(const char* variable, double otherwise) {
  const char* value = given(variable);
  if (!value) return otherwise;
  char* end;
  const double parsed = strtod(value, &end);
  if (*end || !std::isfinite(parsed) || parsed <= 0) refuse(variable, value, "a number above 0, such as 11e9");
  return parsed;
}

int choice(const char* variable, std::initializer_list<const char*> allowed) {  // the first is the default
  const char* value = given(variable);
  int index = 0;
  std::string names;
  for (const char* name : allowed) {
    if (!value || !strcmp(value, name)) return index;
    names += (index++ ? ", " : "") + std::string(name);
  }
  refuse(variable, value, names);
}

Device device() {
  const int index = choice("EMULATED_CUDA_DEVICE", {"v100", "m60", "a100"});
  const char* wanted[] = {"v100", "m60", "a100"};
  Device found{};
  for (const auto& preset : presets)
    if (!strcmp(preset.first, wanted[index])) found = preset.second;
  found.flops = number("EMULATED_CUDA_FLOPS", found.flops);
  found.half_flops = number("EMULATED_CUDA_HALF_FLOPS", found.half_flops);
  found.bandwidth = number("EMULATED_CUDA_BANDWIDTH", found.bandwidth);
  found.copy_to = number("EMULATED_CUDA_COPY_TO", found.copy_to);
  found.copy_from = number("EMULATED_CUDA_COPY_FROM", found.copy_from);
  found.peer = number("EMULATED_CUDA_PEER", found.peer);
  found.launch = number("EMULATED_CUDA_LAUNCH", found.launch);
  found.memory = number("EMULATED_CUDA_MEMORY", found.memory);
  return found;
}

int devices() {
  const char* value = given("EMULATED_CUDA_COUNT");
  int count = 2;
  if (value) {
    char* end;
    count = static_cast<int>(strtol(value, &end, 10));
    if (*end || count < 0 || count > 16) refuse("EMULATED_CUDA_COUNT", value, "a whole number from 0 to 16");
  }
  if (const char* visible = getenv("CUDA_VISIBLE_DEVICES")) {
    int listed = *visible ? 1 : 0;
    for (; *visible; visible++) listed += *visible == ',';
    count = listed < count ? listed : count;
  }
  return count;
}

void plant(Settings& into) {
  const char* value = given("EMULATED_CUDA_FAULT");
  if (!value) return;
  const std::pair<const char*, Fault> kinds[] = {{"copy:", Fault::copy}, {"wait:", Fault::wait}, {"swap:", Fault::swap}};
  for (const auto& kind : kinds) {
    if (strncmp(value, kind.first, strlen(kind.first))) continue;
    char* end;
    into.fault_at = strtol(value + strlen(kind.first), &end, 10);
    if (*end || into.fault_at < 1) break;
    into.fault = kind.second;
    return;
  }
  refuse("EMULATED_CUDA_FAULT", value, "copy:N, wait:N or swap:N, with a whole number N from 1");
}

Settings read() {
  Settings found{};
  found.device = device();
  found.count = devices();
  found.arithmetic = choice("EMULATED_CUDA_ARITHMETIC", {"no", "yes"}) == 1;
  found.early = choice("EMULATED_CUDA_WORK", {"late", "early"}) == 1;
  plant(found);
  if (const char* trace = given("EMULATED_CUDA_TRACE")) found.trace = trace;
  return found;
}

}  // namespace

void refuse(const char* variable, const char* value, const std::string& allowed) {
  fprintf(stderr, "%s=%s is not allowed; allowed: %s\n", variable, value, allowed.c_str());
  _exit(2);
}

const Settings& settings() {
  static const Settings found = read();
  return found;
}

}  // namespace emulated
