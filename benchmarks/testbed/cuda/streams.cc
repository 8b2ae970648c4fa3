#include "streams.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "error.h"
#include "settings.h"

namespace emulated {
namespace {

struct Event {
  Stream* stream = nullptr;
  double end = 0;
  long until = 0;  // the work of the stream that the event stands for: all up to this number
};

// ``mutex`` guards all below; ``execution`` is held while work is done, so that one thread at a time writes bytes, in order.
struct All {
  std::mutex mutex;
  std::recursive_mutex execution;
  std::map<std::pair<int, Engine>, double> engines;  // when each is free
  std::set<Stream*> streams;
  std::map<int, Stream*> defaults;
  long waits = 0;
};

All& all() {
  static All* made = new All;  // outlives the threads that use it at exit
  return *made;
}

thread_local int device = 0;

void sleep_until(double moment) {
  // By default the kernel may wake a thread 50 us late; a training sleeps hundreds of times in an iteration.
  static thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1);
  static_cast<void>(exact);
  timespec time{static_cast<time_t>(moment), static_cast<long>((moment - static_cast<time_t>(moment)) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr)) continue;
}

// Do the work of a stream up to a number. The caller holds nothing.
void execute(Stream* stream, long until) {
  std::lock_guard<std::recursive_mutex> execution(all().execution);
  for (;;) {
    Work work;
    {
      std::lock_guard<std::mutex> lock(all().mutex);
      if (stream->pending.empty() || stream->done >= until) return;
      work = std::move(stream->pending.front());
      stream->pending.pop_front();
      stream->done++;
    }
    work();
  }
}

constexpr long everything = 1L << 62;

// A planted fault: from the wait of this number on, a program does not wait for streams that copy to the host.
bool planted_wait(Stream* stream) {
  if (settings().fault != Fault::wait) return false;
  std::lock_guard<std::mutex> lock(all().mutex);
  return std::exchange(stream->copying, false) && ++all().waits >= settings().fault_at;
}

}  // namespace

int current_device() { return device; }

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

Stream* stream_of(void* handle) {
  if (handle) return static_cast<Stream*>(handle);
  std::lock_guard<std::mutex> lock(all().mutex);
  Stream*& found = all().defaults[device];
  if (!found) all().streams.insert(found = new Stream(device));
  return found;
}

void give(Stream* stream, Engine engine, double seconds, Work work) {
  {
    std::lock_guard<std::mutex> lock(all().mutex);
    double begin = std::max(now(), stream->end);
    if (engine != Engine::none) {
      double& free = all().engines[{stream->device, engine}];
      begin = std::max(begin, free);
      free = begin + seconds;
    }
    stream->end = begin + seconds;
    stream->copying |= engine == Engine::from_device;
    if (work)
      stream->pending.push_back(std::move(work));
    else
      return;
  }
  if (settings().early) execute(stream, everything);
}

void synchronize(Stream* stream) {
  double end;
  {
    std::lock_guard<std::mutex> lock(all().mutex);
    end = stream->end;
  }
  execute(stream, everything);
  if (end > now()) sleep_until(end);
}

void synchronize_all() {
  std::set<Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(all().mutex);
    streams = all().streams;
  }
  for (Stream* stream : streams) execute(stream, everything);
}

}  // namespace emulated

using namespace emulated;

extern "C" {

int cudaGetDevice(int* found) {
  *found = device;
  return success;
}

int cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= settings().count) return failed(invalid_device, "cudaSetDevice: no such device");
  device = wanted;
  return success;
}

int cudaStreamCreate(void** handle) {
  auto* made = new Stream(device);
  std::lock_guard<std::mutex> lock(all().mutex);
  all().streams.insert(made);
  *handle = made;
  return success;
}

// Its work is still done, as on a device; the object stays, as events may refer to it.
int cudaStreamDestroy(void*) { return success; }

int cudaStreamSynchronize(void* handle) {
  Stream* stream = stream_of(handle);
  if (!planted_wait(stream)) synchronize(stream);
  return success;
}

int cudaDeviceSynchronize() {
  std::set<Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(all().mutex);
    streams = all().streams;
  }
  for (Stream* stream : streams)
    if (stream->device == device) synchronize(stream);
  return success;
}

int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new Event;
  return success;
}

int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return success;
}

int cudaEventRecord(void* handle, void* on) {
  Stream* stream = stream_of(on);
  std::lock_guard<std::mutex> lock(all().mutex);
  *static_cast<Event*>(handle) = {stream, stream->end, stream->done + static_cast<long>(stream->pending.size())};
  return success;
}

int cudaStreamWaitEvent(void* handle, void* of, unsigned) {
  Stream* stream = stream_of(handle);
  Event event;
  {
    std::lock_guard<std::mutex> lock(all().mutex);
    event = *static_cast<Event*>(of);
    if (!event.stream) return success;  // never recorded
    stream->end = std::max(stream->end, event.end);
  }
  give(stream, Engine::none, 0, [event] { execute(event.stream, event.until); });
  return success;
}
}
