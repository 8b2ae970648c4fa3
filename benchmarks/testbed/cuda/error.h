// Errors: what the libraries return, and what is said about the last one of a thread.
#pragma once
#include <string>

namespace emulated {

enum Error { success = 0, invalid_value = 1, out_of_memory = 2, invalid_device = 101, invalid_handle = 400, not_emulated = 801 };

// Keeps code and text for cudaGetLastError and cudaGetErrorString of this thread; returns the code.
int failed(Error code, const std::string& text);

// The same for a function or kernel that is not emulated, with a line on stderr; ``code`` is what its library calls "not supported".
int unknown(const std::string& what, int code = not_emulated);

const char* last_text();  // of this thread, or "no error"

}  // namespace emulated
