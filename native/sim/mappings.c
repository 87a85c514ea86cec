/* Memory that programs map themselves: a part of the heap, shown at addresses that they reserved.
 * All devices share what is simulated, so a mapping that one of them may reach all of them reach. */
#include <stdlib.h>
#include <sys/mman.h>

#include "api.h"
#include "driver.h"

enum { GRANULARITY = 65536 };

struct created {
  struct created *next;
  uint64_t handle, address, size;
  int references, mappings;
};

struct mapping {
  struct mapping *next;
  uint64_t base, size;
  struct created *of;
  uint64_t devices; /* that may reach it */
};

struct reservation {
  struct reservation *next;
  uint64_t base, size;
};

static struct created *memory;
static struct mapping *mappings;
static struct reservation *reservations;

static bool aligned(uint64_t value) { return value && value % GRANULARITY == 0; }

static struct created *created_by(uint64_t handle) {
  struct created *one = memory;
  while (one && (one->handle != handle || !one->references)) one = one->next;
  return one;
}

static void settle(struct created *one) {
  if (one->references || one->mappings) return;
  struct created **link = &memory;
  while (*link != one) link = &(*link)->next;
  *link = one->next;
  memory_destroy(one->address);
  free(one);
}

static struct mapping *mapping_at(uint64_t address) {
  struct mapping *one = mappings;
  while (one && (address < one->base || address - one->base >= one->size)) one = one->next;
  return one;
}

/* Whether [base, base + size) is whole mappings, one after the other. */
static bool whole(uint64_t base, uint64_t size) {
  while (size) {
    struct mapping *one = mapping_at(base);
    if (!one || one->base != base || one->size > size) return false;
    base += one->size;
    size -= one->size;
  }
  return true;
}

static CUresult reach(struct mapping *one, uint64_t devices) {
  if (!one->devices == !devices) {
    one->devices = devices;
    return CUDA_SUCCESS;
  }
  TRY(devices ? memory_show(one->base, one->size, one->of->address) : memory_hide(one->base, one->size));
  one->devices = devices;
  return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option) {
  ENTER();
  TRY(sim_check());
  NEED(granularity && properties && (option == 0 || option == 1));
  *granularity = GRANULARITY;
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
  ENTER();
  TRY(sim_check());
  NEED(address && aligned(size) && !flags && !(alignment & (alignment - 1)));
  (void)wanted; /* a hint */
  uint64_t rest = (alignment > GRANULARITY ? alignment : GRANULARITY) - 1;
  NEED(size <= UINT64_MAX - rest);
  struct reservation *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  void *at = mmap(NULL, size + rest, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    free(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint64_t start = (uint64_t)(uintptr_t)at, base = (start + rest) & ~rest, more = start + rest - base;
  if (base > start) munmap(at, base - start);
  if (more) munmap((void *)(uintptr_t)(base + size), more);
  *made = (struct reservation){.next = reservations, .base = base, .size = size};
  reservations = made;
  *address = base;
  return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  ENTER();
  TRY(sim_check());
  for (struct mapping *one = mappings; one; one = one->next) NEED(one->base - address >= size);
  for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
    struct reservation *one = *link;
    if (one->base != address || one->size != size) continue;
    *link = one->next;
    free(one);
    munmap((void *)(uintptr_t)address, size);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags) {
  ENTER();
  TRY(sim_check());
  NEED(handle && aligned(size) && properties && !flags && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED);
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->requestedHandleTypes) return CUDA_ERROR_NOT_SUPPORTED;
  if (!sim_is_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  struct created *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = memory_create(size, GRANULARITY, &made->address);
  if (result) {
    free(made);
    return result;
  }
  made->handle = sim_unique();
  made->size = size;
  made->references = 1;
  made->next = memory;
  memory = made;
  *handle = made->handle;
  return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER();
  TRY(sim_check());
  struct created *one = created_by(handle);
  NEED(one);
  one->references--;
  settle(one);
  return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  ENTER();
  TRY(sim_check());
  struct mapping *one = mapping_at((uint64_t)(uintptr_t)address);
  NEED(handle && one);
  one->of->references++;
  *handle = one->of->handle;
  return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  ENTER();
  TRY(sim_check());
  struct created *of = created_by(handle);
  NEED(of && aligned(address) && aligned(size) && !offset && !flags && size <= of->size);
  struct reservation *inside = reservations;
  while (inside && (address < inside->base || address - inside->base > inside->size - size || size > inside->size))
    inside = inside->next;
  NEED(inside);
  for (struct mapping *one = mappings; one; one = one->next)
    NEED(address + size <= one->base || one->base + one->size <= address);
  struct mapping *made = calloc(1, sizeof *made);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = (struct mapping){.next = mappings, .base = address, .size = size, .of = of};
  mappings = made;
  of->mappings++;
  return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  ENTER();
  TRY(sim_check());
  NEED(size && whole(address, size));
  for (struct mapping **link = &mappings; *link;) {
    struct mapping *one = *link;
    if (one->base - address >= size) {
      link = &one->next;
      continue;
    }
    TRY(reach(one, 0));
    *link = one->next;
    one->of->mappings--;
    settle(one->of);
    free(one);
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptions, size_t count) {
  ENTER();
  TRY(sim_check());
  NEED(size && descriptions && count && whole(address, size));
  for (size_t i = 0; i < count; i++) {
    if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!sim_is_device(descriptions[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
  }
  for (struct mapping *one = mappings; one; one = one->next) {
    if (one->base - address >= size) continue;
    uint64_t devices = one->devices;
    for (size_t i = 0; i < count; i++) {
      uint64_t bit = 1ull << descriptions[i].location.id;
      devices = descriptions[i].flags ? devices | bit : devices & ~bit;
    }
    TRY(reach(one, devices));
  }
  return CUDA_SUCCESS;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
  ENTER();
  TRY(sim_check());
  struct mapping *one = mapping_at(address);
  NEED(flags && location && one && location->type == CU_MEM_LOCATION_TYPE_DEVICE && sim_is_device(location->id));
  *flags = one->devices >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}
