// Memory of the devices, which the host cannot touch, and pinned memory of the host.
//
// An address on a device is a number from a range that no memory backs: a program that reads or writes it ends with a segmentation fault,
// as on a machine with a GPU. Its bytes lie elsewhere; bytes() finds them. Addresses are never used twice, so that a use after free is
// found.
#pragma once
#include <cstddef>

namespace emulated {

void* allocate(int device, size_t size);  // null: the device's memory is full
bool release(void* address);              // false: no address that allocate() gave
void* pin(size_t size);
bool unpin(void* address);

int device_of(const void* address);  // -1: an address of the host
bool is_pinned(const void* address);
// The bytes of a range on a device; null if the range is not within one allocation. An address of the host comes back as it is.
char* bytes(const void* address, size_t size);
size_t room(const void* address);  // bytes from an address on a device to the end of its allocation; 0: none
double used(int device);           // bytes

}  // namespace emulated
