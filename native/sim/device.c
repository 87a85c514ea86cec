/* The devices and their contexts.
 *
 * EGPU_SIM_DEVICES says how many there are, 1 without it.  They are alike, and share what is simulated: one
 * memory, one interpreter.  Programs and the agent see as many devices, each with its contexts. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "driver.h"

static const char device_name[] = "egpu simulated device (sm_90)";
static const char first_uuid[16] = {'e', 'g', 'p', 'u', '-', 's', 'i', 'm', 'u', 'l', 'a', 't', 'e', 'd', 0, 1};

enum { MOST_DEVICES = 8 };
static struct sim_context primaries[MOST_DEVICES];

/* contexts below the current one, of this thread */
enum { STACK_DEPTH = 32 };
static _Thread_local struct sim_context *stack[STACK_DEPTH];
static _Thread_local int depth;

static int device_count(void) {
  const char *wanted = getenv("EGPU_SIM_DEVICES");
  int count = wanted ? atoi(wanted) : 1;
  return count < 1 ? 1 : count > MOST_DEVICES ? MOST_DEVICES : count;
}

bool sim_is_device(CUdevice device) { return device >= 0 && device < device_count(); }

static CUresult check_device(CUdevice device) {
  TRY(sim_check());
  return sim_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static struct sim_context *primary_of(CUdevice device) {
  struct sim_context *found = &primaries[device];
  found->tag = TAG_CONTEXT;
  found->primary = true;
  found->device = device;
  return found;
}

API CUresult cuDeviceGetCount(int *count) {
  ENTER();
  TRY(sim_check());
  NEED(count);
  *count = device_count();
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER();
  TRY(sim_check());
  NEED(device);
  if (!sim_is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(name && size > 0);
  size_t length = strlen(device_name);
  if (length >= (size_t)size) length = (size_t)size - 1;
  memcpy(name, device_name, length);
  name[length] = 0;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(uuid);
  memcpy(uuid->bytes, first_uuid, sizeof first_uuid);
  uuid->bytes[sizeof first_uuid - 1] = (char)(first_uuid[sizeof first_uuid - 1] + device);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(bytes);
  uint64_t base, size;
  (void)memory_heap(&base, &size);
  *bytes = size;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(major && minor);
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  char text[] = "0000:00:00.0";
  text[6] = (char)('0' + device);
  NEED(id && size >= (int)sizeof text);
  memcpy(id, text, sizeof text);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  ENTER();
  TRY(check_device(device));
  TRY(check_device(peer));
  NEED(can);
  *can = 0;
  return CUDA_SUCCESS;
}

/* CUdevice_attribute: value.  Those not listed are 0 (a capability that is absent). */
// clang-format off
static const struct { int attribute, value; } attributes[] = {
    {1, SIM_MAX_THREADS},       /* MAX_THREADS_PER_BLOCK */
    {2, 1024}, {3, 1024}, {4, 64},               /* MAX_BLOCK_DIM_X, Y, Z */
    {5, 2147483647}, {6, 65535}, {7, 65535},     /* MAX_GRID_DIM_X, Y, Z */
    {8, SIM_MAX_SHARED},        /* MAX_SHARED_MEMORY_PER_BLOCK */
    {9, 65536},                 /* TOTAL_CONSTANT_MEMORY */
    {10, 32},                   /* WARP_SIZE */
    {11, 2147483647},           /* MAX_PITCH */
    {12, 65536},                /* MAX_REGISTERS_PER_BLOCK */
    {13, 1000000},              /* CLOCK_RATE in kHz: one simulated cycle is one nanosecond */
    {14, 512},                  /* TEXTURE_ALIGNMENT */
    {18, 1},                    /* INTEGRATED: device memory is host memory */
    {19, 1},                    /* CAN_MAP_HOST_MEMORY */
    {31, 1},                    /* CONCURRENT_KERNELS */
    {36, 1000000},              /* MEMORY_CLOCK_RATE */
    {37, 64},                   /* GLOBAL_MEMORY_BUS_WIDTH */
    {38, 1048576},              /* L2_CACHE_SIZE */
    {39, SIM_THREADS_PER_SM},   /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 1},                    /* ASYNC_ENGINE_COUNT */
    {41, 1},                    /* UNIFIED_ADDRESSING */
    {75, 9}, {76, 0},           /* COMPUTE_CAPABILITY_MAJOR, MINOR */
    {78, 1},                    /* STREAM_PRIORITIES_SUPPORTED */
    {79, 1}, {80, 1},           /* GLOBAL_L1_CACHE_SUPPORTED, LOCAL_L1_CACHE_SUPPORTED */
    {81, SIM_MAX_SHARED_OPTIN}, /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    {82, 65536},                /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    {83, 1},                    /* MANAGED_MEMORY */
    {86, 1},                    /* HOST_NATIVE_ATOMIC_SUPPORTED */
    {91, 1},                    /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    {95, 1},                    /* COOPERATIVE_LAUNCH */
    {97, SIM_MAX_SHARED_OPTIN}, /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {99, 1},                    /* HOST_REGISTER_SUPPORTED */
    {102, 1},                   /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {106, SIM_BLOCKS_PER_SM},   /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    {115, 1},                   /* MEMORY_POOLS_SUPPORTED */
};
// clang-format on

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(value && attribute > 0 && attribute < 256);
  enum { MULTIPROCESSOR_COUNT = 16 };
  *value = attribute == MULTIPROCESSOR_COUNT ? (int)sim_sm_count() : 0;
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].attribute == attribute) *value = attributes[i].value;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(context);
  *context = primary_of(device);
  (*context)->references++;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER();
  TRY(check_device(device));
  struct sim_context *primary = primary_of(device);
  if (!primary->references) return CUDA_ERROR_INVALID_CONTEXT;
  primary->references--;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  ENTER();
  TRY(check_device(device));
  primary_of(device)->references = 0; /* modules and memory are the process's here: they stay until it ends */
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  ENTER();
  TRY(check_device(device));
  NEED(flags && active);
  *flags = primary_of(device)->flags;
  *active = primary_of(device)->references > 0;
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  ENTER();
  TRY(check_device(device));
  NEED(!(flags & ~0xffu));
  primary_of(device)->flags = flags;
  return CUDA_SUCCESS;
}

