// Streams: when their work is over by the device's clock, and what of it is still to be done.
//
// The device's clock is the monotonic clock. An operation begins when it was given to the stream, when the stream's earlier ones are over,
// and when the engine that it needs is free, whichever comes last: a device has an engine for kernels and one for copies in each direction.
//
// The bytes are written by the thread that waits for the stream, all in the stream's order, before it sleeps until the stream's time. So a
// program that does not wait sees old bytes, always. A real device may also be done at once: with EMULATED_CUDA_WORK=early the work is done
// as it is given. A correct program gives the same result either way.
#pragma once
#include <deque>
#include <functional>

namespace emulated {

using Work = std::function<void()>;  // may be empty; runs while execution is locked, and must not wait

enum class Engine { kernels, to_device, from_device, none };

struct Stream {
  explicit Stream(int on) : device(on) {}
  const int device;
  double end = 0;            // when its work is over
  std::deque<Work> pending;  // what is still to be done
  long done = 0;             // how much has been taken from ``pending``, ever
  bool copying = false;      // whether a copy to the host was given since the stream was last waited for
};

int current_device();
double now();  // seconds

// ``handle`` is what a caller has: a stream, or null for the default stream of the current device.
Stream* stream_of(void* handle);

// Give an operation of so many seconds to a stream. Any thread; does not wait.
void give(Stream* stream, Engine engine, double seconds, Work work);

// Do what a stream has to do, and sleep until it is over.
void synchronize(Stream* stream);

// The same for all streams of all devices, without sleeping: after this, no work refers to any memory.
void synchronize_all();

}  // namespace emulated
