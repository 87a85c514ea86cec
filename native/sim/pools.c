/* Memory pools.  Work runs when it is asked for, so memory that is freed in a stream's order is freed
 * at once, and a pool never keeps any. */
#include <stdlib.h>

#include "api.h"
#include "driver.h"

enum { MOST_DEVICES = 8 };

struct sim_pool {
  struct sim_pool *next;
  CUdevice device;
  uint64_t readers; /* other devices that were given access */
  uint64_t threshold;
};

static struct sim_pool own[MOST_DEVICES]; /* not to be destroyed */
static struct sim_pool *chosen[MOST_DEVICES];
static struct sim_pool *pools; /* created ones */

static struct sim_pool *pool_of(CUdevice device) {
  own[device].device = device;
  return &own[device];
}

static struct sim_pool **created(CUmemoryPool pool) {
  struct sim_pool **link = &pools;
  while (*link && *link != pool) link = &(*link)->next;
  return link;
}

static bool is_pool(CUmemoryPool pool) { return (pool >= own && pool < own + MOST_DEVICES) || (pool && *created(pool)); }

static CUresult check_device(CUdevice device) {
  TRY(sim_check());
  return sim_is_device(device) && device < MOST_DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(pool);
  *pool = pool_of(device);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  ENTER();
  TRY(check_device(device));
  NEED(pool);
  *pool = chosen[device] ? chosen[device] : pool_of(device);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  ENTER();
  TRY(check_device(device));
  NEED(is_pool(pool) && pool->device == device);
  chosen[device] = pool;
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  ENTER();
  TRY(sim_check());
  NEED(pool && properties && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->handleTypes) return CUDA_ERROR_NOT_SUPPORTED;
  TRY(check_device(properties->location.id));
  struct sim_pool *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = properties->location.id;
  made->next = pools;
  pools = made;
  *pool = made;
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  ENTER();
  TRY(sim_check());
  struct sim_pool **link = created(pool);
  NEED(pool && *link);
  *link = pool->next;
  if (chosen[pool->device] == pool) chosen[pool->device] = NULL;
  free(pool); /* what it gave stays until it is freed */
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t kept) {
  ENTER();
  TRY(sim_check());
  (void)kept;
  NEED(is_pool(pool));
  return CUDA_SUCCESS;
}

/* CUmemPool_attribute: 4 release threshold; the others say how memory is used again, which it is not. */
enum { RELEASE_THRESHOLD = 4 };

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
  ENTER();
  TRY(sim_check());
  NEED(is_pool(pool) && value && attribute >= 1 && attribute <= 8);
  if (attribute == RELEASE_THRESHOLD) pool->threshold = *(uint64_t *)value;
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
  ENTER();
  TRY(sim_check());
  NEED(is_pool(pool) && value);
  if (attribute != RELEASE_THRESHOLD) return CUDA_ERROR_NOT_SUPPORTED;
  *(uint64_t *)value = pool->threshold;
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  ENTER();
  TRY(sim_check());
  NEED(is_pool(pool) && (map || !count));
  for (size_t i = 0; i < count; i++) {
    NEED(map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    TRY(check_device(map[i].location.id));
    NEED(map[i].flags || map[i].location.id != pool->device);
    uint64_t bit = 1ull << map[i].location.id;
    pool->readers = map[i].flags ? pool->readers | bit : pool->readers & ~bit;
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
  ENTER();
  TRY(sim_check());
  NEED(flags && is_pool(pool) && location && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
  TRY(check_device(location->id));
  bool given = location->id == pool->device || (pool->readers >> location->id & 1);
  *flags = given ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

static CUresult not_captured(CUstream handle) {
  struct sim_stream *stream;
  bool capturing;
  TRY(stream_capture(handle, &stream, &capturing));
  if (!capturing) return CUDA_SUCCESS;
  sim_say("graphs that allocate or free memory are not simulated");
  return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult allocate(CUdeviceptr *address, size_t size, CUstream stream) {
  uint64_t at;
  NEED(address);
  TRY(not_captured(stream));
  TRY(memory_allocate(size, &at));
  *address = at;
  return CUDA_SUCCESS;
}

API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
  ENTER();
  TRY(sim_check_context());
  return allocate(address, size, stream);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
  ENTER();
  TRY(sim_check_context());
  NEED(is_pool(pool));
  return allocate(address, size, stream);
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  ENTER();
  TRY(sim_check_context());
  TRY(not_captured(stream));
  return memory_free(address);
}