static CUresult push(struct sim_context *context) {
  if (depth == STACK_DEPTH) return CUDA_ERROR_OUT_OF_MEMORY;
  stack[depth++] = sim_current;
  sim_current = context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(context && !(flags & ~0xffu));
  struct sim_context *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = (struct sim_context){.tag = TAG_CONTEXT, .flags = flags, .references = 1, .device = device};
  CUresult result = push(made);
  if (result) {
    free(made);
    return result;
  }
  *context = made;
  return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
  if (affinity || count) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
  if (parameters) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v2(context, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext context) {
  ENTER();
  TRY(sim_check());
  if (!context || context->tag != TAG_CONTEXT || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  context->tag = 0; /* the struct stays: other threads may have it current and must find out */
  if (sim_current == context) sim_current = depth ? stack[--depth] : NULL;
  return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  ENTER();
  TRY(sim_check());
  if (!context || context->tag != TAG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  return push(context);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  ENTER();
  TRY(sim_check());
  if (!sim_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = sim_current;
  sim_current = depth ? stack[--depth] : NULL;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER();
  TRY(sim_check());
  if (context && context->tag != TAG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  sim_current = context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
  ENTER();
  TRY(sim_check());
  NEED(context);
  *context = sim_current;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER();
  TRY(sim_check_context());
  NEED(device);
  *device = sim_current->device;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetFlags(unsigned *flags) {
  ENTER();
  TRY(sim_check_context());
  NEED(flags);
  *flags = sim_current->flags;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
  ENTER();
  TRY(sim_check());
  NEED(version);
  if (context && context->tag != TAG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  *version = SIM_DRIVER_VERSION;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
  ENTER();
  TRY(sim_check_context());
  NEED(id);
  if (!context) context = sim_current;
  if (context->tag != TAG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  *id = (unsigned long long)(uintptr_t)context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER();
  TRY(sim_check_context());
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void) {
  ENTER();
  TRY(sim_check_context());
  return capture_forbid();
}
