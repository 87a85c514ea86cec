/* cuGetProcAddress: the table of entries.h, searched. */
#include <stdbool.h>
#include <string.h>

#include "api.h"
#include "driver.h"

typedef void (*entry_function)(void);

/* A function's address as the void* the interface gives: ISO C has no cast for it. */
struct entry {
  const char *name;
  entry_function plain, per_thread;
  int since;
};

#define ENTRY(name, function, since) {#name, (entry_function)function, (entry_function)function, since},
#define STREAM_ENTRY(name, function, since) {#name, (entry_function)function, (entry_function)function##_ptsz, since},
static const struct entry entries[] = {
#include "entries.h"
};

enum { SYMBOL_FOUND = 0, SYMBOL_NOT_FOUND = 1, SYMBOL_TOO_NEW = 2 };
enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  NEED(name && function && !(flags & ~(uint64_t)(LEGACY_STREAM | PER_THREAD_STREAM)));
  const struct entry *best = NULL;
  bool known = false;
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    const struct entry *entry = &entries[i];
    if (strcmp(entry->name, name)) continue;
    known = true;
    if (entry->since <= version && (!best || entry->since > best->since)) best = entry;
  }
  if (status) *status = best ? SYMBOL_FOUND : known ? SYMBOL_TOO_NEW : SYMBOL_NOT_FOUND;
  *function = NULL;
  if (!best) return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  entry_function answer = flags & PER_THREAD_STREAM ? best->per_thread : best->plain;
  memcpy(function, &answer, sizeof answer);
  return CUDA_SUCCESS;
}

API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  int status;
  CUresult result = cuGetProcAddress_v2(name, function, version, flags, &status);
  if (result) return result;
  return status == SYMBOL_FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
