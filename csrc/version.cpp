// The sources from which this library was built, its declarations, and the instruction sets that this processor has.
#include "core.hpp"

#ifndef NGPULM_SOURCES
#define NGPULM_SOURCES "unknown"
#endif

// (The build script looks for the name in the file.)
static const char sources[] = "NGPULM_SOURCES=" NGPULM_SOURCES;
NGPULM_EXPORT const char* ngpulm_sources() { return std::strchr(sources, '=') + 1; }

// The package's structs and the exported functions, one per line; see `declarations` in build.py.
NGPULM_EXPORT const char* ngpulm_declarations() {
  return
#include NGPULM_DECLARATIONS
      ;
}

// For x86-64 processors: 4 with AVX-512, 3 with AVX2, otherwise 1. For other processors: 1.
NGPULM_EXPORT int64_t ngpulm_level() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return has_v4 ? 4 : has_v3 ? 3 : 1;
#else
  return 1;
#endif
}
