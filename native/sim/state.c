/* The driver's lock, its sticky fault, its one line on stderr. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "driver.h"

_Thread_local struct sim_context *sim_current;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner; /* the process that called cuInit; 0 before */
static CUresult sticky;
static unsigned sm_count;
static atomic_uint_fast64_t unique = 1;

void sim_lock(void) { pthread_mutex_lock(&lock); }
void sim_unlock(void) { pthread_mutex_unlock(&lock); }

static _Thread_local char line[1024];

const char *sim_last(void) { return line; }

void sim_say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  for (char *at = line; *at; at++)
    if (*at == '\n') *at = ' ';
  fprintf(stderr, "egpu-sim: %s\n", line);
}

CUresult sim_check(void) {
  /* a forked child shares the socket: two writers would tear frames, so it has no driver, as with
   * the real one */
  if (!owner || owner != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  return sticky;
}

CUresult sim_check_context(void) {
  TRY(sim_check());
  if (!sim_current) return CUDA_ERROR_INVALID_CONTEXT;
  return sim_current->tag == TAG_CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void sim_fault(CUresult fault) {
  if (!sticky) sticky = fault;
}

uint64_t sim_thread(void) { return (uint64_t)syscall(SYS_gettid); }

uint64_t sim_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t sim_unique(void) { return atomic_fetch_add(&unique, 1); }

unsigned sim_sm_count(void) { return sm_count; }

API CUresult cuInit(unsigned flags) {
  NEED(flags == 0);
  ENTER();
  if (owner == getpid()) return CUDA_SUCCESS;
  if (owner) return CUDA_ERROR_NOT_INITIALIZED; /* forked after cuInit */
  TRY(memory_open());
  uint64_t base, size;
  int heap = memory_heap(&base, &size);
  TRY(wire_open(heap, base, size, &sm_count));
  owner = getpid();
  return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *version) {
  NEED(version);
  *version = SIM_DRIVER_VERSION;
  return CUDA_SUCCESS;
}

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

API CUresult cuGetErrorName(CUresult error, const char **name) {
  NEED(name);
  *name = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == error) {
      *name = errors[i].name;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
  NEED(text);
  *text = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == error) {
      *text = errors[i].text;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  (void)id;
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (table) *table = NULL;
  /* Only the CUDA runtime asks for the driver's private tables.  It accepts NVIDIA's driver alone,
   * and that check is respected, not answered. */
  if (!atomic_flag_test_and_set(&said))
    sim_say("this program uses the CUDA runtime (cudart), which accepts only NVIDIA's own driver; "
            "the simulated device serves programs that use the driver API");
  return CUDA_ERROR_NOT_SUPPORTED;
}
